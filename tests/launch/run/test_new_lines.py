"""What is added to a file of a run comes once, and only when it is whole."""

import json
from pathlib import Path

from launch.run.metrics import NewLines, NewRows


def test_lines_that_were_there_before_are_not_new(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("an earlier process\n")
    lines = NewLines(file)
    assert lines.take() == []
    with file.open("a") as more:
        more.write("näher\n\nhal")
    assert lines.take() == ["näher", ""]
    with file.open("a") as more:
        more.write("f\n")
    assert lines.take() == ["half"]


def test_rows_that_are_half_written_come_when_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows = NewRows(file)
    assert rows.take() == []
    file.write_text(json.dumps({"frames": 1}) + '\n{"fra')
    assert rows.take() == [{"frames": 1}]
    with file.open("a") as more:
        more.write('mes": 2}\nnot a row\n{"frames": 3}\n')
    assert rows.take() == [{"frames": 2}, {"frames": 3}]
    assert rows.take() == []
