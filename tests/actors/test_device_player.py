"""Actors on a GPU, which is this machine's CPU here: they play, differentiate and report what actors on CPUs do."""

import copy
import threading
from dataclasses import replace
from typing import Any

import gymnasium
import masked_tasks  # noqa: F401
import numpy as np
import pytest
import tensorflow as tf
from float64 import difference
from gymnasium.spaces import Box, Dict
from rollouts import first_weights, run

from actors.actor import Actor
from actors.device_player import DevicePlayer
from actors.environments import EnvironmentSpec, environment_spec
from actors.gradient import GradientGraphs, Gradients
from actors.player import Player
from launch.presets import PRESETS
from shared.config import ActorConfig, EnvironmentConfig, ExplorationConfig, MethodConfig, NetworkConfig, RunConfig
from shared.errors import EnvironmentFailedError
from shared.exploration import Explorer
from shared.networks import NetworkOutput
from shared.registry import EXPLORERS, Entry
from shared.types import GradientReport, Rollout, WeightSnapshot

FRAMES = 820
"""Frames of the longest episode. Some games of River Raid end just before this limit."""
GREEDY = {"exploration": ExplorationConfig(name="greedy")}


class Room(gymnasium.Env):
    """Actions move a place, which is seen in an image and in numbers. Twice one of these is NaN."""

    observation_space = Dict({"map": Box(0, 255, (36, 36), np.uint8), "place": Box(-99, 99, (2,), np.float32)})
    action_space = Box(-1.0, 1.0, (2,), np.float32)
    _episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:  # noqa: ARG002
        super().reset(seed=seed)
        self._place, self._time = self.np_random.uniform(0, 30, 2).astype(np.float32), 0
        self._episodes += 1
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._place, self._time = np.clip(self._place + 4 * action, 0, 35), self._time + 1
        return self._seen(), float(self._place[0]), self._time == 9, self._place[1] > 25, {}

    def _seen(self) -> dict[str, Any]:
        image, place = np.zeros((36, 36), np.uint8), self._place.copy()
        image[int(place[0]) :, int(place[1]) :] = 255
        if (self._episodes, self._time) in ((1, 0), (2, 3)):
            place[1] = np.nan
        return {"map": image, "place": place}


gymnasium.register("Room-v0", Room)


class Greedy(Explorer):
    """Without random numbers: however observations are batched, each gets the same action."""

    def __init__(self, *arguments: Any, training: bool) -> None:  # noqa: ARG002
        super().__init__(arguments[-1])
        self._continuous = arguments[1].continuous

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        (choice,) = (head for name, head in output.heads.items() if name in ("policy", "action_values"))
        if self._continuous:
            # The last bits of a mean depend on the size of a batch.
            return tf.round(8.0 * choice) / 8.0
        return tf.argmax(choice, axis=-1, output_type=tf.int32)


@pytest.fixture(autouse=True)
def _greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPLORERS, "greedy", Entry(__name__, Greedy.__name__))


def config_of(device: str = "cpu", method: str = "actor_critic", unroll_length: int = 5, **more: Any) -> RunConfig:
    actor = {"environments": 4, "unroll_length": unroll_length, "device": device}
    settings = {name: more.pop(name) for name in list(more) if name in ("exploration", "environment", "network")}
    environment = {"id": "ALE/Riverraid-v5", "screen_size": 36}
    environment |= {"max_episode_frames": FRAMES, "terminal_on_life_loss": True}
    return RunConfig(
        method=MethodConfig(name=method, return_lambda=0.9),
        actor=ActorConfig(**actor, **more),
        **{"environment": EnvironmentConfig(**environment), **settings},
    )


def environment_of(name: str, **settings: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=name, **{"frame_skip": 1, "screen_size": 36, "frame_stack": 2, **settings})


TASKS: dict[str, dict[str, Any]] = {
    "masked": {"environment": environment_of("Picky-v0", options={"images": True}, action_mask="action_mask")},
    "parts": {"environment": environment_of("Room-v0"), "network": NetworkConfig(observation_scaling="running")},
    "vector": {
        "environment": environment_of("Pendulum-v1", frame_skip=4),
        "network": NetworkConfig(name="mlp", hidden_sizes=(16,), observation_scaling="running"),
    },
}
"""Settings of tasks that are no Atari games."""


