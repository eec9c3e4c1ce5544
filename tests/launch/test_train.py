"""The library in this process: what stops a run, and what a run that cannot start leaves behind."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from sessions import quick

from launch.cli import main
from launch.interrupts import Interrupts
from launch.on_ray import cluster, learner_process
from launch.on_ray.placement import Node
from launch.run.events import Event, Message, Row
from launch.run.folder import RunFolder
from launch.train import Result, train
from shared.config import RunConfig
from shared.errors import ConfigurationError


def status_of(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["status"])


def test_a_run_in_a_thread_goes_on_to_its_limit_and_has_nothing_left_to_do(tmp_path: Path) -> None:
    results: list[Result] = []
    thread = threading.Thread(
        target=lambda: results.append(train(quick(total_frames=500), tmp_path / "run", lambda _: None))
    )
    thread.start()
    thread.join()
    (result,) = results
    assert result.status == "frames_reached"
    events: list[Event] = []
    again = train(quick(total_frames=500), tmp_path / "run", events.append, resume=True)
    assert again == result._replace(trained=False)
    (message,) = events
    assert isinstance(message, Message)
    assert message.text.startswith("nothing to do")


@pytest.mark.parametrize("error", [RuntimeError("no more disk"), KeyboardInterrupt()])
def test_an_exception_of_the_listener_saves_the_run_first(error: BaseException, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Row):
            raise error

    with pytest.raises(type(error)):
        train(quick(), tmp_path / "run", on_event)
    assert status_of(tmp_path / "run") == "interrupted"


def test_an_exception_before_the_run_has_started_is_raised_at_once(tmp_path: Path) -> None:
    def on_event(_: Event) -> None:
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        train(quick(), tmp_path / "run", on_event)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("error", [ConfigurationError("no such game"), KeyboardInterrupt(), OSError("no space")])
def test_a_resumed_run_that_does_not_start_keeps_its_settings(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(quick(total_frames=300), run, lambda _: None)
    before = RunFolder(run).read_settings()

    def fails(_session: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("launch.run.session.TrainingSession.run", fails)
        with pytest.raises(type(error)):
            train(quick(total_frames=900), run, lambda _: None, resume=True)
    assert RunFolder(run).read_settings() == before
    train(quick(total_frames=900), run, lambda _: None, resume=True)
    assert RunFolder(run).read_settings().total_frames == 900


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connect", lambda *_: None)
    monkeypatch.setattr(cluster, "takes_gpu_here", lambda _: False)


@pytest.mark.usefixtures("no_ray")
def test_a_connection_that_breaks_while_it_trains_is_not_a_wrong_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise BrokenPipeError("storage is gone")

    monkeypatch.setattr(learner_process, "run_learners", breaks)
    with pytest.raises(BrokenPipeError):
        train(quick(executor="ray"), tmp_path / "run", lambda _: None)


@pytest.mark.usefixtures("no_ray")
def test_a_closed_terminal_between_two_learners_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_learners(*_: Any, stop: Interrupts, watch: Any, **__: Any) -> dict[str, Any]:
        with pytest.raises(BrokenPipeError):
            watch(lambda: (_ for _ in ()).throw(BrokenPipeError()), lambda: None, lambda: None)
        signal.raise_signal(signal.SIGHUP)
        assert stop.asked
        return {"status": "interrupted"}

    monkeypatch.setattr(learner_process, "run_learners", run_learners)
    with Interrupts() as interrupts:
        assert train(quick(executor="ray"), tmp_path / "run", lambda _: None, stop=interrupts).status == "interrupted"


@pytest.mark.usefixtures("no_ray")
def test_actors_of_a_cluster_share_the_steps_in_flight_and_not_on_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Node("a", "10.0.0.1", 64, 2**38, head=True), Node("b", "10.0.0.2", 2, 2**38)]
    trained: list[RunConfig] = []

    def run_learners(config: RunConfig, *_: Any, **__: Any) -> dict[str, Any]:
        trained.append(config)
        return {"status": "frames_reached"}

    monkeypatch.setattr(cluster, "check_nodes", lambda: None)
    monkeypatch.setattr(cluster, "cluster_nodes", lambda: nodes)
    monkeypatch.setattr(learner_process, "run_learners", run_learners)
    on_nodes = quick(executor="ray", address="10.0.0.1:6379", actors="auto")
    events: list[Event] = []
    train(on_nodes, tmp_path / "run", events.append)
    kept = RunFolder(tmp_path / "run").read_settings()
    for config in (trained[0], kept):
        assert (config.actor.environments, config.actor.unroll_length) == (1, 16)
        assert config.learner.gradients_per_update == 16
    line = "rollouts:     65 actors share 1,040 agent steps in flight: each 1 x 16, an update the mean of 16 gradients"
    (found,) = (event.text for event in events if isinstance(event, Message) and event.text.startswith(line))
    assert found.endswith("above 1,024 in flight further actors may add frames and no learning")
    earlier = tmp_path / "earlier"
    train(quick(total_frames=300), earlier, lambda _: None)
    train(on_nodes, earlier, lambda _: None, resume=True)
    assert trained[1].actor == on_nodes.actor


@pytest.mark.parametrize("option", ["--resume", "--start-from"])
def test_help_downloads_nothing(option: str, working_folder: Path, capsys: pytest.CaptureFixture) -> None:
    RunFolder(working_folder / "kept").path.mkdir()
    RunFolder(working_folder / "kept").write_config(quick())
    assert main(["train", option, f"file://{working_folder}/kept", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: tributary train")
    assert not (working_folder / "runs").exists()
