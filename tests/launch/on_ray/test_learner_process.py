"""Learners that die, one after the other, as `run_learners` accounts for them. No process is started."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.environments import environment_spec
from launch.interrupts import StoppedBeforeTrainingError, StopRequest
from launch.loop.worker_pool import TrainingStoppedError
from launch.machine import thread_budget
from launch.on_ray import learner_process
from launch.on_ray.learner_process import LearnerProcess, LearnerStart, RemoteLearner, sent_folder
from launch.on_ray.placement import Node, Placement, aggregation
from launch.run.events import Progress, View
from launch.run.folder import RunFolder
from launch.run.saving import Changes, Stamp
from shared.config import RunConfig
from shared.errors import ConfigurationError

SUMMARY = {"status": "frames_reached"}
DIED = ray.exceptions.RayActorError(
    error_msg="The actor died.\nWorker exit detail: killed by SIGKILL Some common causes: …"
)


class Method:
    """`process.method.remote()` as the value or error that `ray.get` will give."""

    def __init__(self, result: Any, called: Callable[[], None] = lambda: None) -> None:
        self._result, self._called, self.given = result, called, list[tuple[object, ...]]()

    def remote(self, *given: object) -> Any:
        self.given.append(given)
        self._called()
        return self._result


class Learners:
    """Stands for Ray. `ends` are the agent steps and the result, or error, of each learner in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *ends: tuple[int, Any]) -> None:
        self._ends = iter(ends)
        self._folder = folder
        self.starts: list[tuple[bool, tuple[str, int] | None]] = []
        self.killed = 0
        self.said: list[str] = []
        monkeypatch.setattr(learner_process, "start_learner", self._start)
        monkeypatch.setattr(learner_process, "takes_gpu_here", lambda _config: False)
        monkeypatch.setattr(learner_process, "ray", self)
        self.exceptions = ray.exceptions

    def _start(self, start: LearnerStart) -> SimpleNamespace:
        self.starts.append((start.resume, start.death))
        agent_steps, end = next(self._ends)
        view, copied = View(Progress(agent_steps=agent_steps), []), Method(Changes({}, {}))
        return SimpleNamespace(run=Method(end), view=Method(view), interrupt=Method(None), folder_changes=copied)

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        del timeout
        return refs, []

    def get(self, result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, _: object, *, no_restart: bool) -> None:
        assert no_restart
        self.killed += 1

    def run(self, config: RunConfig, placement: Placement | None = None, *, interrupt: bool = False) -> Any:
        """As `train` watches: progress first, so that it was seen, then the end. A run that waits is stopped."""

        def watch(wait: Callable, view: Callable, pass_on: Callable) -> Any:
            view()
            if interrupt:
                stop.requested = True
                pass_on()
            return wait()

        def say(message: str) -> None:
            self.said.append(message)
            stop.requested |= message.startswith("waiting for nodes")

        stop = StopRequest()
        spec, budget = environment_spec(config.environment), thread_budget(config)
        return learner_process.run_learners(
            *(config, spec, RunFolder(self._folder), budget, placement),
            resume=False,
            started=0.0,
            watch=watch,
            say=say,
            stop=stop,
        )


Make = Callable[..., Learners]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """Learners by the agent steps that each comes far and by its end."""
    return partial(Learners, monkeypatch, tmp_path)


def test_the_next_learner_knows_how_far_the_dead_one_had_come(cartpole: RunConfig, make: Make, tmp_path: Path) -> None:
    # Without a checkpoint the next one begins anew.
    learners = make((0, DIED), (0, SUMMARY))
    learners.run(cartpole)
    assert [resume for resume, _ in learners.starts] == [False, False]
    learners = make((120, DIED), (150, DIED), (900, SUMMARY))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-10.index").touch()
    assert learners.run(cartpole) == SUMMARY
    reason = "its process died: killed by SIGKILL"
    assert learners.starts == [(False, None), (True, (reason, 120)), (True, (reason, 150))]
    assert learners.killed == 2
    assert learners.said == [
        f"learner: its process died; another one goes on from the last checkpoint ({count})" for count in (1, 2)
    ]


def raised(cause: Exception) -> Exception:
    """What Ray raises for an error of a learner whose process lives."""
    return ray.exceptions.RayTaskError("run", f"raised: {cause}", cause).as_instanceof_cause()


