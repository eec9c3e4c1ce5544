"""`tributary report RUN…`: one self-contained HTML page about runs, with their results, costs and settings."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from launch.output import (
    EXIT_DONE,
    check_json_file,
    check_output,
    duration,
    hardware_line,
    number,
    print_line,
    provenance,
    whole_file,
    write_json,
)
from launch.results.curves import bands, evaluation_points, read_curve, read_rows
from launch.results.evaluate import protocol_line, published_scores
from launch.results.plot import COLOURS, as_svg, curves_figure, default_output, figure, find_runs
from launch.run.folder import RunFolder, read_manifest, read_object, read_summary
from launch.run.metrics import lag_summary
from launch.run.status import RunPath
from shared.config import RunConfig, flat_settings
from shared.types import StageSeconds

# Larger videos would make the page slow to open.
_MOST_VIDEO_BYTES = 12 * 2**20

# Shares from which a line reports them.
_NOTABLE_WAIT = 0.10
_BUSY_LEARNER = 0.70
_NOTABLE_DROPS = 0.01

# What an actor does in each stage, and how to make it faster.
_STAGES = {
    "environment": (
        "stepping the environments",
        "cheaper environments or more cores for actors would make it faster",
    ),
    "acting": ("choosing actions", "more environments per actor (--actor.environments) make each action cheaper"),
    "gradient": (
        "computing gradients",
        "a smaller network, fewer --actor.epochs or more cores for actors would make it faster",
    ),
    "synchronise": ("taking new weights", "longer rollouts (--actor.unroll-length) need new weights less often"),
}


@dataclass(frozen=True)
class ReportArguments:
    """Write one self-contained HTML page about one or more runs."""

    runs: Annotated[tuple[RunPath, ...], tyro.conf.Positional]
    """Run folders, folders of run folders, latest, or zoo:NAME."""
    output: Path | None = None
    """File to write. Default: report.html in the run folder, or for several runs in their common parent folder, else in
    the working directory."""
    json: Path | None = None
    """File to write the page's numbers to."""


def report(arguments: ReportArguments) -> int:
    """Run `tributary report`. Returns the exit code."""
    check_json_file(arguments.json)
    check_output(arguments.output, (".html",))
    runs = [RunReport(path) for path in find_runs(arguments.runs)]
    output = arguments.output or default_output([run.folder.path for run in runs], "report.html")
    page = _page(runs)
    with whole_file(output) as file:
        file.write(page)
    print_line(Console(), f"report: {output}")
    if arguments.json is not None:
        write_json(arguments.json, {"runs": [run.figures() for run in runs], **provenance()})
    return EXIT_DONE