def spec_of(config: RunConfig) -> EnvironmentSpec:
    """With a mean that images are centred on, where they are not of the game above."""
    spec = environment_spec(config.environment)
    if config.environment.id.startswith("ALE/"):
        return spec
    mean = np.random.default_rng(0).uniform(0, 200, spec.observation_shape).astype(np.float32)
    return replace(spec, observation_mean=mean if spec.images else None)


def rollouts_of(kind: type[Player] | type[DevicePlayer], config: RunConfig, count: int) -> tuple[list[Rollout], Any]:
    spec = spec_of(config)
    policy = kind.make_policy(config, spec, 1)
    policy.assign(first_weights(config, spread=0.05))
    player = kind(config, spec, policy, Gradients(GradientGraphs(config, spec, policy), 1), np.arange(4))
    played = [copy.deepcopy(player.play().rollout) for _ in range(count)]
    player.close()
    return played, player.builder


def reports_of(config: RunConfig, calls: int) -> list[GradientReport]:
    actor, weights = Actor(config, spec_of(config), 0), first_weights(config, spread=0.05)
    ran = [run(actor, config, WeightSnapshot(version, weights)) for version in range(calls)]
    actor.close()
    return [report for report in ran if isinstance(report, GradientReport)]


def find_gpus(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on TensorFlow finds GPUs, which are its CPU."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: number * [kind])


@pytest.mark.parametrize("task", [None, *TASKS])
def test_the_same_actions_give_the_same_rollouts_to_the_bit(task: str | None) -> None:
    config = config_of(unroll_length=50 if task is None else 10, **GREEDY, **TASKS.get(task or "", {}))
    expected, on_cpu = rollouts_of(Player, config, 9)
    played, on_device = rollouts_of(DevicePlayer, config, 9)
    for rollout, other in zip(played, expected, strict=True):
        for name in Rollout._fields:
            np.testing.assert_array_equal(getattr(rollout, name), getattr(other, name), err_msg=name)
    episodes, others = on_device.take_episodes(), on_cpu.take_episodes()
    assert sorted(episodes.lengths) == sorted(others.lengths)
    np.testing.assert_array_equal(episodes.returns, others.returns)
    assert on_device.take_rewards() == on_cpu.take_rewards()
    # Episodes have ended, by themselves and by their limit, and the network has chosen among actions.
    if task is None:
        assert min(episodes.lengths) < FRAMES // 4 == max(episodes.lengths)
    assert len(episodes.lengths) > 2
    assert len(np.unique([rollout.actions for rollout in played])) > 2


@pytest.mark.parametrize(
    ("method", "reuse"),
    [
        ("actor_critic", {}),
        ("actor_critic", {"epochs": 2, "minibatches": 2}),
        ("actor_critic", {"epochs": 2, "fresh_gradients": True}),
        ("q_learning", {"epochs": 2, "minibatches": 2, "fresh_gradients": True}),
        *(("actor_critic", {"epochs": 2, "minibatches": 2, **settings}) for settings in TASKS.values()),
    ],
)
@pytest.mark.usefixtures("no_warm_up")
def test_reports_are_those_of_an_actor_on_the_cpu(method: str, reuse: dict[str, Any]) -> None:
    expected = reports_of(config_of("cpu", method, **GREEDY, **reuse), 9)
    reports = reports_of(config_of("gpu", method, **GREEDY, **reuse), 9)
    assert len(reports) == len(expected) > 5
    for report, other in zip(reports, expected, strict=True):
        # 0 where a report has no gradient, because an observation was not finite: then both are NaN.
        largest = np.nan_to_num(np.abs(other.gradient)).max()
        np.testing.assert_allclose(report.gradient, other.gradient, rtol=0.0, atol=4e-5 * largest)
        assert report.statistics == pytest.approx(other.statistics, rel=1e-4, abs=1e-6)
        assert (report.observation_moments is None) == (other.observation_moments is None)
        for moments in zip(report.observation_moments or (), other.observation_moments or (), strict=True):
            np.testing.assert_allclose(*moments)
        for name in (
            "actor_id", "sequence", "version", "layout_fingerprint", "agent_steps", "samples", "rewards", "non_finite",
        ):  # fmt: skip
            assert getattr(report, name) == getattr(other, name), name
    in_a_room = reuse.get("environment") == environment_of("Room-v0")
    assert {bool(report.non_finite) for report in reports} == ({True, False} if in_a_room else {False})


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("spread", "reuse"),
    [
        (0.0, {}),
        (0.03, {"epochs": 2, "minibatches": 2}),
        # As `pong` has it.
        (0.03, {"epochs": 4, "fresh_gradients": True}),
    ],
)
def test_the_gradient_is_that_of_float64(spread: float, reuse: dict[str, Any], device: str) -> None:
    """With a `spread`, of weights that differ from those that acted: some ratios are clipped."""
    pong = PRESETS["pong"].config
    actor = ActorConfig(environments=4, unroll_length=6, device=device, **reuse)
    config = replace(pong, actor=actor, environment=replace(pong.environment, screen_size=36))
    spec = environment_spec(config.environment)
    mean = np.random.default_rng(0).uniform(0, 200, spec.observation_shape).astype(np.float32)
    spec = replace(spec, observation_mean=mean)
    assert difference(DevicePlayer if device == "gpu" else Player, config, spec, spread) < 1e-5


