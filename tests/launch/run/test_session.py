"""Whole runs in one process: the account, resume, targets that an evaluation confirms, runs that do not end well."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from sessions import messages_of, quick, session
from watched_processes import rows as rows_of

from actors.environments import StepResult, VectorEnvironment
from launch.loop.executor import Completion
from launch.loop.inline import InlineExecutor
from launch.run.events import Event, Message, Row, Saved
from launch.run.folder import RunFolder
from launch.run.summary import LearnerDeath, RunCounts
from launch.train import train
from shared.config import ActorConfig, CheckpointConfig, EvaluationConfig, LearnerConfig, RunConfig
from shared.errors import TrainingFailedError
from shared.types import EpisodeStats, EvaluationPart, GradientReport, StageSeconds, WeightSnapshot


def executor_with(change: Callable[[Any], Completion]) -> type[InlineExecutor]:
    """An executor whose completions are changed."""
    return type(
        "Changed", (InlineExecutor,), {"next_completion": lambda it: change(InlineExecutor.next_completion(it))}
    )


def test_a_run_in_one_process_follows_from_its_seed(cartpole: RunConfig, tmp_path: Path) -> None:
    config = replace(cartpole, total_frames=600, actor=replace(cartpole.actor, fresh_gradients=True, epochs=2))
    config = replace(config, evaluation=EvaluationConfig(every_frames=200, episodes=4, environments=2))
    runs = [session(replace(config, seed=seed), tmp_path / f"{i}", actors=3) for i, seed in enumerate((1, 1, 2))]
    before = [run.learner.snapshot().parameters for run in runs]
    assert (before[0] != before[2]).any()
    evaluations = [run.run()["evaluation"] | {"seconds": None} for run in runs]
    first, same, other = (run.learner.snapshot().parameters for run in runs)
    np.testing.assert_array_equal(first, same)
    assert evaluations[0] == evaluations[1] != evaluations[2]
    assert (first != other).any()


def test_non_finite_returns_warn_once(cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = VectorEnvironment.step

    def spoilt(environment: VectorEnvironment, *arguments: np.ndarray) -> StepResult:
        result = step(environment, *arguments)
        return result._replace(rewards=np.where(result.terminated, np.nan, result.rewards))

    monkeypatch.setattr(VectorEnvironment, "step", spoilt)
    run = session(replace(cartpole, total_frames=300), tmp_path)
    summary = run.run()
    assert summary["non_finite_returns"] == summary["episodes"] > 1
    assert summary["mean_return_100"] is None
    assert summary["gradients_dropped"]["non_finite"] > 0
    assert sum("non_finite_returns" in message for message in messages_of(run)) == 1


def test_a_resumed_run_keeps_its_last_evaluation(cartpole: RunConfig, tmp_path: Path) -> None:
    often, rare = (EvaluationConfig(every_frames=frames, episodes=3, environments=3) for frames in (200, 10**6))
    before = session(replace(cartpole, total_frames=300, evaluation=often), tmp_path).run()
    assert before["evaluation"] is not None
    after = session(replace(cartpole, total_frames=600, evaluation=rare), tmp_path, resume=True).run()
    assert after["evaluation"] == before["evaluation"]
    row = rows_of(tmp_path)[-1]
    assert row["frames"] == after["frames"] > before["frames"]
    assert row["evaluation_return"] == before["evaluation"]["mean_return"]


def test_a_resumed_run_drops_the_rows_of_a_session_that_was_killed(cartpole: RunConfig, tmp_path: Path) -> None:
    session(replace(cartpole, total_frames=300), tmp_path).run()
    *_, last = rows_of(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        # After the last checkpoint, and half a line.
        file.write(json.dumps(last | {"frames": last["frames"] + 7}) + '\n{"frames": 4')
    session(replace(cartpole, total_frames=600), tmp_path, resume=True)
    assert rows_of(tmp_path)[-1] == last


def test_training_measures_the_best_weights_until_an_evaluation_does(cartpole: RunConfig, tmp_path: Path) -> None:
    often, rare = (EvaluationConfig(every_frames=frames, episodes=3, environments=3) for frames in (1_000, 10**6))
    found = list[tuple[str, int]]()
    for run, evaluation in enumerate((rare, often, rare)):
        config = replace(cartpole, total_frames=3_000 * (run + 1), evaluation=evaluation)
        session(config, tmp_path, resume=run > 0).run()
        with np.load(tmp_path / "best.npz", allow_pickle=False) as file:
            best = dict(file)
        found.append((str(best["measure"]), int(best["version"])))
        # Any mean return is higher.
        np.savez(tmp_path / "best.npz", **best | {"mean_return": np.float64(-1.0)})
    (before, _), (by_evaluation, version), after = found
    assert before == "training" != by_evaluation
    assert after == (by_evaluation, version)


def test_a_warning_about_settings_is_in_the_log(cartpole: RunConfig, tmp_path: Path) -> None:
    early = replace(cartpole.optimizer, schedule="linear", annealing_frames=100)
    session(replace(cartpole, optimizer=early, total_frames=300), tmp_path).run()
    assert (tmp_path / "log.txt").read_text().count("warning: --optimizer.annealing-frames 100 is before") == 1


def test_a_kill_after_an_evaluation_does_not_lose_it(cartpole: RunConfig, tmp_path: Path) -> None:
    rare = replace(cartpole, total_frames=2_000, checkpoint=CheckpointConfig(every_frames=10**9), log_every_seconds=1e9)
    config = replace(rare, evaluation=EvaluationConfig(every_frames=700, episodes=3, environments=3))
    run = session(config, tmp_path)
    run._finish = Mock(return_value={})
    run.run()
    again = session(replace(config, total_frames=4_000), tmp_path, resume=True)
    assert again.evaluations.last is not None
    kept = [row for row in rows_of(tmp_path) if row["agent_steps"] <= again.learner.account.ledger.sampled]
    versions = [evaluation["version"] for row in kept for evaluation in row["evaluations"]]
    assert versions[-1] == again.evaluations.last["version"]


@pytest.mark.parametrize(("now", "kept"), [(2, False), (3, True), (5, True)])
def test_a_resume_with_another_k_keeps_the_account(now: int, kept: bool, cartpole: RunConfig, tmp_path: Path) -> None:
    """Two gradients wait for a third when the run is interrupted and saved: of 8 gradients 6 are in two updates."""

    def interrupt(report: GradientReport) -> GradientReport:
        if before.learner.account.ledger.gradients_applied == 6:
            before.interrupt()
        return report

    config = replace(cartpole, learner=LearnerConfig(gradients_per_update=3))
    before = session(config, tmp_path, executor=executor_with(interrupt))
    ended, waiting = before.run(), before.learner.account.ledger.pending
    assert (ended["status"], ended["gradients_dropped"]) == ("interrupted", {"unfinished_update": 2})
    assert ended["agent_steps_sampled"] == ended["agent_steps_applied"] + waiting
    assert ended["agent_steps_dropped"] == {"unfinished_update": waiting}
    assert (before.learner.version, before.learner.account.ledger.gradients_pending) == (2, 2)
    config = replace(cartpole, total_frames=500, learner=LearnerConfig(gradients_per_update=now))
    after = session(config, tmp_path, resume=True)
    summary, ledger = after.run(), after.learner.account.ledger
    assert ledger.gradients_applied == 2 * 3 + (ledger.updates - 2) * now
    assert ledger.dropped == ({} if kept else {"unfinished_update": waiting})
    dropped = summary["agent_steps_dropped"]
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + sum(dropped.values())
    assert dropped.get("unfinished_update", 0) == ledger.pending + (0 if kept else waiting)
    assert any("dropped 2 gradients" in message for message in messages_of(after)) is not kept


def test_an_unexpected_error_is_a_failure_with_its_last_row(cartpole: RunConfig, tmp_path: Path, monkeypatch) -> None:
    # An id may stand for several actors.
    monkeypatch.setattr(InlineExecutor, "actors", 7)
    broken = executor_with(lambda report: report if run.learner.version < 3 else 1 / 0)
    # No other row would come before the end.
    run = session(replace(cartpole, log_every_seconds=1e9, total_frames=10**6), tmp_path, executor=broken)
    with pytest.raises(ZeroDivisionError):
        run.run()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("failed", 3)
    assert rows_of(tmp_path)[-1]["agent_steps"] == summary["agent_steps_sampled"] > 0
    assert rows_of(tmp_path)[-1]["actors_alive"] == 7


def test_the_episodes_of_duplicates_are_in_no_mean_return(cartpole: RunConfig, tmp_path: Path) -> None:
    def repeat(report: GradientReport) -> GradientReport:
        if report.sequence % 2:
            return report
        returns = report.episodes.returns + 1e6
        return report._replace(sequence=1, episodes=report.episodes._replace(returns=returns))

    summary = session(replace(cartpole, total_frames=6_000), tmp_path, executor=executor_with(repeat)).run()
    assert summary["gradients_dropped"]["duplicate"] == summary["gradients_applied"]
    assert 0 < summary["untrained_mean_return"] < 500


def test_an_error_at_the_end_of_the_actors_loses_nothing(cartpole: RunConfig, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(InlineExecutor, "close", Mock(side_effect=RuntimeError("the environment's server\nis gone")))
    config = replace(cartpole, total_frames=500)
    run = session(config, tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    (warning,) = messages_of(run)
    assert "RuntimeError: the environment's server is gone" in warning
    assert session(config, tmp_path, resume=True).learner.version == summary["updates"]


def test_a_full_disk_is_one_warning_of_each_file(cartpole: RunConfig, tmp_path: Path, monkeypatch) -> None:
    writers = "launch.run.session.write_json", "launch.run.metrics.append_line", "tensorflow.summary.create_file_writer"
    for writer in writers:
        monkeypatch.setattr(writer, Mock(side_effect=OSError(28, "No space left on device")))
    run = session(replace(cartpole, total_frames=3_000), tmp_path)
    assert run.run()["status"] == "frames_reached"
    warnings = sorted(message for message in messages_of(run) if message.startswith("warning: "))
    starts = ["warning: TensorBoard: ", "warning: metrics could not", "warning: summary.json could not be"]
    for warning, start in zip(warnings, starts, strict=True):
        assert warning.startswith(start)
        assert "No space left on device" in warning


def test_a_full_disk_costs_checkpoints(cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(cartpole, total_frames=600, checkpoint=CheckpointConfig(every_frames=100, every_seconds=1e9))
    save, tried = tf.train.CheckpointManager.save, []

    def full_after_two(manager: tf.train.CheckpointManager, checkpoint_number: int) -> str:
        tried.append(checkpoint_number)
        if len(tried) > 2:
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return save(manager, checkpoint_number)

    with monkeypatch.context() as patch:
        patch.setattr(tf.train.CheckpointManager, "save", full_after_two)
        run = session(config, tmp_path)
        # All but the last are warnings: what was learned since is lost.
        assert run.run()["status"] == "failed"
    events = run.view({}).events
    assert [event.update for event in events if isinstance(event, Saved)] == tried[:2]
    warnings = [event for event in events if isinstance(event, Message) and event.text.startswith("warning: ")]
    assert len(warnings) == len(tried) - 3 > 1
    assert any("since the checkpoint before it is lost" in event.text for event in events if isinstance(event, Message))
    assert session(config, tmp_path, resume=True).learner.version == tried[1] > tried[0]


def test_new_settings_of_a_resume_are_written_once_and_a_full_disk_for_them_costs_no_checkpoint(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(cartpole, total_frames=300, checkpoint=CheckpointConfig(every_frames=100, every_seconds=1e9))
    session(config, tmp_path).run()
    write = Mock(side_effect=[OSError(28, "No space left on device"), None])
    monkeypatch.setattr(RunFolder, "write_config", write)
    run = session(replace(config, total_frames=900), tmp_path, resume=True)
    assert run.run()["status"] == "frames_reached"
    assert write.call_count == 2
    saved = [event for event in run.view({}).events if isinstance(event, Saved)]
    assert len(saved) > 3


def test_training_begins_with_a_rollout(cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that is 1,000 seconds late, on a clock that each rollout moves by 2 seconds."""
    now = late = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: 5e8 + now)

    def delay(report: GradientReport) -> GradientReport:
        nonlocal now, late
        now, late = now + 2.0 + late, 0.0
        return report._replace(stage_seconds=StageSeconds(1.5, 0.25, 0.25, 0.0, 500.0))

    def train(total_frames: int, started: float, *, resume: bool) -> tuple[dict, list[dict]]:
        nonlocal late
        late, config = 1_000.0, replace(cartpole, total_frames=total_frames, log_every_seconds=1.0)
        executor = executor_with(delay)
        run = session(config, tmp_path, executor=executor, resume=resume, started=time.time() - started)
        return run.run(), rows_of(tmp_path)

    first, rows = train(60, started=30.0, resume=False)
    assert (first["startup_seconds"], first["wall_seconds"]) == (1_030.0, 2.0 * first["messages"])
    assert (rows[0]["elapsed_seconds"], rows[0]["agent_steps_per_second"]) == (2.0, rows[0]["agent_steps"] / 2.0)
    assert first["agent_steps_per_second"] == first["agent_steps_sampled"] / first["wall_seconds"]
    summary, rows = train(120, started=5.0, resume=True)
    assert summary["messages"] > first["messages"]
    assert summary["startup_seconds"] == 1_030.0 + 1_005.0
    assert rows[-1]["elapsed_seconds"] == summary["wall_seconds"] == 2.0 * summary["messages"]
    # Rates are those of this process: at most 15 agent steps in 2 seconds, fewer where environments are reset.
    assert all(5 < row["agent_steps_per_second"] <= 7.5 for row in rows)


