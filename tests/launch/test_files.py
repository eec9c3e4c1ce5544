"""Files are there whole or not at all, and errors name them."""

import errno
import json
import os
from pathlib import Path

import pytest

from launch.files import check_can_be_written, make_folder, whole_file, write_json
from launch.run.lock import LOCK_FILE, lock_folder
from shared.errors import ConfigurationError


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"^--run-dir {tmp_path}/file/run: cannot be made: Not a directory$"):
        make_folder(tmp_path / "file" / "run", "run_dir")
    # Root could write to a file without permissions, but not to a folder.
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(ConfigurationError, match=f"^folder {tmp_path} cannot be locked and .*: Is a directory$"):
        lock_folder(tmp_path)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n")

    def run_out_of_space() -> None:
        with whole_file(path) as file:
            file.write("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run_out_of_space()
    assert path.read_text() == "a,b\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_another_user_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /tmp its folder may be written to, and it cannot be replaced."""
    (tmp_path / "result.json").touch()
    tmp_path.chmod(0o1777)
    check_can_be_written(tmp_path / "result.json", "json")
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match=r"result\.json: cannot be written: it is another user's"):
        check_can_be_written(tmp_path / "result.json", "json")
    check_can_be_written(tmp_path / "new.json", "json")


def test_a_file_at_the_end_of_a_link_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "store" / "result.json", tmp_path / "link.json"
    target.parent.mkdir()
    link.symlink_to(target)
    for values in ({}, {"a": 1}):
        check_can_be_written(link, "json")
        write_json(link, values)
        assert link.is_symlink()
        assert json.loads(target.read_text()) == values
    assert list(target.parent.iterdir()) == [target]


def test_a_pipe_receives_the_file(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    # As /dev/stdout, whose end has no name.
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    link.symlink_to(f"/proc/self/fd/{reader}")
    for path in (pipe, link):
        check_can_be_written(path, "json")
        write_json(path, {})
        assert os.read(reader, 9) == b"{}\n"
    os.close(reader)
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    assert sorted(tmp_path.iterdir()) == [link, pipe]


def test_an_open_file_receives_the_file_where_it_stands(tmp_path: Path) -> None:
    """`--json /dev/stdout >> results` adds to the results."""
    results = tmp_path / "results"
    results.write_text("earlier\n")
    with results.open("a") as file:
        path = Path(f"/dev/fd/{file.fileno()}")
        check_can_be_written(path, "json")
        write_json(path, {})
    assert results.read_text() == "earlier\n{}\n"
    reader, writer = os.pipe()
    os.close(reader)
    # As where `head` has read enough.
    write_json(Path(f"/dev/fd/{writer}"), {})
    os.close(writer)


def test_a_link_that_leads_to_itself_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    write_json(tmp_path / "loop", {})
    assert (tmp_path / "loop").read_text() == "{}\n"


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"mean": float("nan"), "row": (1.5, float("inf"), None), "by": {3: "a"}})
    values = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert values == {"mean": None, "row": [1.5, None, None], "by": {"3": "a"}}
