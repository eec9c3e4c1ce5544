"""Learners that die or do not respond, as the driver accounts for them. No process starts."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fake_ray import FakeProcess, FakeRay

from actors.environments import environment_spec
from launch.interrupts import StoppedBeforeTrainingError, StoppedWithoutLearnerError, StopRequest
from launch.machine import ThreadBudget
from launch.on_ray import learner_process
from launch.on_ray.learner_process import LearnerProcess, LearnerStart, RemoteLearner
from launch.on_ray.placement import Node, Placement, local_placement
from launch.run.events import Message, Progress, View
from launch.run.lock import LOCK_FILE
from launch.run.session_thread import SessionThread
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

SUMMARY = {"status": "frames_reached"}
DIED = ray.exceptions.RayActorError(
    error_msg="The actor died.\nWorker exit detail: killed by SIGKILL Some common causes: …"
)
HERE = local_placement(ThreadBudget(2, 1))


def raised(cause: Exception) -> Exception:
    """The error that Ray raises for one of a learner whose process lives."""
    return ray.exceptions.RayTaskError("run", f"raised: {cause}", cause).as_instanceof_cause()


def learner_of(fake: FakeRay, agent_steps: int = 0, *, responds: bool = True) -> FakeProcess:
    """A learner's process that trains."""
    process = FakeProcess(fake, LearnerProcess, {}, ())
    process.results = {"interrupt": None}
    process.results |= {"poll": View(Progress(agent_steps=agent_steps), [])} if responds else {}
    return process


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    monkeypatch.setattr(learner_process, "ray", fake := FakeRay())
    monkeypatch.setattr(learner_process, "cluster_nodes", lambda: ["this machine"])
    monkeypatch.setattr(learner_process, "DYING_SECONDS", 0.0)
    return fake


@pytest.fixture
def run(cartpole: RunConfig, fake_ray: FakeRay, tmp_path, monkeypatch) -> Callable[..., tuple[Any, list[LearnerStart]]]:
    """Runs learners, each with its agent steps and its end. Returns the result or the error, and their starts."""

    def run_learners(
        *learners: tuple[int | None, Any],
        placement: Placement = HERE,
        interrupt: bool = False,
        leave: bool = False,
        said: list[str] | None = None,
    ) -> tuple[Any, list[LearnerStart]]:
        starts, processes, stop = list[LearnerStart](), list[FakeProcess](), StopRequest()

        def start(how: LearnerStart) -> FakeProcess:
            agent_steps, end = learners[len(starts)]
            starts.append(how)
            # One without an end has not started yet. One without agent steps dies before it responds.
            processes.append(learner_of(fake_ray, agent_steps or 0, responds=end is not None))
            if agent_steps is None:
                processes[-1].results["poll"] = end
            return processes[-1]

        def watch(learner: RemoteLearner) -> Any:
            learner.poll({})
            if leave:
                raise KeyboardInterrupt
            _, end = learners[len(starts) - 1]
            if interrupt or end is None:
                stop.requested = True
                learner.interrupt()
            processes[-1].results["poll"] = end if isinstance(end, Exception) else View(Progress(), [], end)
            return learner.poll({}).summary

        def say(message: str) -> None:
            if said is not None:
                said.append(message)
            stop.requested |= message.startswith("waiting for nodes")

        monkeypatch.setattr(learner_process, "start_learner", start)
        first = LearnerStart(cartpole, environment_spec(cartpole.environment), tmp_path, placement, False, 0.0)
        try:
            return learner_process.run_learners(first, watch, say, stop), starts
        except (ConfigurationError, TrainingFailedError, ray.exceptions.RayError) as error:
            return error, starts

    return run_learners


def test_the_next_learner_gets_the_progress_of_the_dead_one(run: Callable, fake_ray: FakeRay, tmp_path: Path) -> None:
    # Without a checkpoint the next one begins anew.
    _, starts = run((0, DIED), (0, SUMMARY))
    assert [start.resume for start in starts] == [False, False]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-10.index").touch()
    fake_ray.killed.clear()
    summary, starts = run((120, DIED), (150, DIED), (900, SUMMARY))
    assert summary == SUMMARY
    reason = "its process died: killed by SIGKILL"
    expected = [(False, None), (True, (reason, 120)), (True, (reason, 150))]
    assert [(start.resume, start.death) for start in starts] == expected
    assert len(fake_ray.killed) == 2
    # A learner that was never ready has counted no death before its own, and has learned nothing.
    _, starts = run((120, DIED), (None, DIED), (None, DIED), (900, SUMMARY))
    assert [start.death for start in starts[1:]] == [(reason, 120)] * 3


@pytest.mark.parametrize(
    ("learners", "interrupt", "error"),
    [
        # No more than may be, none after a stop, and none after an error of the learner itself.
        ([(5, DIED)] * 4, False, ray.exceptions.RayActorError),
        ([(5, DIED)], True, ray.exceptions.RayActorError),
        ([(5, raised(FileNotFoundError("no file")))], False, ray.exceptions.RayError),
        # Only the first can find that a run cannot start: later there is something to keep.
        ([(0, raised(ConfigurationError("no game")))], False, ConfigurationError),
        ([(120, DIED), (120, raised(ConfigurationError("no game")))], False, TrainingFailedError),
    ],
)
def test_a_learner_without_a_successor_is_an_error(
    learners: list, interrupt: bool, error: type, run: Callable, tmp_path: Path
) -> None:
    if error is TrainingFailedError:
        assert isinstance(run(*learners)[0], ConfigurationError), "nothing was saved"
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "update-10.index").touch()
    result, starts = run(*learners, interrupt=interrupt)
    assert isinstance(result, error)
    assert isinstance(result, ConfigurationError) == (error is ConfigurationError)
    assert len(starts) == len(learners)