class RunReport:
    """The content of a run folder."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.config: RunConfig = self.folder.read_settings("run")
        self.rows = read_rows(self.folder)
        self.spent = time_spent(self.rows)
        self.manifest = read_manifest(self.folder)
        # For an agent of the zoo, evaluations by the user take precedence over the shipped ones.
        places = (self.folder.path, self.folder.outputs)
        evaluations = {file.name: file for place in places for file in place.glob("evaluation-*.json")}
        self.evaluations = [read_object(evaluations[name]) for name in sorted(evaluations)]
        self.lags: Counter[int] = Counter()
        for row in self.rows:
            self.lags.update({int(lag): count for lag, count in row.get("policy_lag_counts", {}).items()})

    def figures(self) -> dict[str, Any]:
        last = self.rows[-1]
        mean, p95, most = lag_summary(self.lags)
        return {
            "run": self.folder.name,
            "environment": self.config.environment.id,
            "seed": self.config.seed,
            "status": read_summary(self.folder).get("status", "running, or ended without a summary"),
            "mean_return_100": last["mean_return_100"],
            "frames": last["frames"],
            "agent_steps": last["agent_steps"],
            "wall_seconds": last["elapsed_seconds"],
            "agent_steps_per_second": last["agent_steps"] / max(last["elapsed_seconds"], 1e-9),
            "policy_lag": {"mean": mean, "p95": p95, "max": most},
            "agent_steps_in_flight": last.get("agent_steps_in_flight"),
            "stage_microseconds": self.spent.microseconds,
            "stage_shares": self.spent.shares,
            "learner_busy": self.spent.learner_busy,
            "held_back": held_back(self.spent, self.rows, self.config),
            "agent_steps_dropped": last["agent_steps_dropped"],
            "actor_restarts": last["actor_restarts"],
            "evaluations": [
                {name: value for name, value in e.items() if name not in ("returns", "lengths_agent_steps")}
                for e in self.evaluations
            ],
            "training_evaluations": evaluation_points(self.rows),
        }


def _page(runs: Sequence[RunReport]) -> str:
    title = escape(f"{', '.join(dict.fromkeys(run.config.environment.id for run in runs))} by Tributary")
    curves = ""
    for x in ("frames", "seconds"):
        groups = bands([read_curve(run.folder.path, x, "mean_return_100") for run in runs])
        with curves_figure(groups, x, "mean_return_100", size=(5.6, 3.6)) as drawn:
            curves += f"<div>{as_svg(drawn)}</div>"
    known = dict.fromkeys(hardware_line(run.manifest) for run in runs if "hardware" in run.manifest)
    made = provenance()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{title}</title>
<style>{Path(__file__).with_name("report.css").read_text(encoding="utf-8")}</style></head>
<body><h1>{title}</h1>
<p class=soft>Asynchronous n-step reinforcement learning. {len(runs)} run{"s" * (len(runs) > 1)}; trained on
{escape("; ".join(known) or "unknown hardware")}. Page made {escape(made["created"])}.</p>
<h2>Learning curves</h2>
<div class=plots>{curves}</div>
{"".join(_run_section(run) for run in runs)}
<p class=soft>Written by <code>{escape(made["command"])}</code>, revision {made["revision"]}.</p></body></html>
"""


def _run_section(run: RunReport) -> str:
    figures = run.figures()
    lag = figures["policy_lag"]
    cards = {
        "return, mean of the last 100 training episodes": number(figures["mean_return_100"], ".2f"),
        "frames": f"{figures['frames']:,}",
        "agent steps": f"{figures['agent_steps']:,}",
        "trained, h:mm:ss": duration(figures["wall_seconds"]),
        "agent steps per second": f"{figures['agent_steps_per_second']:,.0f}",
        "policy lag in updates: mean, 95 %, most": f"{lag['mean']:.2f} / {lag['p95']} / {lag['max']}",
        "agent steps in flight": number(figures["agent_steps_in_flight"], ",d"),
    }
    shown = "".join(
        f"<div class=figure><b>{escape(value)}</b><span>{name}</span></div>" for name, value in cards.items()
    )
    lines = (
        run.folder.log.read_text(encoding="utf-8", errors="replace").splitlines() if run.folder.log.is_file() else []
    )
    lines = [line for line in lines if "evaluation of update" not in line]
    dropped = ", ".join(f"{count:,} for {reason}" for reason, count in figures["agent_steps_dropped"].items())
    settings = _table(("setting", "value"), ((name, str(value)) for name, value in flat_settings(run.config).items()))
    versions = ", ".join(f"{name} {version}" for name, version in run.manifest.get("versions", {}).items() if version)
    command = run.manifest.get("command")
    return f"""<h2>{escape(run.config.environment.id)}, seed {run.config.seed}</h2>
<p class=soft><code>{escape(run.folder.path.name)}</code> · {escape(figures["status"].replace("_", " "))}</p>
<div class=figures>{"".join(shown)}</div>
{_training_evaluations(figures["training_evaluations"])}
{_evaluation_section(run)}
{_video_section(run)}
<h3>Where the time went, and how old the weights were</h3>
{_list(figures["held_back"])}
<div class=plots><div>{stages_svg(run.spent)}</div><div>{lags_svg(run.lags)}</div></div>
<h3>Faults met</h3>
<p>{figures["actor_restarts"]} actors replaced; agent steps dropped: {escape(dropped or "none")}.</p>
{_details(f"{len(lines)} lines of the log", f"<pre>{escape(chr(10).join(lines))}</pre>") if lines else ""}
<h3>How it was made</h3>
{f"<p><code>{escape(command)}</code></p>" if command else ""}
<p class=soft>{escape(versions)}; {escape(run.manifest.get("threads", ""))}.</p>
{_details("All settings", settings)}
{_details("Manifest", f"<pre>{escape(json.dumps(run.manifest, indent=2))}</pre>")}
"""


