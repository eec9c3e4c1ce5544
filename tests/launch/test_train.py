"""A run in this process or in one of its own: its events, the signals, every way in which it ends, what it leaves."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from accounts import account_of
from sessions import quick

from launch import driver
from launch.driver import train_in_process
from launch.interrupts import Interrupts, StoppedBeforeTrainingError, StopRequest
from launch.on_ray import cluster, learner_process
from launch.on_ray.learner_process import LearnerStart
from launch.on_ray.placement import Node
from launch.run.events import Episodes, Event, Message, Preparing, Progressed, Row, Saved, Started, Stopped
from launch.run.folder import RunFolder
from launch.run.lock import lock_folder
from launch.settings.resolve import divided_among
from launch.train import train
from shared.config import RunConfig
from shared.errors import ConfigurationError


def test_a_resume_that_fails_keeps_settings_until_it_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, events = tmp_path / "run", list[Event]()
    train(quick(total_frames=300), run, lambda _: None)
    before = RunFolder(run).read_settings()
    for name in ("run", "_loop"):
        for error in (ConfigurationError("no such game"), KeyboardInterrupt()):
            with monkeypatch.context() as patch:
                patch.setattr(f"launch.run.session.TrainingSession.{name}", Mock(side_effect=error))
                with pytest.raises(type(error)):
                    train(quick(total_frames=3000), run, lambda _: None, resume=True)
            assert RunFolder(run).read_settings() == before
    # The folder of a run that goes on is refused before anything is checked.
    with lock_folder(run), pytest.raises(ConfigurationError, match="is in use by another process"):
        train(quick(total_frames=3000), run, events.append, resume=True)
    assert events == []

    def leave(event: Event) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(quick(total_frames=20_000, checkpoint={"every_frames": 500}), run, leave, resume=True)
    assert RunFolder(run).read_settings().total_frames == 20_000


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connect", lambda *_: None)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("sampled", [0, 64])
def test_ctrl_c_before_the_first_rollout_leaves_no_folder(sampled: int, tmp_path: Path, monkeypatch) -> None:
    stop = StopRequest()

    def run_learners(*_: Any) -> dict[str, Any]:
        stop.requested = stop.interrupted = True
        return {"agent_steps_sampled": sampled}

    monkeypatch.setattr(learner_process, "run_learners", run_learners)
    with nullcontext() if sampled else pytest.raises(StoppedBeforeTrainingError):
        train(quick(executor="ray"), tmp_path / "run", lambda _: None, stop=stop)
    assert (tmp_path / "run").exists() == (sampled > 0)


@pytest.mark.usefixtures("no_ray")
def test_actors_of_a_cluster_share_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("a", "10.0.0.1", 64, 2**38, head=True), Node("b", "10.0.0.2", 2, 2**38)]
    trained: list[RunConfig] = []

    def run_learners(start: LearnerStart, *_: Any) -> dict[str, Any]:
        trained.append(start.config)
        return {"status": "frames_reached"}

    monkeypatch.setattr(cluster, "checked_nodes", lambda: nodes)
    monkeypatch.setattr(cluster, "machines_requested", lambda *_: nullcontext())
    monkeypatch.setattr(learner_process, "run_learners", run_learners)
    on_nodes = quick(executor="ray", address="10.0.0.1:6379", actors="auto")
    events: list[Event] = []
    train(on_nodes, tmp_path / "run", events.append)
    kept = RunFolder(tmp_path / "run").read_settings()
    for config in (trained[0], kept):
        assert (config.actor.environments, config.learner.gradients_per_update) == (2, 4)
    messages = [event.text for event in events if isinstance(event, Message)]
    form = "65 x 2 x 32: 4,160 agent steps in flight; an update has 256, the mean of 4 gradients"
    assert f"rollouts:     {form}; returns by the newest weights" in messages
    # Those that may join are counted from the start.
    nodes[:] = [Node("a", "10.0.0.1", 2, 2**38, head=True)]
    train(replace(on_nodes, actors="1:8"), tmp_path / "growing", lambda _: None)
    assert trained[-1].actor.environments == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_run_that_cannot_write_its_first_files_leaves_no_folder(error: BaseException, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("launch.train.manifest", Mock(side_effect=error))
    with pytest.raises(type(error)):
        train(quick(), tmp_path / "run", lambda _: None)
    assert list(tmp_path.iterdir()) == []


# An environment whose process starts another one, which has all its open files and ends after it.
_OUTLIVED = """
import os, time
if os.fork() == 0:
    while not os.path.exists("ended"):
        time.sleep(0.1)
    os._exit(0)
