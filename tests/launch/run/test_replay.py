"""Event traces of a run: their recording, and their replay with the same weights."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.environments import EnvironmentSpec, environment_spec
from launch.cli import main
from launch.loop.executor import Completion, Drained, Failed, Joined, Replaced
from launch.loop.inline import InlineExecutor, ReplayExecutor
from launch.loop.trace import TraceWriter
from launch.run.session import TraceRecording, TrainingSession
from shared.config import ActorConfig, EvaluationConfig, RunConfig, SupervisionConfig
from shared.types import EpisodeStats, EvaluationResult

EVALUATION = EvaluationResult(3, np.zeros(2, np.float32), EpisodeStats(np.zeros(1), np.ones(1, np.int64)))
FAILED = Failed(1, "it died")


def test_what_a_repetition_needs_is_written(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    record = TraceRecording(str(file), [0, 1], lambda message: pytest.fail(message))
    with_node = FAILED._replace(actor_id=0, node_lost=True)
    evaluator = Replaced(FAILED._replace(actor_id=None), None)
    for event in (None, FAILED, Replaced(FAILED, 2), with_node, Joined(5), Drained(5), evaluator, EVALUATION):
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
    # After this number of reports the target has been crossed, and its evaluation is under way.
    reports = "report 0\nreport 1\n" * 120
    order.write_text(f"version 2\nactors 0 1\n{reports}lost-evaluator\nreport 0\nevaluation\n")
    mark = "--stop-at-return 1 --stop-measure training"
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


@pytest.mark.parametrize("line", ["joined 7", "replacement 2", "released 0", "lost-evaluator", "lost-with-node 2"])
def test_what_does_not_fit_is_told_by_its_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 2\nactors 0 1\nreport 0\n{line}\njoined 3\nreport 0\n")
    assert main(f"{SMALL} --replay-arrivals {order} --run-dir {tmp_path / 'run'}".split()) == 1
    assert f"line 4 is '{line}', which nothing under way fits" in capsys.readouterr().out


_MOST_ACTORS_MADE = 16


class TroubledExecutor(InlineExecutor):
    """Ends any actor's oldest call next, as processes do, and has actors fail, nodes come, go and drain.

    Args:
        config: of the run.
        spec: of its environment.
        first_actor_id: ids count up from here.
        odds: of each kind of trouble before a completion.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, first_actor_id: int, odds: dict[str, float]) -> None:
        super().__init__(config, spec, 2, first_actor_id)
        self._random, self._odds = random.Random(config.seed), odds
        self._places, self._made = 2, 2
        self._drains: set[int] = set()

    def next_completion(self) -> Completion | None:
        busy = sorted({call.actor_id for call in self._calls if call.actor_id is not None})
        evaluates = any(call.actor_id is None for call in self._calls)
        if not busy and not evaluates:
            self._places = max(1, self._places)
            return None
        if self._happens("place") and self._made < _MOST_ACTORS_MADE:
            self._places += self._random.choice([-1, 1, 3])
        if self._happens("drain") and len(self._actors) > len(self._drains) + 1:
            self._drains.add(
                self._random.choice([actor_id for actor_id in busy if actor_id not in self._drains] or busy)
            )
        for node_lost in (False, True):
            if busy and self._happens("node" if node_lost else "fail") and self._made < _MOST_ACTORS_MADE:
                self._places -= node_lost
                return Failed(self._random.choice(busy), "it is gone", node_lost=node_lost)
        if evaluates and self._happens("evaluator"):
            return Failed(None, "it is gone")
        ended = None if not busy or (evaluates and self._happens("evaluation")) else self._random.choice(busy)
        call = next(call for call in self._calls if call.actor_id == ended)
        self._calls.remove(call)
        return self._run(call)

    def add(self) -> int | None:
        if self.free_slots() <= 0:
            return None
        self._made += 1
        return super().add()

    def free_slots(self) -> int:
        return self._places - len(self._actors)

    def draining(self) -> Sequence[int]:
        return [actor_id for actor_id in self._actors if actor_id in self._drains]

    def replace_evaluator(self) -> None:
        self.drop_evaluations()
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    def _happens(self, what: str) -> bool:
        return self._random.random() < self._odds.get(what, 0.0)


@pytest.mark.parametrize(
    "odds",
    [
        {"fail": 0.03, "place": 0.03, "node": 0.02},
        {"drain": 0.03, "place": 0.02, "fail": 0.01, "evaluation": 0.1},
        {"evaluator": 0.3, "evaluation": 0.1, "fail": 0.02},
    ],
    ids=lambda odds: "-".join(odds),
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_repetition_ends_with_the_same_weights(
    seed: int, odds: dict[str, float], cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The crew looks after nodes once a second.
    monkeypatch.setattr("launch.loop.worker_pool._CHECK_SECONDS", 0.0)
    monkeypatch.setattr("launch.loop.worker_pool._FIRST_BACKOFF_SECONDS", 0.05)
    config = replace(
        cartpole,
        executor="inline",
        seed=seed,
        total_frames=3000,
        actor=ActorConfig(environments=2, unroll_length=5, calls_in_flight=2),
        evaluation=EvaluationConfig(episodes=2, environments=2, every_frames=30),
        supervision=SupervisionConfig(max_restarts=100),
        # Crossed early: when, and with how many actors, follows from who plays.
        stop_at_return=15.0,
        stop_measure="training",
    )
    spec = environment_spec(config.environment)
    ends: list[Any] = []
    for name, change in (("original", "record_arrivals"), ("repetition", "replay_arrivals")):
        this = replace(config, **{change: str(tmp_path / "order.txt")})
        if name == "repetition":
            this = replace(this, record_arrivals=str(tmp_path / "again.txt"))

        def make(first: int, this: RunConfig = this) -> InlineExecutor:
            if this.replay_arrivals is not None:
                return ReplayExecutor(this, spec, 2, first)
            return TroubledExecutor(this, spec, first, odds)

        (tmp_path / name).mkdir()
        session = TrainingSession(this, spec, tmp_path / name, make, resume=False)
        summary = session.run()
        counts = ("status", "updates", "frames", "episodes", "policy_lag_max", "messages", "actor_restarts")
        ends.append((session.learner.snapshot().parameters, {count: summary[count] for count in counts}))
    (weights, counted), (again, counted_again) = ends
    assert counted_again == counted
    np.testing.assert_array_equal(again, weights)
    record = (tmp_path / "order.txt").read_text()
    assert (tmp_path / "again.txt").read_text() == record
    happened = {
        "fail": "lost ",
        "node": "lost-with-node",
        "drain": "released",
        "place": "joined",
        "evaluator": "lost-ev",
    }
    assert all(happened[what] in record for what in odds if what != "evaluation")
