"""`tributary report RUN…`: one self-contained HTML page about runs: results, settings, time per stage and
bottlenecks."""

import io
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from launch.files import check_can_be_written, whole_file, write_json
from launch.output import duration, mean_return, number, print_line
from launch.provenance import hardware_line, provenance
from launch.results.curves import (
    TRAINING_RETURN,
    XAxis,
    bands,
    curve_of,
    evaluation_points,
    lag_counts,
    read_metrics,
    same_but_for_seed,
)
from launch.results.evaluate import mean_and_error, result_lines
from launch.results.plot import curves_figure, default_output, find_runs, read_each
from launch.run.folder import read_object
from launch.run.lookup import RunPath
from launch.run.metrics import lag_summary
from launch.run.summary import run_status
from launch.settings.parse import Operand
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, counted
from shared.types import StageSeconds

# x and y of each picture, and the least y that is shown: an explained variance of -100 says no more than one of -1.
_PICTURES: tuple[tuple[XAxis, str, float], ...] = (
    ("frames", TRAINING_RETURN, -math.inf),
    ("seconds", TRAINING_RETURN, -math.inf),
    ("frames", "entropy", -math.inf),
    ("frames", "explained_variance", -1.0),
    ("frames", "policy_lag_mean", 0.0),
    ("frames", "agent_steps_per_second", 0.0),
)

# Shares from which a line reports them.
_NOTABLE_WAIT = 0.10
_BUSY_LEARNER = 0.70

# The way to make each stage of an actor faster.
_ADVICE = {
    "environment": "cheaper environments or more cores for actors",
    "acting": "more environments per actor (--actor.environments)",
    "gradient": "a smaller network, fewer --actor.epochs or more cores for actors",
    "synchronise": "longer rollouts (--actor.unroll-length)",
}


@dataclass(frozen=True)
class ReportArguments:
    """Write one self-contained HTML page about one or more runs."""

    runs: Operand[tuple[RunPath, ...]]
    """Run folders, folders of run folders, latest, or zoo:NAME."""
    output: Path | None = None
    """File to write. Default: report.html in the run folder, or for several runs in their common parent folder, else in
    the working directory."""
    json: Path | None = None
    """File to write the page's numbers to."""


def report(arguments: ReportArguments) -> None:
    check_can_be_written(arguments.output, "output", (".html",))
    paths = find_runs(arguments.runs)
    runs = read_each(paths, RunReport)
    output = arguments.output or default_output(paths, "report.html")
    page = _page(runs)
    with whole_file(output) as file:
        file.write(page)
    print_line(Console(), f"report: {output}")
    write_json(arguments.json, {"runs": [run.figures() for run in runs], **provenance()})


class RunReport:
    """The content of a run folder."""

    def __init__(self, path: Path) -> None:
        self.status, self.metrics = run_status(path).status, read_metrics(path)
        self.folder, self.config, _, self.rows = self.metrics
        self.manifest = read_object(self.folder.manifest)
        # For an agent of the zoo, evaluations by the user take precedence over the shipped ones.
        places = (self.folder.path, self.folder.outputs)
        evaluations = {file.name: file for place in places for file in place.glob("evaluation-*.json")}
        # Without files of a process that was killed while it wrote.
        self.evaluations = [
            evaluation for name in sorted(evaluations) if (evaluation := read_object(evaluations[name]))
        ]

    def figures(self) -> dict[str, Any]:
        """The values of `--json`: the last row, with means over all rows."""
        last, spent = self.rows[-1], time_spent([self.rows])
        mean, p95, most = lag_summary(lag_counts(self.rows))
        return {
            "run": self.folder.name,
            "environment": self.config.environment.id,
            "seed": self.config.seed,
            "status": self.status,
            **last,
            "wall_seconds": last["elapsed_seconds"],
            "startup_seconds": read_object(self.folder.summary).get("startup_seconds"),
            "agent_steps_per_second": last["agent_steps"] / max(last["elapsed_seconds"], 1e-9),
            "policy_lag": {"mean": mean, "p95": p95, "max": most},
            "stage_microseconds": spent.microseconds,
            "stage_shares": spent.shares,
            "learner_busy": spent.learner_busy,
            "held_back": held_back(spent, self.config),
            "evaluations": self.evaluations,
            "training_evaluations": evaluation_points(self.rows),
        }


# ---- The page


