"""`tributary report RUN…`: one self-contained HTML page about runs: results, settings, where the time went and why."""

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from launch.output import (
    check_can_be_written,
    duration,
    hardware_line,
    mean_return,
    number,
    print_line,
    provenance,
    whole_file,
    write_json,
)
from launch.results.curves import (
    TRAINING_RETURN,
    Curve,
    XAxis,
    bands,
    curve_of,
    evaluation_points,
    lag_counts,
    preset_of,
    read_rows,
    same_but_for_seed,
)
from launch.results.evaluate import mean_and_error, protocol_line, published_scores, without_episodes
from launch.results.plot import (
    as_svg,
    curves_figure,
    default_output,
    find_runs,
    lags_svg,
    metric_label,
    read_each,
    stages_svg,
)
from launch.run.folder import read_object, read_summary
from launch.run.lookup import RunPath
from launch.run.metrics import lag_summary
from launch.run.summary import run_status
from launch.settings.parse import Operand
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError
from shared.types import StageSeconds

# Metrics with small curves of their own, and the least value that is shown: an explained variance of -100 says no more
# than one of -1.
_DIAGNOSTICS = {
    "entropy": -math.inf,
    "explained_variance": -1.0,
    "policy_lag_mean": 0.0,
    "agent_steps_per_second": 0.0,
}
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
        "a smaller network, fewer --actor.epochs, or more cores for actors would make it faster",
    ),
    "synchronise": ("taking new weights", "longer rollouts (--actor.unroll-length) need new weights less often"),
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
        self.status = run_status(path)
        self.folder, self.config = self.status.folder, self.status.config
        self.rows = read_rows(self.folder)
        self.spent = time_spent(self.rows)
        self.manifest = read_object(self.folder.manifest)
        # For an agent of the zoo, evaluations by the user take precedence over the shipped ones.
        places = (self.folder.path, self.folder.outputs)
        evaluations = {file.name: file for place in places for file in place.glob("evaluation-*.json")}
        self.evaluations = [read_object(evaluations[name]) for name in sorted(evaluations)]
        self.lags = lag_counts(self.rows)
        log = self.folder.log
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        self.log_lines = [line for line in lines if "evaluation of update" not in line]
        self.command = self.manifest.get("command", "")
        versions = (f"{name} {version}" for name, version in self.manifest.get("versions", {}).items() if version)
        self.made_with = "; ".join((", ".join(versions), str(self.manifest.get("threads", ""))))

    def figures(self) -> dict[str, Any]:
        """The values of `--json`. Totals are from the summary, or from the last row if the run continued after it."""
        last, summary = self.rows[-1], read_summary(self.folder)
        total = summary if summary.get("frames", 0) >= last["frames"] else {}
        agent_steps = total.get("agent_steps_sampled", last["agent_steps"])
        seconds = total.get("wall_seconds", last["elapsed_seconds"])
        mean, p95, most = lag_summary(self.lags)
        return {
            "run": self.folder.name,
            "environment": self.config.environment.id,
            "seed": self.config.seed,
            "status": self.status.status,
            "mean_return_100": last["mean_return_100"],
            "episodes": last["episodes"],
            "frames": total.get("frames", last["frames"]),
            "agent_steps": agent_steps,
            "wall_seconds": seconds,
            "startup_seconds": summary.get("startup_seconds"),
            "agent_steps_per_second": total.get("agent_steps_per_second", agent_steps / max(seconds, 1e-9)),
            "policy_lag": {"mean": mean, "p95": p95, "max": most},
            "agent_steps_in_flight": last.get("agent_steps_in_flight"),
            "stage_microseconds": self.spent.microseconds,
            "stage_shares": self.spent.shares,
            "learner_busy": self.spent.learner_busy,
            "held_back": held_back(self.spent, self.rows[-1], self.config),
            "agent_steps_dropped": last["agent_steps_dropped"],
            "actor_restarts": last["actor_restarts"],
            "evaluations": [without_episodes(evaluation) for evaluation in self.evaluations],
            "training_evaluations": evaluation_points(self.rows),
        }


