"""Output files: checked before the work, replaced as a whole, and with their provenance."""

import errno
import hashlib
import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from launch.output import (
    EXIT_FAILED,
    check_can_be_written,
    drop_half_line,
    exit_code,
    make_folder,
    quoted,
    replace_folder,
    revision,
    source_digest,
    whole_file,
    write_json,
)
from launch.run.lock import LOCK_FILE, lock_folder
from shared.errors import ConfigurationError, typed_line


@pytest.mark.parametrize("name", ["erster Lauf", "lr[1e-3]", "*", "it's", "-o", "~", "two\nlines", "plain"])
def test_a_path_in_a_message_is_one_word_of_a_shell(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    listed = subprocess.run(
        f"ls -d {quoted(name)}", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert listed.stdout.rstrip("\n").removeprefix("./") == name


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"^--run-dir {tmp_path}/file/run: cannot be made: Not a directory$"):
        make_folder(tmp_path / "file" / "run", "run_dir")
    # Root could write to a file without permissions, but not to a folder.
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(ConfigurationError, match=f"^folder {tmp_path} cannot be written to: Is a directory$"):
        lock_folder(tmp_path)


def test_a_file_that_cannot_be_used_is_one_line(capsys: pytest.CaptureFixture) -> None:
    def fails(error: OSError) -> int:
        raise error

    denied = PermissionError(errno.EACCES, "Permission denied", "/a/film.mp4")
    full = OSError(errno.ENOSPC, "No space left on device")
    for error, file in ((denied, "/a/film.mp4"), (full, "a file")):
        assert exit_code(partial(fails, error)) == EXIT_FAILED
        assert capsys.readouterr().err == f"error: {file} cannot be read or written: {error.strerror}\n"


@pytest.mark.parametrize("error", [ConnectionResetError(errno.ECONNRESET, "reset"), KeyError("two\nlines")])
def test_an_unexpected_error_is_one_line_that_names_its_traceback(
    error: Exception, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> int:
        raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_code(fails) == EXIT_FAILED
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().err == f"error: {typed_line(error)}; the traceback is in {file}\n"
    assert "in fails\n    raise error" in file.read_text()


def test_a_half_line_is_dropped_and_whole_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    drop_half_line(file)
    assert not file.exists()
    for content, left in ((b"", b""), (b'{"a": {}', b""), (b"{}\n", b"{}\n"), (b'{}\n{"a": {}', b"{}\n")):
        file.write_bytes(content)
        drop_half_line(file)
        assert file.read_bytes() == left


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, made = tmp_path / "agent", tmp_path / "new" / "agent"
    for folder, text in ((old, "old"), (made, "new")):
        folder.mkdir(parents=True)
        (folder / "weights").write_text(text)
    rename = Path.rename

    def rename_unless_full(file: Path, to: Path) -> Path:
        if file == made:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(file, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_unless_full)
        with pytest.raises(OSError, match="No space left"):
            replace_folder(made, old)
    assert (old / "weights").read_text() == "old"
    replace_folder(made, old)
    assert (old / "weights").read_text() == "new"


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n")

    def run_out_of_space() -> None:
        with whole_file(path) as file:
            file.write("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as error:
        run_out_of_space()
    # The system names no file when it is full.
    assert error.value.filename == str(path)
    assert path.read_text() == "a,b\n"
    assert list(tmp_path.iterdir()) == [path]


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


@pytest.mark.parametrize("problem", ["no folder", "a folder of its name"])
def test_an_error_names_the_file_and_not_its_unfinished_name(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json" if problem == "a folder of its name" else tmp_path / "gone" / "summary.json"
    if problem == "a folder of its name":
        path.mkdir()
    with pytest.raises(OSError, match="directory") as error:
        write_json(path, {})
    assert error.value.filename == str(path)


def test_two_processes_may_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    with whole_file(path) as file:
        file.write("first\n")
        with monkeypatch.context() as another:
            another.setattr(os, "getpid", lambda: 1)
            with whole_file(path) as other:
                other.write("second\n")
        assert path.read_text() == "second\n"
    assert path.read_text() == "first\n"


def test_the_revision_is_the_commit_or_a_digest_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_digest() != hashlib.sha256().hexdigest()[:12]
    monkeypatch.setattr("launch.output._ROOT", tmp_path)
    assert revision.__wrapped__() == source_digest()
    # Presets are sources.
    (tmp_path / "launch").mkdir()
    without = source_digest.__wrapped__()
    (tmp_path / "launch" / "presets.toml").touch()
    assert source_digest.__wrapped__() != without
    # A checkout that git cannot read, which it says on stderr.
    (tmp_path / ".git").mkdir()
    assert revision.__wrapped__() == source_digest()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").touch()
    for command in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    assert revision.__wrapped__() == commit[:12]
    (tmp_path / "file").write_text("changed")
    assert revision.__wrapped__() == f"{commit[:12]}-dirty"


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"mean": float("nan"), "row": (1.5, float("inf"), None), "by": {3: "a"}})
    values = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert values == {"mean": None, "row": [1.5, None, None], "by": {"3": "a"}}