def test_agent_steps_lost_with_a_learner_are_counted(cartpole: RunConfig, tmp_path: Path) -> None:
    # All agent steps are pending.
    cartpole = replace(cartpole, learner=LearnerConfig(gradients_per_update=1_000))
    run = session(replace(cartpole, total_frames=500), tmp_path)
    run.earlier += RunCounts(actor_restarts=3, rollouts_lost_with_actors=2)
    saved = run.run()
    actor = cartpole.actor
    assert saved["agent_steps_lost_with_actors_at_most"] == 2 * actor.unroll_length * actor.environments
    config, killed = replace(cartpole, total_frames=900), "its process died: killed"
    first = session(config, tmp_path, resume=True, after=LearnerDeath(killed, saved["agent_steps_sampled"] + 120))
    _, message = messages_of(first)
    assert killed in message
    assert "120 agent steps again" in message
    summary = first.run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (1, 120)
    # Those of the first process, as in every row after it.
    assert {row["actor_restarts"] for row in (summary, *rows_of(tmp_path))} == {3}
    # As far as anybody saw it had not come beyond its checkpoint: nothing is played again.
    summary = session(config, tmp_path, resume=True, after=LearnerDeath(killed, 3)).run()
    assert (summary["learner_restarts"], summary["agent_steps_lost_with_learner"]) == (2, 120)
    # Also if this one dies before it has learned anything.
    third = session(config, tmp_path, resume=True, after=LearnerDeath(killed, 3))
    found = list[int]()
    third._loop = lambda: found.append(session(config, tmp_path, resume=True).earlier.learner_restarts)
    third.run()
    assert found == [3]


