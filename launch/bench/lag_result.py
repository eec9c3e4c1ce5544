"""What `tributary bench lag` shows and writes of its rows: tables and a picture."""

from typing import Any

from rich.console import Console
from rich.table import Table

from launch.bench.lag_cells import CORRECTIONS
from launch.bench.lag_study import LagStudy
from launch.bench.lag_summary import LEAST_SEEDS, Mean, grouped, summarise
from launch.bench.throughput import DRIFT
from launch.output.hardware import hardware_line
from launch.output.json_file import write_json
from launch.output.lines import print_line
from launch.output.provenance import provenance
from launch.output.whole_file import whole_file
from shared.config import RunConfig

# Agent steps that were dropped, from this share on, are told.
_TOLD_SHARE = 0.01
# Gradients of each actor below which the weights of the start are a good part of what was acted with.
_LEAST_GRADIENTS = 4


def write(study: LagStudy, result: dict[str, Any]) -> None:
    """lag.json, lag.md and the picture, into the folder of the study."""
    write_json(study.folder / "lag.json", result)
    with whole_file(study.folder / "lag.md") as file:
        file.write(markdown(study.config, result) + f"\n`{result['command']}` on {hardware_line(result)}.\n")
    if result["best"]:
        _draw(study, result)


def result_of(study: LagStudy) -> dict[str, Any]:
    """The summary of all rows that a study has, with how it came about."""
    return summarise(study.rows()) | provenance()


def show(console: Console, result: dict[str, Any], folder: object) -> None:
    """The tables of the best rates and of the drift, and where the files are."""
    for shown, legend in ((_table(result, "return"), _LEGEND), (_drift_table(result), _DRIFT_LEGEND)):
        head, *lines = shown
        if not lines:
            continue
        table = Table(box=None, pad_edge=False)
        for name in head:
            table.add_column(name, justify="right")
        for line in lines:
            table.add_row(*line)
        console.print(table, highlight=False)
        console.print(legend, style="dim", highlight=False, soft_wrap=True)
    few = _few_gradients(result)
    if few:
        console.print(few, highlight=False, soft_wrap=True)
    print_line(console, f"rows, table, figures and orders of arrival: {folder}")


def markdown(config: RunConfig, result: dict[str, Any]) -> str:
    """The tables for a document, at the end and over the run, with their protocol."""
    seeds = sorted({seed for cell in result["cells"] for seed in cell["return"]["by_seed"]})
    evaluation = config.evaluation
    protocol = (
        f"{config.environment.id}, {config.total_frames:,} frames; the last weights play {evaluation.episodes} "
        f"episodes, {evaluation.policy} actions. Seeds {', '.join(map(str, seeds))}."
    )
    drifts = _drift_table(result)
    legend = " ".join(filter(None, (_LEGEND, protocol, _few_gradients(result))))
    return (
        f"{_as_markdown(_table(result, 'return'))}\n\n{legend}\n\n"
        f"Over the run, the mean of the returns of training at each tenth of it:\n\n"
        f"{_as_markdown(_table(result, 'return_over_the_run'))}\n"
        + (f"\n{_as_markdown(drifts)}\n\n{_DRIFT_LEGEND}\n" if len(drifts) > 1 else "")
    )


def _few_gradients(result: dict[str, Any]) -> str:
    """What is to be said where so many actors hardly came to report. Empty where all did."""
    few = {cell["actors"]: cell["gradients_per_actor"] for cell in result["best"]}
    few = {actors: gradients for actors, gradients in few.items() if gradients < _LEAST_GRADIENTS}
    if not few:
        return ""
    actors, gradients = min(few), few[min(few)]
    return (
        f"Where there are {actors:,} actors or more, each made {gradients:.1f} gradients or fewer, the first of them "
        "with the first weights: runs of more frames tell more of their lag."
    )


_LEGEND = (
    f"Mean return over seeds; from {LEAST_SEEDS} seeds on with its 95 % bootstrap interval. × is the multiple of the "
    "learning rate: of those with the most seeds, the one that ended best. The policy lag is that of none. ↑ or ↓: "
    "better or worse than none, in that the interval of the difference, seed by seed, leaves out 0. Five seeds that "
    "differ in nothing make such an arrow in one cell of six."
)
_DRIFT_LEGEND = (
    "How far the policy was from the one that acted, where rollouts are differentiated again: means over the gradients "
    "of a run, of the ratio r of their probabilities, then over the seeds that tell it. × is the rate of clipped above."
)


