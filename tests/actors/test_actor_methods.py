"""What actors owe to each method: bounds, the action that follows, the density that acted, and flat memory."""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rollouts import recording

from actors.actor import Actor
from actors.environments import environment_spec
from actors.gradient import RolloutGradient
from actors.policy import Policy
from shared.config import ActorConfig, EnvironmentConfig, ExplorationConfig, MethodConfig, NetworkConfig, RunConfig
from shared.graph import aligned
from shared.registry import METHODS
from shared.types import WeightSnapshot

PENDULUM = EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False)
# Stretches of calls in which memory is counted, and the bytes by which it may grow in each.
_STRETCHES = 5
_POLICY_BYTES, _ROLLOUTS_BYTES = 400_000, 60_000
_POLICY_CALLS, _ROLLOUTS = 10_000, 150


@pytest.fixture
def pendulum(cartpole: RunConfig) -> RunConfig:
    return replace(
        cartpole,
        environment=PENDULUM,
        network=NetworkConfig(name="mlp", hidden_sizes=(16,), observation_scaling="bounds"),
        exploration=ExplorationConfig(noise="state_dependent"),
    )


def target(config: RunConfig) -> WeightSnapshot | None:
    return snapshot(config) if config.method.uses_target_network else None


def snapshot(config: RunConfig, version: int = 0) -> WeightSnapshot:
    policy = Policy(config, environment_spec(config.environment))
    return WeightSnapshot(version, policy.initial_parameters())


def recorded(config: RunConfig, monkeypatch: pytest.MonkeyPatch, runs: int) -> list:
    """The rollouts that an actor differentiates in `runs` runs."""
    rollouts = recording(monkeypatch)
    actor = Actor(config, environment_spec(config.environment), 0)
    for version in range(runs):
        actor.run(snapshot(config, version), target(config))
    return rollouts


def test_sarsa_takes_the_action_that_its_last_target_valued(cartpole: RunConfig, monkeypatch) -> None:
    config = replace(cartpole, method=MethodConfig(name="sarsa"))
    first, second, third = recorded(config, monkeypatch, 3)
    np.testing.assert_array_equal(first.next_actions, second.actions[0])
    np.testing.assert_array_equal(second.next_actions, third.actions[0])
    assert any(x.next_actions.any() for x in (first, second, third))
    assert (second.actions != second.actions[0]).any()


