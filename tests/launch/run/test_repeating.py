"""A run that is repeated loses and wins actors, and an evaluator, where the run before it did."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.environments import environment_spec
from launch.cli import main
from launch.loop.executor import Completion
from launch.loop.inline import ReplayExecutor
from launch.run.session import TrainingSession
from shared.config import RunConfig

SMALL = "train cartpole --executor inline --actors 2 --actor.environments 4 --actor.unroll-length 5"
EVALUATED = "--evaluation.every-frames 40 --evaluation.episodes 1 --evaluation.environments 1"


def repeat(order: Path, run: Path, more: str = "") -> dict:
    """The summary of a run by this order, after its own record was found to be the same."""
    again = run.with_suffix(".txt")
    line = f"{SMALL} {more} --replay-arrivals {order} --record-arrivals {again} --run-dir {run}"
    assert main(line.split()) == 0
    assert again.read_text() == order.read_text()
    return json.loads((run / "summary.json").read_text())


def test_actors_and_the_evaluator_come_and_go_as_recorded(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    lines = (
        # Its replacement waits, as after several failures; then three more join.
        "version 2, actors 0 1, report 0, lost 1, report 0, replacement 2, report 2, report 0, "
        "joined 3, joined 4, joined 5, report 3, report 5, "
        # Its node is draining.
        "report 4, released 4, lost-with-node 5, "
        # No replacement of its own.
        "lost-with-node 0, report 3, lost-evaluator, report 2, report 3, report 2, report 3, evaluation, report 3"
    )
    order.write_text(lines.replace(", ", "\n") + "\n")
    summary = repeat(order, tmp_path / "run", EVALUATED)
    assert (summary["status"], summary["updates"]) == ("arrivals_replayed", 13)
    log = (tmp_path / "run" / "log.txt").read_text()
    said = ["actor 1: lost", "actor 2 replaces actor 1", "actor 3 joins", "actor 4 joins", "actor 5 joins"]
    said += ["actor 4: its node", "actor 5: lost", "actor 0: lost", "evaluator: lost"]
    positions = [log.index(message) for message in said]
    assert positions == sorted(positions)
    assert (summary["actor_restarts"], "actor 6" in log) == (1, False)


def test_actors_may_join_before_the_first_report_and_need_not_be_replaced(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text("version 2\nactors 0 1\njoined 2\njoined 3\nlost 1\nreport 3\nreport 0\n")
    # Deaths were counted by the clock of the run that is repeated.
    summary = repeat(order, tmp_path / "run", "--supervision.max-restarts 0")
    assert (summary["updates"], summary["actor_restarts"]) == (2, 0)


def test_an_evaluation_that_ends_the_run_is_made_again_whatever_the_clock_says(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    # After so many reports the mark has been crossed, and its evaluation is under way.
    reports = "report 0\nreport 1\n" * 120
    order.write_text(f"version 2\nactors 0 1\n{reports}lost-evaluator\nreport 0\nevaluation\n")
    mark = "--stop-at-return 1 --stop-measure training --supervision.backoff-seconds 600"
    assert repeat(order, tmp_path / "run", mark)["status"] == "return_reached"


@pytest.mark.parametrize("last", ["lost-with-node 0", "lost 0"])
def test_a_record_may_end_with_nobody_left(last: str, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 2\nactors 0 1\nreport 0\nlost-with-node 1\n{last}\n")
    summary = repeat(order, tmp_path / "run")
    assert (summary["status"], summary["updates"]) == ("arrivals_replayed", 1)


def test_a_repetition_takes_the_time_that_it_takes(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text("version 2\nactors 0 1\nreport 0\nreport 1\nreport 0\n")
    assert repeat(order, tmp_path / "run", "--stop-after-seconds 1e-6")["updates"] == 3


def test_a_repetition_that_is_interrupted_is_saved_where_it_is(cartpole: RunConfig, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    # It is not asked again, so that the next line fits nothing.
    order.write_text("version 2\nactors 0 1\n" + "report 1\n" * 9)
    config = replace(cartpole, executor="inline", replay_arrivals=str(order))
    spec = environment_spec(config.environment)
    session: TrainingSession

    class Interrupted(ReplayExecutor):
        def next_completion(self) -> Completion | None:
            completion = super().next_completion()
            if completion is not None and session.learner.version == 2:
                session.interrupt()
            return completion

    session = TrainingSession(config, spec, tmp_path, lambda first: Interrupted(config, spec, 2, first), resume=False)
    summary = session.run()
    assert (summary["status"], summary["updates"]) == ("interrupted", 3)


def test_a_record_of_an_older_version_replaces_at_once(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text("actors 0 1\nreport 0\nlost 1\nreport 2\n")
    line = f"{SMALL} --replay-arrivals {order} --run-dir {tmp_path / 'run'}"
    assert main(line.split()) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["actor_restarts"]) == ("arrivals_replayed", 2, 1)


@pytest.mark.parametrize("line", ["joined 7", "replacement 2", "released 0", "lost-evaluator", "lost-with-node 2"])
def test_what_does_not_fit_is_told_by_its_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 2\nactors 0 1\nreport 0\n{line}\njoined 3\nreport 0\n")
    assert main(f"{SMALL} --replay-arrivals {order} --run-dir {tmp_path / 'run'}".split()) == 1
    assert f"line 4 is '{line}', which nothing under way fits" in capsys.readouterr().out
