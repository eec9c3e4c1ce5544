"""What `tributary bench lag` makes of its rows: means with bootstrap intervals, tables, a picture."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from launch.bench.lag_cells import CORRECTIONS
from launch.bench.lag_study import LagStudy
from launch.bench.throughput import DRIFT
from launch.output.hardware import hardware_line
from launch.output.json_file import write_json
from launch.output.lines import print_line
from launch.output.provenance import provenance
from launch.output.whole_file import whole_file
from launch.results.aggregate import stratified_resamples
from shared.config import RunConfig

_RESAMPLES = 10_000


class Mean(NamedTuple):
    """A mean with the ends of its 95 % percentile bootstrap interval; without them where there is one value only."""

    mean: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> str:
        """↑ or ↓ where the interval is all above, or all below 0."""
        if self.low is None or self.high is None:
            return ""
        return "↑" if self.low > 0 else "↓" if self.high < 0 else ""

    def __str__(self) -> str:
        return f"{self.mean:.0f}" + ("" if self.low is None else f" ({self.low:.0f} to {self.high:.0f})")


def bootstrapped(strata: Sequence[npt.NDArray[np.float64]]) -> Mean:
    """The mean over strata of their means; each stratum, float64 [its seeds], is resampled by itself."""
    mean = float(np.mean([values.mean() for values in strata]))
    if max(len(values) for values in strata) < 2:
        return Mean(mean, None, None)
    drawn = np.mean([stratified_resamples([values], _RESAMPLES, i).mean(axis=1) for i, values in enumerate(strata)], 0)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Mean(mean, float(low), float(high))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each cell over its seeds, the best rate of each, and what each correction makes of the same without it.

    The best rate is that of the highest return at the end, and of those the highest over the run; where a study has not
    ended, of those with the most seeds. A gain is paired: it is the difference of the same seed, each side at its own
    best rate. `by_actors` takes the settings of K together, which are strata of the bootstrap.
    """
    groups = _grouped(rows, ("actors", "gradients_per_update", "correction", "rate"))
    cells = [_cell(group) for group in groups if any(_return(row) is not None for row in group)]
    best = [
        max(group, key=lambda cell: [cell["seeds"], *(cell[measure]["mean"] for measure in _MEASURES)])
        for group in _grouped(cells, ("actors", "gradients_per_update", "correction"))
    ]
    plain = {(cell["actors"], cell["gradients_per_update"]): cell for cell in best if cell["correction"] == "none"}
    gains: dict[tuple[str, int, str], list[npt.NDArray[np.float64]]] = {}
    for cell, measure in itertools.product(best, _MEASURES):
        other = plain.get((cell["actors"], cell["gradients_per_update"]))
        if other is None or other is cell:
            continue
        mine, others = cell[measure]["by_seed"], other[measure]["by_seed"]
        gained = np.array([mine[seed] - others[seed] for seed in mine if seed in others])
        if len(gained):
            cell[f"gain_of_{measure}"] = bootstrapped([gained])._asdict()
            gains.setdefault((cell["correction"], cell["actors"], measure), []).append(gained)
    return {
        "cells": cells,
        "best": best,
        "by_actors": [
            {"correction": correction, "actors": actors, "of": measure, **bootstrapped(strata)._asdict()}
            for (correction, actors, measure), strata in gains.items()
        ],
    }


