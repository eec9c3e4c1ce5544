"""One trial, played: what is read of its run, and what comes of the process that trains it. No Ray."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from launch.output import write_json
from launch.run.events import Progress, Row
from launch.run.exploit import offer_weights, offered_number
from launch.run.folder import FolderLock, RunFolder
from launch.run.metrics import row_values
from launch.sweep import playing
from launch.sweep.playing import (
    HopelessTrialError,
    Reading,
    StoppedTrialError,
    TrialError,
    TrialRun,
    exploits_taken,
    play_trial,
)
from launch.train import OnEvent, Result, TrainingFailedError
from shared.config import RunConfig
from shared.errors import ConfigurationError


def trial_run(folder: Path, frames: list[int], *, summary: int | None, known: bool = False) -> TrialRun:
    """A trial of 100 frames whose folder has rows of these frames."""
    config = RunConfig(total_frames=100)
    folder.mkdir()
    write_json(folder / "config.json", msgspec.to_builtins(config))
    rows = [row_values(Progress(frames=n, mean_return_100=float(n), evaluation_return=1.0)) for n in frames]
    (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    if summary is not None:
        write_json(folder / "summary.json", {"status": "frames_reached", "frames": summary})
    return TrialRun(folder, config, "cartpole", "training", known)


def test_a_trial_that_has_ended_is_read_and_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "train_in_process", lambda *_, **__: pytest.fail("it would be trained again"))
    # The row of the last frames comes with the end: a scheduler would take it for one to stop.
    run = trial_run(tmp_path / "done", [10, 60, 104], summary=104)
    assert list(play_trial(run)) == [Reading(10, 10.0, False), Reading(60, 60.0, False), Reading(104, 104.0, True)]
    evaluated = list(play_trial(run._replace(goal="evaluation")))
    assert [reading.score for reading in evaluated] == [1.0, 1.0, 1.0]
    # One that a scheduler stopped has frames to go, and is left so.
    stopped = trial_run(tmp_path / "stopped", [10, 60], summary=60, known=True)
    assert list(play_trial(stopped))[-1] == Reading(60, 60.0, True)


def test_weights_that_an_ended_run_never_took_are_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(trial_run(tmp_path / "run", [104], summary=104).folder)
    folder.checkpoints.mkdir()
    offer_weights(folder, folder.checkpoints, 2, "trial-07")
    assert exploits_taken(folder) is None, "an older version says nothing of them"
    for taken, left in ((2, 2), (1, 0)):
        write_json(folder.summary, {"status": "frames_reached", "frames": 104, "exploits": taken})
        assert (exploits_taken(folder), offered_number(folder)) == (taken, left)


def test_a_member_of_a_population_is_read_at_each_interval_from_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trial_run(tmp_path / "run", [10, 45], summary=None)._replace(interval_frames=20)
    (run.folder / "checkpoints").mkdir()
    (run.folder / "checkpoints" / "update-7.index").touch()

    def train(_config: RunConfig, folder: Path, on_event: OnEvent, **_: Any) -> Result:
        for frames in (50, 61, 66, 79, 85, 104):
            row = row_values(Progress(frames=frames, mean_return_100=None if frames < 80 else 9.0))
            with (folder / "metrics.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            on_event(Row(row))
        write_json(folder / "summary.json", {"status": "frames_reached", "frames": 104})
        return Result(folder, {"status": "frames_reached"})

    monkeypatch.setattr(playing, "train_in_process", train)
    # 20 and 40 were compared in an earlier try; one without a return yet is read too, and takes part in nothing.
    assert list(play_trial(run)) == [Reading(61, None, False), Reading(85, 9.0, False), Reading(104, 9.0, True)]


def test_rows_that_are_played_again_say_nothing_new(tmp_path: Path) -> None:
    run = trial_run(tmp_path / "run", [10, 40, 20, 50, 104], summary=104)
    # The rows past the checkpoint count as they were played the second time.
    assert [reading.frames for reading in play_trial(run)] == [10, 20, 50, 104]


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (TrainingFailedError("ended by signal 9"), None, TrialError),
        (TrainingFailedError("not finite"), "failed", HopelessTrialError),
        (ConfigurationError("--network.name mlp: cannot be"), None, HopelessTrialError),
        (None, "interrupted", StoppedTrialError),
    ],
)
def test_a_process_that_ends_before_its_run(
    end: Exception | None, status: str | None, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[bool] = []

    def train(_config: RunConfig, folder: Path, _on_event: OnEvent, *, resume: bool, **_: Any) -> Result:
        resumed.append(resume)
        if status is not None:
            write_json(folder / "summary.json", {"status": status, "frames": 60})
        if end is not None:
            raise end
        return Result(folder, {"status": status})

    monkeypatch.setattr(playing, "train_in_process", train)
    run = trial_run(tmp_path / "run", [10, 60], summary=None)
    (run.folder / "checkpoints").mkdir()
    (run.folder / "checkpoints" / "update-7.index").touch()
    with pytest.raises(error) as raised:
        list(play_trial(run))
    assert resumed == [True]
    if error is HopelessTrialError:
        assert str(raised.value) == str(end)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trial_run(tmp_path / "run", [10], summary=None)

    def train(_config: RunConfig, folder: Path, _on_event: OnEvent, *, resume: bool, **_: Any) -> Result:
        assert not resume
        assert not folder.exists()
        trial_run(folder, [50, 104], summary=104)
        return Result(folder, {"status": "frames_reached"})

    monkeypatch.setattr(playing, "train_in_process", train)
    assert list(play_trial(run))[-1] == Reading(104, 104.0, True)


def test_a_run_that_is_still_being_saved_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trial_run(tmp_path / "run", [104], summary=104)
    lock = FolderLock(run.folder)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lock.release()

    monkeypatch.setattr(playing.time, "sleep", sleep)
    assert [reading.ended for reading in play_trial(run)] == [True]
    assert len(waits) == 3
    held = FolderLock(run.folder)
    monkeypatch.setattr(playing, "_SAVING_SECONDS", -1.0)
    with pytest.raises(TrialError, match="still in use"):
        list(play_trial(run))
    held.release()
