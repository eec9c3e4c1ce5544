"""Who works on a run, and how it stands, as its folder says it."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from launch.output import write_json
from launch.run.events import Progress
from launch.run.folder import FolderLock, Holder, RunFolder, holder_of
from launch.run.metrics import progress_of, row_values
from launch.run.status import run_folders, run_status
from shared.config import RunConfig
from shared.errors import ConfigurationError

HOLD = "import sys, pathlib; from launch.run.folder import FolderLock; lock = FolderLock(pathlib.Path(sys.argv[1]))"


def test_a_folder_names_the_process_that_holds_it_until_it_ends(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    command = [sys.executable, "-c", f"{HOLD}; print('held', flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        holder = holder_of(tmp_path)
        assert holder is not None
        assert (holder.pid, holder.host, holder.here) == (process.pid, socket.gethostname(), True)
        with pytest.raises(ConfigurationError, match=f"in use by another process.*tributary stop {tmp_path}"):
            FolderLock(tmp_path)
        assert holder_of(tmp_path) == holder, "who is refused leaves the name of the holder"
        process.kill()
        process.wait()
    assert holder_of(tmp_path) is None


def test_a_look_at_a_lock_does_not_keep_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FolderLock(tmp_path).release()
    import fcntl

    look = (tmp_path / ".lock").open()
    fcntl.flock(look, fcntl.LOCK_SH)
    # The first try meets the look, which is over by the second.
    monkeypatch.setattr("launch.run.folder.time.sleep", lambda _seconds: look.close())
    FolderLock(tmp_path).release()


def test_the_holder_of_an_older_version_is_not_known(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    (tmp_path / ".lock").write_text("")
    assert holder_of(tmp_path) == Holder(None, None)
    lock.release()


def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre is, unless it is mounted with them."""

    def flock(_file: object, _how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("launch.run.folder.fcntl.flock", flock)
    with pytest.raises(ConfigurationError, match=r"cannot be locked \(Function not.*with flock"):
        FolderLock(tmp_path)
    assert holder_of(tmp_path) is None


def write_run(folder: Path, frames: list[int], *, summary: int | None = None) -> Path:
    folder.mkdir(parents=True)
    write_json(folder / "config.json", msgspec.to_builtins(RunConfig(total_frames=100)))
    rows = [
        json.dumps(row_values(Progress(frames=n, statistics={"entropy": 0.5}, info={"success": 0.25}))) for n in frames
    ]
    (folder / "metrics.jsonl").write_text("\n".join([*rows, '{"frames": 9']))
    if summary is not None:
        write_json(folder / "summary.json", {"status": "interrupted", "frames": summary})
    return folder


@pytest.mark.parametrize(
    ("frames", "summary", "status"),
    [
        ([10, 20], 20, "interrupted"),
        ([10, 20], None, "died"),
        # It was resumed after that summary, and killed.
        ([10, 20, 30], 20, "died"),
        ([], None, "died"),
    ],
)
def test_a_run_that_nobody_works_on(frames: list[int], summary: int | None, status: str, tmp_path: Path) -> None:
    run = run_status(write_run(tmp_path / "run", frames, summary=summary))
    assert (run.status, run.running, run.row.get("frames")) == (status, False, frames[-1] if frames else None)


def test_a_run_that_is_held_runs_whatever_its_summary_says(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", [10], summary=10))
    with folder:
        run = run_status(folder.path)
        assert run.holder is not None
        assert (run.status, run.holder.pid) == ("running", os.getpid())
    assert run_status(folder.path).status == "interrupted"


def test_runs_of_seeds_and_sweeps_are_found_newest_first(tmp_path: Path) -> None:
    names = ["a", "b/seed-1", "c/trial-02", "study/cartpole/seed-3"]
    for age, name in enumerate(names):
        file = write_run(tmp_path / name, [1]) / "config.json"
        os.utime(file, (100 - age, 100 - age))
    assert [str(path.relative_to(tmp_path)) for path in run_folders(tmp_path)] == names


def test_a_row_is_read_as_the_progress_that_it_was_written_from() -> None:
    progress = Progress(frames=7, policy_lag_counts={0: 3}, statistics={"entropy": 0.5}, info={"success": 0.25})
    assert progress_of(json.loads(json.dumps(row_values(progress)))) == progress