"""


def test_a_run_sends_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outlived.py").write_text(_OUTLIVED)
    monkeypatch.chdir(tmp_path)
    events = list[Event]()

    def on_event(event: Event) -> bool:
        events.append(event)
        return not (isinstance(event, Row) and event.values["episodes"])

    run = tmp_path / "run"
    config = quick()
    config = replace(config, environment=replace(config.environment, imports=("outlived",)))
    result = train_in_process(config, run, on_event, preset="cartpole")
    (tmp_path / "ended").touch()
    kinds = [type(event) for event in events]
    started = kinds.index(Started)
    assert {Row, Saved, Progressed} & set(kinds[:started]) == set()
    stages = [event.text for event in events if isinstance(event, Preparing)]
    assert stages == [
        "checking the settings and the environment",
        "importing TensorFlow",
        "building networks and environments",
    ]
    assert events[started] == Started(str(run), divided_among(config, 1), 1)
    assert kinds.count(Stopped) == 1
    assert events[-1] == Stopped(str(run), result.summary)
    assert result.status == "interrupted"
    assert Message("stopped by a callback: finishing the gradients under way and saving") in events
    assert result.summary == json.loads((run / "summary.json").read_text())
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event.values for event in events if isinstance(event, Row)] == written
    assert Saved(result.summary["updates"]) in events
    ended = [event for event in events if isinstance(event, Episodes)]
    assert sum(len(event.returns) for event in ended) == result.summary["episodes"] > 0
    # A cart gets a reward of 1 at each step.
    assert all(event.returns == list(map(float, event.lengths)) for event in ended)
    positions = [events.index(event) for event in ended]
    assert all(isinstance(events[position + 1], Row) for position in positions)


# Stands for the process of a run: it sends five messages, ends when it is asked to, and returns what it was sent.
CHILD = """
import sys, time
from pathlib import Path
from launch import driver
from launch.interrupts import take_all
from launch.run.events import Message
from launch.train import Result
def train(config, folder, send, *, stop, **_):
    taken, ends = 0, time.monotonic() + 60.0
    for number in range(5):
        send(Message(str(number)))
        while not (stop.numbers or stop.requested) and time.monotonic() < ends:
            time.sleep(0.01)
        taken += len(take_all(stop.numbers))
    while not stop.requested:
        time.sleep(0.01)
    (folder / "saved").touch()
    return Result(folder, {"numbers": taken})
driver.train = train
sys.exit(driver.main(sys.argv[1]))
"""


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "module_command", lambda _, descriptor: [sys.executable, "-c", CHILD, descriptor])


@pytest.mark.usefixtures("child")
def test_equal_numbers_in_succession_are_all_sent(tmp_path: Path) -> None:
    stop, messages = StopRequest(), list[Event]()

    def on_event(event: Event) -> bool:
        messages.append(event)
        stop.numbers["score"] = 1.0
        return len(messages) < 5

    assert train_in_process(quick(), tmp_path, on_event, stop=stop).summary == {"numbers": 5}


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(
    ("error", "second", "saved"),
    [(SystemExit(3), False, True), (KeyboardInterrupt(), False, True), (KeyboardInterrupt(), True, False)],
)
def test_only_a_second_ctrl_c_in_a_callback_leaves_without_saving(
    error: BaseException, second: bool, saved: bool, tmp_path: Path
) -> None:
    stop = StopRequest()

    def on_event(_: Event) -> None:
        stop.interrupted = second
        raise error

    with pytest.raises(type(error)):
        train_in_process(quick(), tmp_path, on_event, stop=stop)
    assert (tmp_path / "saved").exists() == saved


PARENT = """
import sys, time
from pathlib import Path
from launch.driver import train_in_process
from launch.run.folder import RunFolder
from launch.run.events import Message, Row
folder = Path(sys.argv[1])
config = RunFolder(folder / "settings").read_settings()
def on_event(event):
    if isinstance(event, Row) and event.values["frames"] > 2000:
        print("trains", flush=True)
        time.sleep(100)
train_in_process(config, folder / "run", on_event)
"""


def test_a_run_without_its_parent_is_saved_and_ends(tmp_path: Path) -> None:
    settings = RunFolder(tmp_path / "settings")
    settings.path.mkdir()
    settings.write_config(quick())
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "trains\n"
    parent.kill()
    # The child inherited the pipe: it is closed when the run has ended.
    parent.stdout.read()
    parent.wait()
    assert account_of(tmp_path / "run")["status"] == "interrupted"


KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {kind: signal.getsignal(kind) for kind in KINDS}
    yield
    assert {kind: signal.getsignal(kind) for kind in KINDS} == before


def send(kind: signal.Signals) -> None:
    os.kill(os.getpid(), kind)


@pytest.mark.parametrize("first", KINDS)
def test_only_a_second_interrupt_from_the_keyboard_leaves(first: signal.Signals) -> None:
    with Interrupts() as interrupts:
        # As an environment may have set it.
        signal.signal(first, lambda *_: pytest.fail("the simulator would end the run"))
        with interrupts.training():
            assert not interrupts.requested
            send(first)
            assert interrupts.requested
            if first != signal.SIGINT:
                send(first)
                send(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_within_the_handler_of_another(kind: signal.Signals) -> None:
    """A closed terminal and its shell send two within microseconds: the second may meet any line of the first."""

    def meet(_frame: object, event: str, _function: object) -> None:
        if event != "return" and sending:
            send(signal.SIGTERM)

    with Interrupts() as interrupts, interrupts.training():
        sending = True
        sys.setprofile(meet)
        try:
            send(kind)
        finally:
            sending = False
            sys.setprofile(None)


def test_a_hangup_outside_of_training() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGHUP)
        # The shell's own, while processes are being ended.
        send(signal.SIGHUP)
    with Interrupts() as interrupts:
        with interrupts.training():
            pass
        send(signal.SIGHUP)


def test_of_ignored_signals_an_interrupt_stops_a_run_and_a_hangup_does_not() -> None:
    """As a script in the background and `nohup` start it."""
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in (signal.SIGINT, signal.SIGHUP)}
    try:
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
            with interrupts.training():
                send(signal.SIGHUP)
                assert not interrupts.requested
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
