"""Which events are written down, and what is left of the order when its file can be written no more."""

from pathlib import Path

import numpy as np
import pytest

from launch.loop.executor import Drained, Failed, Joined, Replaced
from launch.loop.trace import TraceWriter
from launch.run.session import TraceRecording
from shared.types import EpisodeStats, EvaluationResult

EVALUATED = EvaluationResult(3, np.zeros(2, np.float32), EpisodeStats(np.zeros(1), np.ones(1, np.int64)))
FAILED = Failed(1, "it died")


def test_what_a_repetition_needs_is_written(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    record = TraceRecording(str(file), [0, 1], lambda message: pytest.fail(message))
    with_node = FAILED._replace(actor_id=0, node_lost=True)
    evaluator = Replaced(FAILED._replace(actor_id=None), None)
    for event in (None, FAILED, Replaced(FAILED, 2), with_node, Joined(5), Drained(5), evaluator, EVALUATED):
        record.add(event)
    record.close()
    written = "version 2, actors 0 1, lost 1, replacement 2, lost-with-node 0, joined 5, released 5"
    written += ", lost-evaluator, evaluation"
    assert ", ".join(file.read_text().splitlines()) == written


def test_a_file_that_can_be_written_no_more_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    file = tmp_path / "order.txt"
    record = TraceRecording(str(file), [0, 1], said.append)
    monkeypatch.setattr(TraceWriter, "add", full_disk)
    record.add(FAILED)
    monkeypatch.undo()
    record.add(FAILED)
    record.close()
    assert said == [
        f"warning: {file} could not be written: No space left on device; the order is kept up to here, and training "
        f"goes on"
    ]
    assert file.read_text() == "version 2\nactors 0 1\n"
