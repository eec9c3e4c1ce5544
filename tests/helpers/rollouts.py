"""Methods, actors, the weights that they act by, and the rollouts that they differentiate."""

import copy
import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.actor import Actor
from actors.environments import environment_spec
from actors.gradient import GradientGraphs, Gradients
from actors.policy import Policy
from actors.rollout import RolloutBuilder
from shared.config import MethodConfig, RunConfig
from shared.graph import Graph
from shared.types import Float32Array, Rollout, WeightSnapshot

METHODS = {
    "actor_critic": MethodConfig(return_lambda=0.9),
    "q_learning": MethodConfig(name="q_learning"),
    "sarsa": MethodConfig(name="sarsa"),
    "without a target network": MethodConfig(name="q_learning", target_network=False, return_lambda=0.65),
}


def make_policy(config: RunConfig, **options: int) -> Policy:
    return Policy(config, environment_spec(config.environment), **options)


def make_actor(config: RunConfig, actor_id: int = 0, graphs_of: Actor | None = None) -> Actor:
    return Actor(config, environment_spec(config.environment), actor_id, graphs_of=graphs_of)


def plain_gradients(config: RunConfig, policy: Policy) -> Gradients:
    """One gradient of each whole rollout, as if the weights of `policy` had acted."""
    config = replace(config, actor=replace(config.actor, epochs=1, minibatches=1, fresh_gradients=False))
    return Gradients(GradientGraphs(config, environment_spec(config.environment), policy), seed=0)


def first_weights(config: RunConfig, spread: float = 0.0) -> Float32Array:
    """Initial ones; with a `spread`, moved at random, so that the heads look at the features."""
    initial = make_policy(config).initial_parameters()
    return (initial + np.random.default_rng(1).normal(0.0, spread, initial.shape)).astype(np.float32)


def run(actor: Actor, config: RunConfig, snapshot: WeightSnapshot, target: WeightSnapshot | None = None) -> Any:
    """The result of a call, with a target network where the method has one: that of the snapshot without a `target`."""
    return actor.run(snapshot, (target or snapshot) if config.method.uses_target_network else None)


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
    """Copies of the rollouts that actors finish from now on."""
    finish, rollouts = RolloutBuilder.finish, []

    def record(*arguments):
        rollout = finish(*arguments)
        rollouts.append(copy.deepcopy(rollout))
        return rollout

    monkeypatch.setattr(RolloutBuilder, "finish", record)
    return rollouts


def traces(made: object) -> int:
    """Number of traces of all graphs of an object and of its parts."""
    seen, left = {id(made)}, [made]
    count = 0
    while left:
        for part in gc.get_referents(left.pop()):
            ours = type(part).__module__.partition(".")[0] in ("actors", "learner", "shared")
            if id(part) in seen or not (ours or isinstance(part, dict | list | tuple)):
                continue
            seen.add(id(part))
            if isinstance(part, Graph):
                count += part.traces
            else:
                left.append(part)
    return count
