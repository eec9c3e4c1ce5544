"""What a sweep makes of its trials: a table, a CSV, the importance of each setting, and the best settings as TOML."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.commands.settings import as_toml
from launch.output import print_line, provenance, short, whole_csv, whole_file, write_json
from launch.sweep.book import Trial
from launch.sweep.outcome import Outcome
from shared.config import flat_settings


def write(found: Outcome) -> list[Path]:
    """trials.csv, sweep.json, a picture as PNG and SVG, and best.toml, in the sweep's folder. Returns what was made."""
    files = [found.folder / name for name in ("trials.csv", "sweep.json")]
    _write_rows(files[0], found)
    write_json(files[1], values(found))
    if any(trial.score is not None for trial in found.trials):
        files += _draw(found)
    if found.best is not None:
        files.append(found.folder / "best.toml")
        with whole_file(files[-1]) as file:
            file.write(best_as_toml(found))
    return files


def _draw(found: Outcome) -> list[Path]:
    # Importing matplotlib takes a second.
    from launch.sweep.pictures import draw_importance, draw_population

    name, draw = ("importance", draw_importance) if found.sweep.plan.pbt is None else ("population", draw_population)
    pictures = [found.folder / f"{name}.{kind}" for kind in ("png", "svg")]
    draw(found, pictures)
    return [picture for picture in pictures[:1] if picture.is_file()]


def best_as_toml(found: Outcome) -> str:
    """The settings of the best trial, for `tributary train --config`."""
    best, sweep = found.best, found.sweep
    assert best is not None
    goal = "training" if sweep.plan.maximise == "training" else "an evaluation"
    changed = ""
    if sweep.plan.pbt is not None:
        changed = (
            "# It ended with these settings, and had others, and weights of other trials, before: see trials.jsonl.\n"
        )
    return (
        f"# {best.name} of {found.folder.name}: return {best.score} in {goal} after {best.frames:,} frames\n{changed}"
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
        "exploits": [exploit._asdict() for exploit in found.exploits],
        "settings": flat_settings(found.sweep.base),
        **provenance(),
    }


def _write_rows(file: Path, found: Outcome) -> None:
    with whole_csv(file) as writer:
        names = list(found.sweep.space)
        writer.writerow(["trial", "ended", "score", "frames", "exploits", *names, "run", "reason"])
        for trial in found.trials:
            settings = [trial.settings[name] for name in names]
            row = [trial.number, trial.ended, trial.score, trial.frames, trial.exploits, *settings]
            writer.writerow([*row, str(found.folder / trial.name), trial.reason])


def show(console: Console, found: Outcome) -> None:
    """The table, the best trial first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    population = found.sweep.plan.pbt is not None
    numbers = ["return", "frames", *(["exploits"] if population else [])]
    for heading in (*numbers, *(name.rpartition(".")[2] for name in found.sweep.space)):
        table.add_column(heading, justify="right", overflow="fold")
    for trial in sorted(found.trials, key=_rank):
        settings = [short(trial.settings[name]) for name in found.sweep.space]
        settings = [str(trial.exploits), *settings] if population else settings
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
