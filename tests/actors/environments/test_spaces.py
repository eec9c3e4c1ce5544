"""Environments of all kinds of spaces: what a network sees of their observations, and what they get for its actions."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from spaces import Given, registered

from actors.environments import VectorEnvironment, environment_spec
from actors.environments.actions import random_actions
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError
from shared.types import ActionSpec

NAME = "Given-v0"
TWO = Discrete(2)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    gymnasium.registry.pop(NAME, None)


def config(environment: Given, **settings: object) -> EnvironmentConfig:
    return EnvironmentConfig(id=registered(NAME, environment), frame_skip=1, **settings)


@pytest.mark.parametrize(
    ("space", "observation", "vector"),
    [
        (Discrete(3, start=2), 4, [0, 0, 1]),
        (MultiDiscrete([2, 3], start=[0, 1]), np.array([1, 2]), [0, 1, 0, 1, 0]),
        (MultiDiscrete([[2, 2], [2, 2]]), np.array([[0, 1], [1, 0]]), [1, 0, 0, 1, 0, 1, 1, 0]),
        (MultiBinary(3), np.array([0, 1, 1], np.int8), [0, 1, 1]),
        (MultiBinary([2, 2]), np.array([[0, 1], [1, 1]], np.int8), [0, 1, 1, 1]),
        (Box(-2, 2, (2, 2)), np.array([[-1, 0], [1, 2]], np.float32), [-1, 0, 1, 2]),
        (Box(0, 255, (2, 1, 2), np.uint8), np.array([[[7, 255]], [[0, 1]]], np.uint8), [7, 255, 0, 1]),
        (Box(-1, 1, ()), np.array(0.5, np.float32), [0.5]),
        (
            Dict({"b": Discrete(2), "a": Box(-1, 1, (2,)), "word": Text(5)}),
            {"b": 1, "a": np.array([0.25, -1], np.float32), "word": "left"},
            [0.25, -1, 0, 1],
        ),
        (
            Tuple((Box(-1, 1, (1,)), Tuple((Discrete(2), TWO)))),
            (np.array([0.5], np.float32), (1, 0)),
            [0.5, 0, 1, 1, 0],
        ),
    ],
)
def test_observations_without_images_are_vectors(space: gymnasium.Space, observation: object, vector: list) -> None:
    settings = config(Given(space, TWO, [observation]))
    spec = environment_spec(settings)
    assert (spec.observation_shape, spec.observation_dtype, spec.images) == ((len(vector),), "float32", False)
    assert spec.observation_bounds is not None
    low, high = np.array(spec.observation_bounds)
    assert (low <= vector).all()
    assert (vector <= high).all()
    assert spec.left_out == (("word",) if isinstance(space, Dict) else ())
    environment = VectorEnvironment(settings, 1)
    np.testing.assert_array_equal(environment.reset(0), [vector])
    to = np.full((1, len(vector)), np.nan, np.float32)
    assert environment.step(np.zeros(1, np.int32), to).observations is to
    np.testing.assert_array_equal(to, [vector])


@pytest.mark.parametrize(
    ("space", "actions", "spec", "taken"),
    [
        (Discrete(3, start=5), np.int32(2), ActionSpec(3), 7),
        (MultiDiscrete([3, 2]), np.int32([2, 0]), ActionSpec(5, choices=(3, 2)), [2, 0]),
        (MultiDiscrete([3, 2], start=[1, -1]), np.int32([2, 0]), ActionSpec(5, choices=(3, 2)), [3, -1]),
        (MultiBinary([2, 2]), np.int32([0, 1, 1, 0]), ActionSpec(8, choices=(2,) * 4), [[0, 1], [1, 0]]),
        (Box(-4, 8, (2, 2)), np.float32([-1, 0, 0.5, 9]), ActionSpec(4, continuous=True), [[-4, 2], [5, 8]]),
        (Box(-np.inf, np.inf, (1,)), np.float32([7]), ActionSpec(1, continuous=True), [7]),
        (Box(0, 10, (2,), np.int64), np.float32([-1, 0.05]), ActionSpec(2, continuous=True), [0, 5]),
    ],
)
def test_actions_of_all_kinds_reach_the_environment(
    space: gymnasium.Space, actions: np.ndarray, spec: ActionSpec, taken: object
) -> None:
    environment = Given(Box(-1, 1, (1,)), space, [np.zeros(1, np.float32)] * 100)
    settings = config(environment)
    assert environment_spec(settings).actions == spec
    vector = VectorEnvironment(settings, 1)
    vector.reset(0)
    vector.step(actions[None])
    np.testing.assert_array_equal(environment.taken[-1], taken)
    # The environment itself refuses what is outside of its space.
    generator = np.random.default_rng(0)
    drawn = [random_actions(spec, 1, generator) for _ in range(50)]
    for one in drawn:
        vector.step(one)
    assert {one.shape for one in drawn} == {(1, *spec.shape)}
    assert len({one.tobytes() for one in drawn}) > 1


IMAGE = Box(0, 255, (32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("observations", "actions", "line"),
    [
        (Dict({"camera": IMAGE, "speed": Box(0, 1, (1,))}), TWO, "observation camera is an image beside others"),
        (Sequence(Box(0, 1, (1,))), TWO, "neither numbers nor choices; wrap it"),
        (Dict({"graph": Graph(Box(0, 1, (1,)), None)}), TWO, "neither numbers nor choices; wrap it"),
        (Text(5), TWO, "there are no numbers in them"),
        (Box(0, 1, (1,)), Tuple((TWO, TWO)), "a choice, several choices or an array can be played; wrap it"),
    ],
)
def test_what_cannot_be_played_is_one_line(observations: gymnasium.Space, actions: gymnasium.Space, line: str) -> None:
    settings = config(Given(observations, actions, [observations.sample()]))
    with pytest.raises(ConfigurationError, match=line) as error:
        environment_spec(settings)
    assert str(error.value).startswith("--environment.id Given-v0: ")
    assert "\n" not in str(error.value)


def picture(value: int) -> np.ndarray:
    """Half of it in one colour: 32 x 32."""
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, 16:] = (value, value, value)
    return image


def test_images_are_resized_in_grey_and_stacked_with_the_newest_last() -> None:
    settings = config(Given(IMAGE, TWO, [picture(v) for v in (10, 20, 30)]), screen_size=16, frame_stack=2)
    spec = environment_spec(settings)
    assert (spec.observation_shape, spec.observation_dtype, spec.images) == ((16, 16, 2), "uint8", True)
    environment = VectorEnvironment(settings, 1)
    corner = environment.reset(0)[0, 0]
    assert (corner[0].tolist(), corner[-1].tolist()) == ([0, 0], [10, 10])
    to = np.empty((1, 16, 16, 2), np.uint8)
    environment.step(np.zeros(1, np.int32), to)
    assert to[0, 15, 15].tolist() == [10, 20]
    environment.step(np.zeros(1, np.int32))
    environment.step(np.zeros(1, np.int32))
    after_reset = environment.step(np.zeros(1, np.int32)).observations
    assert after_reset[0, 15, 15].tolist() == [10, 10]


@pytest.mark.parametrize(
    ("image", "settings", "shape", "pixel"),
    [
        (picture(7), {"greyscale": False}, (32, 32, 3), [7, 7, 7]),
        (np.moveaxis(picture(7), -1, 0), {"greyscale": False}, (32, 32, 3), [7, 7, 7]),
        (np.moveaxis(picture(7), -1, 0), {"screen_size": 20}, (20, 20, 1), [7]),
        (picture(7)[..., 0], {}, (32, 32, 1), [7]),
        (picture(7)[..., :2], {"screen_size": 20}, (20, 20, 2), [7, 7]),
    ],
)
def test_images_of_all_shapes(image: np.ndarray, settings: dict, shape: tuple[int, ...], pixel: list[int]) -> None:
    given = Given(Box(0, 255, image.shape, np.uint8), TWO, [image])
    environment = VectorEnvironment(config(given, **{"screen_size": None, "frame_stack": 1, **settings}), 1)
    assert environment.spec().observation_shape == shape
    assert environment.reset(0)[0, -1, -1].tolist() == pixel
