"""A run in a driver process of its own: its events, and every way in which it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sessions import quick

from launch.driver import train_in_process
from launch.interrupts import StopRequest
from launch.presets.settings_files import with_settings
from launch.run.events import Episodes, Event, Message, Progressed, Row, Saved, Started, Stopped, Weights
from launch.run.folder import RunFolder, holder_of
from launch.train import Result, TrainingFailedError
from shared.errors import ConfigurationError


def test_a_run_sends_its_events_and_its_weights_and_leaves_its_numbers(tmp_path: Path) -> None:
    """Weights come when they are requested, to the process of the caller and back, and episodes with each row."""
    stop, events, requests = StopRequest(), list[Event](), iter([True])

    def on_event(event: Event) -> bool:
        events.append(event)
        if isinstance(event, Row) and event.values["episodes"]:
            stop.weights |= next(requests, False)
        return not isinstance(event, Weights)

    run = tmp_path / "run"
    result = train_in_process(quick(), run, on_event, preset="cartpole", stop=stop)
    kinds = [type(event) for event in events]
    started = kinds.index(Started)
    assert {Row, Saved, Progressed} & set(kinds[:started]) == set()
    assert events[started] == Started(str(run), quick(), 1)
    assert kinds.count(Stopped) == 1
    assert events[-1] == Stopped(str(run), result.summary)
    assert result.status == "interrupted"
    assert Message("stopped by a callback: finishing the gradients under way and saving") in events
    assert result.summary == json.loads((run / "summary.json").read_text())
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event.values for event in events if isinstance(event, Row)] == written
    assert Saved(result.summary["updates"]) in events
    (weights,) = [event for event in events if isinstance(event, Weights)]
    assert 0 < weights.update <= result.summary["updates"]
    shapes = {name: array.shape for name, array in weights.arrays.items()}
    # The 4 numbers of a cart, 8 hidden units, 2 actions.
    assert (4, 8) in shapes.values()
    assert {(8, 2), (8, 1)} <= set(shapes.values())
    assert sum(array.size for array in weights.arrays.values()) * 4 == len(weights.parameters)
    assert all(np.isfinite(array).all() for array in weights.arrays.values())
    ended = [event for event in events if isinstance(event, Episodes)]
    assert sum(len(event.returns) for event in ended) == result.summary["episodes"] > 0
    # A cart gets a reward of 1 at each step.
    assert all(event.returns == list(map(float, event.lengths)) for event in ended)
    positions = [events.index(event) for event in ended]
    assert all(isinstance(events[position + 1], Row) for position in positions)


def test_a_run_is_stopped_from_another_thread_once_it_has_started(tmp_path: Path) -> None:
    stop, results = StopRequest(), list[Result]()
    stop.asked = True
    thread = threading.Thread(
        target=lambda: results.append(train_in_process(quick(), tmp_path / "run", lambda _: None, stop=stop))
    )
    thread.start()
    thread.join()
    (result,) = results
    assert result.status == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no more disk")])
def test_an_exception_of_the_listener_is_raised_when_the_run_is_saved(error: BaseException, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Row):
            raise error

    with pytest.raises(type(error)):
        train_in_process(quick(), tmp_path / "run", on_event)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    stop = StopRequest()

    def on_event(event: Event) -> None:
        if isinstance(event, Row):
            stop.asked = stop.interrupted = stop.at_once = True

    with pytest.raises(KeyboardInterrupt):
        train_in_process(quick(), tmp_path / "run", on_event, stop=stop)


def test_a_run_that_cannot_start_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    config = with_settings(quick(), {"environment.id": "NoSuch-v0"})
    with pytest.raises(ConfigurationError, match="no such environment"):
        train_in_process(config, tmp_path / "run", lambda _: None, preset="cartpole")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_dies_is_a_failure(tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Row):
            holder = holder_of(tmp_path / "run")
            if holder is not None and holder.pid is not None:
                os.kill(holder.pid, signal.SIGKILL)

    with pytest.raises(TrainingFailedError, match="was ended by signal 9"):
        train_in_process(quick(), tmp_path / "run", on_event)


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
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
