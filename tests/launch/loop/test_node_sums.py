"""Nodes that sum gradients, and a learner, in one thread, beside NumPy's sums."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand_driven import Clock
from learners import gradient_report

from launch.loop.aggregator import GradientAggregator
from launch.loop.coordinator import Coordinator
from learner.learner import Learner, Outcome
from shared.config import LearnerConfig, MethodConfig, OptimizerConfig, RunConfig, SupervisionConfig
from shared.layout import ParameterLayout
from shared.types import AggregatedReport, Float32Array, GradientReport, WeightSnapshot

LAYOUT = ParameterLayout(("w",), ((1000,),))
SUPERVISION = SupervisionConfig()
# Actors of a node, and gradients of its sum.
ACTORS, K = 3, 6
Part = Callable[[WeightSnapshot, WeightSnapshot | None], Any]


class Parts:
    """An executor of functions of weights. A seeded draw decides which call in flight ends next."""

    def __init__(self, parts: dict[int, Part], seed: int) -> None:
        self.parts, self._order = parts, np.random.default_rng(seed)
        self._asked: deque[tuple[int, WeightSnapshot, WeightSnapshot | None]] = deque()
        self._snapshot: WeightSnapshot | None = None
        self._targets: dict[int, WeightSnapshot] = {}
        self.published: list[int] = []

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self.parts)

    @property
    def calls_in_flight(self) -> int:
        return len(self._asked)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._snapshot = snapshot
        self.published.append(snapshot.version)

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._targets = dict.fromkeys(self.parts, snapshot)

    def dispatch(self, actor_id: int) -> None:
        self._asked.append((actor_id, self._snapshot, self._targets.pop(actor_id, None)))

    def next_completion(self) -> Any:
        # Never the latest call: others would wait for ever.
        self._asked.rotate(-int(self._order.integers(max(1, len(self._asked) - 1))))
        actor_id, snapshot, target = self._asked.popleft()
        return self.parts[actor_id](snapshot, target)._replace(actor_id=actor_id)

    def free_slots(self) -> int:
        return 0

    def draining(self) -> Sequence[int]:
        return ()


class Player:
    """An actor whose gradients depend on its weights, and are kept by actor and sequence number."""

    def __init__(self, actor_id: int, made: dict[tuple[int, int], Float32Array], gradients_per_rollout: int) -> None:
        self._id, self._made, self._per_rollout = actor_id, made, gradients_per_rollout
        self._noise, self._sequence = np.random.default_rng(actor_id), 0
        self._target = np.zeros(LAYOUT.size, np.float32)

    def __call__(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:
        if target is not None:
            self._target = target.parameters
        gradient = self._noise.normal(size=LAYOUT.size).astype(np.float32)
        gradient += np.float32(0.3) * snapshot.parameters - np.float32(0.2) * self._target
        first_of_rollout = self._sequence % self._per_rollout == 0
        self._sequence += 1
        self._made[self._id, self._sequence] = gradient
        report = gradient_report(self._id, self._sequence, snapshot.version, gradient, 10 * first_of_rollout)
        return report._replace(samples=10 // self._per_rollout, layout_fingerprint=LAYOUT.fingerprint)


class Nodes:
    """A learner's executor over two nodes of three actors. Every part has its own range of ids, as on Ray."""

    def __init__(self, gradients_per_rollout: int = 1) -> None:
        self.made: dict[tuple[int, int], Float32Array] = {}
        self.clock = Clock()
        self._per_rollout = gradients_per_rollout
        self.nodes: dict[int, Parts] = {}
        self.top = Parts({number: self.node(number) for number in (1000, 2000)}, seed=1)
        self.taken: list[AggregatedReport] = []
        taken_from = self.top.next_completion

        def next_completion() -> Any:
            completion = taken_from()
            if isinstance(completion, AggregatedReport):
                self.taken.append(completion)
            return completion

        self.top.next_completion = next_completion  # type: ignore[method-assign]

    def node(self, number: int) -> Part:
        players: dict[int, Part] = {
            number + n: Player(number + n, self.made, self._per_rollout) for n in range(1, ACTORS + 1)
        }
        self.nodes[number] = Parts(players, number)
        return GradientAggregator(self.nodes[number], K, SUPERVISION, self.clock).collect  # type: ignore[arg-type]

    def numpy_sum(self, reports: Sequence[GradientReport]) -> Float32Array:
        total = np.zeros(LAYOUT.size, np.float32)
        for report in reports:
            total = total + self.made[report.actor_id, report.sequence]
        return total


def settings(config: RunConfig, accumulation: Any, count: int, **method: Any) -> RunConfig:
    return replace(
        config,
        learner=LearnerConfig(gradients_per_update=count, accumulation=accumulation),
        # Not annealed: the reference counts other agent steps.
        optimizer=OptimizerConfig(schedule="constant", learning_rate=0.01, max_gradient_norm=5.0),
        method=MethodConfig(**method),
    )


@pytest.mark.parametrize("accumulation", ["sum", "mean"])
@pytest.mark.parametrize(
    ("gradients_per_rollout", "method"),
    [
        pytest.param(1, {}, id="plain"),
        pytest.param(4, {}, id="reuse"),
        pytest.param(1, {"name": "q_learning", "target_interval_agent_steps": 130}, id="target network"),
    ],
)
def test_sums_of_nodes_equal_those_of_numpy_to_the_bit(
    cartpole: RunConfig, accumulation: str, gradients_per_rollout: int, method: dict[str, Any]
) -> None:
    nodes = Nodes(gradients_per_rollout)
    config, start = settings(cartpole, accumulation, K, **method), np.ones(LAYOUT.size, np.float32)
    learner, one_level = Learner(config, LAYOUT, start), Learner(config, LAYOUT, start)
    # NumPy adds, and divides; the reference applies what it is given.
    reference = Learner(settings(cartpole, accumulation, 1, **method), LAYOUT, start)
    coordinator = Coordinator(learner, nodes.top, calls_per_actor=1, supervision=SUPERVISION, clock=nodes.clock)  # type: ignore[arg-type]
    events = coordinator.run()
    targets = 0
    for update in range(1, 41):
        outcomes = [next(events) for _ in range(K)]
        reports = [outcome.report for outcome in outcomes if isinstance(outcome, Outcome)]
        assert [r.gradient.size for r in reports] == [0] * K
        total = nodes.numpy_sum(reports)
        np.testing.assert_array_equal(nodes.taken[-1].gradient, total)
        if accumulation == "mean":
            total = total * np.float32(1 / K)
        reference.submit(reports[-1]._replace(gradient=total, version=update - 1))
        np.testing.assert_array_equal(learner.snapshot().parameters, reference.snapshot().parameters)
        for report in reports:
            one_level.submit(report._replace(gradient=nodes.made[report.actor_id, report.sequence]))
        np.testing.assert_allclose(learner.snapshot().parameters, one_level.snapshot().parameters, atol=1e-5)
        assert learner.account.ledger == one_level.account.ledger
        assert learner.account.lag_counts == one_level.account.lag_counts
        assert learner.target_updates == one_level.target_updates
        targets = learner.target_updates
    assert learner.version == 40
    assert (targets > 10) is ("name" in method)
    # All actors have taken part, and each node published a version once at most.
    assert {actor_id for actor_id, _ in nodes.made} == {node + n for node in (1000, 2000) for n in (1, 2, 3)}
    for node in nodes.nodes.values():
        assert sorted(set(node.published)) == node.published
    assert max(learner.account.lag_counts) > 1
