"""`tributary runs`: its columns by the width of the terminal, and its file."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from launch.cli import main
from launch.commands.runs import runs_table
from launch.output import write_json
from launch.run.events import Progress
from launch.run.metrics import row_values
from launch.run.status import run_status
from shared.config import RunConfig


def made(folder: Path, config: RunConfig, **row: float) -> None:
    folder.mkdir(parents=True)
    write_json(folder / "config.json", msgspec.to_builtins(config))
    (folder / "metrics.jsonl").write_bytes(msgspec.json.encode(row_values(Progress(**row))) + b"\n")  # type: ignore[arg-type]
    write_json(folder / "summary.json", {"status": "frames_reached", **row})


def shown(folder: Path, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    runs = [run_status(path) for path in sorted(folder.iterdir())]
    console.print(runs_table(runs, folder, console), highlight=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_narrow_terminal_goes_without_columns_and_not_without_half_of_each(
    cartpole: RunConfig, tmp_path: Path
) -> None:
    made(tmp_path / "cartpole-20261122-015812", cartpole, frames=2_048, elapsed_seconds=75.0, mean_return_100=144.9)
    made(tmp_path / "pong", cartpole, frames=12_340_000, elapsed_seconds=7_500.0)
    heading, *rows = shown(tmp_path, 120)
    # No run has been evaluated.
    assert heading.split() == ["run", "environment", "status", "frames", "return", "h:mm:ss"]
    share = 100 * 2_048 / cartpole.total_frames
    assert rows[0].split() == (
        f"cartpole-20261122-015812 CartPole-v1 frames reached 2,048, {share:.0f} % 144.90 0:01:15".split()
    )
    assert "12.34 M" in rows[1]
    heading, *rows = shown(tmp_path, 80)
    assert heading.split() == ["run", "status", "frames", "return", "h:mm:ss"]
    assert rows[0].startswith("cartpole-20261122-015812  frames reached")
    made(tmp_path / "zaxxon", cartpole, frames=100, evaluation_return=3.5)
    assert "evaluation" in shown(tmp_path, 120)[0]
    for width in (60, 50):
        assert max(map(len, shown(tmp_path, width))) <= width


@pytest.mark.usefixtures("working_folder")
def test_before_the_first_run_there_is_none_and_a_folder_that_is_typed_has_to_be_there(
    capsys: pytest.CaptureFixture[str], refused: Callable[[str], str]
) -> None:
    assert main(["runs"]) == 0
    assert "tributary train begins one" in capsys.readouterr().out
    assert refused("runs nosuch") == "nosuch: there is no such folder"


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ["Picking-v0-2", "night", "Picking-v0-1", "b-picking"]),
        ("--name Picking", ["Picking-v0-2", "Picking-v0-1"]),
        ("--sort name", ["Picking-v0-1", "Picking-v0-2", "b-picking", "night"]),
        ("--sort return", ["b-picking", "Picking-v0-1", "Picking-v0-2", "night"]),
        ("--sort return --name v0-", ["Picking-v0-1", "Picking-v0-2"]),
    ],
)
def test_runs_are_chosen_and_sorted(options: str, expected: list[str], cartpole: RunConfig) -> None:
    returns = {"b-picking": 9.0, "Picking-v0-1": 3.5, "night": None, "Picking-v0-2": -2.0}
    for seconds, (name, value) in enumerate(returns.items()):
        made(Path("runs") / name, cartpole, **({} if value is None else {"mean_return_100": value}))
        os.utime(Path("runs") / name / "config.json", (seconds, seconds))
    assert main(["runs", "--json", "found.json", *options.split()]) == 0
    found = json.loads(Path("found.json").read_text())["runs"]
    assert [Path(run["run"]).name for run in found] == expected


def test_what_is_not_shown_is_in_the_file(working_folder: Path) -> None:
    assert main(["runs", "--json", "none.json"]) == 0
    assert json.loads(Path("none.json").read_text()) == {"runs": [], "left_out": []}
    folder = working_folder / "runs" / "damaged"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    assert main(["runs", "--json", "one.json"]) == 0
    found = json.loads(Path("one.json").read_text())
    assert found["runs"] == []
    (left_out,) = found["left_out"]
    assert left_out["run"] == str(folder)
    assert "config.json cannot be read" in left_out["reason"]
