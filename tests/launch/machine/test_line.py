"""Lines between two processes of one machine: messages, who may take them, and how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.machine.line import Line, LineAddress, OfferedLine, take_line

# Echoes what comes, and ends in the middle of an answer when it is told to.
_ECHO = """
import os, sys
from launch.machine.line import LineAddress, take_line
line = take_line(LineAddress(sys.argv[1], *map(int, sys.argv[2:])))
if line is None:
    sys.exit(3)
line.send("taken")
while True:
    try:
        message = line.receive()
    except EOFError:
        sys.exit(4)
    if message == "die":
        os.write(line._outgoing.fileno(), b"half of a message"[:2])
        os._exit(5)
    line.send(message)
"""


def echo(address: LineAddress) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _ECHO, *map(str, address)], text=True)


def taken(offered: OfferedLine) -> Line:
    """The near end, once the far one is another process's."""
    assert offered._near.receive() == "taken"
    return offered.taken()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_messages_go_both_ways_and_the_far_end_learns_of_the_close() -> None:
    before = open_files()
    offered = OfferedLine()
    with echo(offered.address) as process:
        line = taken(offered)
        # The second does not fit into a pipe.
        for message in ((1, None, "x"), b"0" * 300_000):
            line.send(message)
            assert line.receive() == message
        line.close()
        assert process.wait(60) == 4
    assert open_files() == before


def test_a_process_that_ends_closes_its_end_even_within_a_message() -> None:
    offered = OfferedLine()
    with echo(offered.address) as process:
        line = taken(offered)
        line.send("die")
        with pytest.raises(EOFError):
            line.receive()
        assert process.wait(60) == 5
    # There is nobody to take it, and whoever waits for the answer is told so.
    line.send("lost")
    with pytest.raises(EOFError):
        line.receive()
    line.close()


@pytest.mark.parametrize("change", [{"machine": "another boot"}, {"pid": 2**22 + 1}])
def test_a_line_of_another_machine_or_process_is_not_taken(change: dict) -> None:
    offered = OfferedLine()
    before = open_files()
    assert take_line(offered.address._replace(**change)) is None
    assert open_files() == before
    offered.close()


def test_a_number_that_went_to_another_file_is_not_taken() -> None:
    offered = OfferedLine()
    before = open_files()
    with open(os.devnull) as other:
        assert take_line(offered.address._replace(writes=other.fileno())) is None
    assert open_files() == before
    offered.close()
