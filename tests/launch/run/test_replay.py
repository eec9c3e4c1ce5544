"""Event traces of a run: their recording, and their replay with the same weights."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sessions import messages_of, session

from launch.cli import main
from launch.loop.executor import Completion, Failed
from launch.loop.inline import InlineExecutor, ReplayExecutor
from launch.loop.trace import TraceWriter
from shared.config import ActorConfig, EvaluationConfig, RunConfig, SupervisionConfig


def test_a_file_that_can_be_written_no_more_is_one_warning(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TraceWriter, "add", full_disk)
    file = tmp_path / "order.txt"
    run = session(replace(cartpole, total_frames=200, record_arrivals=str(file)), tmp_path / "run", actors=2)
    assert run.run()["status"] == "frames_reached"
    assert messages_of(run) == [
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


@pytest.mark.parametrize(
    ("trace", "settings", "expected"),
    [
        # Deaths were counted by the clock of the run that is repeated.
        (
            "joined 2, joined 3, lost 1, report 3, report 0",
            "--supervision.max-restarts 0",
            {"updates": 2, "actor_restarts": 0},
        ),
        # After these reports the target has been crossed, and its evaluation is under way.
        (
            "report 0, report 1, " * 120 + "lost-evaluator, report 0, evaluation",
            "--stop-at-return 1 --stop-measure training",
            {"status": "return_reached"},
        ),
        ("report 0, lost-with-node 1, lost-with-node 0", "", {"status": "arrivals_replayed", "updates": 1}),
        ("report 0, lost-with-node 1, lost 0", "", {"status": "arrivals_replayed", "updates": 1}),
        ("report 0, report 1, report 0", "--stop-after-seconds 1e-6", {"updates": 3}),
    ],
    ids=["joined first", "evaluation that ends the run", "no node left", "no actor left", "no time"],
)
def test_a_trace_is_repeated_by_its_lines_and_not_by_the_clock(
    trace: str, settings: str, expected: dict, tmp_path: Path
) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 2, actors 0 1, {trace}\n".replace(", ", "\n"))
    assert repeat(order, tmp_path / "run", settings).items() >= expected.items()


def test_a_repetition_that_is_interrupted_is_saved_where_it_is(cartpole: RunConfig, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    # It is not asked again, so that the next line fits nothing.
    order.write_text("version 2\nactors 0 1\n" + "report 1\n" * 9)
    config = replace(cartpole, executor="inline", replay_arrivals=str(order))

    class Interrupted(ReplayExecutor):
        def next_completion(self) -> Completion | None:
            completion = super().next_completion()
            if completion is not None and run.learner.version == 2:
                run.interrupt()
            return completion

    run = session(config, tmp_path, 2, Interrupted)
    summary = run.run()
    assert (summary["status"], summary["updates"]) == ("interrupted", 3)


@pytest.mark.parametrize("line", ["joined 7", "replacement 2", "released 0", "lost-evaluator", "lost-with-node 2"])
def test_what_does_not_fit_is_told_by_its_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 2\nactors 0 1\nreport 0\n{line}\njoined 3\nreport 0\n")
    assert main(f"{SMALL} --replay-arrivals {order} --run-dir {tmp_path / 'run'}".split()) == 1
    assert f"line 4 is '{line}', which nothing under way fits" in capsys.readouterr().out


_MOST_ACTORS_MADE = 16


class TroubledExecutor(InlineExecutor):
    """Two actors. Ends any actor's oldest call next, as processes do, and has actors fail, nodes come, go and drain.

    `odds` are those of each kind of trouble before a completion.
    """

    def __init__(self, config: RunConfig, *arguments: Any, odds: dict[str, float]) -> None:
        super().__init__(config, *arguments)
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
    ("seed", "odds"),
    [
        (1, {"fail": 0.03, "place": 0.03, "node": 0.02}),
        (2, {"drain": 0.03, "place": 0.02, "fail": 0.01, "evaluation": 0.1}),
        (1, {"evaluator": 0.3, "evaluation": 0.1, "fail": 0.02}),
    ],
    ids=["nodes", "drains", "evaluators"],
)
def test_a_repetition_ends_with_the_same_weights(
    seed: int, odds: dict[str, float], cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise free slots are looked for once a second.
    monkeypatch.setattr("launch.loop.worker_pool._CHECK_SECONDS", 0.0)
    monkeypatch.setattr("launch.loop.worker_pool._FIRST_BACKOFF_SECONDS", 0.05)
    config = replace(
        cartpole,
        executor="inline",
        seed=seed,
        total_frames=2000,
        actor=ActorConfig(environments=2, unroll_length=5, calls_in_flight=2),
        evaluation=EvaluationConfig(episodes=2, environments=2, every_frames=30),
        supervision=SupervisionConfig(max_restarts=100),
        # Crossed early: when, and with how many actors, follows from who plays.
        stop_at_return=15.0,
        stop_measure="training",
    )
    ends: list[Any] = []
    for name, change in (("original", "record_arrivals"), ("repetition", "replay_arrivals")):
        this = replace(config, **{change: str(tmp_path / "order.txt")})
        if name == "repetition":
            this = replace(this, record_arrivals=str(tmp_path / "again.txt"))
        executor = ReplayExecutor if name == "repetition" else partial(TroubledExecutor, odds=odds)
        run = session(this, tmp_path / name, 2, executor)
        summary = run.run()
        counts = ("status", "updates", "frames", "episodes", "policy_lag_max", "messages", "actor_restarts")
        ends.append((run.learner.snapshot().parameters, {count: summary[count] for count in counts}))
    (weights, counted), (again, counted_again) = ends
    assert counted_again == counted
    np.testing.assert_array_equal(again, weights)
    record = (tmp_path / "order.txt").read_text()
    assert (tmp_path / "again.txt").read_text() == record
    happened = {"fail": "lost ", "node": "lost-with-node", "drain": "released", "place": "joined"}
    assert all(happened.get(what, "lost-evaluator") in record for what in odds if what != "evaluation")
