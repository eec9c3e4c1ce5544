"""The settings of the actors are those of the run's config.json, by every entrance and for every number of actors."""

from pathlib import Path
from typing import Any

import pytest

import tributary_rl as tributary
from actors.actor import Actor
from launch import train as library
from launch.cli import main
from launch.interrupts import StopRequest
from launch.loop import inline
from launch.run.folder import RunFolder
from shared.config import RunConfig

# A preset with environments of all actors, and an update that is a minibatch, one gradient, or the mean of several.
PRESET = "cartpole"
NEW = "--executor inline --total-frames 1000 --evaluation.every-frames 0 --stop-at-return None"
SECOND = f"{NEW} --actors 8 --run-dir second"
OF_PYTHON = {"executor": "inline", "actors": 8, "evaluation.every_frames": 0, "stop_at_return": None}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch, no_warm_up: None) -> list[RunConfig]:  # noqa: ARG001
    """The settings of each actor that was made. Runs in processes of their own are trained in this one."""
    seen: list[RunConfig] = []

    class Seen(Actor):
        def __init__(self, config: RunConfig, *arguments: Any, **named: Any) -> None:
            seen.append(config)
            super().__init__(config, *arguments, **named)

    def in_this_process(*arguments: Any, **named: Any) -> Any:
        for of_process in ("output", "command"):
            named.pop(of_process, None)
        # Signals are of the main thread, and seeds have threads.
        named["stop"] = StopRequest()
        return library.train(*arguments, **named)

    monkeypatch.setattr(inline, "Actor", Seen)
    monkeypatch.setattr("launch.commands.train.train_in_process", in_this_process)
    monkeypatch.setattr("launch.python.run.train_in_process", in_this_process)
    return seen


def run_line(line: str) -> None:
    assert main(line.split()) == 0, line


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("lines", "run"),
    [
        # 64 actors have more environments than the preset, 8 as many.
        *(([f"train {PRESET} {NEW} --actors {n} --run-dir run"], "run") for n in (4, 64)),
        ([f"train {PRESET} {NEW} --actors 8 --seeds 3 --run-dir runs"], "runs/seed-3"),
        ([f"train {PRESET} {NEW} --actors 2 --run-dir 1", f"train --start-from 1 {SECOND}"], "second"),
        ([f"train --config my.toml {NEW} --run-dir 1", f"train --config 1/config.json {SECOND}"], "second"),
        ([], "run"),
    ],
    ids=["4 actors", "64 actors", "seeds", "another run", "files", "Python"],
)
def test_actors_receive_the_settings_of_the_folder(lines: list, run: str, received: list) -> None:
    Path("my.toml").write_text(f'preset = "{PRESET}"\n[actor]\ntotal_environments = 16\n')
    for line in lines:
        run_line(line)
    if not lines:
        first = tributary.train(PRESET, settings=OF_PYTHON, total_frames=1000, run_dir="first")
        tributary.train(start_from=first, total_frames=1000, run_dir=run)
    of_new = RunFolder(Path(run)).read_settings()
    assert received[-1] == of_new
    made, further = len(received), tributary.Run(run).summary["frames"] + 1
    if lines:
        run_line(f"train --resume {run} --total-frames {further}")
    else:
        assert tributary.train(resume=tributary.Run(run), total_frames=further).summary["frames"] >= further
    of_resumed = RunFolder(Path(run)).read_settings()
    assert len(received) > made
    assert received[-1] == of_resumed
    assert (of_resumed.actor, of_resumed.learner) == (of_new.actor, of_new.learner)
    in_flight = {config.actor.environments * config.actors for config in (of_new, of_resumed)}
    assert in_flight == {max(of_new.actor.total_environments, 2 * of_new.actors)}
