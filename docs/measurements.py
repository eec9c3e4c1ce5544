"""Measurements: the lines of docs/measurements.jsonl, from which docs/figures.py makes tables. A line has

what        the name by which tables find it; several lines may have the same. `add` is for "rehearsal" (of `bench
            scaling pong --rehearse`), "peers" (docs/studies/peers/compare.py), "scores/PRESET" (an evaluated run)
command     that repeats it
revision    of the project; day, on which it was measured
cpu         with the number of cores; idle: whether nothing else ran
figure      named numbers, with units in their names
form        of a preset's own form: preset, actors, and the settings that the rate depends on. A table marks a line
            whose preset has another form today
note        anything else that a reader has to know, such as what differs from today
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.presets import PRESETS
from launch.run.folder import RunFolder, read_object
from launch.settings.resolve import divided_among
from shared.config import flat_settings
from shared.errors import ConfigurationError

MEASUREMENTS = Path(__file__).with_name("measurements.jsonl")
_FORM = (
    *(f"actor.{name}" for name in ("environments", "unroll_length", "epochs", "minibatches", "fresh_gradients")),
    *("learner.gradients_per_update", "network.name"),
)
# Significant ones.
_DIGITS = 4


def add(what: str, file: Path, cpu: str) -> None:
    """Add the figures in the JSON of a bench, a line for each of its points; or those of a run and its evaluation."""
    result = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else result_of(RunFolder(file))
    if result["revision"].endswith("-dirty"):
        raise ConfigurationError(f"{file} is of files that differ from their commit: commit them, and measure again")
    command = re.sub(r" --(json|run-dir)[ =]\S+", "", result["command"])
    made = {"what": what, "command": command, "revision": result["revision"][:8], "day": result["created"][:10]}
    made |= {"cpu": f"{result['hardware']['cores']} cores of an {cpu}", "idle": not result["busy"]}
    with MEASUREMENTS.open("a", encoding="utf-8") as lines:
        for point in result.get("points", [result]):
            plain = {name: value for name, value in point.items() if type(value) in (int, float, bool)}
            rounded = json.loads(json.dumps(plain), parse_float=lambda n: float(f"{float(n):.{_DIGITS}g}"))
            name = "/".join(filter(None, (what, point.get("system"))))
            line = made | {"what": name, "figure": rounded | ({"full": point["full"]} if "full" in point else {})}
            # The preset's own form, as it is where the bench has run.
            preset = point.get("preset", result.get("preset"))
            if preset and not re.search(r"--(actor|learner|network)\.", command):
                line["form"] = form_of(preset, point.get("actors") or result["settings"]["actors"])
            lines.write(json.dumps(line) + "\n")


def result_of(folder: RunFolder) -> dict[str, Any]:
    """A run and its evaluation by the protocol of training, in the form of the JSON of a bench."""
    summary, config = read_object(folder.summary), folder.read_settings()
    evaluation = read_object(folder.path / "evaluation-training.json")
    point = {name: evaluation[name] for name in ("mean_return", "standard_error", "episodes")}
    point |= {"seed": config.seed, "actors": config.actors, "agent_steps": summary["agent_steps_sampled"]}
    return read_object(folder.manifest) | {"points": [point], "busy": ["not asked"]}


def form_of(preset: str, actors: int) -> dict[str, Any]:
    """The form that a preset has today with a number of actors."""
    settings = flat_settings(divided_among(PRESETS[preset].config, actors)) if preset in PRESETS else {}
    return {"preset": preset, "actors": actors, **{name: settings[name] for name in _FORM if settings}}


def measured(what: str) -> list[dict[str, Any]]:
    """The lines of that name, or below it."""
    lines = map(json.loads, MEASUREMENTS.read_text(encoding="utf-8").splitlines())
    found = [line for line in lines if line["what"] == what or line["what"].startswith(f"{what}/")]
    assert found, f"{MEASUREMENTS}: nothing is called {what}"
    return found


def marked(text: str, line: dict[str, Any]) -> str:
    """The text, with a mark if the preset of a measurement has another form today."""
    form = line.get("form")
    return text + ", **an earlier form**" * (form is not None and form != form_of(form["preset"], form["actors"]))


def where(line: dict[str, Any]) -> str:
    """Revision, day and machine of a measurement, and its note."""
    note = f" ({line['note']})" if "note" in line else ""
    return f"`{line['revision'][:7]}`, {line['day']}, {line['cpu']}, {'idle' if line['idle'] else 'busy'}{note}"


def machine_of(line: dict[str, Any]) -> str:
    """Zen 5, of 2 cores of an AMD EPYC (Zen 5)."""
    return line["cpu"].partition("(")[2].rstrip(")") or line["cpu"]


def notes(lines: Sequence[dict[str, Any]]) -> str:
    """Where the lines of a table were measured, each place once, as a paragraph below it."""
    return f"\nMeasured at {'; '.join(dict.fromkeys(map(where, lines)))}.\n"