@pytest.mark.parametrize(
    ("task", "gpus"),
    [
        (None, 0),
        (None, 1),
        ("parts", 1),
        pytest.param("masked", 1, marks=pytest.mark.slow),
        pytest.param("vector", 1, marks=pytest.mark.slow),
    ],
)
def test_values_and_log_probabilities_are_those_of_the_sampled_actions(
    task: str | None, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the weights that acted, the ratio to the policy that acted is 1, in all gradients of a rollout."""
    find_gpus(gpus, monkeypatch)
    config = config_of("gpu", epochs=2, minibatches=2, **TASKS.get(task or "", {}))
    reports = [report for report in reports_of(config, 8) if not report.non_finite]
    assert len(reports) > 3
    for report in reports:
        assert report.statistics["ratio_deviation"] == pytest.approx(0.0, abs=1e-5)
    if not gpus:
        other = reports_of(replace(config, seed=2), 8)
        assert not np.array_equal(reports[0].gradient, other[0].gradient)


def test_an_environment_that_fails_ends_the_rollout_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    config, before = config_of("gpu", **TASKS["parts"]), set(threading.enumerate())
    actor, weights = Actor(config, spec_of(config), 0), first_weights(config)
    monkeypatch.setattr(Room, "_seen", lambda _: 1 / 0)
    with pytest.raises(EnvironmentFailedError, match=r"^Room-v0: step\(\) raised ZeroDivisionError"):
        run(actor, config, WeightSnapshot(0, weights))
    actor.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("method", "reuse"),
    [
        ("actor_critic", {}),
        ("actor_critic", {"epochs": 2, "minibatches": 2}),
        pytest.param("actor_critic", {"epochs": 2, "fresh_gradients": True}, marks=pytest.mark.slow),
        pytest.param("q_learning", {"epochs": 2, "minibatches": 2}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("no_warm_up")
def test_xla_compiles_the_graphs_where_there_is_a_gpu(method: str, reuse: dict[str, Any], monkeypatch) -> None:
    config = config_of("gpu", method, **GREEDY, **reuse)
    expected = reports_of(config, 4)
    find_gpus(1, monkeypatch)
    assert DevicePlayer.make_policy(config, spec_of(config), 1).compiled
    for report, other in zip(reports_of(config, 4), expected, strict=True):
        # The order of sums is XLA's: one weight of 91,203 differs by 1.2e-5 of the largest on AMD's Zen 4.
        largest = np.abs(other.gradient).max()
        np.testing.assert_allclose(report.gradient, other.gradient, rtol=0.0, atol=4e-5 * largest)