TARGET = 15.0


class ScriptedEvaluator:
    """In an evaluator's place: has the mean returns that the test lists, and keeps the weights that it gets."""

    means: tuple[float, ...] = ()
    begun: list[tuple[int, str, np.ndarray]]

    def __init__(self, *_: object, first: int, count: int, policy: object) -> None:
        del policy
        assert (first, count) == (0, 2), "the only actor has all environments"

    def begin(self, snapshot: WeightSnapshot, policy: str) -> None:
        self.begun.append((snapshot.version, policy, snapshot.parameters))

    def play(self, episodes: int, max_steps: int, *, number: int, actor_id: int) -> EvaluationPart:  # noqa: ARG002
        mean = self.means[min(len(self.begun), len(self.means)) - 1]
        # Two episodes of each environment, one of them lost.
        played = EpisodeStats(mean + np.array([-90.0, 30.0, 30.0, 30.0]), np.ones(4, np.int64))
        environments, order = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
        return EvaluationPart(actor_id, number, played, environments, order, np.arange(4), 400)

    def close(self) -> None:
        pass


def train_to_target(
    config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, *means: float
) -> tuple[dict[str, Any], list[tuple[int, str, np.ndarray]]]:
    """The summary of a run whose evaluations have these mean returns, the last one again and again, and their weights.

    In rollouts of 100 agent steps: a window of 100 episodes is some 20 of them.
    """
    kind = type("Scripted", (ScriptedEvaluator,), {"means": means, "begun": []})
    monkeypatch.setattr("actors.actor.Evaluator", kind)
    config = replace(config, actor=ActorConfig(environments=10, unroll_length=10), stop_at_return=TARGET)
    return session(config, folder).run(), kind.begun


