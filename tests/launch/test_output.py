"""Each failure of a command is a message of one line."""

import errno
import subprocess
from pathlib import Path

import pytest

from launch.output import EXIT_FAILED, exit_code, quoted
from shared.errors import typed_line


@pytest.mark.parametrize("name", ["erster Lauf", "lr[1e-3]", "*", "it's", "-o", "~", "two\nlines", "plain"])
def test_a_path_in_a_message_is_one_word_of_a_shell(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    listed = subprocess.run(
        f"ls -d {quoted(name)}", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert listed.stdout.rstrip("\n").removeprefix("./") == name


@pytest.mark.parametrize("error", [ConnectionResetError(errno.ECONNRESET, "reset"), KeyError("two\nlines")])
def test_an_unexpected_error_names_its_traceback(error: Exception, capsys, tmp_path: Path, monkeypatch) -> None:
    def fails() -> int:
        raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_code(fails) == EXIT_FAILED
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().err == f"error: {typed_line(error)}; the traceback is in {file}\n"
    assert "in fails\n    raise error" in file.read_text()