def test_a_run_that_waits_for_nodes_can_be_stopped(run: Callable, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / LOCK_FILE).touch()
    monkeypatch.setattr(learner_process, "cluster_nodes", list)
    said, placement = list[str](), Placement(Node("1", "head", 2.0, 8), {"1": 1})
    with pytest.raises(StoppedBeforeTrainingError):
        run((5, DIED), placement=placement, said=said)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-10.index").touch()
    with pytest.raises(StoppedWithoutLearnerError):
        run((5, DIED), placement=placement, said=said)
    assert said[-1].startswith("stopped while it waited for nodes")


@pytest.mark.parametrize("saved", [False, True])
def test_a_stop_before_the_next_learner_is_ready_keeps_what_is_saved(saved: bool, run: Callable, tmp_path) -> None:
    """A run that was stopped before training is discarded with its folder."""
    if saved:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "update-10.index").touch()
    said = list[str]()
    with pytest.raises(KeyboardInterrupt) as stopped:
        run((120, DIED), (0, None), said=said)
    assert type(stopped.value) is (StoppedWithoutLearnerError if saved else StoppedBeforeTrainingError)
    assert said[-1].startswith("stopped before another learner was ready") == saved


def test_a_run_on_one_machine_ends_with_the_raylet(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for ever for a machine for the next learner. On a cluster one may come."""
    process = learner_of(fake_ray, responds=False)
    alone, on_cluster = (RemoteLearner(process, alone=alone) for alone in (True, False))
    alone.poll({})
    monkeypatch.setattr(learner_process, "cluster_nodes", list)
    on_cluster.poll({})
    with pytest.raises(TrainingFailedError, match="the raylet, has died"):
        alone.poll({})


@pytest.mark.parametrize("ready", [False, True])
def test_a_second_ctrl_c_before_the_learner_is_ready_leaves_nothing(
    ready: bool, fake_ray: FakeRay, run: Callable
) -> None:
    """The driver waits for the learner when the second one comes: the first was not passed on yet."""
    with pytest.raises(KeyboardInterrupt) as left:
        run((0, SUMMARY if ready else None), leave=True)
    assert isinstance(left.value, StoppedBeforeTrainingError) == (not ready)
    assert len(fake_ray.killed) == (not ready)


@pytest.mark.parametrize("resume", [False, True])
def test_an_error_while_a_learner_is_made_comes_with_its_calls(
    resume: bool, cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of its constructor would be the death of its process. Its actors end, whenever they were started."""
    ended: list[object] = []
    executor = SimpleNamespace(close=lambda: ended.append("actors"))
    error = OSError("the log cannot be written")

    def session(_config: object, _spec: object, _folder: object, make_executor: Callable, **_: object) -> None:
        make_executor(7)
        raise error

    monkeypatch.setattr(learner_process, "prepare_for", lambda *_: None)
    monkeypatch.setattr(learner_process, "RayExecutor", lambda *_, **__: executor)
    monkeypatch.setattr("launch.run.session.TrainingSession", session)
    spec = environment_spec(cartpole.environment)
    learner = LearnerProcess(LearnerStart(cartpole, spec, tmp_path, HERE, resume, 0.0))
    for call in (lambda: learner.poll({}), learner.interrupt):
        with pytest.raises(OSError, match="the log"):
            call()
    assert ended == ["actors"]


def test_messages_that_lead_up_to_an_error_come_before_it() -> None:
    waiting = list[Message]()

    def run() -> None:
        waiting.append(Message("the disk is full"))
        raise ValueError("lost")

    view = lambda _: View(Progress(), [waiting.pop()] if waiting else [])  # noqa: E731
    thread = SessionThread(lambda: SimpleNamespace(run=run, view=view))
    while not (events := thread.poll({}).events):
        pass
    assert events == [Message("the disk is full")]
    with pytest.raises(ValueError, match="lost"):
        thread.poll({})


def test_a_stop_ends_a_learner_that_does_not_respond(fake_ray: FakeRay) -> None:
    process, view = learner_of(fake_ray, responds=False), View(Progress(agent_steps=3), [])
    learner = RemoteLearner(process)
    assert learner.poll({}) == View(Progress(), [])
    with pytest.raises(StoppedBeforeTrainingError):
        learner.interrupt()
    process.results["poll"] = view
    # The call that is under way was made without the request: the next one has it.
    assert learner.poll({"b": 2.0}) == learner.poll({"a": 1.0}) == view
    assert [call.arguments for call in fake_ray.calls if call.method == "poll"] == [({},), ({"a": 1.0, "b": 2.0},)]
    del process.results["poll"]
    assert learner.poll({}) == view
    learner.interrupt()


@pytest.mark.parametrize("found", [None, b"another run"])
def test_a_learner_elsewhere_needs_the_folder_of_the_driver(found: bytes | None, cartpole: RunConfig, tmp_path) -> None:
    """A folder of the same name on its own machine is not that of the run."""
    if found is not None:
        (tmp_path / LOCK_FILE).write_bytes(found)
    elsewhere = Placement(Node("1", "10.0.0.9", 2.0, 8), {"1": 1})
    spec = environment_spec(cartpole.environment)
    learner = LearnerProcess(LearnerStart(cartpole, spec, tmp_path, elsewhere, False, 0.0, lock=b"of the driver"))
    with pytest.raises(ConfigurationError, match=r"--run-dir .* is not on 10\.0\.0\.9, the learner's node"):
        learner.poll({})
