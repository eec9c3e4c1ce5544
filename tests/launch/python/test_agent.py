"""Agents that act in a program: what they take, what they give, and what that program needs for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from spaces import Given, registered
from untrained_runs import untrained
from watched_processes import output_of

import tributary_rl as tributary
from actors.environments import VectorEnvironment, environment_spec
from launch.presets import PRESETS
from launch.python.agent import EnvironmentSide
from shared.config import EnvironmentConfig

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
    assert "update" in output_of(sys.executable, "-c", WITHOUT_RAY, env=variables)


class Shapes(NamedTuple):
    """What an agent of an environment takes: `forms` of a batch that is `expected`, its rows, and what is refused."""

    environment: EnvironmentConfig
    expected: np.ndarray
    forms: list[Any]
    rows: list[Any]
    wrong: list[tuple[Any, str]]


def one_hot(*indices: int, size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[list(indices)]


NUMBERS = np.array([[0, 0, 1, 0], [0, 0, -1, -9], [5, 4, 3, 2]])
FRAMES = np.random.default_rng(0).integers(0, 256, (3, 84, 84, 4), np.uint8)
# Three observations of two images each, as Gymnasium stacks them; and with their channels together.
STACKS = np.random.default_rng(0).integers(0, 256, (3, 2, 36, 36, 3), np.uint8)
TOGETHER = np.moveaxis(STACKS, 1, 3).reshape(3, 36, 36, 6)
GEARS = np.array([0, 1, 1])
SHAPES = {
    "numbers": Shapes(
        EnvironmentConfig(id="CartPole-v1", frame_skip=1),
        NUMBERS,
        [NUMBERS.tolist(), NUMBERS.astype(float), NUMBERS.astype(np.int8)],
        list(NUMBERS),
        [
            ([0, 0, 0], r"the observation of CartPole-v1 is an array int64 \[3\], where float32 \[4\] or a batch is"),
            (np.zeros((2, 2, 4)), r"\[2, 2, 4\]"),
            (np.zeros((0, 4)), r"\[0, 4\]"),
            (["a", "b", "c", "d"], r"is a list of 4 \(str, str, str, str\), where float32"),
        ],
    ),
    # Gymnasium's wrappers have the stack first. Values that bytes cannot hold would become others.
    "images": Shapes(
        PRESETS["pong"].config.environment,
        FRAMES,
        [FRAMES, FRAMES.astype(np.float32), np.moveaxis(FRAMES, -1, 1), FRAMES.astype(np.int64)],
        list(FRAMES),
        [
            (wrong, r"with .*, where uint8 \[84, 84, 4\], as agent.environment\(\) gives it, or a batch is")
            for wrong in (FRAMES / 255.0, FRAMES.astype(np.int16) - 1)
        ],
    ),
    "a number": Shapes(
        EnvironmentConfig(id="FrozenLake-v1", frame_skip=1),
        one_hot(3, 15, 0, size=16),
        [np.array([3, 15, 0]), [3, 15, 0]],
        [3, 15, 0],
        [(0.5, "the observation of FrozenLake-v1")],
    ),
    "two numbers": Shapes(
        EnvironmentConfig(id="Pair-v0", frame_skip=1),
        np.c_[one_hot(0, 1, 1, size=2), one_hot(1, 0, 1, size=2)],
        [(np.array([0, 1, 1]), np.array([1, 0, 1]))],
        [(0, 1), (1, 0), (1, 1)],
        # Three observations, and one of three parts.
        [
            (wrong, "is a tuple of 3 .*, where a tuple of 2 is expected")
            for wrong in ([(0, 1), (1, 0), (1, 1)], (0, 1, 1))
        ],
    ),
    # What is text may be left out.
    "images beside numbers": Shapes(
        EnvironmentConfig(id="Seen-v0", screen_size=None, frame_skip=1, greyscale=False, frame_stack=2),
        np.c_[one_hot(*GEARS, size=2).view(np.uint8), TOGETHER.reshape(3, -1)],
        [
            {"camera": images, "gear": GEARS, "word": "go"}
            for images in (STACKS, STACKS.astype(float), STACKS.astype(np.int64))
        ],
        [{"camera": STACKS[i], "gear": GEARS[i]} for i in range(3)],
        [
            ({"camera": STACKS[0, :, 1:], "gear": 1}, r"'camera' is an array uint8 \[2, 35, 36, 3\], where uint8"),
            ({"camera": STACKS, "gear": 1}, r"parts of an observation of Seen-v0 come \[-1, 3\] at a time"),
            ({"camera": STACKS / 255.0, "gear": GEARS}, r"'camera' is an array float64 .* with 0\.\d+, where uint8"),
            ({"camera": STACKS}, "is a dict with 'camera', where a dictionary with 'camera', 'gear' is expected"),
            (None, "the observation of Seen-v0 is None, where a dictionary with 'camera', 'gear' is expected"),
            ({"camera": STACKS, "gear": GEARS + 1}, "'gear' is 2, where its space has 0 to 1"),
        ],
    ),
}


@pytest.fixture
def seen_environment() -> Iterator[None]:
    space = Dict({"camera": Box(0, 255, (36, 36, 3), np.uint8), "gear": Discrete(2), "word": Text(5)})
    seen = {"camera": np.full((36, 36, 3), 200, np.uint8), "gear": 1, "word": "go"}
    registered("Seen-v0", Given(space, Discrete(3), [seen] * 9))
    registered("Pictures-v0", Given(space["camera"], Discrete(3), [seen["camera"]] * 9))
    registered("Pair-v0", Given(Tuple((Discrete(2), Discrete(2))), Discrete(3), [(0, 1)] * 9))
    yield
    for name in ("Seen-v0", "Pictures-v0", "Pair-v0"):
        gymnasium.registry.pop(name)


@pytest.mark.usefixtures("seen_environment")
@pytest.mark.parametrize("name", SHAPES)
def test_observations_come_in_any_form_one_by_one_or_in_batches(name: str) -> None:
    environment, expected, forms, rows, wrong = SHAPES[name]
    side = EnvironmentSide(environment, environment_spec(environment))
    for form in forms:
        observations, one = side.batch(form)
        np.testing.assert_array_equal(observations, expected)
        assert not one
    for i, row in enumerate(rows):
        observations, one = side.batch(row)
        np.testing.assert_array_equal(observations, expected[i : i + 1])
        assert one
    for observation, line in wrong:
        with pytest.raises(ValueError, match=line):
            side.batch(observation)


def test_an_action_is_for_one_observation_and_actions_for_a_batch() -> None:
    agent = tributary.load("zoo:cartpole")
    action, state = agent.act([0, 0, 1, 0])
    assert (action.shape, action.dtype, state) == ((), np.int64, ())
    assert [agent.act([0, 0, x, 9 * x], deterministic=True)[0] for x in (1, -1)] == [1, 0]
    # Sampling pads three to four.
    for count in (1, 3):
        observations = np.random.default_rng(0).normal(size=(count, 4))
        one_by_one = [agent.act(observation, deterministic=True)[0] for observation in observations]
        np.testing.assert_array_equal(agent.act(observations, deterministic=True)[0], one_by_one)
        assert agent.act(observations)[0].shape == (count,)


def test_numbers_that_are_not_finite_count_as_zero_as_in_training(tmp_path: Path) -> None:
    agent = tributary.load(untrained(tmp_path / "run", "cartpole", **{"network.recurrent": "lstm"}))
    observations = np.array([[np.nan, 1.0, np.inf, 2.0], [0.0, 1.0, 0.0, 2.0]])
    _, memory = agent.act(observations)
    np.testing.assert_array_equal(memory[0][0], memory[0][1])
    # The rows of an episode that ended set to 0 by whole numbers, which NumPy makes float64.
    agent.act(observations, tuple(part * np.array([[1], [0]]) for part in memory))


@pytest.mark.usefixtures("seen_environment")
def test_an_environment_of_one_number_may_give_it_alone_and_may_change_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moving(Given):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            os.chdir("/")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        gymnasium.registry,
        "Moving-v0",
        gymnasium.envs.registration.EnvSpec(
            "Moving-v0", lambda **_: Moving(Box(-1, 1, (1,)), Discrete(3), [np.ones(1, np.float32)] * 9)
        ),
    )
    environment = EnvironmentConfig(id="Moving-v0", frame_skip=1)
    side = EnvironmentSide(environment, environment_spec(environment))
    observations, one = side.batch(0.5)
    assert (observations.tolist(), one) == ([[0.5]], True)
    assert Path.cwd() == tmp_path


def test_samples_are_of_the_policy_and_repeat_for_a_seed() -> None:
    observations = np.zeros((4096, 4), np.float32)
    first, second, other = (tributary.load("zoo:cartpole", seed=seed).act(observations)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert 0 < np.mean(first) < 1
    assert (first != other).any()


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
    assert game.unwrapped.np_random_seed == 4, "later games follow from it"
    game.close()
    training.close()
    with pytest.raises(ValueError, match="render_mode ansi: must be rgb_array, human or None"):
        agent.environment("ansi")


@pytest.mark.usefixtures("seen_environment")
@pytest.mark.parametrize(
    ("game", "stack"), [("Seen-v0", 1), ("Seen-v0", 4), ("Pictures-v0", 1), ("Pictures-v0", 4), ("ALE/Pong-v5", 1)]
)
def test_an_agent_plays_its_own_environment_step_by_step(game: str, stack: int, tmp_path: Path) -> None:
    """One image stacked is one observation of the environment, not a batch of one."""
    changed = {"environment.id": game, "environment.frame_stack": stack}
    run = untrained(tmp_path / "run", "atari" if game.startswith("ALE/") else "images", **changed)
    agent = tributary.load(run)
    environment = agent.environment()
    observation, _ = environment.reset(seed=1)
    for _ in range(3):
        action, _ = agent.act(observation)
        assert np.shape(action) == ()
        observation, *_ = environment.step(action)
    # As Gymnasium stacks the observations of several environments.
    space = environment.observation_space
    batch = concatenate(space, [observation] * 2, create_empty_array(space, 2))
    assert agent.act(batch)[0].shape == (2,)


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
    with pytest.raises(ValueError, match="the state has 2 rows, for 3 observations"):
        agent.act(observations[0, :3], memory)
    for wrong in ((), (*memory, memory[0])):
        with pytest.raises(ValueError, match=f"the state has {len(wrong)} arrays, and that of this agent has 2"):
            agent.act(observations[:2, 0], wrong)