def _grouped(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Those that agree in what is named, together; in the order of these values."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(CORRECTIONS.index(part) if isinstance(part, str) else part for part in key)

    return [groups[key] for key in sorted(groups, key=order)]


def _cell(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    returned = [row for row in rows if _return(row) is not None]
    # Rows of earlier studies do not tell.
    drifted = [row for row in rows if DRIFT[0] in row]
    return {
        **{name: first[name] for name in ("actors", "gradients_per_update", "correction", "rate", "learning_rate")},
        "seeds": len(returned),
        **{measure: _over_seeds({row["seed"]: of(row) for row in returned}) for measure, of in _MEASURES.items()},
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "drift": {name: float(np.mean([row[name] for row in drifted])) for name in DRIFT} if drifted else None,
        "failed": sum(row["failure"] is not None or _return(row) is None for row in rows),
    }


def _over_seeds(by_seed: dict[int, float | None]) -> dict[str, Any]:
    return {**bootstrapped([np.array(list(by_seed.values()), np.float64)])._asdict(), "by_seed": by_seed}


def _return(row: dict[str, Any]) -> float | None:
    """Of the evaluation at the end; where the weights were not finite, of the last training episodes, if any ended."""
    evaluated: float | None = row["evaluation_mean_return"]
    trained: float | None = row["mean_return_100"]
    return trained if evaluated is None else evaluated


def _over_the_run(row: dict[str, Any]) -> float | None:
    """Mean of the returns of training that were noted on the way: who learns sooner has more of it."""
    noted = [value for value in row["curve"] if value is not None]
    return float(np.mean(noted)) if noted else _return(row)


_MEASURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "return": _return,
    "return_over_the_run": _over_the_run,
}


def write(study: LagStudy, result: dict[str, Any]) -> None:
    """lag.json, lag.md and the picture, into the folder of the study."""
    write_json(study.folder / "lag.json", result)
    with whole_file(study.folder / "lag.md") as file:
        file.write(markdown(study.config, result) + f"\n`{result['command']}` on {hardware_line(result)}.\n")
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
    return (
        f"{_as_markdown(_table(result, 'return'))}\n\n{_LEGEND} {protocol}\n\n"
        f"Over the run, the mean of the returns of training at each tenth of it:\n\n"
        f"{_as_markdown(_table(result, 'return_over_the_run'))}\n"
        + (f"\n{_as_markdown(drifts)}\n\n{_DRIFT_LEGEND}\n" if len(drifts) > 1 else "")
    )


_LEGEND = (
    "Mean return over seeds with its 95 % bootstrap interval, which one seed has not. ×: its rate, the one with the "
    "most seeds, of these the best at the end. ↑ or ↓: the interval of the difference from none, seed by seed, is all "
    "above, or all below 0."
)
_DRIFT_LEGEND = (
    "How far the policy was from the one that acted, where rollouts are differentiated again: means over the gradients "
    "of a run, of the ratio r of their probabilities."
)


def _as_markdown(table: list[list[str]]) -> str:
    head, *lines = table
    rows = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    return "\n".join([rows[0], f"|{'---|' * len(head)}", *rows[1:]])


def _table(result: dict[str, Any], measure: str) -> list[list[str]]:
    best = result["best"]
    corrections = [c for c in CORRECTIONS if any(cell["correction"] == c for cell in best)]
    lines = [["K", "actors", "policy lag", *corrections]]
    for group in _grouped(best, ("gradients_per_update", "actors")):
        by_correction = {cell["correction"]: cell for cell in group}
        # That of clipped is a little higher: of its gradients, which are more, a smaller share is of the first weights.
        lag = min(cell["policy_lag_mean"] for cell in group)
        alone = group[0]["actors"] == 1
        texts = [_text(by_correction.get(c), measure, alone=alone) for c in corrections]
        lines.append([str(group[0]["gradients_per_update"]), f"{group[0]['actors']:,}", f"{lag:.3g}", *texts])
    return lines


def _drift_table(result: dict[str, Any]) -> list[list[str]]:
    lines = [["K", "actors", "policy lag", "distance of r from 1", "clipped", "r - 1 - log r, nats"]]
    for cell in sorted(result["best"], key=lambda cell: [cell["gradients_per_update"], cell["actors"]]):
        if cell["drift"] is not None:
            deviation, clipped, divergence = (cell["drift"][name] for name in DRIFT)
            point = [str(cell["gradients_per_update"]), f"{cell['actors']:,}", f"{cell['policy_lag_mean']:.3g}"]
            lines.append([*point, f"{deviation:.3f}", f"{clipped:.1%}", f"{divergence:.4f}"])
    return lines


def _text(cell: dict[str, Any] | None, measure: str, *, alone: bool) -> str:
    if cell is None:
        return "as none" if alone else "-"
    gain = cell.get(f"gain_of_{measure}")
    sign = "" if gain is None else Mean(**gain).sign
    failed = f", {cell['failed']} failed" if cell["failed"] else ""
    return f"{_mean(cell, measure)} ×{cell['rate']:g}{failed}{sign and f' {sign}'}"


def _mean(cell: dict[str, Any], measure: str) -> Mean:
    return Mean(*(cell[measure][name] for name in Mean._fields))


def _draw(study: LagStudy, result: dict[str, Any]) -> None:
    """Return over the number of actors, a panel for each K, a band for each correction."""
    from launch.output.pictures import COLOURS, figure, save

    panels = _grouped(result["best"], ("gradients_per_update",))
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
