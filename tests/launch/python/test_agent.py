"""Agents that act in a program: what they take, what they give, and what that program needs for it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from spaces import Given, registered
from untrained_runs import policy_of, untrained

import tributary_rl as tributary
from actors.environments import VectorEnvironment, environment_spec
from actors.policy import Policy
from launch.python.agent import EnvironmentSide

WITHOUT_RAY = """
import sys
sys.modules["ray"] = sys.modules["launch.cli"] = sys.modules["launch.commands"] = None
import numpy as np, tributary_rl as tributary
agent = tributary.load("zoo:pong")
action, state = agent.act(np.zeros((84, 84, 4)))
assert action in range(6), action
import os
assert os.environ.get("CUDA_VISIBLE_DEVICES") != "-1", "other libraries of the program would lose their GPU"
print(agent.weights)
"""


def test_an_agent_acts_without_ray_and_without_the_command_line() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-c", WITHOUT_RAY]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "update" in ended.stdout


def test_observations_are_anything_that_makes_an_array() -> None:
    agent = tributary.load("zoo:cartpole")
    for give in (list, np.float64, lambda x: np.asarray(x, np.int8)):
        action, state = agent.act(give([0, 0, 1, 0]))
        assert (action.shape, action.dtype, state) == ((), np.int32, ())
        assert agent.act(give([0, 0, 1, 9]), deterministic=True)[0] == 1
        assert agent.act(give([0, 0, -1, -9]), deterministic=True)[0] == 0
    for count in (1, 3):
        observations = np.random.default_rng(0).normal(size=(count, 4))
        one_by_one = [agent.act(observation, deterministic=True)[0] for observation in observations]
        np.testing.assert_array_equal(agent.act(observations, deterministic=True)[0], one_by_one)
        assert agent.act(observations)[0].shape == (count,)


def test_samples_are_of_the_policy_and_repeat_for_a_seed() -> None:
    observations = np.zeros((4096, 4), np.float32)
    first, second, other = (tributary.load("zoo:cartpole", seed=seed).act(observations)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert 0 < np.mean(first) < 1
    assert (first != other).any()


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([0, 0, 0], r"the observation of CartPole-v1 is an array int64 \[3\], where float32 \[4\] or a batch is"),
        (np.zeros((2, 2, 4)), r"\[2, 2, 4\]"),
        (np.zeros((0, 4)), r"\[0, 4\]"),
        (["a", "b", "c", "d"], r"is a list of 4 \(str, str, str, str\), where float32"),
    ],
)
def test_an_observation_that_is_none_is_refused_in_one_line(observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tributary.load("zoo:cartpole").act(observation)


def test_images_may_be_of_any_dtype_and_have_their_channels_first() -> None:
    """As Gymnasium's wrappers stack frames. Values that bytes cannot hold would become others."""
    agent = tributary.load("zoo:pong")
    game = VectorEnvironment(agent.config.environment, 3)
    seen = game.reset(1)
    game.close()
    expected, _ = agent.act(seen, deterministic=True)
    for images in (seen.astype(np.float32), np.moveaxis(seen, -1, 1), seen.astype(np.int64)):
        np.testing.assert_array_equal(agent.act(images, deterministic=True)[0], expected)
    assert agent.act(seen[0])[0] in range(6)
    for wrong in (seen / 255.0, seen.astype(np.int16) - 1):
        with pytest.raises(
            ValueError, match=r"with .*, where uint8 \[84, 84, 4\], as agent.environment\(\) gives it, or a batch is"
        ):
            agent.act(wrong)


def test_actions_are_in_the_environments_units(tmp_path: Path) -> None:
    """Pendulum's torque reaches from -2 to 2, and the policy's mean from -1 to 1."""
    agent = tributary.load(untrained(tmp_path / "run", "pendulum"))
    spec = environment_spec(agent.config.environment)
    policy = Policy(agent.config, spec, environments=64, training=False)
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    chosen = policy.greedy(observations).actions
    actions, _ = agent.act(observations, deterministic=True)
    np.testing.assert_allclose(actions, np.clip(2.0 * chosen, -2.0, 2.0), rtol=1e-6)
    environment = gymnasium.make("Pendulum-v1")
    environment.reset(seed=1)
    for _ in range(50):
        action, _ = agent.act(observations[0])
        assert environment.action_space.contains(action)
        environment.step(action)


@pytest.mark.parametrize(
    ("environment_id", "batch"),
    [
        ("FrozenLake-v1", np.array([3, 15, 0])),
        ("Blackjack-v1", (np.array([4, 21, 8]), np.array([1, 10, 2]), np.array([0, 1, 0]))),
    ],
)
def test_observations_may_be_as_the_environment_gives_them(environment_id: str, batch: Any, tmp_path: Path) -> None:
    settings = {"environment.id": environment_id, "stop_at_return": None, "stop_measure": "training"}
    agent = tributary.load(untrained(tmp_path / "run", "cartpole", **settings))
    environment = gymnasium.make(environment_id)
    observation, _ = environment.reset(seed=1)
    for _ in range(5):
        action, _ = agent.act(observation)
        assert environment.action_space.contains(action)
        observation, _, terminated, _, _ = environment.step(action)
        if terminated:
            observation, _ = environment.reset()
    actions, _ = agent.act(batch, deterministic=True)
    assert actions.shape == (3,)
    rows = zip(*batch, strict=True) if isinstance(batch, tuple) else batch
    np.testing.assert_array_equal(actions, [agent.act(row, deterministic=True)[0] for row in rows])
    with pytest.raises(ValueError, match="the observation of"):
        agent.act((0.5,) * 3 if isinstance(batch, tuple) else 0.5)


