"""What a sweep makes of its trials: a table, a CSV, the importance of each setting, and the best settings as TOML."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter
from rich.console import Console
from rich.table import Table

from launch.commands.settings import as_toml
from launch.output.json_file import write_json
from launch.output.lines import print_line
from launch.output.provenance import provenance
from launch.sweep.book import Trial, TrialBook
from launch.sweep.file import Range, Sweep
from launch.sweep.search import distribution, frozen_trial
from shared.config import flat_settings

# Importances of fewer trials are those of chance.
_FEWEST_FOR_IMPORTANCE = 8
# Of a dozen trials, Optuna's tenth would be one.
_BEST_SHARE = 0.25
_MOST_PICTURES = 6


class Outcome(NamedTuple):
    """What has come of a sweep so far. `best` is the trial of the highest score, among those that played to their end
    if there is one; `importances` say how much of what the best quarter has in common each setting explains, adding up
    to 1 (PED-ANOVA, arXiv 2304.10255); None where there are too few trials."""

    sweep: Sweep
    folder: Path
    trials: list[Trial]
    best: Trial | None
    importances: dict[str, float] | None


def outcome(sweep: Sweep, folder: Path, book: TrialBook) -> Outcome:
    """What the book says."""
    trials = [book.trials[number] for number in sorted(book.trials)]
    scored = [trial for trial in trials if trial.score is not None and trial.ended in ("done", "stopped")]
    done = [trial for trial in scored if trial.ended == "done"]
    best = max(done or scored, key=lambda trial: trial.score or -math.inf, default=None)
    return Outcome(sweep, folder, trials, best, _importances(sweep, done))


def _importances(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, float] | None:
    if len(trials) < _FEWEST_FOR_IMPORTANCE:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {name: distribution(part) for name, part in sweep.space.items()}
    choices = {name: part for name, part in sweep.space.items() if isinstance(part, list)}
    study = optuna.create_study(direction="maximize")
    study.add_trials([frozen_trial(trial, space, choices) for trial in trials])
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(found[name]) for name in found}


def write(found: Outcome) -> list[Path]:
    """trials.csv, sweep.json, importance.png and .svg, and best.toml, in the sweep's folder. Returns what was made."""
    files = [found.folder / name for name in ("trials.csv", "sweep.json")]
    _write_rows(files[0], found)
    write_json(files[1], values(found))
    if any(trial.score is not None for trial in found.trials):
        pictures = [found.folder / f"importance.{kind}" for kind in ("png", "svg")]
        _draw(found, pictures)
        files.append(pictures[0])
    if found.best is not None:
        files.append(found.folder / "best.toml")
        part = files[-1].with_suffix(".part")
        part.write_text(best_as_toml(found))
        part.replace(files[-1])
    return files


def best_as_toml(found: Outcome) -> str:
    """The settings of the best trial, for `tributary train --config`."""
    best, sweep = found.best, found.sweep
    assert best is not None
    goal = "training" if sweep.plan.maximise == "training" else "an evaluation"
    return (
        f"# {best.name} of {found.folder.name}: return {best.score} in {goal} after {best.frames:,} frames\n"
        f"{as_toml(sweep.config(best.settings), sweep.preset)}"
    )


def values(found: Outcome) -> dict[str, Any]:
    """The sweep as `--json` has it."""
    return {
        "preset": found.sweep.preset,
        "search": found.sweep.plan.search,
        "maximise": found.sweep.plan.maximise,
        "trials": [{**trial._asdict(), "run": str(found.folder / trial.name)} for trial in found.trials],
        "trials_planned": found.sweep.trials,
        "best": None if found.best is None else found.best.number,
        "importances": found.importances,
        "settings": flat_settings(found.sweep.base),
        **provenance(),
    }


def _write_rows(file: Path, found: Outcome) -> None:
    part = file.with_name(f"{file.name}.part")
    with part.open("w", newline="") as opened:
        opened.write(f"# {json.dumps(provenance())}\n")
        writer = csv.writer(opened)
        names = list(found.sweep.space)
        writer.writerow(["trial", "ended", "score", "frames", *names, "run", "reason"])
        for trial in found.trials:
            settings = [trial.settings[name] for name in names]
            row = [trial.number, trial.ended, trial.score, trial.frames, *settings]
            writer.writerow([*row, str(found.folder / trial.name), trial.reason])
    part.replace(file)


def show(console: Console, found: Outcome) -> None:
    """The table, the best trial first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    for heading in ("return", "frames", *(name.rpartition(".")[2] for name in found.sweep.space)):
        table.add_column(heading, justify="right", overflow="fold")
    for trial in sorted(found.trials, key=_rank):
        settings = [_short(trial.settings[name]) for name in found.sweep.space]
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        best = "bold" if trial == found.best else None
        table.add_row(trial.name, trial.ended or "not ended", score, f"{trial.frames:,}", *settings, style=best)
    console.print(table, highlight=False)
    for trial in found.trials:
        if trial.reason is not None:
            print_line(console, f"{trial.name}: {trial.reason}")
    if found.importances is not None:
        said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.importances.items())
        print_line(console, f"importance: {said}")


def _rank(trial: Trial) -> float:
    return math.inf if trial.score is None else -trial.score


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw(found: Outcome, paths: Sequence[Path]) -> None:
    """Return over each setting that was searched, the most important one first."""
    from launch.output.pictures import figure, save

    order = list(found.importances or found.sweep.space)[:_MOST_PICTURES]
    with figure(width=max(4.0, 2.9 * len(order)), height=3.4, columns=len(order)) as (drawn, all_axes):
        for axes, name in zip(all_axes, order, strict=True):
            _draw_setting(axes, found, name)
        all_axes[0].set_ylabel("return of a trial")
        save(drawn, paths, sweep=str(found.folder))


def _span(axes: Axes, part: Range) -> None:
    """The whole range that was searched, whatever of it was tried."""
    if not part.log:
        margin = 0.05 * (part.high - part.low)
        axes.set_xlim(part.low - margin, part.high + margin)
        return
    factor = (part.high / part.low) ** 0.05
    axes.set_xscale("log")
    axes.set_xlim(part.low / factor, part.high * factor)
    if part.high / part.low >= 10:
        # Labels between powers of ten would overlap.
        axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_setting(axes: Axes, found: Outcome, name: str) -> None:
    from launch.output.pictures import COLOURS

    part = found.sweep.space[name]
    for how, marker, colour in (("done", "o", COLOURS[0]), ("stopped", "x", COLOURS[1])):
        trials = [trial for trial in found.trials if trial.ended == how and trial.score is not None]
        if isinstance(part, list):
            # Side by side where they would hide each other.
            spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(trials))
            x = [part.index(trial.settings[name]) + shift for trial, shift in zip(trials, spread, strict=True)]
        else:
            x = [float(trial.settings[name]) for trial in trials]
        if trials:
            axes.scatter(x, [trial.score or 0.0 for trial in trials], marker=marker, s=22, color=colour, label=how)
    if isinstance(part, list):
        axes.set_xticks(range(len(part)), [_short(value) for value in part])
        axes.set_xlim(-0.5, len(part) - 0.5)
    elif isinstance(part, Range):
        _span(axes, part)
    axes.set_xlabel(name)
    if found.importances is not None:
        axes.set_title(f"{100 * found.importances[name]:.0f} % of the importance")
    if any(trial.ended == "stopped" for trial in found.trials):
        axes.legend(fontsize=8)
