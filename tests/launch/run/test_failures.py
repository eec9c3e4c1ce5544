"""What is left of a run that does not end well: its weights, its account, its status."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import tensorflow as tf

from actors.environments import environment_spec
from launch.loop.coordinator import Coordinator
from launch.loop.inline import InlineExecutor
from launch.loop.worker_pool import TrainingStoppedError
from launch.run.session import TrainingSession
from launch.run.status import LearnerDeath, write_summary
from shared.config import CheckpointConfig, RunConfig


def session(
    config: RunConfig, folder: Path, *, resume: bool = False, after: LearnerDeath | None = None
) -> TrainingSession:
    spec = environment_spec(config.environment)
    folder.mkdir(exist_ok=True)
    return TrainingSession(
        config, spec, folder, lambda first: InlineExecutor(config, spec, 1, first), resume=resume, after=after
    )


def test_actors_that_cannot_be_ended_do_not_keep_a_run_from_being_saved(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(_: InlineExecutor) -> None:
        raise RuntimeError("the environment's server\nis gone")

    monkeypatch.setattr(InlineExecutor, "close", close)
    config = replace(cartpole, total_frames=500)
    run = session(config, tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert run.view().messages == [
        "warning: the actors could not be ended: RuntimeError: the environment's server is gone; the run is saved"
    ]
    assert session(config, tmp_path, resume=True).learner.version == summary["updates"]


def test_a_run_that_has_to_stop_is_saved_and_has_failed(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Coordinator.run

    def lose_too_many(self: Coordinator) -> Iterator:
        yield from islice(whole(self), 10)
        raise TrainingStoppedError("more actors died than may be replaced")

    monkeypatch.setattr(Coordinator, "run", lose_too_many)
    run = session(cartpole, tmp_path)
    with pytest.raises(TrainingStoppedError, match="more actors died"):
        run.run()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["updates"] == 10
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] > 0
    assert run.view().messages == ["more actors died than may be replaced"]
    assert session(cartpole, tmp_path, resume=True).learner.version == 10


def test_a_run_in_which_nobody_ever_reported_has_failed(cartpole: RunConfig, tmp_path: Path) -> None:
    class SilentExecutor(InlineExecutor):
        def next_completion(self) -> None:
            self._calls.clear()

    config, spec = replace(cartpole, stop_after_seconds=1e-3), environment_spec(cartpole.environment)
    run = TrainingSession(config, spec, tmp_path, lambda first: SilentExecutor(config, spec, 1, first), resume=False)
    summary = run.run()
    assert (summary["status"], summary["agent_steps_sampled"]) == ("failed", 0)
    assert run.view().messages == ["no actor has made a report before the time was up: nothing was learned"]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_training_goes_on(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(cartpole, total_frames=600, checkpoint=CheckpointConfig(every_updates=10, every_seconds=1e9))
    write, tried = tf.train.Checkpoint._write, []

    def full_disk(self: tf.train.Checkpoint, path: str, **options: object) -> str:
        tried.append(path)
        if len(tried) > 2:
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return write(self, path, **options)

    monkeypatch.setattr(tf.train.Checkpoint, "_write", full_disk)
    run = session(config, tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert summary["updates"] > 20
    messages = run.view().messages
    assert len(messages) == len(tried) - 2 > 1
    assert messages[0].startswith("warning: checkpoint of update 20 could not be written: ")
    assert messages[0].endswith("No space left on device; training goes on")
    monkeypatch.undo()
    assert session(config, tmp_path, resume=True).learner.version == 10


def test_what_a_dead_learner_had_taken_in_since_its_checkpoint_is_counted(cartpole: RunConfig, tmp_path: Path) -> None:
    saved = session(replace(cartpole, total_frames=500), tmp_path).run()
    config, killed = replace(cartpole, total_frames=900), "its process died: killed"
    first = session(config, tmp_path, resume=True, after=LearnerDeath(killed, saved["agent_steps_sampled"] + 120))
    assert first.view().messages == [
        f"learner: {killed}; the run goes on from its checkpoint of update {saved['updates']}, and plays 120 agent "
        f"steps again"
    ]
    summary = first.run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (1, 120)
    # As far as anybody saw it had not come beyond its checkpoint: nothing is played again.
    summary = session(config, tmp_path, resume=True, after=LearnerDeath(killed, 3)).run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (2, 120)


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    said: list[str] = []
    write_summary({"updates": 3}, tmp_path / "gone" / "summary.json", said.append)
    assert said == ["warning: summary.json could not be written: No such file or directory"]
