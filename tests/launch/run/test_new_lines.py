"""What is added to a file of a run comes once, and only when it is whole."""

from pathlib import Path

from launch.run.metrics import NewLines


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
