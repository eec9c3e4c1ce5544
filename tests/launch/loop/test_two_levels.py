"""Nodes that add, groups that add their sums, and a learner: the whole tree in one thread, beside NumPy's."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand_driven import Clock

from launch.loop.adder import Adder
from launch.loop.coordinator import Coordinator
from launch.loop.executor import Failed, Joined, Replaced
from learner.learner import Learner, Outcome
from shared.config import LearnerConfig, MethodConfig, OptimizerConfig, RunConfig, SupervisionConfig
from shared.layout import ParameterLayout
from shared.types import (
    AggregatedReport,
    EpisodeStats,
    Float32Array,
    GradientReport,
    StageSeconds,
    WeightSnapshot,
)

LAYOUT = ParameterLayout(("w",), ((1000,),))
SUPERVISION = SupervisionConfig()
# Gradients of a node's sum, and of a group's: two nodes' sums of three actors each.
NODE, GROUP = 3, 6
Part = Callable[[WeightSnapshot, WeightSnapshot | None], Any]


class Parts:
    """An executor of whatever is called with weights; which of those that were asked comes next is drawn by lot."""

    def __init__(self, parts: dict[int, Part], seed: int) -> None:
        self.parts, self._order = parts, np.random.default_rng(seed)
        self._asked: deque[tuple[int, WeightSnapshot, WeightSnapshot | None]] = deque()
        self._snapshot: WeightSnapshot | None = None
        self._targets: dict[int, WeightSnapshot] = {}
        self.waiting: dict[int, Part] = {}
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
        assert self._snapshot is not None
        self._asked.append((actor_id, self._snapshot, self._targets.pop(actor_id, None)))

    def next_completion(self) -> Any:
        # Anybody but who was asked last: the others would wait for ever.
        self._asked.rotate(-int(self._order.integers(max(1, len(self._asked) - 1))))
        actor_id, snapshot, target = self._asked.popleft()
        result = self.parts[actor_id](snapshot, target)
        return result if isinstance(result, Failed) else result._replace(actor_id=actor_id)

    def has_completed(self, actor_id: int) -> bool:  # noqa: ARG002
        return False

    def rollouts_under_way(self, actor_id: int) -> int:
        return 1 + sum(asked[0] == actor_id for asked in self._asked)

    def room(self) -> int:
        return len(self.waiting)

    def draining(self) -> Sequence[int]:
        return ()

    def remove(self, actor_id: int) -> None:
        del self.parts[actor_id]
        self._asked = deque(asked for asked in self._asked if asked[0] != actor_id)

    def add(self) -> int | None:
        if not self.waiting:
            return None
        actor_id, part = self.waiting.popitem()
        self.parts[actor_id] = part
        return actor_id


class Player:
    """An actor whose gradients depend on the weights that it was given, and are kept by who made them."""

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
        return GradientReport(
            self._id,
            self._sequence,
            snapshot.version,
            LAYOUT.fingerprint,
            gradient,
            10 * first_of_rollout,
            10 // self._per_rollout,
            EpisodeStats(np.empty(0), np.empty(0, np.int64)),
            StageSeconds(0, 0, 0, 0, 0),
            {},
        )


class Tree:
    """Two groups of two nodes of three actors. Every part has a place of its own in the ids, as on Ray."""

    def __init__(self, gradients_per_rollout: int = 1) -> None:
        self.made: dict[tuple[int, int], Float32Array] = {}
        self.clock = Clock()
        self._per_rollout = gradients_per_rollout
        self.nodes: dict[int, Parts] = {}
        self.groups: dict[int, Parts] = {}
        self.top = Parts({number: self.group(number) for number in (1000, 2000)}, seed=1)
        self.taken: list[AggregatedReport] = []
        taken_from = self.top.next_completion

        def next_completion() -> Any:
            completion = taken_from()
            if isinstance(completion, AggregatedReport):
                self.taken.append(completion)
            return completion

        self.top.next_completion = next_completion  # type: ignore[method-assign]

    def group(self, number: int) -> Part:
        nodes = {node: self.node(node) for node in (number + 100, number + 200)}
        self.groups[number] = Parts(nodes, number)
        return Adder(self.groups[number], GROUP, SUPERVISION, self.clock).collect  # type: ignore[arg-type]

    def node(self, number: int) -> Part:
        players: dict[int, Part] = {
            number + n: Player(number + n, self.made, self._per_rollout) for n in range(1, NODE + 1)
        }
        self.nodes[number] = Parts(players, number)
        return Adder(self.nodes[number], NODE, SUPERVISION, self.clock).collect  # type: ignore[arg-type]

    def numpy_sum(self, reports: Sequence[GradientReport]) -> Float32Array:
        """Of the reports of a group's sum: first those of each node, one after the other, and then these."""
        total = np.zeros(LAYOUT.size, np.float32)
        for begin in range(0, len(reports), NODE):
            part = np.zeros(LAYOUT.size, np.float32)
            for report in reports[begin : begin + NODE]:
                part = part + self.made[report.actor_id, report.sequence]
            total = total + part
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
def test_two_levels_are_to_the_bit_what_numpy_adds_by_the_same_tree(
    cartpole: RunConfig, accumulation: str, gradients_per_rollout: int, method: dict[str, Any]
) -> None:
    tree = Tree(gradients_per_rollout)
    config, start = settings(cartpole, accumulation, GROUP, **method), np.ones(LAYOUT.size, np.float32)
    learner, one_level = Learner(config, LAYOUT, start), Learner(config, LAYOUT, start)
    # NumPy adds, and divides; the reference applies what it is given.
    reference = Learner(settings(cartpole, accumulation, 1, **method), LAYOUT, start)
    coordinator = Coordinator(learner, tree.top, calls_per_actor=1, supervision=SUPERVISION, clock=tree.clock)  # type: ignore[arg-type]
    events = coordinator.run()
    targets = 0
    for update in range(1, 41):
        outcomes = [next(events) for _ in range(GROUP)]
        reports = [outcome.report for outcome in outcomes if isinstance(outcome, Outcome)]
        assert [r.gradient.size for r in reports] == [0] * GROUP
        total = tree.numpy_sum(reports)
        np.testing.assert_array_equal(tree.taken[-1].gradient, total)
        if accumulation == "mean":
            total = total * np.float32(1 / GROUP)
        reference.submit(reports[-1]._replace(gradient=total, version=update - 1))
        np.testing.assert_array_equal(learner.snapshot().parameters, reference.snapshot().parameters)
        for report in reports:
            one_level.submit(report._replace(gradient=tree.made[report.actor_id, report.sequence]))
        np.testing.assert_allclose(learner.snapshot().parameters, one_level.snapshot().parameters, atol=1e-5)
        assert learner.account.ledger == one_level.account.ledger
        assert learner.account.lag_counts == one_level.account.lag_counts
        assert learner.target_updates == one_level.target_updates
        targets = learner.target_updates
    assert learner.version == 40
    assert (targets > 10) is ("name" in method)
    # Everybody has taken part, and the weights of each version went down each branch once at most.
    assert {actor_id for actor_id, _ in tree.made} == {
        group + node + n for group in (1000, 2000) for node in (100, 200) for n in (1, 2, 3)
    }
    for branch in (*tree.groups.values(), *tree.nodes.values()):
        assert sorted(set(branch.published)) == branch.published
    assert max(learner.account.lag_counts) > 1


