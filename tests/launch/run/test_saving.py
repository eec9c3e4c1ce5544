"""What a run keeps for later: best weights that a death leaves as they are, checkpoints when they are due."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.environments import environment_spec
from launch.loop.inline import InlineExecutor
from launch.loop.worker_pool import TrainingStoppedError
from launch.run.events import Row, Saved
from launch.run.folder import RunFolder
from launch.run.saving import BestWeights, Saving
from launch.run.session import TrainingSession
from shared.config import CheckpointConfig, RunConfig


def session(config: RunConfig, folder: Path, *, resume: bool = False) -> TrainingSession:
    spec = environment_spec(config.environment)
    return TrainingSession(config, spec, folder, lambda first: InlineExecutor(config, spec, 1, first), resume=resume)


def keep_if_best(best: BestWeights, version: int, mean: float) -> None:
    best.keep_if_best(version, np.full(3, mean, np.float32), mean, "evaluation")


def best_weights(folder: Path, state: dict[str, Any] | None = None) -> BestWeights:
    """As a session makes them, after a checkpoint with this state."""
    best = BestWeights(RunFolder(folder), lambda message: pytest.fail(message))
    if state is not None:
        best.restore(state, evaluates=True)
    best.read_score()
    return best


def best_of(folder: Path) -> tuple[int, float, float]:
    """Version, mean return, and the value that all its parameters have."""
    with np.load(folder / "best.npz", allow_pickle=False) as best:
        (value,) = set(best["parameters"].tolist())
        return int(best["version"]), float(best["mean_return"]), value


def test_best_weights_survive_a_worse_evaluation(tmp_path: Path) -> None:
    best = best_weights(tmp_path)
    for version, mean in enumerate((-3.0, 20.0, 19.0)):
        keep_if_best(best, version, mean)
    assert best_of(tmp_path) == (1, 20.0, 20.0)
    keep_if_best(best, 3, 20.5)
    assert best_of(tmp_path) == (3, 20.5, 20.5)


def test_best_weights_survive_a_learner_that_died_before_its_next_checkpoint(tmp_path: Path) -> None:
    died = best_weights(tmp_path)
    checkpoint = died.state()
    keep_if_best(died, 5, 20.0)
    resumed = best_weights(tmp_path, checkpoint)
    keep_if_best(resumed, 6, 19.0)
    assert best_of(tmp_path) == (5, 20.0, 20.0)
    keep_if_best(resumed, 7, 21.0)
    assert best_of(tmp_path) == (7, 21.0, 21.0)


def test_weights_that_could_not_be_written_are_not_what_later_ones_have_to_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    best, weights = BestWeights(RunFolder(tmp_path), said.append), np.ones(3, np.float32)

    def disk_is_full(file: Path, **_: object) -> None:
        file.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    best.keep_if_best(1, 10 * weights, 10.0, "evaluation")
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", disk_is_full)
        best.keep_if_best(2, 18 * weights, 18.0, "evaluation")
    assert said == ["warning: the best weights could not be written: No space left on device; training goes on"]
    assert [file.name for file in tmp_path.iterdir()] == ["best.npz"]
    best.keep_if_best(3, 15 * weights, 15.0, "evaluation")
    assert best_of(tmp_path) == (3, 15.0, 15.0)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03"])
def test_where_the_best_weights_cannot_be_read_the_checkpoint_says_how_good_they_were(
    tmp_path: Path, content: bytes | None
) -> None:
    best = best_weights(tmp_path)
    keep_if_best(best, 5, 20.0)
    (tmp_path / "best.npz").unlink()
    if content is not None:
        (tmp_path / "best.npz").write_bytes(content)
    resumed = best_weights(tmp_path, best.state())
    keep_if_best(resumed, 6, 19.0)
    assert content is None or (tmp_path / "best.npz").read_bytes() == content
    keep_if_best(resumed, 7, 20.5)
    assert best_of(tmp_path) == (7, 20.5, 20.5)


def test_an_evaluation_says_more_than_training_and_a_confirmation_more_than_luck(tmp_path: Path) -> None:
    best, weights = BestWeights(RunFolder(tmp_path), lambda message: pytest.fail(message)), np.ones(3, np.float32)
    kept = []
    for version, (mean, measure, surely) in enumerate(
        [
            (50.0, "training", False),
            (10.0, "evaluation", False),
            (60.0, "training", False),
            (30.0, "evaluation", False),
            (20.0, "evaluation", True),
        ]
    ):
        best.keep_if_best(version, weights, mean, measure, surely=surely)
        with np.load(tmp_path / "best.npz", allow_pickle=False) as file:
            kept.append(int(file["version"]))
    assert kept == [0, 1, 1, 3, 4]
    assert best.state() == {"best_return": 20.0, "best_measure": "evaluation"}


@pytest.mark.parametrize(("evaluates", "measure"), [(True, "evaluation"), (False, "training")])
def test_a_checkpoint_of_an_older_version_has_no_measure(tmp_path: Path, evaluates: bool, measure: str) -> None:
    best = BestWeights(RunFolder(tmp_path), lambda message: pytest.fail(message))
    best.restore({"best_return": 3.0}, evaluates=evaluates)
    best.read_score()
    assert best.state() == {"best_return": 3.0, "best_measure": measure}


def test_a_checkpoint_is_due_by_time(tmp_path: Path) -> None:
    learner: Any = SimpleNamespace(version=0, account=SimpleNamespace(frames=0), variables=dict)
    config = RunConfig(checkpoint=CheckpointConfig(every_seconds=60.0))
    saving = Saving(config, RunFolder(tmp_path), learner, dict, lambda _state: None, print)
    saving.count_from(100.0)
    assert not saving.is_due(159.9)
    assert saving.is_due(160.0)
    saving.count_from(160.0)
    assert not saving.is_due(161.0)


def test_a_checkpoint_is_due_by_updates(cartpole: RunConfig, tmp_path: Path) -> None:
    config = replace(cartpole, total_frames=700, checkpoint=CheckpointConfig(every_updates=3, every_seconds=1e9))
    run = session(config, tmp_path)
    updates = run.run()["updates"]
    saved = [event.update for event in run.view().events if isinstance(event, Saved)]
    assert saved == [*range(0, updates, 3), updates] if updates % 3 else [*range(0, updates + 1, 3), updates]


def test_a_row_comes_after_the_checkpoint_of_its_frames(cartpole: RunConfig, tmp_path: Path) -> None:
    """The reader of a row in which a multiple was reached finds the weights of that moment."""
    every = 130
    config = replace(
        cartpole,
        total_frames=900,
        log_every_seconds=1e-9,
        checkpoint=CheckpointConfig(every_frames=every, every_seconds=1e9),
    )
    run = session(config, tmp_path)
    run.run()
    events = [event for event in run.view().events if isinstance(event, Saved | Row)]
    frames_at = {event.values["updates"]: event.values["frames"] for event in events if isinstance(event, Row)}
    reached = -1
    for event in events:
        if isinstance(event, Saved):
            reached = max(reached, frames_at.get(event.update, 0) // every)
        else:
            assert reached == event.values["frames"] // every
    assert reached >= 900 // every


def test_weights_that_are_not_finite_are_not_saved(cartpole: RunConfig, tmp_path: Path) -> None:
    run = session(cartpole, tmp_path)
    parameters = run.learner.variables()["parameters"]
    parameters.assign(np.full(parameters.shape, np.nan, np.float32))
    with pytest.raises(TrainingStoppedError, match="not finite any more at update 0"):
        run.run()
    assert not list(tmp_path.glob("checkpoints/*.index"))
    # The run fails in its first checkpoint, and in its last one again.
    assert (tmp_path / "log.txt").read_text().count("not finite any more") == 1
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
