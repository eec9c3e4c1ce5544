"""Whatever happens to a run, its repetition from its arrivals ends with the same weights."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.environments import EnvironmentSpec, environment_spec
from launch.loop.executor import Completion, Failed
from launch.loop.inline import InlineExecutor, ReplayExecutor
from launch.run.session import TrainingSession
from shared.config import ActorConfig, EvaluationConfig, RunConfig, SupervisionConfig

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
    config = replace(
        cartpole,
        executor="inline",
        seed=seed,
        total_frames=3000,
        actor=ActorConfig(environments=2, unroll_length=5, calls_in_flight=2),
        evaluation=EvaluationConfig(episodes=2, environments=2, every_frames=30),
        supervision=SupervisionConfig(max_restarts=100, backoff_seconds=0.05),
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
