"""What a sweep keeps of its trials, and which settings it gives the next ones. No Ray, and no Optuna."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import msgspec
import pytest

from launch.output.json_file import write_json
from launch.presets import PRESETS
from launch.run.lock import FolderLock
from launch.run.progress import Progress
from launch.run.rows import row_values
from launch.sweep import playing
from launch.sweep.book import Trial, TrialBook
from launch.sweep.file import Plan, Range, Sweep, Value
from launch.sweep.playing import (
    HopelessTrialError,
    Reading,
    StoppedTrialError,
    TrialError,
    TrialRun,
    play_trial,
)
from launch.sweep.search import Listed
from shared.config import RunConfig
from shared.errors import ConfigurationError


def test_a_book_is_read_as_it_was_written_but_for_a_line_that_was_cut_off(tmp_path: Path) -> None:
    book = TrialBook(tmp_path)
    for number in range(3):
        book.start(number, {"optimizer.learning_rate": 0.1 / 3, "seed": number})
    done = Trial(0, book.trials[0].settings, "done", 40_000, 123.4)
    book.end(done)
    book.end(Trial(2, book.trials[2].settings, "failed", reason="it was"))
    book.end(done._replace(ended="stopped", score=0.0))
    assert book.trials[0] == done, "a trial ends once"
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"trial": 1, "ended": "do')
    again = TrialBook(tmp_path)
    assert again.trials == book.trials
    again.end(again.trials[1]._replace(ended="done"))
    assert TrialBook(tmp_path).trials == again.trials


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text('{"trial": 0, "ended": "done"}\n')
    with pytest.raises(ConfigurationError, match=r"trials.jsonl has a line that is no event"):
        TrialBook(tmp_path)


def sweep(search: str, space: dict[str, list[Value] | Range], *, seed: int = 1) -> Sweep:
    plan = Plan(space={}, search=search, seed=seed)  # type: ignore[arg-type]
    return Sweep("cartpole", PRESETS["cartpole"].config, plan, space, 6)


def test_a_grid_has_each_combination_once() -> None:
    search = Listed(sweep("grid", {"seed": [1, 2, 3], "method.discount": [0.9, 0.99]}))
    found = [tuple(search.suggest(number).values()) for number in range(6)]
    assert sorted(found) == sorted(itertools.product((1, 2, 3), (0.9, 0.99)))


def test_draws_are_in_their_ranges_and_depend_on_seed_and_number_only() -> None:
    space: dict[str, list[Value] | Range] = {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "actor.unroll_length": Range(5, 7, whole=True),
        "actor.environments": Range(1, 64, log=True, whole=True),
        "method.discount": Range(0.9, 0.99),
        "network.activation": ["tanh", "relu"],
    }
    found = [Listed(sweep("random", space)).suggest(number) for number in range(400)]
    assert found[7] == Listed(sweep("random", space)).suggest(7)
    assert found[7] != Listed(sweep("random", space, seed=2)).suggest(7)
    rates = [float(settings["optimizer.learning_rate"]) for settings in found]
    assert 1e-4 <= min(rates) < 1.2e-4 < 8e-3 < max(rates) <= 1e-2
    # Evenly in the logarithm: as many below the middle decade's boundary as above.
    assert 160 < sum(rate < 1e-3 for rate in rates) < 240
    assert {settings["actor.unroll_length"] for settings in found} == {5, 6, 7}
    assert all(isinstance(settings["actor.environments"], int) for settings in found)
    counts = [int(settings["actor.environments"]) for settings in found]
    assert (min(counts), max(counts)) == (1, 64)
    assert {settings["network.activation"] for settings in found} == {"tanh", "relu"}


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
    monkeypatch.setattr(playing, "training_process", lambda *_, **__: pytest.fail("it would be trained again"))
    # The row of the last frames comes with the end: a scheduler would take it for one to stop.
    run = trial_run(tmp_path / "done", [10, 60, 104], summary=104)
    assert list(play_trial(run)) == [Reading(10, 10.0, False), Reading(60, 60.0, False), Reading(104, 104.0, True)]
    evaluated = list(play_trial(run._replace(goal="evaluation")))
    assert [reading.score for reading in evaluated] == [1.0, 1.0, 1.0]
    # One that a scheduler stopped has frames to go, and is left so.
    stopped = trial_run(tmp_path / "stopped", [10, 60], summary=60, known=True)
    assert list(play_trial(stopped))[-1] == Reading(60, 60.0, True)


def test_rows_that_are_played_again_say_nothing_new(tmp_path: Path) -> None:
    run = trial_run(tmp_path / "run", [10, 40, 20, 50, 104], summary=104)
    # The rows past the checkpoint count as they were played the second time.
    assert [reading.frames for reading in play_trial(run)] == [10, 20, 50, 104]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (-9, None, TrialError),
        (1, None, TrialError),
        (1, "failed", HopelessTrialError),
        (2, None, HopelessTrialError),
        (130, "interrupted", StoppedTrialError),
    ],
)
def test_a_process_that_ends_before_its_run(
    code: int, status: str | None, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    @contextmanager
    def training_process(
        _config: RunConfig, run: Path, _preset: str, output: IO[str], *, resume: bool
    ) -> Iterator[SimpleNamespace]:
        asked.append(resume)
        run.mkdir(exist_ok=True)
        output.write("error: --network.name mlp: cannot be\n")
        output.flush()
        if status is not None:
            write_json(run / "summary.json", {"status": status, "frames": 60})
        yield SimpleNamespace(poll=lambda: code, returncode=code)

    monkeypatch.setattr(playing, "training_process", training_process)
    run = trial_run(tmp_path / "run", [10, 60], summary=None)
    (run.folder / "checkpoints").mkdir()
    (run.folder / "checkpoints" / "update-7.index").touch()
    with pytest.raises(error) as raised:
        list(play_trial(run))
    assert asked == [True]
    if code == 2:
        assert str(raised.value) == "--network.name mlp: cannot be"


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trial_run(tmp_path / "run", [10], summary=None)

    @contextmanager
    def training_process(*_: Any, resume: bool, **__: Any) -> Iterator[SimpleNamespace]:
        assert not resume
        assert not run.folder.exists()
        trial_run(run.folder, [50, 104], summary=104)
        yield SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(playing, "training_process", training_process)
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
