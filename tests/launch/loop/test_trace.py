"""The file of arrivals: what is written is read, and anything else is refused by its line."""

from pathlib import Path

import pytest

from launch.loop.trace import TraceEvent, TraceWriter, read_trace
from shared.errors import ConfigurationError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    order = [
        TraceEvent("report", 1),
        TraceEvent("lost", 1),
        TraceEvent("replacement", 2),
        TraceEvent("joined", 3),
        TraceEvent("released", 3),
        TraceEvent("lost-evaluator"),
        TraceEvent("lost-with-node", 0),
        TraceEvent("evaluation"),
    ]
    writer = TraceWriter(tmp_path / "order.txt", [0, 1])
    for arrival in order:
        writer.add(arrival)
    writer.close()
    read = read_trace(str(tmp_path / "order.txt"))
    assert read.actor_ids == [0, 1]
    assert read.events == order


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with 'version 2' and its actors"),
        (b"version 2\n", "does not begin with"),
        (b"actors 0\nreport 0\n", "does not begin with"),
        (b"version 2\nactors one\n", "does not begin with"),
        (b"version 2\nactors 0\nreport\n", "line 3 is 'report'"),
        (b"version 2\nactors 0\nreport 0\nreport x\n", "line 4 is 'report x'"),
        (b"version 2\nactors 0\njoined\n", "line 3 is 'joined'"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_another_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_trace(str(tmp_path / "order.txt"))
