"""The handle of a run that a Python program starts. `train_in_process` is replaced: no process is started."""

import enum
import json
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from launch.interrupts import StopRequest
from launch.presets import PRESETS
from launch.python import run as module
from launch.python.run import Training, resolved_run
from launch.run.events import Event, Message, Row, Started
from launch.settings.resolve import ResolvedRun
from launch.train import OnEvent, Result
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

_DEADLINE_SECONDS = 60.0
CONFIG = PRESETS["cartpole"].config


class Run:
    """Stands for a run in a process: it starts, sends a row, and ends when it is asked to stop."""

    def __init__(self, end: BaseException | str = "interrupted", row: dict[str, Any] | None = None) -> None:
        self._end, self._row = end, row or {"frames": 8}
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, _config: RunConfig, folder: Path, on_event: OnEvent, *, stop: StopRequest, **_: Any) -> Result:
        on_event(Message("run folder:   here"))
        if isinstance(self._end, ConfigurationError):
            raise self._end
        on_event(Started(str(folder), CONFIG, 1))
        if on_event(Row(self._row)) is False:
            stop.requested = True
        while not stop.requested and self._end == "interrupted":
            self.goes_on.wait(0.01)
        if isinstance(self._end, BaseException):
            raise self._end
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "metrics.jsonl").touch()
        return Result(folder, {"status": self._end})


Make = Callable[..., Training]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make_training(run: Run, on_row: Any = None, on_event: Any = None, *, progress: bool = False) -> Training:
        monkeypatch.setattr(module, "train_in_process", run)
        resolved = ResolvedRun(CONFIG, "cartpole")
        return Training(resolved, tmp_path / "run", on_row, on_event, progress=progress)

    return make_training


def test_a_run_is_started_shown_and_stopped(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    under_way = make(Run(), progress=True)
    under_way.start()
    assert under_way.running
    with pytest.raises(TimeoutError, match=f"the run in {tmp_path / 'run'} goes on"):
        under_way.wait(0.0)
    under_way.stop()
    under_way.stop()
    assert under_way.wait(_DEADLINE_SECONDS).path == tmp_path / "run"
    assert not under_way.running
    assert capsys.readouterr().out.startswith("run folder:   here\nstarting 1 actor")


def test_an_interrupt_of_a_start_leaves_no_run_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a cell of a notebook, which has no name for the training yet."""
    under_way, started = make(Run()), threading.Event()

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(under_way, "_started", SimpleNamespace(wait=interrupt, set=started.set))
    with pytest.raises(KeyboardInterrupt):
        under_way.start()
    assert under_way.wait(_DEADLINE_SECONDS).path.is_dir()


def test_a_stop_before_training_is_no_interrupt_that_nobody_typed(make: Make) -> None:
    under_way = make(Run(KeyboardInterrupt()))
    under_way.stop()
    under_way.follow()
    with pytest.raises(TrainingFailedError, match="was stopped before it trained"):
        under_way.wait()


@pytest.mark.parametrize(("name", "kinds"), [("on_row", [dict]), ("on_event", [Message, Started, Row])])
def test_a_callback_stops_the_run(name: str, kinds: list[type], make: Make, capsys: pytest.CaptureFixture) -> None:
    seen: list[Event | dict[str, Any]] = []

    def callback(event: Event | dict[str, Any], *handle: Training) -> Any:
        assert handle == ((under_way,) if name == "on_event" else ())
        seen.append(event)
        # False of NumPy, as a comparison of its numbers is.
        return np.float64(len(seen)) < len(kinds)

    under_way = make(Run(), **{name: callback})
    under_way.follow()
    under_way.wait()
    assert [type(event) for event in seen] == kinds
    assert capsys.readouterr().out == ""


def test_numbers_that_come_after_the_last_row_are_in_a_copy_of_it(make: Make, tmp_path: Path) -> None:
    """Where the callback takes longer than the rest of a short run. Those that a row has are written once."""

    def on_event(event: Event, training: Training) -> None:
        if isinstance(event, Started):
            training.record({"in_a_row": 1.0})
        elif isinstance(event, Row):
            training.record({"late": 2.5, "later": 3})

    under_way = make(Run("frames_reached", {"frames": 8, "own/in_a_row": 1.0}), None, on_event)
    under_way.follow()
    under_way.wait()
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"frames": 8, "own/in_a_row": 1.0, "own/late": 2.5, "own/later": 3.0}
    under_way.record({"after_the_end": 4.0})
    *_, line = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert (json.loads(line)["own/after_the_end"], json.loads(line)["own/late"]) == (4.0, 2.5)


@pytest.mark.timeout(60)
def test_a_callback_cannot_wait_for_itself(make: Make) -> None:
    under_way = make(Run("frames_reached"), None, lambda _, training: training.wait())
    under_way.follow()
    with pytest.raises(RuntimeError, match="would wait for the callback itself"):
        under_way.wait()


def test_the_home_folder_may_be_written_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text("seed = 3")
    resolved = resolved_run("cartpole", {}, config="~/mine.toml", run_dir="~/run")
    assert resolved.config.seed == 3
    assert Training(resolved, "~/run", None, progress=False).path == tmp_path / "run"


def _of_this_process(module: str) -> str:
    """The id of an environment whose class says that it is of that module."""
    entry = type("Own", (gymnasium.Env,), {"__module__": module})
    gymnasium.register(name := f"Of-{module.strip('_').replace('.', '-')}-v0", entry)
    return name


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        (lambda: _of_this_process("__main__"), "cannot import; put it into a module, and give MODULE:Of-main-v0"),
        (lambda: _of_this_process("corridor.tasks"), "register it in corridor.tasks, and give corridor.tasks:Of-"),
        (lambda: gymnasium.Env, "register the class of an environment in a module, and give MODULE:ID"),
    ],
)
def test_an_environment_that_other_processes_lack_is_refused(preset: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        resolved_run(preset(), {"network.name": "mlp"})
    assert resolved_run("CartPole-v1", {}).config.environment.id == "CartPole-v1"


def test_a_preset_may_be_a_text_of_another_type() -> None:
    """The run's process cannot import an enumeration of the script."""
    preset = enum.StrEnum("Preset", {"CARTPOLE": "cartpole"}).CARTPOLE
    assert type(resolved_run(preset, {}).preset) is str


@pytest.mark.parametrize("name", ["on_row", "on_event"])
def test_waiting_raises_the_error_of_a_callback(name: str, make: Make) -> None:
    def fails(given: Any, *_: Training) -> None:
        if isinstance(given, Row | dict):
            raise KeyError("mean_retrun")

    under_way = make(Run(), **{name: fails})
    under_way.follow()
    with pytest.raises(KeyError):
        under_way.wait()


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (ConfigurationError("--seed -1: no"), ConfigurationError, "^--seed -1: no$"),
        (TrainingFailedError("it is full"), TrainingFailedError, r"it is full \(.*run\)"),
        ("failed", TrainingFailedError, "status failed"),
    ],
)
def test_waiting_raises_the_end(end: BaseException | str, error: type[Exception], message: str, make: Make) -> None:
    under_way = make(Run(end))
    with pytest.raises(error, match=message) if error is ConfigurationError else nullcontext():
        under_way.start()
    with pytest.raises(error, match=message):
        under_way.wait(_DEADLINE_SECONDS)
