"""The method on one page, driven beside the system: the same rollouts give the same gradients and weights."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from rollouts import recording

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from learner.learner import Learner
from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, NetworkConfig, OptimizerConfig, RunConfig
from shared.layout import ParameterLayout

FILE = Path(__file__).parents[2] / "docs" / "examples" / "one_page.py"


@pytest.fixture
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_page", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(page: ModuleType) -> RunConfig:
    return RunConfig(
        environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1, clip_rewards=False),
        network=NetworkConfig(name="mlp", hidden_sizes=(page.UNITS, page.UNITS)),
        method=MethodConfig(discount=page.DISCOUNT, value_cost=page.VALUE_COST, entropy_cost=page.ENTROPY_COST),
        optimizer=OptimizerConfig(
            learning_rate=page.LEARNING_RATE,
            schedule="constant",
            decay=page.DECAY,
            epsilon=page.EPSILON,
            max_gradient_norm=page.MAX_GRADIENT_NORM,
        ),
        actor=ActorConfig(environments=page.ENVIRONMENTS, unroll_length=page.UNROLL_LENGTH),
    )


def as_on_the_page(layout: ParameterLayout, flat: np.ndarray) -> list[np.ndarray]:
    """A flat vector of the system as the page's list: the policy before the value, hidden layers before heads."""
    named = dict(zip(layout.names, layout.split(flat), strict=True))
    layers = [f"{head}{part}" for head in ("policy", "value") for part in ("_hidden1", "_hidden2", "")]
    return [named[f"{layer}/{kind}"] for layer in layers for kind in ("kernel", "bias")]


def largest_difference(ours: list[np.ndarray], theirs: list[tf.Tensor]) -> float:
    """Relative to the largest value of each tensor."""
    return max(float(np.abs(a - b.numpy()).max() / np.abs(a).max()) for a, b in zip(ours, theirs, strict=True))


def test_ten_updates_of_the_page_are_those_of_the_system(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(page)
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner, actor = Learner(config, policy.layout, policy.initial_parameters()), Actor(config, spec, 0)
    rollouts = recording(monkeypatch)
    start = as_on_the_page(policy.layout, policy.initial_parameters())
    assert [tuple(w.shape) for w in page.initial_weights(4, 2)] == [values.shape for values in start]
    shared = page.Learner([tf.Variable(values) for values in start])
    for _ in range(10):
        report = actor.run(learner.snapshot())
        gradients = page.gradient(shared.snapshot(), page.Rollout(*rollouts.pop()[:5]))
        assert largest_difference(as_on_the_page(policy.layout, report.gradient), gradients) < 1e-4
        learner.submit(report)
        shared.apply(gradients)
    assert learner.version == shared.version == 10
    weights = as_on_the_page(policy.layout, learner.snapshot().parameters)
    assert largest_difference(weights, shared.weights) < 1e-4
    assert max(float(np.abs(a - b).max()) for a, b in zip(weights, start, strict=True)) > 1e-3
    actor.close()


def test_the_page_is_a_page() -> None:
    assert len(FILE.read_text().splitlines()) <= 150
