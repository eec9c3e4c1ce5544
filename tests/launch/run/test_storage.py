"""Copies of a run in remote storage."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from unittest.mock import Mock

import fsspec
import pytest
from sessions import quick, session
from waiting import wait_for

from launch.cli import main
from launch.interrupts import StopRequest
from launch.run.events import Event, Saved
from launch.run.folder import RunFolder, read_object
from launch.run.lookup import run_path
from launch.run.storage import RemoteCopy, check_storage, fetch
from launch.train import train
from shared.errors import ConfigurationError

SMALL = "--executor inline --log-every-seconds 0.05 --stop-at-return None --stop-measure training"


def test_a_run_whose_machine_is_lost_goes_on_from_its_copy(working_folder: Path) -> None:
    copy, run = RunFolder(working_folder / "remote" / "run"), RunFolder(working_folder / "local")
    options = f"{SMALL} --evaluation.every-frames 0 --storage file://{copy.path} --run-dir {run.path}"
    assert main(f"train cartpole --total-frames 1000 {options}".split()) == 0
    before = read_object(run.summary)
    shutil.rmtree(run.path)
    assert main(f"train --resume file://{copy.path} {SMALL} --total-frames 5000".split()) == 0
    (resumed,) = (working_folder / "runs").iterdir()
    after = read_object(RunFolder(resumed).summary)
    assert before["frames"] < after["frames"]
    assert before["updates"] < after["updates"]
    assert read_object(copy.summary) == after
    # A copy that missed the end is completed though nothing is left to train.
    copy.summary.unlink()
    assert main(f"train --resume {resumed} --storage file://{copy.path}".split()) == 0
    assert read_object(copy.summary) == after


def test_a_run_that_ends_before_it_trains_leaves_no_copy(tmp_path: Path) -> None:
    """Its folder is discarded, and the same command would be refused for the copy."""
    run = session(quick(storage=f"file://{tmp_path / 'copy'}", total_frames=100), tmp_path / "run")
    run._loop = Mock()
    assert run.run()["agent_steps_sampled"] == 0
    assert not (tmp_path / "copy").exists()


def test_a_copy_has_the_checkpoints_of_a_run_under_way(tmp_path: Path) -> None:
    copy, found, stop = RunFolder(tmp_path / "remote"), list[bool](), StopRequest()

    def on_event(event: Event) -> None:
        if isinstance(event, Saved):
            found.append(wait_for(lambda: copy.has_checkpoint, "a checkpoint in the copy"))
            stop.request("the test")

    config = quick(storage=f"file://{copy.path}", total_frames=10**7, checkpoint={"every_frames": 500})
    train(config, tmp_path / "run", on_event, stop=stop)
    assert found[0]


def test_a_copy_takes_what_changed_and_drops_what_went(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for name in ("checkpoints/update-0.index", "videos/update-0.gif"):
        files.pipe_file(f"/copy/run/{name}", b"of an earlier process")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-1.index").write_text("one")
    (tmp_path / "config.json").write_text("{}")
    logged: list[str] = []
    copy = RemoteCopy(tmp_path, "memory://copy/run", logged.append)
    copy.start()
    (tmp_path / "checkpoints" / "update-1.index").unlink()
    (tmp_path / "checkpoints" / "update-2.index").write_text("two")
    (tmp_path / "summary.json.part").write_text("unfinished")
    copy.finish()
    names = {name.rpartition("/copy/run/")[2] for name in files.find("/copy/run")}
    assert (names, logged) == ({"config.json", "checkpoints/update-2.index", "videos/update-0.gif"}, [])
    fetch("memory://copy/run", tmp_path / "fetched")
    assert (tmp_path / "fetched" / "checkpoints" / "update-2.index").read_text() == "two"
    # A folder that is removed is no run without checkpoints.
    shutil.rmtree(tmp_path)
    copy.finish()
    assert files.exists("/copy/run/checkpoints/update-2.index")


def test_a_copy_is_whole_after_a_failure_between_its_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here_temp", tmp_path / "there"
    (here / "checkpoints").mkdir(parents=True)
    for name in ("checkpoint", "update-1.index", "update-1.data", "update-2.data", "update-2.index"):
        (here / "checkpoints" / name).write_text("old")
    (here / "metrics.jsonl").touch()
    # A save under way.
    (here / "checkpoints" / "update-3_temp").mkdir()
    (here / "checkpoints" / "update-3_temp" / "part-00000-of-00001.data-00000-of-00001").touch()
    logged = list[str]()
    copy, files = RemoteCopy(here, f"file://{there}", logged.append), fsspec.filesystem("file")
    sent, remove = Mock(wraps=files.pipe_file), files.rm_file
    with monkeypatch.context() as patch:
        patch.setattr(files, "pipe_file", sent)
        copy.finish()
        # Nothing has changed since.
        copy.finish()
    names = [Path(call.args[0]).name for call in sent.call_args_list]
    # The newest checkpoint first, which is deleted last. Files that refer to others come after them.
    assert names == [
        "update-2.data",
        "update-2.index",
        "update-1.data",
        "update-1.index",
        "metrics.jsonl",
        "checkpoint",
    ]
    for old in here.glob("checkpoints/*[!p]"):
        old.unlink()
    (here / "checkpoints" / "update-3.index").write_text("new")

    def fail_at_the_second(path: str) -> None:
        if removal.call_count == 2:
            raise OSError("the network is down")
        remove(path)

    removal = Mock(side_effect=fail_at_the_second)
    with monkeypatch.context() as patch:
        patch.setattr(files, "rm_file", removal)
        copy.finish()
    assert logged[0].endswith("could not be brought up to date: OSError: the network is down")
    copy.finish()
    assert [path.name for path in (there / "checkpoints").iterdir()] == ["update-3.index"]


def test_a_copy_of_another_run_is_left_alone(tmp_path: Path) -> None:
    """Two runs begin with the same storage before either has a copy."""
    files, logged = fsspec.filesystem("memory"), list[str]()
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "manifest.json").write_text(json.dumps({"created": run}))
        copy = RemoteCopy(tmp_path / run, "memory://copy/shared", logged.append)
        copy.finish()
        copy.finish()
    assert json.loads(files.cat_file("/copy/shared/manifest.json")) == {"created": "first"}
    assert logged == ["warning: memory://copy/shared holds another run: nothing is copied there any more"]


def test_large_files_that_grow_are_not_sent_with_each_checkpoint(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    copy = RemoteCopy(tmp_path, "memory://copy/large", Mock())

    def grow(by: int) -> int:
        for name in ("metrics.jsonl", "log.txt"):
            with (tmp_path / name).open("ab") as file:
                file.write(bytes(by // (1 if name == "metrics.jsonl" else 1000)))
        copy.start()
        copy._thread.join()
        return files.size("/copy/large/metrics.jsonl")

    assert grow(2**21) == 2**21
    assert grow(100_000) == 2**21
    assert files.size("/copy/large/log.txt") == (tmp_path / "log.txt").stat().st_size, "a small one is"
    copy.finish()
    assert files.size("/copy/large/metrics.jsonl") == 2**21 + 100_000


def test_a_copy_that_hangs_does_not_hold_an_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    files, logged, goes_on = fsspec.filesystem("memory"), list[str](), threading.Event()
    monkeypatch.setattr(files, "pipe_file", lambda *_: goes_on.wait())
    RemoteCopy(tmp_path, "memory://copy/slow", logged.append).finish(0.01)
    goes_on.set()
    assert logged == ["warning: the copy at memory://copy/slow may miss the end of the run: a resume completes it"]


def test_a_slow_copy_keeps_its_last_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has another: those of its list may be replaced before it comes to them."""
    checkpoints, files, logged = tmp_path / "checkpoints", fsspec.filesystem("memory"), list[str]()
    checkpoints.mkdir()

    def save(update: int) -> None:
        for old in checkpoints.glob("*"):
            old.unlink()
        for kind in ("data", "index"):
            (checkpoints / f"update-{update}.{kind}").write_text("weights")

    def kept() -> set[str]:
        return {PurePosixPath(name).name for name in files.find("/slow/run/checkpoints")}

    copy, send = RemoteCopy(tmp_path, "memory://slow/run", logged.append), files.pipe_file
    save(1)
    copy.finish()
    with monkeypatch.context() as patch:
        patch.setattr(files, "pipe_file", lambda path, content: (send(path, content), save(3)))
        save(2)
        copy.finish()
    assert {"update-1.data", "update-1.index"} <= kept()
    assert [line.partition(" before ")[0] for line in logged] == ["warning: checkpoints were replaced"]
    copy.finish()
    assert kept() == {"update-3.data", "update-3.index"}


