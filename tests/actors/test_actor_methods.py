"""What actors owe to each method: bounds, the action that follows, the density that acted, and flat memory."""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rollouts import first_weights, make_actor, make_policy, plain_gradients, recording, run, traces

from actors.environments import environment_spec
from actors.policy import Policy
from shared.config import ActorConfig, EnvironmentConfig, ExplorationConfig, MethodConfig, NetworkConfig, RunConfig
from shared.graph import aligned
from shared.registry import METHODS
from shared.types import WeightSnapshot

PENDULUM = EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False)


@pytest.fixture
def pendulum(cartpole: RunConfig) -> RunConfig:
    return replace(
        cartpole,
        environment=PENDULUM,
        network=NetworkConfig(name="mlp", hidden_sizes=(16,), observation_scaling="bounds"),
        exploration=ExplorationConfig(noise="state_dependent"),
    )


def recorded(config: RunConfig, monkeypatch: pytest.MonkeyPatch, runs: int) -> list:
    rollouts, actor, weights = recording(monkeypatch), make_actor(config), first_weights(config)
    for version in range(runs):
        run(actor, config, WeightSnapshot(version, weights))
    return rollouts


def test_the_frames_of_the_weights_anneal_epsilon(cartpole: RunConfig) -> None:
    exploration = ExplorationConfig(final_epsilons=(0.0,), annealing_frames=100)
    config = replace(cartpole, method=MethodConfig(name="q_learning"), exploration=exploration)
    policy = make_policy(config, environments=4)
    weights, observations = policy.initial_parameters(), np.ones((4, 4), np.float32)
    for frames, explores in ((0, True), (100, False), (0, True)):
        policy.assign(weights, frames)
        actions = {int(action) for _ in range(20) for action in policy.act(observations).actions}
        assert (len(actions) > 1) == explores, frames


@pytest.mark.parametrize("method", ["actor_critic", "q_learning"])
def test_the_first_policy_prefers_no_action(method: str, cartpole: RunConfig) -> None:
    policy = make_policy(replace(cartpole, method=MethodConfig(name=method)))
    preferences = policy.preferences(np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32))
    assert 0.0 < np.ptp(preferences, axis=1).max() < 0.1


def test_a_uniform_draw_within_the_bounds_is_scaled_to_deviation_1(pendulum: RunConfig) -> None:
    spec = replace(environment_spec(PENDULUM), observation_bounds=((0.0, -3.0, 1.0), (10.0, 3.0, 2.0)))
    unscaled = replace(pendulum, network=replace(pendulum.network, observation_scaling="none"))
    policy, plain = Policy(pendulum, spec), Policy(unscaled, spec)
    plain.assign(policy.initial_parameters())
    middle, width = np.array([5.0, 0.0, 1.5], np.float32), np.array([10.0, 6.0, 1.0], np.float32)
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (8, 3)).astype(np.float32)
    found, expected = policy.values(middle + width * drawn), plain.values(drawn * np.float32(12**0.5))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


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
def test_gradients_are_those_of_rollouts(method: MethodConfig, layer_norm: bool, pong: RunConfig, monkeypatch) -> None:
    """With what acting stored, at the right times, for other weights in each rollout; Sarsa stores nothing."""
    network = replace(pong.network, layer_norm=layer_norm)
    config = replace(pong, method=replace(method, return_lambda=0.9), network=network)
    again, actor = make_policy(config), make_actor(config)
    gradient = plain_gradients(config, again)
    weights, random = again.initial_parameters(), np.random.default_rng(0)
    rollouts = recording(monkeypatch)
    for version in range(3):
        changed = (weights + random.normal(0.0, 0.003, weights.shape)).astype(np.float32)
        frozen = WeightSnapshot(version, changed)
        report = run(actor, config, frozen)
        again.assign(changed)
        if config.method.uses_target_network:
            gradient.graphs.assign_target(frozen)
        gradient.begin(rollouts[-1])
        expected = gradient.next().gradient
        # Batches of other sizes are added in another order: 4.7e-6 with AVX2.
        assert np.abs(report.gradient - expected).max() <= 2e-5 * np.abs(expected).max()


