"""`latest` names the newest run."""

import os
from pathlib import Path

import pytest

from launch.cli import main
from launch.run.status import newest_run, run_path
from shared.errors import ConfigurationError


def started(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "manifest.json"):
        (folder / name).write_text("{}")
    os.utime(folder / "manifest.json", (at, at))
    return folder


def test_the_newest_run_is_the_one_that_was_started_last(tmp_path: Path) -> None:
    started(tmp_path / "a", 20)
    started(tmp_path / "b", 10)
    assert newest_run(tmp_path) == tmp_path / "a"
    assert newest_run(tmp_path) != started(tmp_path / "c" / "seed-1", 5)
    assert newest_run(tmp_path) != started(tmp_path / "c" / "seed-2", 30).parent
    assert newest_run(tmp_path) == tmp_path / "c" / "seed-2"
    assert newest_run(tmp_path) != started(tmp_path / "sweep" / "trial-03", 40).parent
    assert newest_run(tmp_path) == tmp_path / "sweep" / "trial-03"


def test_latest_is_a_name_only_where_nothing_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="there is none"):
        run_path("latest")
    newest = started(tmp_path / "runs" / "pong", 1)
    assert run_path("latest").absolute() == newest
    assert run_path("runs/pong") == Path("runs/pong")
    assert run_path("pong") == Path("runs/pong"), "as tributary runs lists it"
    (tmp_path / "latest").mkdir()
    assert run_path("latest") == Path("latest")
    (tmp_path / "pong").mkdir()
    assert run_path("pong") == Path("pong")


@pytest.mark.parametrize(
    "command", ["evaluate latest", "plot latest", "train --resume latest", "train --resume=latest"]
)
def test_without_a_run_the_mistake_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "there is none" in error


def test_commands_take_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    started(tmp_path / "runs" / "mine", 1)
    assert main(["evaluate", "latest"]) == 2
    assert "runs/mine" in capsys.readouterr().err
