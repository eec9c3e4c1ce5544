"""The inline executor: seeds of exact checkpoints, and the order of calls in simulated time."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.executor import Heartbeat
from launch.loop.inline import InlineExecutor
from shared.config import CheckpointConfig, RunConfig
from shared.types import GradientReport, WeightSnapshot


def gradient(executor: InlineExecutor) -> np.ndarray:
    report = executor.next_completion()
    assert isinstance(report, GradientReport)
    return report.gradient.copy()


def gradients(executor: InlineExecutor, parameters: np.ndarray, count: int) -> list[Any]:
    executor.publish(WeightSnapshot(0, parameters))
    found = []
    for _ in range(count):
        executor.dispatch(executor.actor_ids[0])
        found.append(gradient(executor))
    return found


def test_an_exact_checkpoint_of_before_hashed_seeds_goes_on_with_its_own(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(cartpole, executor="inline", checkpoint=CheckpointConfig(exact=True))
    spec = environment_spec(config.environment)
    parameters = Policy(config, spec).initial_parameters()
    with monkeypatch.context() as patch:
        patch.setattr("launch.loop.inline.Actor", partial(Actor, seed_rule="blocks"))
        before = InlineExecutor(config, spec, 1)
    first = gradients(before, parameters, 2)
    state = before.state()
    for saved in state["actors"].values():
        assert saved.pop("seed_rule") == "blocks"
    # A call in flight, as such checkpoints have it.
    before.dispatch(0)
    state["calls"] = before.state()["calls"]
    state["calls"][0][1]["pieces"] = []
    expected = [gradient(before), *gradients(before, parameters, 1)]

    after = InlineExecutor(config, spec, 1)
    assert after.restore(state) == [0]
    assert after.state()["actors"]["0"]["seed_rule"] == "blocks"
    np.testing.assert_array_equal([gradient(after), *gradients(after, parameters, 1)], expected)
    # A new run plays other episodes.
    assert not np.array_equal(gradients(InlineExecutor(config, spec, 1), parameters, 2), first)


def test_with_fresh_gradients_few_gradients_meet_while_one_is_computed(cartpole: RunConfig) -> None:
    """A gradient takes a fifth of an actor's cycle, so that two of 10 actors compute theirs at the same time."""
    config = replace(cartpole, executor="inline", actor=replace(cartpole.actor, fresh_gradients=True))
    spec = environment_spec(config.environment)
    parameters, version, lags = Policy(config, spec).initial_parameters(), 0, []
    executor = InlineExecutor(config, spec, 10)
    executor.publish(WeightSnapshot(0, parameters))
    for actor_id in executor.actor_ids:
        executor.dispatch(actor_id)
    while version < 40:
        completion = executor.next_completion()
        assert isinstance(completion, GradientReport | Heartbeat)
        if isinstance(completion, GradientReport):
            lags.append(version - completion.version)
            version += 1
            executor.publish(WeightSnapshot(version, parameters))
        assert completion.actor_id is not None
        executor.dispatch(completion.actor_id)
    assert set(lags[10:]) <= {1, 2}