def _as_markdown(table: list[list[str]]) -> str:
    head, *lines = table
    rows = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    return "\n".join([rows[0], f"|{'---|' * len(head)}", *rows[1:]])


def _table(result: dict[str, Any], measure: str) -> list[list[str]]:
    best = result["best"]
    corrections = [c for c in CORRECTIONS if any(cell["correction"] == c for cell in best)]
    lines = [["K", "actors", "policy lag", *corrections]]
    for group in grouped(best, ("gradients_per_update", "actors")):
        by_correction = {cell["correction"]: cell for cell in group}
        # That of clipped is a little higher: of its gradients, which are more, a smaller share is of the first weights.
        lag = min(cell["policy_lag_mean"] for cell in group)
        alone = group[0]["actors"] == 1
        texts = [_text(by_correction.get(c), measure, alone=alone) for c in corrections]
        lines.append([str(group[0]["gradients_per_update"]), f"{group[0]['actors']:,}", f"{lag:.3g}", *texts])
    return lines


def _drift_table(result: dict[str, Any]) -> list[list[str]]:
    measures = ["policy lag", "distance of r from 1", "share clipped", "r - 1 - log r, nats"]
    lines = [["K", "actors", "rate", "seeds", *measures]]
    for cell in sorted(result["best"], key=lambda cell: [cell["gradients_per_update"], cell["actors"]]):
        drift = cell["drift"]
        if drift is not None:
            deviation, clipped, divergence = (drift[name] for name in DRIFT)
            point = [cell["gradients_per_update"], f"{cell['actors']:,}", f"×{cell['rate']:g}", drift["seeds"]]
            lag = f"{drift['policy_lag_mean']:.3g}"
            lines.append([*map(str, point), lag, f"{deviation:.3f}", f"{clipped:.1%}", f"{divergence:.4f}"])
    return lines


def _text(cell: dict[str, Any] | None, measure: str, *, alone: bool) -> str:
    if cell is None:
        return "as none" if alone else "-"
    gain = cell.get(f"gain_of_{measure}")
    sign = "" if gain is None else Mean(**gain).sign
    failed = f", {cell['failed']} failed" if cell["failed"] else ""
    failed += f", {cell['dropped_share']:.0%} dropped" if cell["dropped_share"] >= _TOLD_SHARE else ""
    return f"{_mean(cell, measure)} ×{cell['rate']:g}{failed}{sign and f' {sign}'}"


def _mean(cell: dict[str, Any], measure: str) -> Mean:
    return Mean(*(cell[measure][name] for name in Mean._fields))


def _draw(study: LagStudy, result: dict[str, Any]) -> None:
    """Return over the number of actors, a panel for each K, a band for each correction."""
    from launch.output.pictures import COLOURS, figure, save

    panels = grouped(result["best"], ("gradients_per_update",))
    with figure(width=1.5 + 3.0 * len(panels), height=3.4, columns=len(panels)) as (drawn, every):
        for axes, panel in zip(every, panels, strict=True):
            alone = [cell for cell in panel if cell["actors"] == 1 and cell["correction"] == "none"]
            for colour, correction in zip(COLOURS, CORRECTIONS, strict=False):
                cells = [cell for cell in panel if cell["correction"] == correction]
                if not cells:
                    continue
                # One actor has no lag that could be corrected.
                cells = (alone if cells[0]["actors"] > 1 else []) + cells
                actors = [cell["actors"] for cell in cells]
                means = [_mean(cell, "return") for cell in cells]
                axes.plot(actors, [m.mean for m in means], "o-", color=colour, markersize=3, label=correction)
                low, high = (
                    [m.mean if end is None else end for m, end in zip(means, ends, strict=True)]
                    for ends in ([m.low for m in means], [m.high for m in means])
                )
                axes.fill_between(actors, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel("actors")
            axes.set_title(f"K = {panel[0]['gradients_per_update']}")
        every[0].set_ylabel("return of the last weights\nmean and 95 % bootstrap band")
        every[0].legend(fontsize=8)
        paths = [study.folder / f"lag.{kind}" for kind in ("png", "svg")]
        save(drawn, paths, environment=study.config.environment.id, frames=study.config.total_frames)