@pytest.mark.parametrize(
    ("method", "layer_norm"),
    [
        *((MethodConfig(name=name), False) for name in METHODS),
        (MethodConfig(name="q_learning", target_network=False), True),
    ],
    ids=[*METHODS, "PQN"],
)
def test_an_actors_gradient_is_the_one_computed_from_its_rollout_again(
    method: MethodConfig, layer_norm: bool, pong: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what acting stored, at the right times, for other weights in each rollout; Sarsa stores nothing."""
    network = replace(pong.network, layer_norm=layer_norm)
    config = replace(pong, method=replace(method, return_lambda=0.9), network=network)
    spec = environment_spec(config.environment)
    again = Policy(config, spec)
    gradient = RolloutGradient(config, spec, again)
    weights, random = again.initial_parameters(), np.random.default_rng(0)
    actor = Actor(config, spec, 0)
    rollouts = recording(monkeypatch)
    for version in range(3):
        changed = (weights + random.normal(0.0, 0.003, weights.shape)).astype(np.float32)
        frozen = WeightSnapshot(version, changed)
        report = actor.run(frozen, frozen if config.method.uses_target_network else None)
        again.assign(changed)
        if config.method.uses_target_network:
            gradient.assign_target(frozen)
        gradient.begin(rollouts[-1])
        expected = gradient.next().gradient
        assert np.abs(report.gradient - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_target_network_stays_as_it_is_when_the_memory_that_it_came_in_is_written_to_again(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With these sizes each tensor begins where TensorFlow can use the memory without a copy.
    network = NetworkConfig(name="mlp", hidden_sizes=(64, 64))
    config = replace(cartpole, method=MethodConfig(name="q_learning"), network=network)
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    gradients = RolloutGradient(config, spec, policy)
    (rollout,) = recorded(config, monkeypatch, 1)
    memory: np.ndarray = aligned((policy.layout.size,), "float32")
    memory[:] = 1.0
    gradients.assign_target(WeightSnapshot(1, memory))
    found = []
    for value in (1.0, 2.0):
        memory[:] = value
        gradients.begin(rollout)
        found.append(gradients.next().gradient.copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("noise", [None, "independent", "state_dependent"])
def test_what_is_drawn_comes_with_its_value_and_log_probability_where_a_rollout_is_reused(
    noise: str | None, cartpole: RunConfig, request: pytest.FixtureRequest
) -> None:
    config = cartpole
    if noise is not None:
        config = replace(request.getfixturevalue("pendulum"), exploration=ExplorationConfig(noise=noise))
    config = replace(config, actor=replace(config.actor, epochs=2))
    spec = environment_spec(config.environment)
    policy = Policy(config, spec, environments=6, unroll_length=2)
    observations = np.random.default_rng(0).normal(size=(6, *spec.observation_shape)).astype(np.float32)
    for t in (None, 1):
        acted = policy.act(observations, t=t)
        assert (acted.log_probs.shape, acted.log_probs.dtype) == ((6,), np.float32)
        expected = policy.method.log_prob(policy.network(observations), tf.constant(acted.actions))
        np.testing.assert_allclose(acted.log_probs, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(acted.values, policy.values(observations), rtol=1e-5, atol=1e-6)
        assert acted.state == ()
    assert policy.greedy(observations).log_probs is None
    evaluating = Policy(config, spec, environments=6, training=False).act(observations)
    assert evaluating.values is None
    assert evaluating.log_probs is None


@pytest.mark.parametrize("name", METHODS)
def test_where_a_rollout_is_differentiated_once_acting_computes_actions_only(name: str, cartpole: RunConfig) -> None:
    config = replace(cartpole, method=MethodConfig(name=name))
    acted = Policy(config, environment_spec(config.environment)).act(np.zeros((1, 4), np.float32))
    assert acted.actions.shape == (1,)
    assert acted.values is None
    assert acted.log_probs is None


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_weight_of_the_entropy_falls_in_a_straight_line_with_the_frames(cartpole: RunConfig, epochs: int) -> None:
    config = replace(
        cartpole,
        actor=ActorConfig(environments=2, unroll_length=8, epochs=epochs),
        method=MethodConfig(entropy_cost=0.8, final_entropy_cost=0.2),
        optimizer=replace(cartpole.optimizer, annealing_frames=3_000),
    )
    spec = environment_spec(config.environment)
    # The policy is uniform at the start, where the entropy has no gradient.
    parameters = (
        np.random.default_rng(0).normal(0.0, 0.5, Policy(config, spec).initial_parameters().size).astype(np.float32)
    )

    def gradients(method: MethodConfig) -> list[np.ndarray]:
        actor = Actor(replace(config, method=method), spec, 0)
        # The last is of a run that went on for longer than its schedule.
        times = sorted([0, 1_000, 2_000, 4_000] * epochs)
        return [actor.run(WeightSnapshot(n, parameters, frames)).gradient for n, frames in enumerate(times)]

    falling = gradients(config.method)
    for place, cost in enumerate((0.8, 0.6, 0.4, 0.2)):
        constant = gradients(MethodConfig(entropy_cost=cost))
        for n in range(len(falling)):
            same = np.allclose(falling[n], constant[n], rtol=1e-4, atol=1e-6)
            assert same == (n // epochs == place), (n, cost)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


def allocated_bytes() -> int:
    """Bytes that C code, TensorFlow, NumPy and Python's larger objects hold at this moment.

    Resident memory would not do: what leaks first fills gaps in the heap that are resident already, and what is freed
    stays resident.
    """
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def grown(step: Callable[[], object], warm_up: int, calls: int) -> tuple[int, float]:
    """Live objects that `calls` calls add after `warm_up` calls, and bytes that a stretch of them adds.

    The bytes are the median of five stretches. What leaks does so in each of them; a thread that starts late, or a
    buffer that is made once, is seen in one.
    """
    for _ in range(warm_up):
        step()
    gc.collect()
    # What lives now is not looked through again: TensorFlow's modules alone take a third of a second each time.
    gc.freeze()
    added = []
    for _ in range(_STRETCHES):
        before = allocated_bytes()
        for _ in range(calls // _STRETCHES):
            step()
        gc.collect()
        added.append(allocated_bytes() - before)
    objects = len(gc.get_objects())
    gc.unfreeze()
    return objects, float(np.median(added))


@pytest.mark.parametrize(
    ("task", "calls"),
    [
        ("cartpole", _POLICY_CALLS),
        *(pytest.param(task, 50_000, marks=pytest.mark.slow) for task in ("cartpole", "pendulum")),
    ],
)
def test_policy_steps_add_no_objects_traces_or_memory(task: str, calls: int, request: pytest.FixtureRequest) -> None:
    config = request.getfixturevalue(task)
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    observations = np.zeros((1, *spec.observation_shape), np.float32)
    policy.act(observations)
    traces = policy.traces
    objects, leaked_bytes = grown(lambda: policy.act(observations), warm_up=1_000, calls=calls)
    assert policy.traces == traces
    assert objects < 100
    assert leaked_bytes < _POLICY_BYTES


@pytest.mark.parametrize(
    ("task", "method"), [("cartpole", "actor_critic"), ("cartpole", "sarsa"), ("pendulum", "actor_critic")]
)
def test_rollouts_add_no_objects_traces_or_memory(task: str, method: str, request: pytest.FixtureRequest) -> None:
    config = replace(request.getfixturevalue(task), method=MethodConfig(name=method))
    actor = Actor(config, environment_spec(config.environment), 0)
    weights, target_weights = snapshot(config), target(config)
    actor.run(weights, target_weights)
    traces = actor.traces
    objects, leaked_bytes = grown(lambda: actor.run(weights, target_weights), warm_up=100, calls=_ROLLOUTS)
    assert actor.traces == traces
    assert objects < 100
    assert leaked_bytes < _ROLLOUTS_BYTES
