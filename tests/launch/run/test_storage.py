"""A run's copy in remote storage, where a folder or a store in memory stands for it."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest

from launch.cli import main
from launch.run.folder_copy import Changes, apply_changes, changes_since
from launch.run.storage import RemoteCopy, check_storage, fetch
from shared.errors import ConfigurationError

SMALL = "--executor inline --log-every-seconds 0.05 --stop-at-return None --stop-measure training"


def test_a_run_whose_machine_is_lost_goes_on_from_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url, run = f"file://{tmp_path}/remote/run", tmp_path / "local"
    command = f"train cartpole {SMALL} --total-frames 1000 --evaluation.every-frames 0 --storage {url} --run-dir {run}"
    assert main(command.split()) == 0
    before = json.loads((run / "summary.json").read_text())
    shutil.rmtree(run)
    assert main(["train", "--resume", url, *f"{SMALL} --total-frames 1500".split()]) == 0
    (resumed,) = (tmp_path / "runs").iterdir()
    after = json.loads((resumed / "summary.json").read_text())
    assert before["frames"] < after["frames"]
    assert after["updates"] > before["updates"]
    assert json.loads((tmp_path / "remote" / "run" / "summary.json").read_text()) == after


def test_a_copy_takes_what_changed_and_drops_what_went(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-1.index").write_text("one")
    (tmp_path / "config.json").write_text("{}")
    copy = RemoteCopy(tmp_path, "memory://copy/run")
    copy.start()
    (tmp_path / "checkpoints" / "update-1.index").unlink()
    (tmp_path / "checkpoints" / "update-2.index").write_text("two")
    (tmp_path / "summary.json.part").write_text("unfinished")
    assert copy.finish() is None
    names = {name.rpartition("/copy/run/")[2] for name in files.find("/copy/run")}
    assert names == {"config.json", "checkpoints/update-2.index"}
    fetch("memory://copy/run", tmp_path / "fetched")
    assert (tmp_path / "fetched" / "checkpoints" / "update-2.index").read_text() == "two"


def test_storage_that_fails_is_told_and_no_run_fails_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    copy = RemoteCopy(tmp_path, "memory://copy/failing")

    def refuse(*_: object) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr(copy._files, "pipe_file", refuse)
    assert copy.start() is None
    assert copy.finish() == "OSError: the network is down"


def test_changes_of_a_folder_make_another_one_equal(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "checkpoints").mkdir(parents=True)
    (here / "metrics.jsonl").write_text("1\n")
    (here / "checkpoints" / "update-2.index").write_text("two")
    (there / "checkpoints" / "update-1.index").write_text("one")
    (there / ".lock").write_text("")
    (there / "report.html").write_text("only here")
    changes = changes_since(here, {})
    apply_changes(there, changes)
    assert sorted(str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()) == [
        ".lock",
        "checkpoints/update-2.index",
        "metrics.jsonl",
        "report.html",
    ]
    assert changes_since(here, changes.stamps) == Changes({}, changes.stamps)
    (here / "metrics.jsonl").write_text("1\n2\n")
    assert list(changes_since(here, changes.stamps).files) == ["metrics.jsonl"]


@pytest.mark.parametrize("url", ["nowhere://bucket/run", "s3://bucket/run", "file:///proc/no/such/run"])
def test_storage_that_cannot_be_written_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--storage") as raised:
        check_storage(url)
    assert "\n" not in str(raised.value)