def test_what_changes_below_is_counted_once_and_the_sums_go_on(cartpole: RunConfig) -> None:
    """An actor dies, a node dies and another joins its group, and then a group dies: each is told as what it is."""
    tree = Tree()
    learner = Learner(settings(cartpole, "sum", GROUP), LAYOUT, np.ones(LAYOUT.size, np.float32))
    coordinator = Coordinator(learner, tree.top, calls_per_actor=1, supervision=SUPERVISION, clock=tree.clock)  # type: ignore[arg-type]
    events = coordinator.run()

    def until(kind: type) -> Any:
        for event in events:
            learner.account.ledger.check()
            if isinstance(event, kind):
                return event
        raise AssertionError("the loop ended")

    def failing(failed: Failed) -> Part:
        return lambda _snapshot, _target: failed

    until(Outcome)
    node = tree.nodes[1100]
    node.waiting[1109] = Player(1109, tree.made, 1)
    node.parts[1101] = failing(Failed(1101, "its process died"))
    assert until(Failed).actor_id == 1101
    assert until(Replaced) == Replaced(Failed(1101, "its process died"), 1109)
    assert coordinator.actor_restarts == 1
    lost = coordinator.rollouts_lost
    assert lost > 0

    group = tree.groups[2000]
    group.parts[2200] = failing(Failed(2200, "its node died", node_lost=True))
    assert until(Failed).actor_id == 2200
    assert coordinator.rollouts_lost == lost + 1
    group.waiting[2300] = tree.node(2300)
    tree.clock.now += 5.0
    assert until(Joined) == Joined(2300)

    tree.top.parts[2000] = failing(Failed(2000, "its node died", node_lost=True))
    assert until(Failed).actor_id == 2000
    tree.top.waiting[3000] = tree.group(3000)
    tree.clock.now += 5.0
    assert until(Joined) == Joined(3000)
    assert coordinator.actor_restarts == 1, "who goes with a node is no restart"
    while not 3000 < until(Outcome).report.actor_id < 4000:
        pass
    assert learner.version > 3
    assert all(len(taken.reports) == GROUP for taken in tree.taken)
    assert learner.account.ledger.gradients_applied == GROUP * learner.version
