"""What a node's aggregator does with actors that die, hang, or report what is not finite: no Ray, no processes."""

from collections import deque
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from actors.environments import environment_spec
from launch.loop.executor import Failed, Replaced
from launch.on_ray import aggregation
from launch.on_ray.actor_process import Weights
from launch.on_ray.aggregation import AggregatorProcess
from shared.config import RunConfig, SupervisionConfig
from shared.types import AggregatedReport, EpisodeStats, GradientReport, StageSeconds

NAN = float("nan")


def report(actor_id: int, sequence: int, *gradient: float) -> GradientReport:
    return GradientReport(
        actor_id,
        sequence,
        0,
        "layout",
        np.array(gradient, np.float32),
        5,
        5,
        EpisodeStats(np.empty(0), np.empty(0, np.int64)),
        StageSeconds(0, 0, 0, 0, 0),
        {},
    )


class Actors:
    """In the place of a node's executor: completes what the test says, in its order, and keeps a tape."""

    seconds = 0.0

    def __init__(self, config: RunConfig, _: object, actors: int, first_actor_id: int, *, node: str) -> None:
        self.config, self.node = config, node
        self.actor_ids = list(range(first_actor_id, first_actor_id + actors))
        self._ids = count(first_actor_id + actors)
        self.tape: list[str] = []
        self.completions: deque[Any] = deque()

    def publish(self, snapshot: Any) -> None:
        self.tape.append(f"publish {snapshot.version}")

    def publish_target(self, snapshot: Any) -> None:
        self.tape.append(f"publish target {snapshot.version}")

    def dispatch(self, actor_id: int) -> None:
        assert actor_id in self.actor_ids
        self.tape.append(f"dispatch {actor_id}")

    def next_completion(self) -> Any:
        completion = self.completions.popleft()
        if isinstance(completion, float):
            # Nothing happens for so many seconds.
            Actors.seconds += completion
            return None
        return completion

    def has_completed(self, actor_id: int) -> bool:  # noqa: ARG002
        return False

    def remove(self, actor_id: int) -> None:
        self.tape.append(f"remove {actor_id}")
        self.actor_ids.remove(actor_id)

    def add(self) -> int:
        self.actor_ids.append(next(self._ids))
        self.tape.append(f"add {self.actor_ids[-1]}")
        return self.actor_ids[-1]


class Node:
    """An aggregator over such actors, numbered from 1, with a clock that goes when the test says so."""

    def __init__(self, config: RunConfig, monkeypatch: pytest.MonkeyPatch, actors: int, k: int, **settings: Any):
        monkeypatch.setattr(aggregation, "RayExecutor", Actors)
        config = replace(
            config,
            learner=replace(config.learner, gradients_per_update=k),
            supervision=SupervisionConfig(**settings),
        )
        spec = environment_spec(config.environment)
        self.aggregator = AggregatorProcess(config, spec, actors, 1, "node", clock=lambda: Actors.seconds)
        self.actors: Actors = self.aggregator._executor  # type: ignore[assignment]

    def collect(self, *completions: Any) -> Any:
        self.actors.completions += completions
        self.actors.tape.clear()
        return self.aggregator.collect(Weights(7, np.zeros(2, np.float32), 0), None)


def test_a_sum_is_of_the_first_k_and_only_who_reported_starts_again(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=3, k=2)
    summed = node.collect(report(2, 1, 1.0, 2.0), report(1, 1, 10.0, 20.0))
    assert isinstance(summed, AggregatedReport)
    np.testing.assert_array_equal(summed.gradient, [11.0, 22.0])
    assert [r.actor_id for r in summed.reports] == [2, 1]
    assert node.actors.tape == ["publish 7", "dispatch 1", "dispatch 2", "dispatch 3", "dispatch 2"]
    node.collect(report(3, 1, 1.0, 2.0), report(2, 2, 1.0, 2.0))
    assert node.actors.tape == ["publish 7", "dispatch 1", "dispatch 3"]


def test_one_dead_actor_is_replaced_and_what_the_others_sent_is_kept(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=3, k=3)
    gone = Failed(2, "its process died")
    assert node.collect(report(1, 1, 1.0, 0.0), gone) == gone
    assert node.actors.tape[-2:] == ["dispatch 1", "remove 2"]
    assert node.collect() == Replaced(gone, 4)
    summed = node.collect(report(3, 1, 2.0, 0.0), report(4, 1, 4.0, 0.0))
    assert node.actors.actor_ids == [1, 3, 4]
    assert node.actors.tape == ["publish 7", "dispatch 4", "dispatch 3"]
    # The first gradient came before the death.
    np.testing.assert_array_equal(summed.gradient, [7.0, 0.0])
    assert [r.actor_id for r in summed.reports] == [1, 3, 4]
    assert summed.finite == (True, True, True)


def test_a_replacement_that_dies_unproven_is_waited_for_while_the_others_play(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=2, k=1, backoff_seconds=4.0)
    assert node.collect(Failed(2, "gone")) == Failed(2, "gone")
    assert node.collect() == Replaced(Failed(2, "gone"), 3)
    assert node.collect(Failed(3, "gone too")) == Failed(3, "gone too")
    assert isinstance(node.collect(3.0, report(1, 1, 1.0, 1.0)), AggregatedReport)
    assert node.collect(1.0) == Replaced(Failed(3, "gone too"), 4)


def test_an_actor_that_hangs_is_replaced_though_the_others_report(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=2, k=1, start_seconds=60.0, hang_seconds=20.0)
    node.collect(report(1, 1, 1.0, 1.0))
    hung = node.collect(61.0)
    assert isinstance(hung, Failed)
    assert hung.actor_id in (1, 2)
    assert "it hangs" in hung.reason


def test_a_gradient_that_is_not_finite_is_in_no_sum_and_counted(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=2, k=2)
    summed = node.collect(
        report(1, 1, NAN, 1.0), report(2, 1, 1.0, 2.0), report(1, 2, 1.0, NAN), report(1, 3, 3.0, 4.0)
    )
    assert summed.finite == (False, True, False, True)
    assert [r.actor_id for r in summed.reports] == [1, 2, 1, 1]
    np.testing.assert_array_equal(summed.gradient, [4.0, 6.0])


def test_too_many_in_a_row_that_are_not_finite_are_reported_without_waiting_for_k(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cartpole, monkeypatch, actors=1, k=3, max_non_finite=2)
    bad = [report(1, n, NAN, 0.0) for n in (1, 2, 4, 5, 6)]
    summed = node.collect(*bad[:2], report(1, 3, 1.0, 1.0), *bad[2:])
    # Two, then one that is finite, then three in a row: the learner stops the run at the third.
    assert summed.finite == (False, False, True, False, False, False)
    np.testing.assert_array_equal(summed.gradient, [1.0, 1.0])