def _hardware(manifest: dict[str, Any]) -> str | None:
    """The hardware of a run; None if its manifest is damaged."""
    with suppress(LookupError, TypeError, ValueError):
        return hardware_line(manifest)
    return None


def _page(runs: Sequence[RunReport]) -> str:
    hardware = dict.fromkeys(filter(None, (_hardware(run.manifest) for run in runs)))
    groups = same_but_for_seed([run.metrics for run in runs])
    origin = provenance()
    return _filled(
        "report.html",
        title=escape(f"{', '.join(dict.fromkeys(run.config.environment.id for run in runs))} by Tributary"),
        runs=counted(len(runs), "run"),
        hardware=escape("; ".join(hardware) or "unknown hardware"),
        created=origin["created"][:16].replace("T", " "),
        groups="".join(_group(label, [runs[i] for i in members]) for label, members in groups),
        command=escape(origin["command"]),
        revision=escape(origin["revision"]),
        **_curves(runs),
    )


def _filled(template: str, **parts: str) -> str:
    """A template of this folder with its parts, which are HTML."""
    return Template(Path(__file__).with_name(template).read_text(encoding="utf-8")).substitute(parts)


def _curves(runs: Sequence[RunReport]) -> dict[str, str]:
    """The pictures of returns and of diagnostics, and the reasons why runs have no curve of returns."""
    parts, errors = {"returns": "", "diagnostics": ""}, dict[str, None]()
    for x, y, least in _PICTURES:
        returns = y == TRAINING_RETURN
        curves = []
        for run in runs:
            try:
                curve = curve_of(run.metrics, x, y)
            except ConfigurationError as error:
                if returns:
                    errors[str(error)] = None
            else:
                curves.append(curve._replace(y=np.maximum(curve.y, least)))
        size = (5.6, 3.6) if returns else (3.2, 2.2)
        if curves:
            picture = io.StringIO()
            with curves_figure(bands(curves), x, y, size, legend=returns) as chart:
                chart.savefig(picture, format="svg", metadata={"Date": None})
            svg = picture.getvalue()
            parts["returns" if returns else "diagnostics"] += svg[svg.index("<svg") :]
    return parts | {"missing": _list(errors)}


def _group(label: str, runs: Sequence[RunReport]) -> str:
    config, several = runs[0].config, len(runs) > 1
    spent = time_spent([run.rows for run in runs])
    stages = [(stage, f"{spent.microseconds[stage]:,.0f}", f"{share:.0%}") for stage, share in spent.shares.items()]
    names, facts = [Path(run.folder.name).name for run in runs], [_facts(run.figures()) for run in runs]
    settings = {name: str(value) for name, value in flat_settings(config).items() if name != "seed" or not several}
    manifests = [run.manifest for run in runs]
    return _filled(
        "report_group.html",
        label=escape(label),
        seeds=f"{len(runs)} runs" if several else f"seed {config.seed}",
        facts=_table(["run", *names], [[name, *(of_run[name] for of_run in facts)] for name in facts[0]]),
        evaluations=_evaluations(runs),
        held_back=_list(held_back(spent, config)),
        stages=_table(("stage", "µs per agent step of an actor", "share"), stages),
        commands=escape("\n".join(dict.fromkeys(manifest.get("command", "") for manifest in manifests))),
        settings=_table(["setting", "value"], list(settings.items())),
        logs=escape("\n".join(map(_log, runs))),
        manifests=escape("\n".join(json.dumps(manifest, indent=2) for manifest in manifests)),
    )


def _log(run: RunReport) -> str:
    log = run.folder.log
    lines = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return f"{run.folder.path.name}:\n{lines}"


def _facts(figures: dict[str, Any]) -> dict[str, str]:
    """The facts about one run on the page; a dash stands for a missing value."""
    lag, points = figures["policy_lag"], figures["training_evaluations"]
    finite = [point for point in points if point["mean_return"] is not None]
    best = max(finite, key=itemgetter("mean_return"), default=None)
    dropped = ", ".join(f"{count:,} for {reason}" for reason, count in figures["agent_steps_dropped"].items())
    return {
        "seed": str(figures["seed"]),
        "status": figures["status"].replace("_", " "),
        "return, last 100": mean_return(figures["mean_return_100"], figures["episodes"]),
        "best evaluation": "-" if best is None else _evaluation(best),
        "last evaluation": "-" if not points else "the best" if points[-1] is best else _evaluation(points[-1]),
        "frames": f"{figures['frames']:,}",
        "agent steps": f"{figures['agent_steps']:,}",
        "trained, h:mm:ss": duration(figures["elapsed_seconds"]),
        "start-up, s": number(figures["startup_seconds"], ".0f"),
        "agent steps/s": f"{figures['agent_steps_per_second']:,.0f}",
        "policy lag: mean, 95 %, most": f"{lag['mean']:.2f}, {lag['p95']}, {lag['max']}" if lag["max"] else "-",
        "agent steps in flight": number(figures.get("agent_steps_in_flight"), ",d"),
        "agent steps dropped": dropped or "-",
        "actors replaced": str(figures["actor_restarts"] or "-"),
    }


