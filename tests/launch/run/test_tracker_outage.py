"""A run does not depend on its trackers: it ends and is saved whatever they raise, and however long they take."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from actors.environments import environment_spec
from launch.loop.inline_executor import InlineExecutor
from launch.run.progress import Progress
from launch.run.session import TrainingSession
from launch.run.tracker_thread import TrackerThread
from shared.config import RunConfig
from shared.types import Video

VIDEO = Video(b"GIF89a", width=4, height=4)


class Backend:
    """Stands for the package `wandb`. `log` is what happens to a row, `finish` to the run at its end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.started: list[dict[str, Any]] = []
        self.log: Any = self.rows.append
        self.finish: Any = lambda: None
        self.Settings = self.Video = dict

    def init(self, **options: Any) -> SimpleNamespace:
        self.started.append(options)
        return SimpleNamespace(
            log=lambda row: self.log(row), finish=lambda: self.finish(), define_metric=lambda *_, **__: None
        )


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    stub = Backend()
    monkeypatch.setitem(sys.modules, "wandb", stub)
    return stub


def session(config: RunConfig, folder: Path, resume: bool = False) -> TrainingSession:
    config = replace(config, total_frames=300, log_every_seconds=1e-6, trackers=("wandb",))
    spec = environment_spec(config.environment)
    return TrainingSession(config, spec, folder, lambda first: InlineExecutor(config, spec, 1, first), resume=resume)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the server is away"),
        KeyError("run"),
        *(pytest.param(error, marks=pytest.mark.slow) for error in (TimeoutError(), OSError(5, "gone"))),
    ],
)
def test_whatever_a_tracker_raises_the_run_ends_and_is_saved(
    cartpole: RunConfig, tmp_path: Path, backend: Backend, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    backend.log = backend.finish = fail
    run = session(cartpole, tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert summary["tracker_rows_left_out"] == {"wandb": len(rows_of(tmp_path))}
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (tmp_path / "checkpoints" / f"update-{summary['updates']}.index").is_file()
    about = [message for message in run.view().messages if "wandb" in message]
    assert len(about) == 2
    assert about[0].startswith("warning: wandb: ")
    assert "left out" in about[1]


def test_a_tracker_that_cannot_be_opened_is_tried_again(
    cartpole: RunConfig, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = backend.init
    failures = iter([RuntimeError("no network"), RuntimeError("no network")])

    def init(**options: Any) -> SimpleNamespace:
        for failure in failures:
            raise failure
        return opened(**options)

    monkeypatch.setattr(backend, "init", init)
    summary = session(cartpole, tmp_path).run()
    # The first attempt comes before any row.
    assert summary["tracker_rows_left_out"] == {"wandb": 1}
    assert len(backend.rows) == len(rows_of(tmp_path)) - 1


def test_a_tracker_that_hangs_holds_up_neither_the_loop_nor_the_end(
    cartpole: RunConfig, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.run.tracker_thread.CLOSE_SECONDS", 0.1)
    answer = threading.Event()
    backend.log = lambda _row: answer.wait()
    # It answers at the end of the test only: whatever waited for it would wait for ever.
    try:
        summary = session(cartpole, tmp_path).run()
    finally:
        answer.set()
    assert summary["status"] == "frames_reached"
    assert summary["tracker_rows_left_out"]["wandb"] == len(rows_of(tmp_path))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_checkpoint_and_summary_are_written_before_trackers_are_closed(
    cartpole: RunConfig, tmp_path: Path, backend: Backend
) -> None:
    at_close: list[Any] = []

    def finish() -> None:
        at_close.append(json.loads((tmp_path / "summary.json").read_text())["updates"])
        at_close.append(sorted(path.name for path in (tmp_path / "checkpoints").glob("*.index")))

    backend.finish = finish
    updates = session(cartpole, tmp_path).run()["updates"]
    assert at_close[0] == updates
    assert f"update-{updates}.index" in at_close[1]


@pytest.mark.usefixtures("backend")
def test_a_video_that_tensorboard_cannot_take_is_one_warning(
    cartpole: RunConfig, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise tf.errors.DataLossError(None, None, "no space left on device")

    monkeypatch.setattr(tf.summary, "write", fail)
    monkeypatch.setattr(backend, "Video", lambda data, **_: data.read())
    run = session(cartpole, tmp_path)
    run._reporting.trackers.write_video(VIDEO, frames=0)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert summary["tracker_rows_left_out"] == {"TensorBoard": 1}
    about = [message for message in run.view().messages if "TensorBoard" in message]
    assert "no space left on device" in about[0]
    assert "1 row was left out" in about[1]
    assert [row for row in backend.rows if "evaluation/episode" in row] == [
        {"frames": 0, "evaluation/episode": b"GIF89a"}
    ]


def test_a_resumed_run_goes_on_in_the_same_run_of_its_tracker(
    cartpole: RunConfig, tmp_path: Path, backend: Backend
) -> None:
    session(cartpole, tmp_path).run()
    session(cartpole, tmp_path, resume=True).run()
    first, second = backend.started
    assert first["id"]
    assert first["id"] == second["id"]
    assert {first["resume"], second["resume"]} == {"allow"}


class Slow:
    """A tracker that takes a row or a video only when it is let."""

    def __init__(self) -> None:
        self.reached, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.rows: list[int] = []
        self.videos: list[int] = []
        self.closed = False

    def write(self, row: Progress) -> None:
        self._wait()
        self.rows.append(row.frames)

    def write_video(self, _video: Video, frames: int) -> None:
        self._wait()
        self.videos.append(frames)

    def close(self) -> None:
        self.closed = True

    def _wait(self) -> None:
        self.reached.release()
        self.let.acquire()


def test_a_flood_is_bounded_and_what_is_left_out_is_counted() -> None:
    slow, said = Slow(), list[str]()
    thread = TrackerThread("slow", lambda: slow, said.append, most_rows=3)
    for frames in range(10):
        thread.write(Progress(frames=frames))
    assert thread.rows_left_out == 7
    assert len(said) == 1
    assert "3 rows wait" in said[0]
    slow.let.release(3)
    thread.start_to_close()
    thread.wait_until_closed(60)
    assert slow.rows == [0, 1, 2]
    assert thread.rows_left_out == 7
    assert slow.closed


def test_a_tracker_that_is_behind_gets_no_videos_and_they_are_counted() -> None:
    slow = Slow()
    thread = TrackerThread("slow", lambda: slow, pytest.fail)
    thread.write_video(VIDEO, frames=1)
    for frames in range(20):
        thread.write(Progress(frames=frames))
    thread.write_video(VIDEO, frames=2)
    slow.let.release(100)
    thread.start_to_close()
    thread.wait_until_closed(60)
    assert slow.videos == [1]
    assert slow.rows == list(range(20))
    assert thread.rows_left_out == 1


def test_a_row_that_is_refused_costs_itself_only() -> None:
    written: list[int] = []

    def write(row: Progress) -> None:
        if row.frames == 1:
            raise ValueError("not this one\nand why")
        written.append(row.frames)

    said: list[str] = []
    tracker: Any = SimpleNamespace(write=write, close=lambda: None)
    thread = TrackerThread("picky", lambda: tracker, said.append)
    for frames in range(3):
        thread.write(Progress(frames=frames))
    thread.start_to_close()
    thread.wait_until_closed(60)
    assert written == [0, 2]
    assert thread.rows_left_out == 1
    assert said == ["warning: picky: not this one; training goes on, and what it misses is counted"]


def test_what_is_given_up_is_counted_once_and_never_written() -> None:
    slow, said = Slow(), list[str]()
    thread = TrackerThread("slow", lambda: slow, said.append)
    for frames in range(5):
        thread.write(Progress(frames=frames))
    slow.reached.acquire()
    thread.start_to_close()
    thread.wait_until_closed(0.0)
    assert thread.rows_left_out == 5
    assert len(said) == 1
    # It comes back after all: the row under way arrives, and the others are not written any more.
    slow.let.release(100)
    thread.wait_until_closed(60)
    assert slow.rows == [0]
    assert thread.rows_left_out == 5
