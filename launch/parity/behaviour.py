"""Experiment 7: are μ and σ in the loss those that acted?"""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from actors.environments import VectorEnvironment, environment_spec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.inline_executor import InlineExecutor
from launch.parity.finding import Finding, reported, required
from launch.presets import PRESETS
from learner.learner import Learner
from shared.config import EvaluationConfig, ExplorationConfig, RunConfig
from shared.methods.actor_critic import ActorCritic
from shared.types import Float32Array

_ENVIRONMENTS, _STEPS = 16, 32
_AGES = (0, 1, 10, 100)
_MOST = 1e-4

_EXPLANATION = """\
A policy gradient weighs ∇log π(a) for actions that π itself has drawn. An actor here takes one snapshot of the
weights, acts with it, and differentiates with it: the density in the loss is the one that acted, and the report
says which version that was. The table evaluates the same actions with the weights of later versions, as a learner
would that computed the loss itself from its newest weights: the ratio of the densities leaves 1, and the gradient
is that of another policy. What does go stale here is the gradient as a whole, by the updates that others apply
while it travels: that is the policy lag, which is counted, shown, and limited by --learner.max-policy-lag."""


def run() -> Finding:
    """Draw actions by a Gaussian policy on Pendulum-v1, and evaluate them with the same and with later weights."""
    preset = PRESETS["pendulum"].config
    config = replace(
        preset,
        stop_at_return=None,
        evaluation=EvaluationConfig(),
        exploration=ExplorationConfig(noise="independent", initial_log_std=-1.0),
    )
    versions = _versions(config)
    spec = environment_spec(config.environment)
    policy = Policy(config, spec, environments=_ENVIRONMENTS)
    method = policy.method
    assert isinstance(method, ActorCritic)
    policy.assign(versions[0])
    observations, actions = _play(config, policy)
    mean = policy.greedy(observations).actions.astype(np.float32)
    noise = (actions - mean) / np.exp(np.float32(-1.0))
    acted = np.sum(-0.5 * noise**2 + 1.0 - 0.5 * np.log(2.0 * np.pi), axis=-1)
    rows, figures = [], {}
    for age in _AGES:
        policy.assign(versions[age])
        output = policy.network(tf.constant(observations))
        log_ratio = method.log_prob(output, tf.constant(actions)).numpy() - acted
        largest, ratio = float(np.abs(log_ratio).max()), np.exp(log_ratio)
        figures[str(age)] = {"largest_log_ratio": largest, "ratio_percentiles": np.percentile(ratio, (5, 95)).tolist()}
        if age == 0:
            claim = "the version that acted: largest |log π in the loss - log π that acted|"
            rows.append(required(claim, f"{largest:.1e}", f"at most {_MOST:g}", largest <= _MOST))
        else:
            low, high = figures[str(age)]["ratio_percentiles"]
            rows.append(
                reported(
                    f"{age} update{'s' * (age > 1)} later: ratio of the densities",
                    f"90 % of the actions between {low:.3f} and {high:.3f}",
                )
            )
    return Finding("Are μ and σ in the loss those that acted?", tuple(rows), _EXPLANATION, figures)


def _versions(config: RunConfig) -> dict[int, Float32Array]:
    """The weights after each number of updates in `_AGES`."""
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    versions = {0: policy.initial_parameters()}
    executor = InlineExecutor(config, spec, actors=1)
    for _ in Coordinator(learner, executor, calls_per_actor=1, supervision=config.supervision).run():
        if learner.version in _AGES:
            versions[learner.version] = learner.snapshot().parameters
        if learner.version >= max(_AGES):
            break
    executor.close()
    return versions


def _play(config: RunConfig, policy: Policy) -> tuple[Float32Array, Float32Array]:
    environments = VectorEnvironment(config.environment, _ENVIRONMENTS)
    observation = environments.reset(config.seed)
    observations, actions = [], []
    for _ in range(_STEPS):
        action = policy.act(observation).actions
        observations.append(observation)
        actions.append(action)
        observation = environments.step(action).observations
    environments.close()
    return np.concatenate(observations).astype(np.float32), np.concatenate(actions).astype(np.float32)