def test_a_confirmed_crossing_stops_a_run(cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Weights that were luckier before do not stay.
    luckier = {"mean_return": 999.0, "measure": "an evaluation with sampled actions"}
    np.savez(tmp_path / "best.npz", version=0, parameters=np.ones(3), **luckier)
    config, means = replace(cartpole, total_frames=50_000), (TARGET - 5.0, TARGET + 85.0)
    summary, begun = train_to_target(config, tmp_path, monkeypatch, *means)
    assert summary["status"] == "return_reached"
    first, confirmed = summary["first_crossing"], summary["confirmed_crossing"]
    assert [(version, policy) for version, policy, _ in begun] == [
        (first["update"], "sampled"),
        (confirmed["update"], "sampled"),
    ]
    for crossing, mean in zip((first, confirmed), means, strict=True):
        assert max(crossing["training_mean_return"] or 0.0, crossing["recent_return"]) >= TARGET
        assert crossing["evaluation_mean_return"] == mean
        assert crossing["recent_return"] != crossing["training_mean_return"]
    for unit in ("agent_steps", "frames", "seconds"):
        assert 0 < first[unit] < confirmed[unit]
    assert summary["agent_steps_sampled"] >= confirmed["agent_steps"] >= 400
    assert summary["evaluation_agent_steps"] == 800
    assert 0 < summary["evaluation_seconds"] < summary["wall_seconds"]
    evaluation = summary["evaluation"]
    assert (evaluation["mean_return"], evaluation["median_return"]) == (TARGET + 85.0, TARGET + 115.0)
    assert evaluation["collapsed_episodes"] == 1
    with np.load(tmp_path / "best.npz", allow_pickle=False) as best:
        assert best["version"] == confirmed["update"]
        np.testing.assert_array_equal(best["parameters"], begun[-1][2])
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_confirmation_that_a_limit_waits_for_is_the_end(cartpole: RunConfig, tmp_path: Path) -> None:
    run = session(cartpole, tmp_path)
    run._status = "frames_reached"
    run._stop_if_due()
    assert run._status == "frames_reached"
    run.evaluations.confirmed = {"update": 3}
    run._stop_if_due()
    assert run._status == "return_reached"


def test_the_weights_that_confirmed_stay_the_best(cartpole: RunConfig, tmp_path: Path, monkeypatch) -> None:
    """Also if the mean return of training is higher at the end."""
    mean = property(lambda _: TARGET + 50.0, lambda *_: None)
    monkeypatch.setattr("launch.run.returns.TrainingReturns.mean", mean, raising=False)
    summary, _ = train_to_target(replace(cartpole, total_frames=50_000), tmp_path, monkeypatch, TARGET + 20.0)
    assert summary["status"] == "return_reached"
    with np.load(tmp_path / "best.npz", allow_pickle=False) as best:
        assert (best["mean_return"], best["version"]) == (TARGET + 20.0, summary["confirmed_crossing"]["update"])


def test_a_failed_confirmation_does_not_become_the_best(cartpole: RunConfig, tmp_path: Path, monkeypatch) -> None:
    """Compared with returns of training it would be so until one is higher."""
    savez, measures = np.savez, set[str]()

    def save(file: Path, **values: Any) -> None:
        measures.add(values["measure"])
        savez(file, **values)

    monkeypatch.setattr(np, "savez", save)
    summary, _ = train_to_target(replace(cartpole, total_frames=4_000), tmp_path, monkeypatch, TARGET - 5.0)
    assert summary["first_crossing"]["evaluation_mean_return"] == TARGET - 5.0
    assert measures == {"training"}


class Stepwise(gymnasium.Env):
    """An episode of one agent step or of 60, with a reward of 1 for each."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._left = 1 if self.np_random.random() < 0.5 else 60
        return np.zeros(2, np.float32), {}

    def step(self, _: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        return np.zeros(2, np.float32), 1.0, self._left == 0, False, {}


def test_the_best_weights_are_not_those_of_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 environments that began together end their long episodes together: the last 100 are all of these, or few."""
    monkeypatch.setitem(gymnasium.registry, "Stepwise-v0", EnvSpec("Stepwise-v0", Stepwise))
    actor = {"environments": 256, "unroll_length": 5, "total_environments": None}
    config = quick(environment={"id": "Stepwise-v0"}, actor=actor, total_frames=256 * 130, stop_at_return=45.0)
    config = replace(config, log_every_seconds=1e-9, checkpoint=CheckpointConfig(every_frames=256 * 5))
    summary = session(config, tmp_path).run()
    assert max(filter(None, (row["mean_return_100"] for row in rows_of(tmp_path)))) == 60
    # The mean over all episodes, with its standard error of 256.
    expected = pytest.approx(30.5, abs=3 * 1.85)
    with np.load(tmp_path / "best.npz", allow_pickle=False) as best:
        assert float(best["mean_return"]) == expected
    assert summary["untrained_mean_return"] == expected
    # The latest rewards crossed. Training's mean, which did not, is the same as that of the best weights.
    assert summary["first_crossing"]["training_mean_return"] == expected


def test_weights_that_are_not_finite_are_not_saved(cartpole: RunConfig, tmp_path: Path) -> None:
    run = session(cartpole, tmp_path)
    parameters = run.learner.variables()["parameters"]
    parameters.assign(np.full(parameters.shape, np.nan, np.float32))
    with pytest.raises(TrainingFailedError, match="not finite any more at update 0"):
        run.run()
    assert not list(tmp_path.glob("checkpoints/*.index"))
    # The run fails in its first checkpoint, and in its last one again.
    assert (tmp_path / "log.txt").read_text().count("not finite any more") == 1
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_a_run_whose_folder_is_removed_ends_and_leaves_none(cartpole: RunConfig, tmp_path: Path) -> None:
    def remove(event: Event) -> None:
        if isinstance(event, Row):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    checkpoint = CheckpointConfig(every_frames=500)
    endless = replace(cartpole, executor="inline", total_frames=10**9, checkpoint=checkpoint)
    with pytest.raises(TrainingFailedError, match="run was removed: nothing of the run can be saved"):
        train(endless, tmp_path / "run", remove)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("interrupted", "slurm", "seconds"), [(True, True, 60.0), (True, False, None), (False, True, None)]
)
def test_only_an_interrupted_job_of_slurm_limits_its_last_copy(
    interrupted: bool, slurm: bool, seconds: float | None, cartpole: RunConfig, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("launch.run.session.RemoteCopy", copy := Mock())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if slurm:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = session(replace(cartpole, total_frames=30, storage="memory://copy/job"), tmp_path)
    if interrupted:
        run.interrupt()
    run.run()
    copy.return_value.finish.assert_called_once_with(seconds)


def test_an_interrupt_gives_up_the_evaluation_under_way(cartpole: RunConfig, tmp_path: Path) -> None:
    """It may take minutes more, and a job scheduler waits for seconds."""

    def interrupt(completion: Completion) -> Completion:
        if isinstance(completion, EvaluationPart):
            run.interrupt()
        return completion

    evaluation = EvaluationConfig(every_frames=20, episodes=100, environments=2)
    run = session(replace(cartpole, evaluation=evaluation), tmp_path, executor=executor_with(interrupt))
    summary = run.run()
    assert (summary["status"], summary["evaluation"]) == ("interrupted", None)
    assert any("is given up: the run was interrupted" in message for message in messages_of(run))
