"""The results of a sweep: table, CSV, JSON, importance of each setting, and the best settings as TOML."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from launch.commands.settings import as_toml
from launch.output import finite, print_line, provenance, short, whole_csv, whole_file, write_json
from launch.presets.settings_files import with_settings
from launch.sweep.file import Range, Settings, Sweep
from shared.config import flat_settings

Ended = Literal["done", "stopped", "refused", "failed"]
"""stopped: by the scheduler, or by hand; refused: its settings are invalid together; failed: its training failed."""

# With fewer trials the importances are noise.
_FEWEST_FOR_IMPORTANCE = 8
# One trial would be Optuna's default of a tenth, of a dozen trials.
_BEST_SHARE = 0.25
_MOST_PICTURES = 6


class Trial(NamedTuple):
    """One trial. `ended` is None for one that has not ended, `score` for one without a return."""

    number: int
    settings: Settings
    ended: Ended | None
    frames: int
    score: float | None
    reason: str | None

    @property
    def name(self) -> str:
        return f"trial-{self.number:02}"


class Outcome(NamedTuple):
    """The trials of a sweep that have reported.

    `best` has the highest score, among trials that trained to their end if there is one. The importance of a setting is
    its share in what distinguishes the best quarter (PED-ANOVA, arXiv 2304.10255); None for few trials, and for
    population-based training, where trials change their settings.
    """

    sweep: Sweep
    folder: Path
    trials: list[Trial]
    best: Trial | None
    importances: dict[str, float] | None


def outcome(sweep: Sweep, folder: Path, results: Iterable[Any], score: str) -> Outcome:
    """The outcome of Tune's `ResultGrid`, with the column `score` of last rows."""
    trials = sorted(_trial(sweep, result, score) for result in results if result.config)
    scored = [trial for trial in trials if trial.score is not None and trial.ended in ("done", "stopped")]
    done = [trial for trial in scored if trial.ended == "done"]
    best = max(done or scored, key=lambda trial: trial.score or -math.inf, default=None)
    return Outcome(sweep, folder, trials, best, _importances(sweep, done))


def _trial(sweep: Sweep, result: Any, score: str) -> Trial:
    row = result.metrics
    ended = row.get("ended", "stopped") if row.get("done") else None
    reached = row.get(score)
    return Trial(
        int(Path(result.path).name.removeprefix("trial-")),
        {name: result.config[name] for name in sweep.space},
        "failed" if result.error else ended,
        row.get("frames", 0),
        finite(reached),
        row.get("reason") or (result.error and "its process ended too often"),
    )


def _importances(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, float] | None:
    if len(trials) < _FEWEST_FOR_IMPORTANCE or sweep.plan.pbt is not None:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = optuna.distributions
    distributions = {
        name: kinds.CategoricalDistribution(part)
        if isinstance(part, list)
        else (kinds.IntDistribution if part.whole else kinds.FloatDistribution)(part.low, part.high, log=part.log)
        for name, part in sweep.space.items()
    }
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(params=dict(trial.settings), distributions=distributions, value=trial.score)
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
    return {
        name: float(share)
        for name, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
    }


def write(found: Outcome) -> list[Path]:
    """Write trials.csv, sweep.json, importance.png and best.toml into the sweep's folder. Returns the files."""
    files = [found.folder / name for name in ("trials.csv", "sweep.json")]
    _write_rows(files[0], found)
    write_json(files[1], values(found))
    if found.best is not None:
        files += [found.folder / "importance.png", found.folder / "best.toml"]
        _draw(found, files[-2])
        with whole_file(files[-1]) as file:
            file.write(_best_as_toml(found, found.best))
    return files


def _best_as_toml(found: Outcome, best: Trial) -> str:
    goal = "training" if found.sweep.plan.maximise == "training" else "an evaluation"
    changed = "# It ended with these settings, and had others before.\n" if found.sweep.plan.pbt is not None else ""
    config = with_settings(found.sweep.base, best.settings)
    return (
        f"# {best.name} of {found.folder.name}: return {best.score} in {goal} after {best.frames:,} frames\n{changed}"
        f"{as_toml(config, found.sweep.preset)}"
    )


def values(found: Outcome) -> dict[str, Any]:
    """The content of sweep.json."""
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
    with whole_csv(file) as writer:
        names = list(found.sweep.space)
        writer.writerow(["trial", "ended", "score", "frames", *names, "run", "reason"])
        for trial in found.trials:
            settings = [trial.settings[name] for name in names]
            run = str(found.folder / trial.name)
            writer.writerow([trial.number, trial.ended, trial.score, trial.frames, *settings, run, trial.reason])


def show(console: Console, found: Outcome) -> None:
    """Print the table, the best trial first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    for heading in ("return", "frames", *(name.rpartition(".")[2] for name in found.sweep.space)):
        table.add_column(heading, justify="right", overflow="fold")
    for trial in sorted(found.trials, key=lambda trial: math.inf if trial.score is None else -trial.score):
        settings = [short(trial.settings[name]) for name in found.sweep.space]
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        best = "bold" if trial == found.best else None
        table.add_row(trial.name, trial.ended or "not ended", score, f"{trial.frames:,}", *settings, style=best)
    console.print(table, highlight=False)
    for trial in found.trials:
        if trial.reason is not None:
            print_line(console, f"{trial.name}: {trial.reason}")
    if found.importances is not None:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.importances.items())
        print_line(console, f"importance: {shares}")


def _draw(found: Outcome, path: Path) -> None:
    """The return over each setting that was searched, the most important one first."""
    # Importing matplotlib takes a second.
    from launch.results.plot import COLOURS, figure, save

    order = list(found.importances or found.sweep.space)[:_MOST_PICTURES]
    with figure(width=max(4.0, 2.9 * len(order)), height=3.4, columns=len(order)) as (drawn, all_axes):
        for axes, name in zip(all_axes, order, strict=True):
            part = found.sweep.space[name]
            for ended, marker, colour in (("done", "o", COLOURS[0]), ("stopped", "x", COLOURS[1])):
                trials = [trial for trial in found.trials if trial.ended == ended and trial.score is not None]
                settings = [trial.settings[name] for trial in trials]
                x = [part.index(value) for value in settings] if isinstance(part, list) else settings
                axes.scatter(
                    x, [trial.score or 0.0 for trial in trials], marker=marker, s=22, color=colour, label=ended
                )
            if isinstance(part, list):
                axes.set_xticks(range(len(part)), [short(value) for value in part])
            elif isinstance(part, Range) and part.log:
                axes.set_xscale("log")
            axes.set_xlabel(name)
            if found.importances is not None:
                axes.set_title(f"{100 * found.importances[name]:.0f} % of the importance")
        all_axes[0].set_ylabel("return of a trial")
        all_axes[0].legend(fontsize=8)
        save(drawn, [path], sweep=str(found.folder))