def _page(runs: Sequence[RunReport]) -> str:
    groups = same_but_for_seed([(run.config, preset_of(run.folder)) for run in runs])
    hardware = dict.fromkeys(hardware_line(run.manifest) for run in runs if "hardware" in run.manifest)
    made = provenance()
    return _filled(
        "report.html",
        title=escape(f"{', '.join(dict.fromkeys(run.config.environment.id for run in runs))} by Tributary"),
        runs=f"{len(runs)} run{'s' * (len(runs) > 1)}",
        hardware=escape("; ".join(hardware) or "unknown hardware"),
        curves=_curves(runs),
        groups="".join(_group(label, [runs[i] for i in members]) for label, members in groups),
        created=made["created"][:16].replace("T", " "),
        **{name: escape(made[name]) for name in ("command", "revision")},
    )


def _filled(name: str, **parts: str) -> str:
    """A template of this folder with its parts, which are HTML."""
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8")).substitute(parts)


def _curves(runs: Sequence[RunReport]) -> str:
    """The returns over frames and over time, then small curves of the metrics that all runs have."""
    plots = small = ""
    missing: list[str] = []
    for x in ("frames", "seconds"):
        curves, missing = [], []
        for run in runs:
            try:
                curves.append(curve_of(run.folder.path, run.config, run.rows, x, TRAINING_RETURN))
            except ConfigurationError as error:
                missing.append(str(error))
        if curves:
            plots += _curves_svg(curves, x, TRAINING_RETURN, (5.6, 3.6))
    for y, least in _DIAGNOSTICS.items():
        with suppress(ConfigurationError):
            curves = [curve_of(run.folder.path, run.config, run.rows, "frames", y) for run in runs]
            curves = [curve._replace(y=np.maximum(curve.y, least)) for curve in curves]
            small += _curves_svg(curves, "frames", y, (3.2, 2.2), legend=False)
    return f"<div class=plots>{plots}</div>{_list(missing)}<div class='plots small'>{small}</div>"


def _curves_svg(curves: Sequence[Curve], x: XAxis, y: str, size: tuple[float, float], *, legend: bool = True) -> str:
    with curves_figure(bands(curves), x, metric_label(y), size=size, legend=legend) as drawn:
        return f"<div>{as_svg(drawn)}</div>"


def _group(label: str, runs: Sequence[RunReport]) -> str:
    """Runs that differ only in their seed."""
    config, figures, several = runs[0].config, [run.figures() for run in runs], len(runs) > 1
    spent, lags = mean_time_spent([run.spent for run in runs]), sum((run.lags for run in runs), Counter[int]())
    charts = [stages_svg(spent.microseconds), *([lags_svg(lags)] if len(lags) > 1 else [])]
    dropped = sum((Counter(f["agent_steps_dropped"]) for f in figures), Counter[str]())
    faults = {"agent_steps_dropped": dropped, "actor_restarts": sum(f["actor_restarts"] for f in figures)}
    facts = list(map(_facts, figures))
    settings = {name: str(value) for name, value in flat_settings(config).items() if name != "seed" or not several}
    texts = {
        "Log": {run: "\n".join(run.log_lines) for run in runs if run.log_lines},
        "Manifest": {run: json.dumps(run.manifest, indent=2) for run in runs},
    }
    details = {"All settings": _pairs("setting", settings)}
    details |= {name: "".join(_text(run, text) for run, text in of_runs.items()) for name, of_runs in texts.items()}
    reasons = ", ".join(f"{count:,} for {reason}" for reason, count in dropped.items())
    return _filled(
        "report_group.html",
        label=escape(label),
        seeds=f"{len(runs)} seeds" if several else f"seed {config.seed}",
        facts=_table(facts)
        if several
        else _pairs(Path(figures[0]["run"]).name, facts[0]) + _training_evaluations(figures[0]),
        evaluations=_evaluations(runs),
        video=_video(runs),
        held_back=_list(held_back(spent, faults, config)),
        charts="".join(f"<div>{chart}</div>" for chart in charts),
        dropped=f"<p>Agent steps dropped: {escape(reasons)}.</p>" if reasons else "",
        commands="".join(f"<p><code>{escape(line)}</code></p>" for line in dict.fromkeys(run.command for run in runs)),
        versions="".join(f"<p class=soft>{escape(line)}.</p>" for line in dict.fromkeys(run.made_with for run in runs)),
        details="".join(
            f"<details><summary>{name}</summary>{content}</details>" for name, content in details.items() if content
        ),
    )


