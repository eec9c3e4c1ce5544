"""The file of arrivals: what is written is read, and anything else is refused by its line."""

from pathlib import Path

import pytest

from launch.loop.arrivals import Arrival, Arrivals, ArrivalsWriter
from shared.errors import ConfigurationError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    order = [
        Arrival("report", 1),
        Arrival("lost", 1),
        Arrival("replacement", 2),
        Arrival("joined", 3),
        Arrival("released", 3),
        Arrival("lost-evaluator"),
        Arrival("lost-with-node", 0),
        Arrival("evaluation"),
    ]
    writer = ArrivalsWriter(tmp_path / "order.txt", [0, 1])
    for arrival in order:
        writer.add(arrival)
    writer.close()
    read = Arrivals(str(tmp_path / "order.txt"))
    assert read.actor_ids == [0, 1]
    assert read.all == order


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with its actors"),
        (b"actors one\n", "does not begin with its actors"),
        (b"actors 0\nreport\n", "line 2 is 'report'"),
        (b"actors 0\nreport 0\nreport x\n", "line 3 is 'report x'"),
        (b"actors 0\njoined\n", "line 2 is 'joined'"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_another_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        Arrivals(str(tmp_path / "order.txt"))
