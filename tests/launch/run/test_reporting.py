"""When a run's numbers are shown, and when they are written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launch.run.events import Progress
from launch.run.folder import RunFolder
from launch.run.metrics import Messages, Metrics, Reporting
from launch.run.trackers import Trackers
from shared.config import RunConfig


def test_no_view_spans_less_than_a_second_of_an_interval(tmp_path: Path) -> None:
    now, began, spans = 0.0, 0.0, set[float]()

    def begin(row: Progress) -> None:
        nonlocal began
        began = row.elapsed_seconds

    metrics: Any = SimpleNamespace(next_interval=begin, empty=False)
    config = RunConfig(log_every_seconds=10.0)
    messages = Messages(tmp_path / "log.txt")
    reporting = Reporting(
        config,
        RunFolder(tmp_path),
        cast(Metrics, metrics),
        lambda: Progress(elapsed_seconds=now),
        Trackers({}, print),
        messages,
    )
    for tick in range(1, 105):
        # Updates come when they come: views and rows drift past each other.
        now, before = tick * 0.3, reporting.latest
        reporting.report_if_due(now)
        if reporting.latest is not before and reporting.latest.elapsed_seconds > began:
            spans.add(round(now - began, 2))
    assert spans
    assert min(spans) >= 1.0
    reporting.write_last_row()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(("empty", "rows"), [(False, 2), (True, 1)])
def test_an_end_right_after_a_row_has_none_of_its_own(empty: bool, rows: int, tmp_path: Path) -> None:
    """It would say that nothing was played in no time, and a terminal would keep that."""
    metrics: Any = SimpleNamespace(next_interval=lambda _row: None, empty=empty)
    messages = Messages(tmp_path / "log.txt")
    reporting = Reporting(
        RunConfig(), RunFolder(tmp_path), cast(Metrics, metrics), Progress, Trackers({}, print), messages
    )
    reporting.write_row()
    shown = reporting.latest
    reporting.write_last_row()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == rows
    assert (reporting.latest is shown) == empty