def _text(run: RunReport, text: str) -> str:
    return f"<p><code>{escape(run.folder.path.name)}</code></p><pre>{escape(text)}</pre>"


def _facts(figures: dict[str, Any]) -> dict[str, str]:
    """The facts about one run on the page; a dash stands for a missing value."""
    lag, points = figures["policy_lag"], figures["training_evaluations"]
    best, last = (mean_and_error(best_evaluation(points)), mean_and_error(points[-1])) if points else ("-", "-")
    return {
        "seed": str(figures["seed"]),
        "status": figures["status"].replace("_", " "),
        "return, last 100": mean_return(figures["mean_return_100"], figures["episodes"]),
        "best evaluation": best,
        "last evaluation": last,
        "frames": f"{figures['frames']:,}",
        "agent steps": f"{figures['agent_steps']:,}",
        "trained, h:mm:ss": duration(figures["wall_seconds"]),
        "start-up, s": number(figures["startup_seconds"], ".0f"),
        "agent steps/s": f"{figures['agent_steps_per_second']:,.0f}",
        "policy lag: mean, 95 %, most": f"{lag['mean']:.2f}, {lag['p95']}, {lag['max']}" if lag["max"] else "-",
        "agent steps in flight": number(figures["agent_steps_in_flight"], ",d"),
        "actors replaced": str(figures["actor_restarts"] or "-"),
    }


def _training_evaluations(figures: dict[str, Any]) -> str:
    """The best and the last evaluation of a single run."""
    points = figures["training_evaluations"]
    if not points:
        return ""
    best, last = best_evaluation(points), points[-1]
    rows = [
        {
            "evaluation": which,
            "frames": f"{point['frames']:,}",
            "h:mm:ss": duration(point["elapsed_seconds"]),
            "mean ± standard error": mean_and_error(point),
            "median": number(point.get("median_return"), ".2f"),
            "collapsed episodes": str(point.get("collapsed_episodes", "-")),
        }
        for which, point in ([("best", best), ("last", last)] if best != last else [("last, and best", last)])
    ]
    return f"<h3>{len(points)} evaluation{'s' * (len(points) > 1)} during training</h3>{_table(rows)}"


