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

# Shares that are worth a line.
_NOTABLE_WAIT = 0.10
_BUSY_LEARNER = 0.70
_NOTABLE_DROPS = 0.01

_STAGES = {
    "environment": "stepping the environments",
    "acting": "choosing actions",
    "gradient": "computing gradients",
    "synchronise": "taking new weights",
    "wait": "waiting for the learner",
}
_ADVICE = {
    "environment": "cheaper environments or more cores for actors would make it faster",
    "acting": "more environments per actor (--actor.environments) make each action cheaper",
    "gradient": "a smaller network, fewer --actor.epochs or more cores for actors would make it faster",
    "synchronise": "longer rollouts (--actor.unroll-length) need new weights less often",
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
    """Run `tributary report`. Returns the exit code.

    Raises:
        ConfigurationError: a folder is not a run folder, or has no metrics.
    """
    check_json_file(arguments.json)
    check_output(arguments.output, (".html",))
    runs = [_Run(path) for path in find_runs(arguments.runs)]
    output = arguments.output or default_output([run.folder.path for run in runs], "report.html")
    page = _page(runs)
    with whole_file(output) as file:
        file.write(page)
    print_line(Console(), f"report: {output}")
    if arguments.json is not None:
        write_json(arguments.json, {"runs": [run.figures() for run in runs], **provenance()})
    return EXIT_DONE


class _Run:
    """The content of a run folder."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.config: RunConfig = self.folder.read_settings("run")
        self.rows = read_rows(self.folder)
        self.spent = time_spent(self.rows)
        self.manifest = read_manifest(self.folder)
        self.summary = read_summary(self.folder)
        # For an agent of the zoo, evaluations by the user take precedence over the shipped ones.
        places = (self.folder.path, self.folder.outputs)
        evaluations = {file.name: file for place in places for file in place.glob("evaluation-*.json")}
        self.evaluations = [read_object(evaluations[name]) for name in sorted(evaluations)]
        log = self.folder.log
        self.log = log.read_text().splitlines() if log.is_file() else []

    @property
    def name(self) -> str:
        return f"{self.config.environment.id}, seed {self.config.seed}"

    def lags(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for row in self.rows:
            counts.update({int(lag): count for lag, count in row.get("policy_lag_counts", {}).items()})
        return counts

    def video(self) -> Path | None:
        """The newest video that is small enough for a page."""
        found = [f for f in self.folder.videos.glob("update-*.mp4") if f.stat().st_size <= _MOST_VIDEO_BYTES]
        return max(found, key=lambda f: f.stat().st_mtime, default=None)

    def figures(self) -> dict[str, Any]:
        last = self.rows[-1]
        mean, p95, most = lag_summary(self.lags())
        return {
            "run": self.folder.name,
            "environment": self.config.environment.id,
            "seed": self.config.seed,
            "status": self.summary.get("status", "running, or ended without a summary"),
            "mean_return_100": last["mean_return_100"],
            "frames": last["frames"],
            "agent_steps": last["agent_steps"],
            "wall_seconds": last["elapsed_seconds"],
            "agent_steps_per_second": last["agent_steps"] / max(last["elapsed_seconds"], 1e-9),
            "policy_lag": {"mean": mean, "p95": p95, "max": most},
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


def _page(runs: Sequence[_Run]) -> str:
    title = f"{', '.join(dict.fromkeys(run.config.environment.id for run in runs))} by Tributary"
    curves = []
    for x in ("frames", "seconds"):
        groups = bands([read_curve(r.folder.path, x, "mean_return_100") for r in runs])
        with curves_figure(groups, x, "mean_return_100", size=(5.6, 3.6)) as drawn:
            curves.append(as_svg(drawn))
    css = Path(__file__).with_name("report.css").read_text()
    made = provenance()
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=soft>Asynchronous n-step reinforcement learning. {len(runs)} run{'s' * (len(runs) > 1)}; trained on "
        f"{escape(_hardware(runs))}. Page made {escape(made['created'])}.</p>",
        "<h2>Learning curves</h2>",
        f"<div class=plots>{''.join(f'<div>{curve}</div>' for curve in curves)}</div>",
    ]
    for run in runs:
        body += _run_section(run)
    body.append(f"<p class=soft>Written by <code>{escape(made['command'])}</code>, revision {made['revision']}.</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{css}</style></head>\n<body>{chr(10).join(body)}</body></html>\n"
    )


def _run_section(run: _Run) -> list[str]:
    figures = run.figures()
    lag, status = figures["policy_lag"], figures["status"].replace("_", " ")
    cards = [
        (number(figures["mean_return_100"], ".2f"), "return, mean of the last 100 training episodes"),
        (f"{figures['frames']:,}", "frames"),
        (f"{figures['agent_steps']:,}", "agent steps"),
        (duration(figures["wall_seconds"]), "trained, h:mm:ss"),
        (f"{figures['agent_steps_per_second']:,.0f}", "agent steps per second"),
        (f"{lag['mean']:.2f} / {lag['p95']} / {lag['max']}", "policy lag in updates: mean, 95 %, most"),
    ]
    parts = [
        f"<h2>{escape(run.name)}</h2>",
        f"<p class=soft><code>{escape(run.folder.path.name)}</code> · {escape(status)}</p>",
        "<div class=figures>"
        + "".join(f"<div class=figure><b>{escape(value)}</b><span>{label}</span></div>" for value, label in cards)
        + "</div>",
        *_training_evaluations(figures["training_evaluations"]),
        *_evaluation_section(run),
        *_video_section(run),
        "<h3>Where the time went, and how old the weights were</h3>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in figures["held_back"]) + "</ul>",
        f"<div class=plots><div>{stages_svg(run.spent)}</div><div>{lags_svg(run.lags())}</div></div>",
        *_fault_section(run, figures),
        *_how_section(run),
    ]
    return parts


def _training_evaluations(points: Sequence[dict[str, Any]]) -> list[str]:
    if not points:
        return []
    best, last = max(points, key=lambda point: point["mean_return"]), points[-1]
    shown = [("best", best), ("last", last)] if best != last else [("last, and best", last)]
    rows = []
    for which, point in shown:
        error, median = point["standard_error"], point.get("median_return")
        mean = f"{point['mean_return']:.2f}" + ("" if error is None else f" ± {error:.2f}")
        when = f"{point['frames']:,}", duration(point["elapsed_seconds"])
        rows.append((which, *when, mean, number(median, ".2f"), str(point.get("collapsed_episodes", "-"))))
    head = ("evaluation", "frames", "h:mm:ss", "mean ± standard error", "median", "collapsed episodes")
    return [f"<h3>{len(points)} evaluations during training</h3>", _table(head, rows)]


def _evaluation_section(run: _Run) -> list[str]:
    if not run.evaluations:
        return ["<p class=soft>Not evaluated yet: <code>tributary evaluate RUN</code>.</p>"]
    rows = []
    for e in run.evaluations:
        error = "" if e["standard_error"] is None else f" ± {e['standard_error']:.2f}"
        interval = "" if e["interval_95"] is None else "{:.2f} to {:.2f}".format(*e["interval_95"])
        normalised = e["human_normalised_percent"]
        cells = (
            e["protocol"]["name"],
            e["policy"],
            f"{e['episodes']} / {e.get('distinct_games', '-')}",
            f"{e['mean_return']:.2f}{error}",
            interval,
            f"{e['median_return']:.2f}",
            "-" if normalised is None else f"{normalised:.0f} %",
        )
        rows.append(cells)
    head = (
        "protocol",
        "actions",
        "episodes / distinct games",
        "mean ± standard error",
        "95 % interval",
        "median",
        "human-normalised",
    )
    protocols = "".join(f"<li>{escape(protocol_line(e['protocol']))}</li>" for e in run.evaluations)
    published = published_scores(run.config.environment.id)
    others = "".join(f"<li>{p['score']:g}: {escape(p['protocol'])}</li>" for p in published.values())
    literature = (
        f"<p class=soft>Published scores, by other protocols:</p><ul class=soft>{others}</ul>" if others else ""
    )
    return [
        "<h3>Evaluation afterwards: whole episodes, unclipped</h3>",
        _table(head, rows),
        f"<ul class=soft>{protocols}</ul>{literature}",
    ]


def _video_section(run: _Run) -> list[str]:
    video = run.video()
    if video is None:
        return []
    data = base64.b64encode(video.read_bytes()).decode()
    return [
        "<h3>An episode</h3>",
        f'<video controls muted playsinline preload="metadata" src="data:video/mp4;base64,{data}"></video>',
        f"<p class=soft>{escape(video.name)}</p>",
    ]


def _fault_section(run: _Run, figures: dict[str, Any]) -> list[str]:
    dropped = ", ".join(f"{count:,} for {reason}" for reason, count in figures["agent_steps_dropped"].items())
    lines = [line for line in run.log if "evaluation of update" not in line]
    text = f"<p>{figures['actor_restarts']} actors replaced; agent steps dropped: {escape(dropped or 'none')}.</p>"
    log = f"<details><summary>{len(lines)} lines of the log</summary><pre>{escape(chr(10).join(lines))}</pre></details>"
    return ["<h3>Faults met</h3>", text, log if lines else ""]


def _how_section(run: _Run) -> list[str]:
    settings = _table(("setting", "value"), ((name, str(value)) for name, value in flat_settings(run.config).items()))
    versions = ", ".join(f"{name} {version}" for name, version in run.manifest.get("versions", {}).items() if version)
    command = run.manifest.get("command")
    return [
        "<h3>How it was made</h3>",
        f"<p><code>{escape(command)}</code></p>" if command else "",
        f"<p class=soft>{escape(versions)}; {escape(run.manifest.get('threads', ''))}.</p>",
        f"<details><summary>All settings</summary>{settings}</details>",
        f"<details><summary>Manifest</summary><pre>{escape(json.dumps(run.manifest, indent=2))}</pre></details>",
    ]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"


def _hardware(runs: Sequence[_Run]) -> str:
    known = dict.fromkeys(hardware_line(run.manifest) for run in runs if "hardware" in run.manifest)
    return "; ".join(known) or "unknown hardware"


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
    weights = [row["agent_steps_per_second"] * interval for row, interval in zip(rows, seconds, strict=True)]
    total = sum(weights) or 1.0
    microseconds = {
        stage: sum(
            row["stage_microseconds"].get(stage, 0.0) * weight for row, weight in zip(rows, weights, strict=True)
        )
        / total
        for stage in StageSeconds._fields
    }
    last = rows[-1]
    dropped = sum(last["agent_steps_dropped"].values()) / max(last["agent_steps"], 1)
    return TimeSpent(microseconds, _learner_busy(rows), dropped)


def _learner_busy(rows: Sequence[dict[str, Any]]) -> float | None:
    busy = seconds = before = 0.0
    for row in rows:
        interval, before = row["elapsed_seconds"] - before, row["elapsed_seconds"]
        gradients = row.get("gradients_per_second")
        if gradients is None and "updates_per_second" in row:
            # Of an older version. Agents of the zoo keep few rows, so that only rates cover the time between two.
            gradients = row["updates_per_second"] * row.get("gradients_per_update", 1)
        if "learner_milliseconds" in row and gradients is not None and interval > 0:
            busy += 1e-3 * row["learner_milliseconds"] * gradients * interval
            seconds += interval
    return min(1.0, busy / seconds) if seconds else None


def held_back(spent: TimeSpent, rows: Sequence[dict[str, Any]], config: RunConfig) -> list[str]:
    """The bottlenecks of a run, in sentences; none without measurements."""
    shares = spent.shares
    wait, work = shares["wait"], {stage: share for stage, share in shares.items() if stage != "wait"}
    largest = max(work, key=work.__getitem__)
    lines = []
    if work[largest]:
        lines.append(
            f"Actors spent {_percent(work[largest])} of their time {_STAGES[largest]}, more than on any other work: "
            f"{_ADVICE[largest]}."
        )
    if spent.learner_busy is not None and any(shares.values()):
        waited = _learner_line(spent.learner_busy, wait, config)
        lines.insert(0 if wait > work[largest] else len(lines), waited)
    if spent.dropped >= _NOTABLE_DROPS:
        reasons = ", ".join(rows[-1]["agent_steps_dropped"])
        lines.append(f"{100 * spent.dropped:.1f} % of the agent steps taught nothing: dropped for {reasons}.")
    restarts = rows[-1]["actor_restarts"]
    if restarts:
        lines.append(f"{restarts} actor{' was' if restarts == 1 else 's were'} replaced, and lost what they played.")
    return lines


def _learner_line(busy: float, wait: float, config: RunConfig) -> str:
    if config.executor == "inline":
        return f"The learner took {_percent(busy)} of the time, and actors the rest: --executor inline has one thread."
    waited = f"Actors waited for the learner {_percent(wait)} of their time; it was busy {_percent(busy)} of its own"
    if busy >= _BUSY_LEARNER:
        return f"{waited}: it held them back, and further actors would wait, too."
    if wait < _NOTABLE_WAIT:
        return f"{waited}: it held nobody back."
    hides = "" if config.actor.calls_in_flight > 1 else " --actor.calls-in-flight 2 hides such waits."
    return f"{waited}: the way there and back held them back.{hides}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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