@pytest.mark.parametrize(
    ("ends", "interrupt", "starts", "error"),
    [
        pytest.param([DIED] * 4, False, 4, ray.exceptions.RayActorError, id="no more than may be"),
        pytest.param([DIED], True, 1, ray.exceptions.RayActorError, id="none after a stop"),
        pytest.param([raised(FileNotFoundError("no file"))], False, 1, ray.exceptions.RayError, id="none that raised"),
    ],
)
def test_a_learner_that_is_not_followed_by_another_is_an_error(
    ends: list[Exception], interrupt: bool, starts: int, error: type[Exception], cartpole: RunConfig, make: Make
) -> None:
    learners = make(*[(5, end) for end in ends])
    with pytest.raises(error):
        learners.run(cartpole, interrupt=interrupt)
    assert (len(learners.starts), len(learners.said)) == (starts, starts - 1)


def test_only_the_first_learner_can_say_that_the_run_cannot_start(cartpole: RunConfig, make: Make) -> None:
    cannot = raised(ConfigurationError("no such game"))
    with pytest.raises(ConfigurationError) as error:
        make((0, cannot)).run(cartpole)
    assert not isinstance(error.value, ray.exceptions.RayError)
    # A later one: there is something to keep, so it is a failure of the run.
    with pytest.raises(ray.exceptions.RayError, match="no such game"):
        make((120, DIED), (120, cannot)).run(cartpole)


