"""`tributary parity`: its table, its JSON, its exit codes."""

import json
from pathlib import Path

import pytest

from launch.cli import main
from launch.parity import accumulation, behaviour
from launch.parity.finding import Finding, reported, required


def test_figures_are_shown_and_written_and_the_code_is_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(behaviour, "_AGES", (0, 1))
    file = tmp_path / "parity.json"
    assert main(["parity", "--only", "7", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "Are μ and σ in the loss those that acted?" in out
    assert "required rows hold" in out
    written = json.loads(file.read_text())
    assert written["holds"] is True
    assert written["versions"]["tensorflow"]
    assert written["hardware"]["cores"] >= 1
    assert list(written["experiments"]) == ["7"]
    assert set(written["experiments"]["7"]) == {"question", "rows", "explanation", "figures"}


def test_a_required_row_that_fails_is_named_and_the_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    rows = (required("two is one", "2", "1", False), reported("three", "3"))
    monkeypatch.setattr(accumulation, "run", lambda: Finding("Is it?", rows, "It is not.", {}))
    assert main(["parity", "--only", "5"]) == 1
    assert "1 of 1 required rows fail: two is one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--traces 0", "--traces 0: must be at least 1"),
        ("--seeds 4", "--seeds 4: must be at least 5"),
        ("--only 9", "--only 9: there are experiments 1 to 8"),
        ("--json no-such-folder/x.json", "in a folder that exists"),
        ("--trace 3", "--trace"),
    ],
)
def test_mistakes(arguments: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["parity", *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert problem in err