def test_images_beside_numbers_are_a_dict_of_both(tmp_path: Path) -> None:
    """Images as Gymnasium stacks them, or with their channels together; what is text may be left out."""
    space = Dict({"camera": Box(0, 255, (36, 36, 3), np.uint8), "gear": Discrete(2), "word": Text(5)})
    seen = {"camera": np.full((36, 36, 3), 200, np.uint8), "gear": 1, "word": "go"}
    settings = {
        "environment": {"id": "Seen-v0", "screen_size": None, "frame_skip": 1, "greyscale": False, "frame_stack": 2},
        "network": {"name": "a3c_cnn"},
    }
    registered("Seen-v0", Given(space, Discrete(3), [seen] * 9))
    try:
        run = untrained(tmp_path / "run", "images", **settings)
        agent = tributary.load(run)
        side = EnvironmentSide(agent.config.environment, policy_of(run)[1])
        random = np.random.default_rng(0)
        stacks = random.integers(0, 256, (3, 2, 36, 36, 3), np.uint8)
        gears = np.array([0, 1, 1])
        together = np.moveaxis(stacks, 1, 3).reshape(3, 36, 36, 6)
        expected = np.c_[np.eye(2, dtype=np.float32)[gears].view(np.uint8), together.reshape(3, -1)]
        for images in (stacks, together, together.astype(float), stacks.astype(np.int64)):
            given = {"camera": images, "gear": gears, "word": "go"}
            np.testing.assert_array_equal(side.batch(given).observations, expected)
            actions, _ = agent.act(given)
            assert (actions.shape, actions.max() < 3) == ((3,), True)
        for image in (stacks[1], together[1]):
            given = {"camera": image, "gear": gears[1]}
            np.testing.assert_array_equal(side.batch(given).observations, expected[1:2])
            assert agent.act(given)[0].shape == ()
        for wrong, line in (
            ({"camera": stacks[0, :, 1:], "gear": 1}, r"'camera' is an array uint8 \[2, 35, 36, 3\], where uint8"),
            ({"camera": stacks, "gear": 1}, r"parts of an observation of Seen-v0 come \[-1, 3\] at a time"),
            ({"camera": stacks / 255.0, "gear": gears}, r"'camera' is an array float64 .* with 0\.\d+, where uint8"),
            ({"camera": stacks}, "is a dict with 'camera', where a dictionary with 'camera', 'gear' is expected"),
            (None, "the observation of Seen-v0 is None, where a dictionary with 'camera', 'gear' is expected"),
            ({"camera": stacks, "gear": gears + 1}, "'gear' is 2, where its space has 0 to 1"),
        ):
            with pytest.raises(ValueError, match=line):
                agent.act(wrong)
    finally:
        gymnasium.registry.pop("Seen-v0")


def test_an_atari_game_is_the_one_of_training() -> None:
    agent = tributary.load("zoo:pong")
    training = VectorEnvironment(agent.config.environment, 1)
    game = agent.environment(render_mode="rgb_array")
    seen, other = game.reset(seed=4)[0], training.reset(4)[0]
    for _ in range(30):
        np.testing.assert_array_equal(seen, other)
        action, state = agent.act(seen)
        assert state == ()
        seen, reward, terminated, truncated, _ = game.step(action)
        result = training.step(np.array([action]))
        other = result.observations[0]
        assert (reward, terminated, truncated) == (result.rewards[0], result.terminated[0], result.truncated[0])
    assert game.render().shape == (210, 160, 3)
    assert game.observation_space.contains(game.reset()[0])
    game.close()
    training.close()
    with pytest.raises(ValueError, match="render_mode ansi: must be rgb_array, human or None"):
        agent.environment("ansi")


def test_a_memory_is_carried_from_call_to_call(tmp_path: Path) -> None:
    agent = tributary.load(untrained(tmp_path / "run", "cartpole", **{"network.recurrent": "lstm"}))
    observations = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    memory = None
    for t in range(6):
        _, memory = agent.act(observations[:, t], memory)
    assert [part.shape for part in memory] == [(2, 256)] * 2
    for i in range(2):
        alone = None
        for t in range(6):
            _, alone = agent.act(observations[i, t], alone, deterministic=True)
        for part, whole in zip(alone, memory, strict=True):
            np.testing.assert_allclose(part, whole[i : i + 1], atol=1e-5)
        assert np.abs(alone[0]).max() > 0.01
    # Three are padded to four, and their states too.
    assert [part.shape for part in agent.act(observations[0, :3])[1]] == [(3, 256)] * 2
    with pytest.raises(ValueError, match="a state of 2 for 3 observations"):
        agent.act(observations[0, :3], memory)
    for wrong in ((), (*memory, memory[0])):
        with pytest.raises(ValueError, match=f"a state of {len(wrong)} arrays, and this agent's has 2"):
            agent.act(observations[:2, 0], wrong)