def _training_evaluations(points: Sequence[dict[str, Any]]) -> str:
    if not points:
        return ""
    best, last = max(points, key=lambda point: point["mean_return"]), points[-1]
    rows = []
    for which, point in [("best", best), ("last", last)] if best != last else [("last, and best", last)]:
        mean = f"{point['mean_return']:.2f}{_error(point)}"
        median, collapsed = number(point.get("median_return"), ".2f"), str(point.get("collapsed_episodes", "-"))
        rows.append((which, f"{point['frames']:,}", duration(point["elapsed_seconds"]), mean, median, collapsed))
    head = ("evaluation", "frames", "h:mm:ss", "mean ± standard error", "median", "collapsed episodes")
    return f"<h3>{len(points)} evaluations during training</h3>{_table(head, rows)}"


def _evaluation_section(run: RunReport) -> str:
    if not run.evaluations:
        return "<p class=soft>Not evaluated yet: <code>tributary evaluate RUN</code>.</p>"
    rows = [
        (
            e["protocol"]["name"],
            e["policy"],
            f"{e['episodes']} / {e.get('distinct_games', '-')}",
            f"{e['mean_return']:.2f}{_error(e)}",
            "" if e["interval_95"] is None else "{:.2f} to {:.2f}".format(*e["interval_95"]),
            f"{e['median_return']:.2f}",
            "-" if e["human_normalised_percent"] is None else f"{e['human_normalised_percent']:.0f} %",
        )
        for e in run.evaluations
    ]
    games, normalised = "episodes / distinct games", "human-normalised"
    head = ("protocol", "actions", games, "mean ± standard error", "95 % interval", "median", normalised)
    published = published_scores(run.config.environment.id).values()
    others = _list([f"{score['score']:g}: {score['protocol']}" for score in published])
    return (
        f"<h3>Evaluation afterwards: whole episodes, unclipped</h3>{_table(head, rows)}"
        f"{_list([protocol_line(e['protocol']) for e in run.evaluations])}"
        f"{f'<p class=soft>Published scores, by other protocols:</p>{others}' if published else ''}"
    )


def _video_section(run: RunReport) -> str:
    videos = [file for file in run.folder.videos.glob("update-*.mp4") if file.stat().st_size <= _MOST_VIDEO_BYTES]
    if not videos:
        return ""
    newest = max(videos, key=lambda file: file.stat().st_mtime)
    data = base64.b64encode(newest.read_bytes()).decode()
    return (
        f'<h3>An episode</h3><video controls muted playsinline preload="metadata" src="data:video/mp4;base64,{data}">'
        f"</video><p class=soft>{escape(newest.name)}</p>"
    )


def _error(result: dict[str, Any]) -> str:
    return "" if result["standard_error"] is None else f" ± {result['standard_error']:.2f}"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>{content}</details>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"


class TimeSpent(NamedTuple):
    """Means over a run.

    `microseconds` are those of an actor per agent step, by stage, weighted by the agent steps of each row.
    `learner_busy` is the fraction of time in which the learner processed gradients; None in rows without it.
    `dropped` is the fraction of agent steps in dropped gradients.
    """

    microseconds: dict[str, float]
    learner_busy: float | None
    dropped: float

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of an actor's time in each stage. The sum is 1, or 0 without measurements."""
        total = sum(self.microseconds.values()) or 1.0
        return {stage: value / total for stage, value in self.microseconds.items()}


