"""Whole runs in one process: determinism, the account, resume, and runs that do not end well."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sessions import messages_of, session

from actors.environments import StepResult, VectorEnvironment, environment_spec
from actors.evaluator import Evaluator
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.executor import Completion
from launch.loop.inline import InlineExecutor
from launch.loop.worker_pool import TrainingStoppedError
from launch.run.events import Message, Saved
from launch.run.session import TrainingSession
from launch.run.status import LearnerDeath
from shared.config import CheckpointConfig, EvaluationConfig, LearnerConfig, RunConfig
from shared.types import EvaluationResult, GradientReport, StageSeconds


def test_another_seed_gives_other_parameters(cartpole: RunConfig) -> None:
    spec = environment_spec(cartpole.environment)
    first, other = (Policy(replace(cartpole, seed=seed), spec).initial_parameters() for seed in (1, 2))
    assert (first != other).any()


def interrupted_at(
    config: RunConfig, folder: Path, due: Callable[[TrainingSession], bool], *, actors: int, resume: bool = False
) -> TrainingSession:
    """A session that is interrupted before the first report at which `due` holds."""

    class Interrupting(InlineExecutor):
        def next_completion(self) -> Completion | None:
            if due(run):
                run.interrupt()
            return super().next_completion()

    run = session(config, folder, actors, Interrupting, resume=resume)
    return run


def test_sampled_is_applied_plus_dropped_with_4_actors_and_k_3(cartpole: RunConfig, tmp_path: Path) -> None:
    config = replace(cartpole, total_frames=700, learner=LearnerConfig(gradients_per_update=3, max_policy_lag=0))
    summary = session(config, tmp_path, actors=4).run()
    dropped = summary["agent_steps_dropped"]
    assert set(dropped) <= {"too_old", "unfinished_update"}
    assert dropped["too_old"] > 0
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + sum(dropped.values())
    assert summary["gradients_applied"] == 3 * summary["updates"]
    assert summary["frames"] >= 700


def test_a_return_that_is_not_finite_is_counted_and_logged_once(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = VectorEnvironment.step

    def spoilt(environment: VectorEnvironment, *arguments: np.ndarray) -> StepResult:
        result = step(environment, *arguments)
        return result._replace(rewards=np.where(result.terminated, np.nan, result.rewards))

    monkeypatch.setattr(VectorEnvironment, "step", spoilt)
    config = replace(cartpole, total_frames=300)
    run = session(config, tmp_path)
    summary = run.run()
    assert summary["non_finite_returns"] == summary["episodes"] > 1
    assert summary["mean_return_100"] is None
    assert summary["gradients_dropped"]["non_finite"] > 0
    lines = [message for message in messages_of(run) if "non_finite_returns" in message]
    assert len(lines) == 1
    resumed = session(replace(config, total_frames=600), tmp_path, resume=True)
    assert resumed.run()["non_finite_returns"] > summary["non_finite_returns"]
    assert not [message for message in messages_of(resumed) if "non_finite_returns" in message]


def test_a_resumed_run_keeps_its_last_evaluation(cartpole: RunConfig, tmp_path: Path) -> None:
    evaluation = EvaluationConfig(every_frames=200, episodes=3, environments=3)
    before = session(replace(cartpole, total_frames=300, evaluation=evaluation), tmp_path).run()
    assert before["evaluation"] is not None
    rare = replace(evaluation, every_frames=10**6)
    after = session(replace(cartpole, total_frames=600, evaluation=rare), tmp_path, resume=True).run()
    assert after["evaluation"] == before["evaluation"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["frames"] == after["frames"] > before["frames"]
    assert rows[-1]["evaluation_return"] == before["evaluation"]["mean_return"]


@pytest.mark.parametrize(("now", "kept"), [(2, False), (3, True), (5, True)])
def test_a_resume_with_another_k_counts_as_applied_only_what_was(
    now: int, kept: bool, cartpole: RunConfig, tmp_path: Path
) -> None:
    """Two gradients wait for a third when the run is saved."""
    # 8 gradients of one actor are two updates and two pending gradients.
    config = replace(cartpole, learner=LearnerConfig(gradients_per_update=3))
    before = interrupted_at(config, tmp_path, lambda run: run.learner.account.ledger.gradients_applied == 6, actors=1)
    before.run()
    assert (before.learner.version, before.learner.account.ledger.gradients_pending) == (2, 2)
    waiting = before.learner.account.ledger.pending
    after = session(
        replace(cartpole, total_frames=500, learner=LearnerConfig(gradients_per_update=now)), tmp_path, resume=True
    )
    summary, ledger = after.run(), after.learner.account.ledger
    assert ledger.gradients_applied == 2 * 3 + (ledger.updates - 2) * now
    assert ledger.dropped == ({} if kept else {"unfinished_update": waiting})
    dropped = summary["agent_steps_dropped"]
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + sum(dropped.values())
    assert dropped.get("unfinished_update", 0) == ledger.pending + (0 if kept else waiting)
    assert any("dropped 2 gradients" in message for message in messages_of(after)) is not kept


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("cartpole", {"name": "actor_critic"}),
        ("cartpole", {"name": "sarsa"}),
        ("cartpole", {"name": "q_learning", "target_network": False}),
        ("pong", {"name": "actor_critic"}),
        *(pytest.param(task, {"name": "q_learning"}, marks=pytest.mark.slow) for task in ("cartpole", "pong")),
        pytest.param("pong", {"name": "sarsa"}, marks=pytest.mark.slow),
    ],
)
def test_n_updates_save_resume_and_n_updates_are_bit_equal_to_2n(
    task: str, method: dict, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    updates, config = 12, request.getfixturevalue(task)
    config = replace(
        config,
        executor="inline",
        total_frames=10**9,
        method=replace(config.method, target_interval_agent_steps=100, **method),
        checkpoint=CheckpointConfig(every_seconds=1e9, exact=True),
    )

    def run_until(version: int, folder: Path, resume: bool) -> TrainingSession:
        # The next report is the last update.
        run = interrupted_at(config, folder, lambda run: run.learner.version == version - 1, actors=2, resume=resume)
        assert run.run()["updates"] == version
        return run

    whole = run_until(2 * updates, tmp_path / "whole", resume=False)
    run_until(updates, tmp_path / "half", resume=False)
    resumed = run_until(2 * updates, tmp_path / "half", resume=True)
    for name, expected in whole.learner.variables().items():
        np.testing.assert_array_equal(resumed.learner.variables()[name].numpy(), expected.numpy(), err_msg=name)
    assert resumed.learner.state() == whole.learner.state()


def test_rates_after_a_resume_are_those_of_this_process(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row at the end, and none before.
    once, clock = replace(cartpole, total_frames=1_000, log_every_seconds=1e6), time.monotonic
    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic", lambda: 10_000.0 * clock())
        session(once, tmp_path).run()
    resumed = session(replace(once, total_frames=2_000), tmp_path, resume=True)
    agent_steps, seconds = resumed.learner.account.ledger.sampled, resumed.elapsed_seconds
    assert seconds > 100.0
    resumed.run()
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    rate = (row["agent_steps"] - agent_steps) / (row["elapsed_seconds"] - seconds)
    assert row["agent_steps_per_second"] >= rate > 0


@pytest.mark.parametrize("exact", [False, True])
def test_an_interrupt_drops_the_evaluation_that_has_not_begun_unless_it_is_saved(
    cartpole: RunConfig, tmp_path: Path, exact: bool
) -> None:
    config = replace(
        cartpole,
        executor="inline",
        checkpoint=CheckpointConfig(exact=exact),
        evaluation=EvaluationConfig(every_frames=100, episodes=1, environments=1),
    )

    class Interrupting(InlineExecutor):
        def evaluate(self, *arguments: Any) -> None:
            run.interrupt()
            super().evaluate(*arguments)

    run = session(config, tmp_path, 2, Interrupting)
    stopped = run.run()
    assert (stopped["status"], stopped["evaluation"]) == ("interrupted", None)
    # The checkpoint has the evaluation, or a resume before the next one is due has none.
    longer = replace(config, total_frames=stopped["frames"] + 40)
    assert (session(longer, tmp_path, actors=2, resume=True).run()["evaluation"] is not None) == exact


def test_an_evaluation_without_its_video_is_told(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Evaluator.run

    def without_video(self: Evaluator, *arguments: Any, **watched: Any) -> EvaluationResult:
        played = made(self, *arguments, **watched)
        return played._replace(video_error="RuntimeError: no display")

    monkeypatch.setattr(Evaluator, "run", without_video)
    evaluation = EvaluationConfig(every_frames=300, episodes=1, environments=1)
    assert session(replace(cartpole, total_frames=700, evaluation=evaluation), tmp_path).run()["evaluation"]
    assert "has no video: RuntimeError: no display" in (tmp_path / "log.txt").read_text()


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
    assert messages_of(run) == [
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
    assert messages_of(run) == ["more actors died than may be replaced"]
    assert session(cartpole, tmp_path, resume=True).learner.version == 10


def test_a_run_in_which_nobody_ever_reported_has_failed(cartpole: RunConfig, tmp_path: Path) -> None:
    class SilentExecutor(InlineExecutor):
        def next_completion(self) -> None:
            self._calls.clear()

    summary = session(replace(cartpole, stop_after_seconds=1e-9), tmp_path, executor=SilentExecutor).run()
    # Without a rollout no time of training has passed: the limit of time is not reached.
    assert (summary["status"], summary["agent_steps_sampled"], summary["wall_seconds"]) == ("failed", 0, 0.0)
    assert summary["agent_steps_per_second"] == 0.0
    assert summary["startup_seconds"] > 0.0


def test_training_begins_with_the_first_rollout_and_a_resume_adds_to_both_times(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor that is 1,000 seconds late, on a clock that each rollout moves by 2 seconds."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: 5e8 + now)

    class LateExecutor(InlineExecutor):
        late = 1_000.0

        def next_completion(self) -> Completion | None:
            nonlocal now
            now, self.late = now + 2.0 + self.late, 0.0
            report = super().next_completion()
            assert isinstance(report, GradientReport)
            return report._replace(stage_seconds=StageSeconds(1.5, 0.25, 0.25, 0.0, 500.0))

    def train(total_frames: int, started: float, *, resume: bool) -> tuple[dict, list[dict]]:
        config = replace(cartpole, total_frames=total_frames, log_every_seconds=1.0)
        run = session(config, tmp_path, executor=LateExecutor, resume=resume, started=time.time() - started)
        return run.run(), [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    summary, rows = train(60, started=30.0, resume=False)
    rollouts = summary["messages"]
    assert summary["startup_seconds"] == 1_030.0
    assert summary["wall_seconds"] == 2.0 * rollouts
    assert rows[0]["elapsed_seconds"] == 2.0
    assert rows[0]["agent_steps_per_second"] == rows[0]["agent_steps"] / 2.0
    assert summary["agent_steps_per_second"] == summary["agent_steps_sampled"] / summary["wall_seconds"]
    summary, rows = train(120, started=5.0, resume=True)
    assert summary["messages"] > rollouts
    assert summary["startup_seconds"] == 1_030.0 + 1_005.0
    assert rows[-1]["elapsed_seconds"] == summary["wall_seconds"] == 2.0 * summary["messages"]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_training_goes_on(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(cartpole, total_frames=600, checkpoint=CheckpointConfig(every_frames=100, every_seconds=1e9))
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
    events = run.view().events
    saved = [event.update for event in events if isinstance(event, Saved)]
    messages = [event.text for event in events if isinstance(event, Message) and event.text.startswith("warning: ")]
    assert len(messages) == len(tried) - 2 > 1
    assert re.match(r"warning: checkpoint of update \d+ could not be written: ", messages[0])
    assert messages[0].endswith("No space left on device; training goes on")
    monkeypatch.undo()
    assert session(config, tmp_path, resume=True).learner.version == saved[1] > saved[0]


def test_what_a_dead_learner_had_taken_in_since_its_checkpoint_is_counted(cartpole: RunConfig, tmp_path: Path) -> None:
    saved = session(replace(cartpole, total_frames=500), tmp_path).run()
    config, killed = replace(cartpole, total_frames=900), "its process died: killed"
    first = session(config, tmp_path, resume=True, after=LearnerDeath(killed, saved["agent_steps_sampled"] + 120))
    assert messages_of(first) == [
        f"learner: {killed}; the run goes on from its checkpoint of update {saved['updates']}, and plays 120 agent "
        f"steps again"
    ]
    summary = first.run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (1, 120)
    # As far as anybody saw it had not come beyond its checkpoint: nothing is played again.
    summary = session(config, tmp_path, resume=True, after=LearnerDeath(killed, 3)).run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (2, 120)


def test_a_summary_that_cannot_be_written_is_a_warning(cartpole: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    run = session(replace(cartpole, total_frames=10), tmp_path)
    assert run.run()["status"] == "frames_reached"
    assert messages_of(run)[-1] == "warning: summary.json could not be written: Is a directory"