def best_evaluation(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The evaluation with the highest mean return. Evaluations without a finite mean come last."""
    return max(points, key=lambda point: -math.inf if point["mean_return"] is None else point["mean_return"])


def _evaluations(runs: Sequence[RunReport]) -> str:
    evaluations = [(run.config.seed, e) for run in runs for e in run.evaluations]
    if not evaluations:
        return "<p class=soft>Not evaluated yet: <code>tributary evaluate RUN</code>.</p>"
    rows = [
        {
            "seed": str(seed),
            "protocol": e["protocol"]["name"],
            "actions": e["policy"],
            "episodes / distinct games": f"{e['episodes']} / {e.get('distinct_games', '-')}",
            "mean ± standard error": mean_and_error(e),
            "95 % interval": " to ".join(number(end, ".2f") for end in e["interval_95"] or ()) or "-",
            "median": number(e["median_return"], ".2f"),
            "human-normalised, %": number(e["human_normalised_percent"], ".0f"),
        }
        for seed, e in evaluations
    ]
    published = published_scores(runs[0].config.environment.id).values()
    others = _list([f"{score['score']:g}: {score['protocol']}" for score in published])
    return (
        f"<h3>Evaluation afterwards: whole episodes, unclipped</h3>{_table(rows)}"
        f"{_list(list(dict.fromkeys(protocol_line(e['protocol']) for _, e in evaluations)))}"
        f"{f'<p class=soft>Published scores, by other protocols:</p>{others}' if published else ''}"
    )


def _video(runs: Sequence[RunReport]) -> str:
    """The newest video, of one seed: several would make the page slow to open."""
    files = [file for run in runs for file in run.folder.videos.glob("update-*.mp4")]
    videos = [file for file in files if file.stat().st_size <= _MOST_VIDEO_BYTES]
    if not videos:
        return ""
    newest = max(videos, key=lambda file: file.stat().st_mtime)
    data = base64.b64encode(newest.read_bytes()).decode()
    return (
        f'<h3>An episode</h3><video controls muted playsinline preload="metadata" src="data:video/mp4;base64,{data}">'
        f"</video><p class=soft>{escape(newest.relative_to(newest.parents[2]).as_posix())}</p>"
    )


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _pairs(what: str, values: dict[str, str]) -> str:
    """A table with a row for each value that is not a dash."""
    return _table([{what: name, "value": value} for name, value in values.items() if value != "-"])


def _table(rows: Sequence[dict[str, str]]) -> str:
    """A table of at least one row, with a column for each name. Columns of dashes are left out."""
    names = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    headings = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(row[name])}</td>" for name in names) + "</tr>" for row in rows)
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
    # Rates hold in rows between two rollouts, in which no stage was measured.
    rates = [row["agent_steps_per_second"] if row["stage_microseconds"] else 0.0 for row in rows]
    agent_steps = seconds * rates
    microseconds = {}
    for stage in StageSeconds._fields:
        of_stage = [row["stage_microseconds"].get(stage, 0.0) for row in rows]
        microseconds[stage] = float(agent_steps @ of_stage / (agent_steps.sum() or 1.0))
    # Seconds of work per second, NaN in rows without it.
    busy = 1e-3 * np.array([row.get("learner_milliseconds", np.nan) * row["gradients_per_second"] for row in rows])
    measured = np.where(np.isnan(busy), 0.0, seconds)
    share = float(np.nansum(busy * measured) / measured.sum()) if measured.sum() > 0 else None
    dropped = sum(rows[-1]["agent_steps_dropped"].values()) / max(rows[-1]["agent_steps"], 1)
    return TimeSpent(microseconds, None if share is None else min(1.0, share), dropped)


def mean_time_spent(spent: Sequence[TimeSpent]) -> TimeSpent:
    """The mean over at least one run."""
    stages = {stage: float(np.mean([run.microseconds[stage] for run in spent])) for stage in spent[0].microseconds}
    busy = [run.learner_busy for run in spent if run.learner_busy is not None]
    return TimeSpent(stages, float(np.mean(busy)) if busy else None, float(np.mean([run.dropped for run in spent])))


def held_back(spent: TimeSpent, row: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The bottlenecks of a run, in sentences; none without measurements. `row` is its last one, for losses."""
    wait = spent.shares["wait"]
    stage, work = max(((s, share) for s, share in spent.shares.items() if s != "wait"), key=lambda pair: pair[1])
    lines = []
    if work:
        verb, advice = _STAGES[stage]
        if config.actor.epochs == 1:
            advice = advice.replace(", fewer --actor.epochs", "")
        lines.append(f"Actors spent {work:.0%} of their time {verb}, more than on any other work: {advice}.")
    if spent.learner_busy is not None and (work or wait):
        lines.insert(0 if wait > work else len(lines), _learner_line(spent.learner_busy, wait, config))
    if spent.dropped >= _NOTABLE_DROPS:
        reasons = ", ".join(row["agent_steps_dropped"])
        lines.append(f"{spent.dropped:.1%} of the agent steps were dropped for {reasons}.")
    restarts = row["actor_restarts"]
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
    why = "the communication is the bottleneck" if wait >= 0.5 else "the rest of the wait is communication"
    return f"{waited}: {why}."