def time_spent(rows: Sequence[dict[str, Any]]) -> TimeSpent:
    """Time per stage from at least one row of metrics; see `read_rows`."""
    seconds = np.diff([row["elapsed_seconds"] for row in rows], prepend=0.0)
    agent_steps = seconds * [row["agent_steps_per_second"] for row in rows]
    microseconds = {}
    for stage in StageSeconds._fields:
        of_stage = [row["stage_microseconds"].get(stage, 0.0) for row in rows]
        microseconds[stage] = float(agent_steps @ of_stage / (agent_steps.sum() or 1.0))
    busy = measured = 0.0
    for row, interval in zip(rows, seconds.tolist(), strict=True):
        gradients = row.get("gradients_per_second")
        if gradients is None and "updates_per_second" in row:
            # Rows of an older version.
            gradients = row["updates_per_second"] * row.get("gradients_per_update", 1)
        if "learner_milliseconds" in row and gradients is not None and interval > 0:
            busy += 1e-3 * row["learner_milliseconds"] * gradients * interval
            measured += interval
    dropped = sum(rows[-1]["agent_steps_dropped"].values()) / max(rows[-1]["agent_steps"], 1)
    return TimeSpent(microseconds, min(1.0, busy / measured) if measured else None, dropped)


def held_back(spent: TimeSpent, rows: Sequence[dict[str, Any]], config: RunConfig) -> list[str]:
    """The bottlenecks of a run, in sentences; none without measurements."""
    wait = spent.shares["wait"]
    stage, work = max(((s, share) for s, share in spent.shares.items() if s != "wait"), key=lambda pair: pair[1])
    lines = []
    if work:
        verb, advice = _STAGES[stage]
        lines.append(f"Actors spent {work:.0%} of their time {verb}, more than on any other work: {advice}.")
    if spent.learner_busy is not None and (work or wait):
        lines.insert(0 if wait > work else len(lines), _learner_line(spent.learner_busy, wait, config))
    if spent.dropped >= _NOTABLE_DROPS:
        reasons = ", ".join(rows[-1]["agent_steps_dropped"])
        lines.append(f"{spent.dropped:.1%} of the agent steps were dropped for {reasons}.")
    restarts = rows[-1]["actor_restarts"]
    if restarts:
        lines.append(f"{restarts} actor{' was' if restarts == 1 else 's were'} replaced; rollouts under way were lost.")
    return lines


def _learner_line(busy: float, wait: float, config: RunConfig) -> str:
    if config.executor == "inline":
        return f"The learner took {busy:.0%} of the time, and actors the rest: --executor inline has one thread."
    waited = f"Actors waited for the learner {wait:.0%} of their time; it was busy {busy:.0%} of its own"
    if busy >= _BUSY_LEARNER:
        return f"{waited}: the learner is the bottleneck, and further actors would wait, too."
    if wait < _NOTABLE_WAIT:
        return f"{waited}: it is no bottleneck."
    hides = "" if config.actor.calls_in_flight > 1 else " --actor.calls-in-flight 2 hides such waits."
    return f"{waited}: the communication is the bottleneck.{hides}"


def stages_svg(spent: TimeSpent) -> str:
    """A bar chart of an actor's microseconds per agent step in each stage."""
    stages, shares = spent.microseconds, spent.shares
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        names = list(stages)[::-1]
        colours = [COLOURS[i] for i in range(len(names))][::-1]
        bars = axes.barh(names, [stages[name] for name in names], color=colours)
        axes.bar_label(bars, [f"{stages[name]:,.0f} µs, {shares[name]:.0%}" for name in names], padding=3, fontsize=8.5)
        axes.set_xlim(0, 1.3 * (max(stages.values()) or 1.0))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("µs per agent step of an actor")
        return as_svg(drawn)


def lags_svg(counts: Counter[int]) -> str:
    """A histogram of the policy lag of gradients."""
    from matplotlib.ticker import MaxNLocator

    total = max(counts.total(), 1)
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        axes.bar(list(counts), [100 * count / total for count in counts.values()], color=COLOURS[0])
        axes.set_xlabel("policy lag of a gradient, updates")
        axes.set_ylabel("% of gradients")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return as_svg(drawn)