def test_a_run_waiting_for_nodes_is_stopped(cartpole: RunConfig, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = make((5, DIED))
    monkeypatch.setattr(learner_process, "cluster_nodes", list)

    def place(*_: object) -> None:
        raise ConfigurationError("no node has room")

    monkeypatch.setattr(learner_process, "place", place)

    placement = Placement(Node("1", "head", 2.0, 8), False, {"1": 1}, ())
    with pytest.raises(KeyboardInterrupt):
        learners.run(cartpole, placement)
    assert len(learners.starts) == 1


def start_of(config: RunConfig, folder: Path, *, resume: bool) -> LearnerStart:
    spec, budget = environment_spec(config.environment), thread_budget(config)
    alone: dict[str, Any] = {"node": None, "gpu": False, "death": None, "sent": None, "started": 0.0}
    how = aggregation(config, None, 1)
    return LearnerStart(config, spec, folder, budget, resume=resume, aggregation=how, **alone)


@pytest.mark.parametrize("error", [FileNotFoundError("no file"), ConfigurationError("no such game")])
def test_what_keeps_a_learner_from_being_made_is_raised_by_its_calls_and_not_by_its_constructor(
    error: Exception, cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(learner_process, "prepare_tensorflow", prepare)
    ended: list[str] = []
    actors = SimpleNamespace(close=lambda: ended.append("actors"))
    monkeypatch.setattr(learner_process, "RayExecutor", lambda *_, **__: actors)
    learner = LearnerProcess(start_of(cartpole, tmp_path, resume=False))
    for call in (learner.run, learner.view, learner.interrupt):
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    # They had been started before TensorFlow was imported.
    assert ended == ["actors"]


def test_a_resumed_learner_that_cannot_be_made_ends_its_actors(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start after the checkpoint has been read, which has their ids."""

    def session(_config: object, _spec: object, _folder: object, make_executor: Callable, **_: object) -> None:
        make_executor(7)
        raise OSError("the event trace cannot be written")

    ended: list[int] = []
    monkeypatch.setattr(learner_process, "prepare_tensorflow", lambda **_: None)
    monkeypatch.setattr("launch.run.session.make_session", session)
    monkeypatch.setattr(
        learner_process,
        "RayExecutor",
        lambda _config, _spec, _actors, first, **_: SimpleNamespace(close=lambda: ended.append(first)),
    )
    LearnerProcess(start_of(cartpole, tmp_path, resume=True))
    assert ended == [7]


def test_a_learner_that_does_not_respond_is_ended_by_a_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    killed: list[object] = []
    responds = False
    fake = SimpleNamespace(
        wait=lambda refs, timeout: (refs if responds else [], timeout),
        get=lambda result: result,
        kill=lambda process, no_restart: killed.append((process, no_restart)),
    )
    monkeypatch.setattr(learner_process, "ray", fake)
    seen = View(Progress(agent_steps=3), [])
    process = SimpleNamespace(run=Method("run"), view=Method(seen), interrupt=Method(None))
    learner = RemoteLearner(process, tmp_path, print, copies=False)
    assert learner.view() == View(Progress(), [])
    with pytest.raises(StoppedBeforeTrainingError):
        learner.interrupt()
    assert killed == [(process, True)]
    responds = True
    # The call that is under way was made without the request.
    assert learner.view(True) == seen
    assert process.view.given == [(False, {})]
    assert learner.view(numbers={"a": 1.0}) == seen
    assert process.view.given == [(False, {}), (True, {"a": 1.0})]
    responds = False
    assert learner.view() == View(seen.progress, [])
    learner.interrupt()
    assert len(killed) == 1


class Elsewhere:
    """Stands for Ray, and for a learner on another machine that has these files, and whose `run` ends as said."""

    def __init__(self, files: dict[str, bytes], end: Any = None) -> None:
        self.files, self.end, self.responds = files, end, True
        self.exceptions = ray.exceptions
        self.run, self.folder_changes = SimpleNamespace(remote=lambda: "run"), SimpleNamespace(remote=self._changes)

    def _changes(self, known: dict[str, Stamp]) -> Changes:
        stamps = {name: Stamp(0, len(content), 0) for name, content in self.files.items()}
        return Changes({n: (0, c) for n, c in self.files.items() if known.get(n) != stamps[n]}, stamps)

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        del timeout
        ready = self.responds if refs != ["run"] else self.end is not None
        return (refs, []) if ready else ([], refs)

    def get(self, result: Any) -> Any:
        found = self.end if result == "run" else result
        if isinstance(found, Exception):
            raise found
        return found


def test_what_a_failed_run_saved_elsewhere_is_copied_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Elsewhere({"summary.json": b"{}"}, raised(TrainingStoppedError("it stops")))
    monkeypatch.setattr(learner_process, "ray", elsewhere)
    watched = RemoteLearner(elsewhere, tmp_path, print, copies=True)
    with pytest.raises(TrainingStoppedError):
        watched.wait()
    assert (tmp_path / "summary.json").read_bytes() == b"{}"


def test_a_learner_that_is_being_made_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a run that has ended the files at its end are copied, although an older copy was under way."""
    elsewhere = Elsewhere({"summary.json": b"old"})
    monkeypatch.setattr(learner_process, "ray", elsewhere)
    monkeypatch.setattr(learner_process, "_COPY_SECONDS", 0.0)
    elsewhere.responds = False
    watched = RemoteLearner(elsewhere, tmp_path, print, copies=True)
    assert watched.wait() is None
    assert list(tmp_path.iterdir()) == []
    elsewhere.files, elsewhere.responds = {"summary.json": b"newer"}, True
    elsewhere.end = {"status": "interrupted"}
    assert watched.wait() == {"status": "interrupted"}
    assert (tmp_path / "summary.json").read_bytes() == b"newer"


def test_a_copy_that_cannot_be_written_is_whole_once_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, said = Elsewhere({"config.json": b"{}", "metrics.jsonl": b"1\n"}), list[str]()
    monkeypatch.setattr(learner_process, "ray", elsewhere)
    monkeypatch.setattr(learner_process, "_COPY_SECONDS", 0.0)
    watched = RemoteLearner(elsewhere, tmp_path, said.append, copies=True)
    (tmp_path / "metrics.jsonl.part").mkdir()
    for _ in range(2):
        assert watched.wait() is None
    assert said == [
        f"warning: the copy of the run in {tmp_path} cannot be written: Is a directory; the run goes on, and the copy "
        f"is tried again every 0 seconds"
    ]
    (tmp_path / "metrics.jsonl.part").rmdir()
    assert watched.wait() is None
    assert said[1:] == [f"the copy of the run in {tmp_path} is up to date again"]
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"1\n"


def test_a_learner_elsewhere_gets_what_it_resumes_from_and_no_films(tmp_path: Path) -> None:
    """Films and events are gigabytes in a long run."""
    sent = {"config.json", "metrics.jsonl", "best.npz", "checkpoints/update-10.index"}
    for name in sent | {"videos/update-10.gif", "events.out.tfevents.1.host"}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert set(sent_folder(tmp_path).files.files) == sent