def test_a_target_network_has_memory_of_its_own(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    # With these sizes each tensor begins where TensorFlow can use the memory without a copy.
    network = NetworkConfig(name="mlp", hidden_sizes=(64, 64))
    config = replace(cartpole, method=MethodConfig(name="q_learning"), network=network)
    policy = make_policy(config)
    gradients = plain_gradients(config, policy)
    (rollout,) = recorded(config, monkeypatch, 1)
    memory: np.ndarray = aligned((policy.layout.size,), "float32")
    memory[:] = 1.0
    gradients.graphs.assign_target(WeightSnapshot(1, memory))
    found = []
    for value in (1.0, 2.0):
        memory[:] = value
        gradients.begin(rollout)
        found.append(gradients.next().gradient.copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("noise", [None, "independent", "spherical", "state_dependent"])
def test_actions_of_reused_rollouts_have_values_and_log_probs(noise: str | None, cartpole: RunConfig, request) -> None:
    config = cartpole
    if noise is not None:
        config = replace(request.getfixturevalue("pendulum"), exploration=ExplorationConfig(noise=noise))
    config = replace(config, actor=replace(config.actor, epochs=2))
    policy = make_policy(config, environments=6, unroll_length=2)
    shape = 6, *environment_spec(config.environment).observation_shape
    observations = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for t in (None, 1):
        acted = policy.act(observations, t=t)
        assert (acted.log_probs.shape, acted.log_probs.dtype) == ((6,), np.float32)
        expected = policy.method.log_prob(policy.network(observations), tf.constant(acted.actions))
        np.testing.assert_allclose(acted.log_probs, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(acted.values, policy.values(observations), rtol=1e-5, atol=1e-6)
        assert acted.state == ()
    assert policy.greedy(observations).log_probs is None
    # In evaluations, and where a rollout is differentiated once, nothing but actions is computed.
    once = replace(config, actor=replace(config.actor, epochs=1))
    for other in (make_policy(config, environments=6, training=False), make_policy(once, environments=6)):
        acted = other.act(observations)
        assert (acted.values, acted.log_probs) == (None, None)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_entropy_cost_falls_linearly_with_the_frames(cartpole: RunConfig, epochs: int) -> None:
    config = replace(
        cartpole,
        actor=ActorConfig(environments=2, unroll_length=8, epochs=epochs),
        method=MethodConfig(entropy_cost=0.8, final_entropy_cost=0.2),
        optimizer=replace(cartpole.optimizer, annealing_frames=3_000),
    )
    # The policy is uniform at the start, where the entropy has no gradient.
    parameters = first_weights(config, 0.5)

    def gradients(method: MethodConfig) -> list[np.ndarray]:
        actor = make_actor(replace(config, method=method))
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
    """Fields of mallinfo2(3): number 4 is `hblkhd`, number 7 `uordblks`."""

    _fields_ = [(f"number{i}", ctypes.c_size_t) for i in range(10)]


needs_mallinfo2 = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc before 2.33")


def allocated_bytes() -> int:
    """Bytes that C code, TensorFlow, NumPy and large objects hold: resident memory has gaps that hide leaks."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return info.number7 + info.number4


def grown(call: Callable[[], object], warm_up: int, calls: int) -> tuple[int, float]:
    """Live objects that `calls` calls add after `warm_up` calls, and the median of the bytes that five stretches add.

    What leaks does so in each stretch; a thread that starts late, or a buffer that is made once, is seen in one.
    """
    for _ in range(warm_up):
        call()
    gc.collect()
    # What lives now is not looked through again: TensorFlow's modules alone take a third of a second each time.
    gc.freeze()
    added = []
    for _ in range(5):
        before = allocated_bytes()
        for _ in range(calls // 5):
            call()
        gc.collect()
        added.append(allocated_bytes() - before)
    objects = len(gc.get_objects())
    gc.unfreeze()
    return objects, float(np.median(added))


def test_an_actor_traces_the_graphs_that_it_uses_and_no_others(cartpole: RunConfig) -> None:
    """To set the weights, to act, and the gradient: a trace takes a tenth of a second of the start."""
    actor = make_actor(cartpole)
    assert traces(actor) == 0
    for _ in range(3):
        run(actor, cartpole, WeightSnapshot(0, first_weights(cartpole)))
    assert traces(actor) == 3


@needs_mallinfo2
@pytest.mark.parametrize(
    ("what", "task", "method", "calls", "most_bytes"),
    [
        ("policy", "cartpole", "actor_critic", 10_000, 400_000),
        ("actor", "cartpole", "actor_critic", 150, 60_000),
        ("actor", "cartpole", "sarsa", 150, 60_000),
        ("actor", "pendulum", "actor_critic", 150, 60_000),
    ],
)
def test_calls_leave_no_memory(what: str, task: str, method: str, calls: int, most_bytes: int, request) -> None:
    config = replace(request.getfixturevalue(task), method=MethodConfig(name=method))
    snapshot = WeightSnapshot(0, first_weights(config))
    observations = np.zeros((1, *environment_spec(config.environment).observation_shape), np.float32)
    made = make_policy(config) if what == "policy" else make_actor(config)

    def call() -> None:
        made.act(observations) if isinstance(made, Policy) else run(made, config, snapshot)

    call()
    traced = traces(made)
    objects, leaked_bytes = grown(call, warm_up=1_000 if what == "policy" else 100, calls=calls)
    assert traces(made) == traced
    assert objects < 100
    assert leaked_bytes < most_bytes