def test_a_copy_has_what_changed_during_its_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    copy, files = RemoteCopy(tmp_path, "memory://late/run", print), fsspec.filesystem("memory")
    sends, goes_on, send = threading.Event(), threading.Event(), files.pipe_file

    def send_slowly(path: str, content: bytes) -> None:
        sends.set()
        assert goes_on.wait(60.0)
        send(path, content)

    monkeypatch.setattr(files, "pipe_file", send_slowly)
    copy.start()
    assert sends.wait(60.0)
    (tmp_path / "summary.json").write_text("{}")
    goes_on.set()
    copy.finish()
    assert files.exists("/late/run/summary.json")


def test_storage_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    copy, url = tmp_path / "copy", f"file://{tmp_path / 'copy'}"
    run = RunFolder(tmp_path / "run")
    check_storage(url, run, resume=False)
    assert list(copy.iterdir()) == []
    (copy / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=f"holds another run: train --resume {url} goes on"):
        check_storage(url, run, resume=False)
    run.path.mkdir()
    run.manifest.write_text('{"created": "now"}')
    # A copy without a manifest was never complete.
    check_storage(url, run, resume=True)
    # That of the run, and what a full disk or a crash leaves of it.
    for content in ('{"created": "now"}', '{"cre', ""):
        (copy / "manifest.json").write_text(content)
        check_storage(url, run, resume=True)
    (copy / "manifest.json").write_text('{"created": "earlier"}')
    with pytest.raises(ConfigurationError, match="holds another run"):
        check_storage(url, run, resume=True)
    run.manifest.write_text('{"cre')
    check_storage(url, run, resume=True)


