"""An exact run that is stopped and resumed ends where one that was never stopped does, however it is stopped."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from accounts import account_of
from waiting import UNTIL_FRAMES, wait_for

from launch.cli import main
from launch.run.stopping import StoppingRules
from learner.checkpoint import checkpoint_paths

SMALL = (
    f"--executor inline --checkpoint.exact {UNTIL_FRAMES} --optimizer.annealing-frames 100k --network.hidden-sizes 8 "
    "--actor.environments 8 --actor.unroll-length 5 --evaluation.episodes 10 --environment.options max_episode_steps 10"
)
LSTM = "--network.recurrent lstm"
# What time there was, and how it ended, may differ.
_OF_THE_SESSION = {"status", "wall_seconds", "startup_seconds", "frames_per_second", "agent_steps_per_second"}


def train(arguments: str, run: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run the command, and return its summary, whose account must close."""
    start = ["train", "--resume", str(run)] if resume else ["train", "cartpole", *SMALL.split(), "--run-dir", str(run)]
    code = main([*start, *arguments.split()])
    summary = account_of(run)
    assert code == (130 if summary["status"] == "interrupted" else 0)
    dropped = summary["agent_steps_dropped"]
    assert dropped.get("unfinished_update", 0) == checkpoint(run)["state"]["ledger"]["pending"]
    return summary


def checkpoint(run: Path) -> dict[str, Any]:
    """All that the newest checkpoint holds: arrays by name, and the plain values as `state`."""
    reader = tf.train.load_checkpoint(str(checkpoint_paths(run / "checkpoints")[0]))
    content = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    del content["save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    content["state"] = json.loads(content.pop("state/.ATTRIBUTES/py_state"))
    return content


def interrupt_while_it_trains(run: Path) -> threading.Thread:
    """Press Ctrl-C when the run that is about to be resumed has logged its first numbers."""
    logged = (run / "metrics.jsonl").stat().st_size

    def press() -> None:
        try:
            wait_for(lambda: (run / "metrics.jsonl").stat().st_size != logged, "a row", seconds=60.0)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("actors", "gradients_per_update", "epochs", "others"),
    [
        # Saved in the middle of an update, to which an actor has given more than another, and of a rollout.
        (2, 3, 2, ""),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (1, 1, 1, ""),
                (1, 3, 2, ""),
                (2, 1, 1, LSTM),
                (2, 3, 1, ""),
                # With states that are carried from rollout to rollout.
                (2, 3, 2, LSTM),
                (3, 1, 2, ""),
                (4, 1, 1, ""),
                (4, 3, 2, "--learner.accumulation mean"),
                (2, 1, 1, LSTM + " --method.name sarsa --exploration.annealing-frames 500"),
            )
        ),
    ],
)
def test_stopped_in_every_way_is_bit_equal_to_never_stopped(
    actors: int, gradients_per_update: int, epochs: int, others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By frames, by Ctrl-C, by time and by return, one after another."""
    monkeypatch.setattr("launch.train._VIEW_SECONDS", 0.05)
    settings = f"--actors {actors} --learner.gradients-per-update {gradients_per_update} {others}"
    if epochs > 1:
        settings += f" --actor.epochs {epochs} --actor.minibatches 2"
    run, whole = tmp_path / "run", tmp_path / "whole"
    summaries = [train(f"{settings} --total-frames 400", run)]

    ctrl_c = interrupt_while_it_trains(run)
    summaries.append(train("--total-frames 100k --log-every-seconds 0.01", run, resume=True))
    ctrl_c.join()

    seconds, before, stops = summaries[-1]["wall_seconds"] + 0.1, summaries[-1]["frames"], StoppingRules.stops
    with monkeypatch.context() as patch:
        # However slow the machine is, the time is not up before there is something to report.
        patch.setattr(StoppingRules, "stops", lambda self, f, t: stops(self, f, t if f > before else 0.0))
        summaries.append(train(f"--log-every-seconds 10 --stop-after-seconds {seconds}", run, resume=True))
    summaries.append(train("--stop-after-seconds None --stop-at-return 8", run, resume=True))
    frames = summaries[-1]["frames"] + 200
    resumed = train(f"--stop-at-return None --total-frames {frames}", run, resume=True)
    statuses = [summary["status"] for summary in summaries]
    assert statuses == ["frames_reached", "interrupted", "time_reached", "return_reached"]

    never_stopped = train(f"{settings} --total-frames {frames}", whole)
    expected, seen = checkpoint(whole), checkpoint(run)
    assert seen.keys() == expected.keys()
    for content in (expected, seen):
        # How long it took; and one session evaluated a crossing.
        for name in ("elapsed_seconds", "startup_seconds", "last_evaluation"):
            del content["state"][name]
        del content["state"]["executor"]["evaluator"]
    for name, value in expected.items():
        if name != "state":
            np.testing.assert_array_equal(seen[name], value, err_msg=name)
    assert seen["state"] == expected["state"]
    for name in never_stopped.keys() - _OF_THE_SESSION - {"evaluation"}:
        assert resumed[name] == never_stopped[name], name
    assert resumed["evaluation"] == summaries[-1]["evaluation"] is not None


def test_an_exact_resume_with_other_actors_is_refused(tmp_path: Path, refused: Callable[[str], str]) -> None:
    run = tmp_path / "run"
    train("--actors 2 --total-frames 300", run)
    config = (run / "config.json").read_text()
    for other, was in (
        ("--actors 1", 2),
        ("--actor.environments 4", 8),
        ("--actor.unroll-length 10", 5),
        ("--actor.epochs 2", 1),
    ):
        line = f"{other}: an exact resume goes on with {was}; leave it as it was, or give --checkpoint.no-exact"
        assert refused(f"train --resume {run} --total-frames 600 {other}") == line
    assert (run / "config.json").read_text() == config
    # One more can join, and without exactness everything can change.
    train("--actors 3 --total-frames 600", run, resume=True)
    train("--checkpoint.no-exact --actors 1 --actor.environments 4 --total-frames 900", run, resume=True)