def _evaluation(point: dict[str, Any]) -> str:
    median, collapsed = number(point.get("median_return"), ".2f"), number(point.get("collapsed_episodes"), "d")
    return f"{mean_and_error(point)}, median {median}, {collapsed} collapsed, at {point['frames']:,} frames"


def _evaluations(runs: Sequence[RunReport]) -> str:
    """The results of `tributary evaluate`, as it prints them."""
    results = [(run.config.seed, result) for run in runs for result in run.evaluations]
    each = (f"<p>Seed {seed}:</p>{_list(result_lines(result))}" for seed, result in results)
    return "".join(each) or "<p class=soft>None yet.</p>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the rows and columns of dashes. The first value of a row is its name."""
    rows = [row for row in rows if any(value != "-" for value in row[1:])]
    columns = [i for i in range(len(headings)) if any(row[i] != "-" for row in rows)]
    lines = ["".join(f"<th>{escape(headings[i])}</th>" for i in columns)]
    lines += ["".join(f"<td>{escape(row[i])}</td>" for i in columns) for row in rows]
    return f"<div class=scroll><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"


# ---- Time per stage


class TimeSpent(NamedTuple):
    """Means over one or more runs.

    `microseconds`: of an actor per agent step, by stage, weighted by the agent steps of each row. `learner_busy` is the
    fraction of time in which the learner processed gradients.
    """

    microseconds: dict[str, float]
    learner_busy: float

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of an actor's time in each stage. The sum is 1, or 0 without measurements."""
        total = sum(self.microseconds.values()) or 1.0
        return {stage: value / total for stage, value in self.microseconds.items()}


def time_spent(runs: Sequence[Sequence[dict[str, Any]]]) -> TimeSpent:
    """Time per stage from the rows of at least one run; see `read_rows`."""
    rows = [row for run in runs for row in run]
    seconds = np.concatenate([np.diff([row["elapsed_seconds"] for row in run], prepend=0.0) for run in runs])
    # The first row after a resume may have fewer than the one before.
    seconds = np.maximum(seconds, 0.0)
    # Rates hold in rows between two rollouts, in which no stage was measured.
    rates = [row["agent_steps_per_second"] if row["stage_microseconds"] else 0.0 for row in rows]
    agent_steps = seconds * rates
    microseconds = {}
    for stage in StageSeconds._fields:
        of_stage = [row["stage_microseconds"].get(stage, 0.0) for row in rows]
        microseconds[stage] = float(agent_steps @ of_stage / (agent_steps.sum() or 1.0))
    # Seconds of work per second.
    busy = 1e-3 * np.array([row["learner_milliseconds"] * row["gradients_per_second"] for row in rows])
    return TimeSpent(microseconds, min(1.0, float(busy @ seconds / (seconds.sum() or 1.0))))


def held_back(spent: TimeSpent, config: RunConfig) -> list[str]:
    """The bottlenecks of runs, in sentences; none without measurements."""
    wait, lines = spent.shares["wait"], list[str]()
    stage, work = max(((s, share) for s, share in spent.shares.items() if s != "wait"), key=itemgetter(1))
    if work:
        lines.append(f"Most work of actors is {stage}, {work:.0%} of their time. To make it faster: {_ADVICE[stage]}.")
    if (work or wait) and config.executor == "ray":
        busy = spent.learner_busy
        why = "the rest of the wait is communication" if wait >= _NOTABLE_WAIT else "it is no bottleneck"
        why = "the learner is the bottleneck" if busy >= _BUSY_LEARNER else why
        waited = f"Actors waited for the learner {wait:.0%} of their time; it was busy {busy:.0%} of its own"
        lines.append(f"{waited}: {why}.")
    return lines