def test_a_copy_that_is_ahead_is_kept(tmp_path: Path) -> None:
    """The run went on elsewhere from its copy: a resume of its older folder would remove the later checkpoints."""
    run, url = RunFolder(tmp_path / "run"), f"file://{tmp_path}/copy"
    for place, update in (("run", 9), ("copy", 10)):
        (tmp_path / place / "checkpoints").mkdir(parents=True)
        (tmp_path / place / "manifest.json").write_text('{"created": "now"}')
        (tmp_path / place / "checkpoints" / f"update-{update}.index").touch()
    with pytest.raises(ConfigurationError, match=f"has a later checkpoint than {run.path}: train --resume {url} goes"):
        check_storage(url, run, resume=True)
    (run.checkpoints / "update-10.index").touch()
    check_storage(url, run, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_storage_is_not_the_folder_of_the_run(resume: bool, tmp_path: Path) -> None:
    """Each update would write the folder's files over themselves."""
    (tmp_path / "mounted").symlink_to(tmp_path)
    run, url = RunFolder(tmp_path / "run"), f"file://{tmp_path}/mounted/run"
    # A copy within the folder would be copied into itself.
    for place in (url, f"{url}/copy"):
        with pytest.raises(ConfigurationError, match=f"^--storage {place}: is the folder of the run, or within it"):
            check_storage(place, run, resume=resume)
    assert not run.path.exists()


def test_a_folder_that_cannot_be_read_for_a_moment_costs_the_copy_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "ckpt-1.index").touch()
    logged: list[str] = []
    copy = RemoteCopy(tmp_path / "run", f"file://{tmp_path}/copy", logged.append)
    copy.finish()
    scandir, refused = os.scandir, "videos"

    def refuse(path: str) -> object:
        if Path(path) == tmp_path / "run" / refused:
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    (tmp_path / "run" / "videos").mkdir()
    (tmp_path / "run" / "log.txt").touch()
    copy.finish()
    assert (tmp_path / "copy" / "log.txt").is_file()
    assert logged.pop() == f"warning: videos cannot be read, and is not in the copy at file://{tmp_path}/copy"
    copy.finish()
    assert not logged
    refused = "checkpoints"
    copy.finish()
    assert (tmp_path / "copy" / "checkpoints" / "ckpt-1.index").is_file()
    assert "could not be brought up to date" in logged[-1]


