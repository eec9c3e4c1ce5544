"""Messages are logged with the time, and shown once."""

import re
from pathlib import Path

from launch.run.events import Message
from launch.run.metrics import DroppedReports, Messages


def test_a_message_is_logged_with_the_time_and_shown_once(tmp_path: Path) -> None:
    messages = Messages(tmp_path / "log.txt")
    messages.log("actor 3 joins")
    messages.log("actor 4 joins")
    assert messages.take() == [Message("actor 3 joins"), Message("actor 4 joins")]
    assert messages.take() == []
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d actor \d joins", line) for line in lines)
    assert len(lines) == 2


def test_a_log_that_cannot_be_written_keeps_no_message_from_being_shown(tmp_path: Path) -> None:
    messages = Messages(tmp_path / "no" / "such" / "folder" / "log.txt")
    messages.log("warning: the disk is full")
    assert messages.take() == [Message("warning: the disk is full")]


def test_the_first_dropped_report_of_each_reason_is_told_and_then_every_tenfold() -> None:
    dropped = DroppedReports()
    told = {count: message for count in range(1, 1001) if (message := dropped.message("too_old", 7))}
    assert list(told) == [1, 10, 100, 1000]
    assert told[1] == "dropped a report for the reason too_old, of actor 7"
    assert told[100] == "dropped the 100th report for the reason too_old, of actor 7"
    assert dropped.message("not_finite", 8) == "dropped a report for the reason not_finite, of actor 8"
