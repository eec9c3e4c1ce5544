"""A coordinator whose executor completes what the test says, at the time that the test says."""

from collections import Counter, deque

import numpy as np
from learners import gradient_report

from launch.loop.coordinator import Coordinator
from launch.loop.executor import Executor
from learner.learner import Learner
from shared.config import RunConfig, SupervisionConfig
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, EvaluationPart, EvaluationShare, GradientReport

LAYOUT = ParameterLayout(("w",), ((2,),))


def report(actor_id: int, sequence: int, version: int) -> GradientReport:
    """A report of one agent step, with a gradient of ones."""
    ones = np.ones(2, np.float32)
    return gradient_report(actor_id, sequence, version, ones, 1, layout_fingerprint=LAYOUT.fingerprint)


def part(executor: "HandDrivenExecutor", actor_id: int, *returns: float, order: int = 0) -> EvaluationPart:
    """The part of an actor's last share in which each of its environments ended episode `order`, with these returns."""
    share = executor.shares[actor_id]
    assert len(returns) in (0, share.size)
    environments = share.first + np.arange(len(returns))
    episodes = EpisodeStats(np.array(returns), np.full(len(returns), 10))
    number, games = np.full(len(returns), order), 100 * order + environments
    return EvaluationPart(actor_id, share.number, episodes, environments, number, games, 10 * share.size)


class HandDrivenExecutor(Executor):
    """Completes what the test says, in the test's order, and keeps a tape. A float is time without a completion."""

    calls_in_flight = 0

    def __init__(self, actors: int, first_id: int = 0, clock: "Clock | None" = None) -> None:
        self.clock = clock or Clock()
        self.tape: list[str] = []
        self.completions: deque = deque()
        self._alive = list(range(first_id, first_id + actors))
        self._next_id = first_id + actors
        # Shares of evaluations that were dispatched, by actor, the last one of each.
        self.shares: dict[int, EvaluationShare] = {}
        self.completed_unseen: set[int] = set()
        self.lost_nodes: set[int] = set()
        self.wanted = actors
        self.places = 1000
        self.under_way: Counter[int] = Counter()
        self._published: dict[str, object] = {}

    @property
    def actor_ids(self):
        return list(self._alive)

    def publish(self, snapshot) -> None:
        self._publish("publish", snapshot)

    def publish_target(self, snapshot) -> None:
        self._publish("publish target", snapshot)

    def _publish(self, what: str, snapshot) -> None:
        # The same object again changes nothing.
        if self._published.get(what) is not snapshot:
            self._published[what] = snapshot
            self.tape.append(f"{what} {snapshot.version}")

    def publish_evaluation_weights(self, snapshot) -> None:
        self.tape.append(f"publish evaluated {snapshot.version}")

    def dispatch(self, actor_id: int, share: EvaluationShare | None = None) -> None:
        self.tape.append(f"{'dispatch' if share is None else 'evaluate'} {actor_id}")
        if share is not None:
            self.shares[actor_id] = share
        self.calls_in_flight += 1
        self.under_way[actor_id] += 1

    def next_completion(self):
        completion = self.completions.popleft()
        if isinstance(completion, float):
            self.clock.now += completion
            return None
        if completion is not None:
            self.calls_in_flight -= 1
        if isinstance(completion, GradientReport | EvaluationPart):
            self.under_way[completion.actor_id] -= 1
        return completion

    def rollouts_under_way(self, actor_id: int) -> int:
        return self.under_way[actor_id]

    def has_completed(self, actor_id: int) -> bool:
        return actor_id in self.completed_unseen

    def has_lost_node(self, actor_id: int) -> bool:
        return actor_id in self.lost_nodes

    def remove(self, actor_id: int) -> None:
        self.tape.append(f"remove {actor_id}")
        self._alive.remove(actor_id)

    def free_slots(self) -> int:
        return self.wanted - len(self._alive)

    def add(self) -> int | None:
        if len(self._alive) >= self.places:
            return None
        self.tape.append(f"add {self._next_id}")
        self._alive.append(self._next_id)
        self._next_id += 1
        return self._alive[-1]

    def close(self) -> None:
        self.tape.append("close")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(config: RunConfig, actors: int, clock: Clock | None = None, **supervision):
    """An executor, the events of a coordinator of it, the coordinator and its learner; `supervision` are settings."""
    executor = HandDrivenExecutor(actors, clock=clock)
    learner = Learner(config, LAYOUT, np.zeros(2, np.float32))
    settings = SupervisionConfig(**supervision)
    coordinator = Coordinator(learner, executor, settings, executor.clock)
    return executor, coordinator.run(), coordinator, learner