# A library's own error, which is no OSError.
NO_ENDPOINT = RuntimeError("Could not connect\nto the endpoint")


OUTSIDE = "cannot be read: .*outside of the run's folder"


def files_of(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("error", "found", "line"),
    [
        (NO_ENDPOINT, ["a.txt", "config.json"], "cannot be read: Could not connect to the endpoint"),
        (KeyboardInterrupt(), ["a.txt", "config.json"], None),
        (None, ["config.json", "../../outside.txt"], OUTSIDE),
        (None, ["config.json", "checkpoints/../../outside.txt"], OUTSIDE),
    ],
)
def test_an_error_of_storage_is_one_line_and_leaves_no_part(
    error: BaseException | None, found: list[str], line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, there, here = fsspec.filesystem("file"), tmp_path / "there", tmp_path / "here" / "run"
    there.mkdir()
    (there / "config.json").write_text("{}")
    before = files_of(tmp_path)

    def half_done(remote: str, local: str, **_: object) -> None:
        Path(local).write_text("{")
        if error is not None and not remote.endswith("a.txt"):
            raise error

    monkeypatch.setattr(files, "find", lambda _: [f"{there}/{name}" for name in found])
    monkeypatch.setattr(files, "get_file", half_done)
    with pytest.raises(KeyboardInterrupt if line is None else ConfigurationError, match=line):
        fetch(f"file://{there}", here)
    assert files_of(tmp_path) == before
    assert not here.exists()


def test_a_url_stands_where_a_run_does(working_folder: Path) -> None:
    files = fsspec.filesystem("memory")
    for run in ("a/seed-1", "b/seed-1"):
        files.pipe_file(f"/urls/{run}/config.json", run.encode())
    with pytest.raises(ConfigurationError, match="RUN memory://urls/a: holds no run"):
        run_path("memory://urls/a")
    assert list(working_folder.iterdir()) == []
    folders = [run_path(f"memory://urls/{run}") for run in ("a/seed-1", "b/seed-1")]
    assert [(folder / "config.json").read_text() for folder in folders] == ["a/seed-1", "b/seed-1"]
    assert [folder.parent for folder in folders] == [working_folder / "runs"] * 2
    assert run_path("memory://urls/a/seed-1") == folders[0], "it is fetched once in a process"


def test_large_files_that_grow_are_sent_every_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sizes, files = SimpleNamespace(now=0.0), list[int](), fsspec.filesystem("memory")
    monkeypatch.setattr("launch.run.storage.time", SimpleNamespace(monotonic=lambda: clock.now))
    copy = RemoteCopy(tmp_path, "memory://copy/long", pytest.fail)
    for clock.now in (1_000.0, 1_599.0, 1_600.0):
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(bytes(2**21))
        copy.start()
        copy._thread.join()
        sizes.append(files.size("/copy/long/metrics.jsonl"))
    assert sizes == [2**21, 2**21, 3 * 2**21]
