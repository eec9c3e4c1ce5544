"""Atari games: pictures as networks take them, lives, and which ids are games."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from actors.environments import AtariAdapter, VectorEnvironment, adapter_of, environment_spec
from actors.environments.atari import channels_last
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError
from shared.types import ActionSpec


@pytest.mark.parametrize("stack", [1, 3, 4])
def test_channels_last_is_the_transposed_copy(stack: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, stack, 10, 12), np.uint8)
    expected = images.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(channels_last(images), expected)
    to = np.empty(expected.shape, np.uint8)
    assert channels_last(images, to) is to
    np.testing.assert_array_equal(to, expected)


def test_breakout_reports_lost_lives_without_ending_the_episode() -> None:
    breakout = VectorEnvironment(EnvironmentConfig(id="ALE/Breakout-v5"), 1)
    breakout.reset(0)
    lives = 0
    while not (result := breakout.step(np.array([1], np.int32))).terminated[0]:
        lives += int(result.lost_life[0])
    assert lives + int(result.lost_life[0]) == 5


def test_rewards_are_those_of_the_game() -> None:
    pacman = VectorEnvironment(EnvironmentConfig(id="ALE/MsPacman-v5"), 1)
    pacman.reset(0)
    assert max(float(pacman.step(np.full(1, 3, np.int32)).rewards[0]) for _ in range(80)) == 10.0


def test_an_extra_life_is_no_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = iter([3, 4, 3])
    monkeypatch.setattr(AtariAdapter, "lives", lambda *_: np.array([next(lives)], np.int32))
    pong = VectorEnvironment(EnvironmentConfig(), 1)
    pong.reset(0)
    assert [bool(pong.step(np.zeros(1, np.int32)).lost_life[0]) for _ in range(2)] == [False, True]


def test_the_spec_of_a_game() -> None:
    pong = environment_spec(EnvironmentConfig())
    assert pong.observation_shape == (84, 84, 4)
    assert pong.action_set == ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
    full = EnvironmentConfig(full_action_space=True)
    assert environment_spec(full).actions == ActionSpec(18)
    assert adapter_of(full).training_protocol()["full_action_space"]
    assert environment_spec(EnvironmentConfig(id="PongNoFrameskip-v4")) == pong
    assert pong.images
    assert pong.observation_bounds is None
    skipping = EnvironmentConfig(frame_skip=3)
    third = environment_spec(skipping)
    assert adapter_of(skipping).score_protocol(third)["frames_per_agent_step"] == 3


@pytest.mark.parametrize(("rule", "value"), [("mode", 4), ("difficulty", 1), ("continuous", True), ("obs_type", "ram")])
@pytest.mark.parametrize("make", [environment_spec, lambda config: VectorEnvironment(config, 1)])
def test_a_registered_variant_of_a_game_is_refused(make: Callable, rule: str, value: object, monkeypatch) -> None:
    rules = {"game": "breakout", "frameskip": 1, "repeat_action_probability": 0.0, rule: value}
    spec = EnvSpec("Variant/Breakout-v0", "ale_py.env:AtariEnv", kwargs=rules)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    with pytest.raises(ConfigurationError, match=f"is registered with {rule} {value}, .* register it without"):
        make(EnvironmentConfig(id=spec.id))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"max_episode_steps": 50},
            "max_episode_steps; register it without, and set --env",
        ),
        (
            {"additional_wrappers": (WrapperSpec("Clip", "theirs:Clip", {}),)},
            "wrappers; register it without$",
        ),
    ],
)
def test_what_gymnasium_would_add_to_a_game_is_refused(more: dict, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"game": "pong", "frameskip": 1, "repeat_action_probability": 0.0}
    spec = EnvSpec("Short/Pong-v0", "ale_py.env:AtariEnv", kwargs=rules, **more)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    with pytest.raises(ConfigurationError, match=f"^--environment.id {spec.id}: is registered with {line}"):
        environment_spec(EnvironmentConfig(id=spec.id))


def test_pong_resets_in_the_step_after_the_end() -> None:
    pong = VectorEnvironment(EnvironmentConfig(max_episode_frames=80, max_noops=0), 1)
    to = np.empty_like(pong.reset(0))
    steps = 1
    while not (result := pong.step(np.zeros(1, np.int32), to)).truncated[0]:
        assert result.observations is to
        assert not result.terminated[0]
        steps += 1
    assert steps == 20
    last = to.copy()
    after = pong.step(np.zeros(1, np.int32))
    assert not after.truncated[0]
    assert not np.array_equal(after.observations, last)


def played(action: int, **settings: Any) -> list[bytes]:
    game = VectorEnvironment(EnvironmentConfig(max_noops=0, fire_on_reset=False, screen_size=36, **settings), 1)
    game.reset(0)
    return [game.step(np.full(1, action, np.int32)).observations.tobytes() for _ in range(12)]


def test_a_sticky_action_takes_the_place_of_the_chosen_one() -> None:
    assert played(2) != played(0)
    # Each frame repeats the action before it: the first one, which is to do nothing.
    assert played(2, sticky_action_probability=1.0) == played(0)


@pytest.mark.parametrize(("settings", "frames"), [({}, 1), ({"fire_on_reset": False}, 0)])
def test_fire_is_pressed_after_a_reset_unless_it_is_switched_off(settings: dict[str, Any], frames: int) -> None:
    game = AtariAdapter(EnvironmentConfig(max_noops=0, **settings)).make_vector(1)
    assert game.reset(seed=0)[1]["episode_frame_number"].tolist() == [frames]
    game.close()
