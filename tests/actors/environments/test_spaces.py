"""Environments of all kinds of spaces: what a network sees of their observations, and what they get for its actions."""

from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from spaces import Given, registered

from actors.environments import VectorEnvironment, adapter_of, environment_spec, measure_observation_mean
from actors.environments.spaces import Actions, Observations, random_actions
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


WIDEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("space", "observation", "vector"),
    [
        (Discrete(3, start=2), 4, [0, 0, 1]),
        (MultiDiscrete([2, 3], start=[0, 1]), np.array([1, 2]), [0, 1, 0, 1, 0]),
        (MultiBinary([2, 2]), np.array([[0, 1], [1, 1]], np.int8), [0, 1, 1, 1]),
        (Box(-2, 2, (2, 2)), np.array([[-1, 0], [1, 2]], np.float32), [-1, 0, 1, 2]),
        (Box(0, 255, (2, 1, 2), np.uint8), np.array([[[7, 255]], [[0, 1]]], np.uint8), [7, 255, 0, 1]),
        (Box(-1, 1, ()), np.array(0.5, np.float32), [0.5]),
        # Squares of these are beyond float32.
        (Box(-np.inf, np.inf, (2,)), np.array([2.0**100, -1], np.float32), [2.0**100, -1]),
        (Box(-np.inf, np.inf, (2,)), np.array([np.inf, -1], np.float32), [0, -1]),
        (
            Dict({"b": Discrete(2), "a": Box(-1, 1, (2,)), "word": Text(5)}),
            {"b": 1, "a": np.array([0.25, -1], np.float32), "word": "left"},
            [0.25, -1, 0, 1],
        ),
        (Tuple((Box(-1, 1, (1,)), Tuple((TWO, TWO)))), (np.array([0.5], np.float32), (1, 0)), [0.5, 0, 1, 1, 0]),
    ],
)
def test_observations_without_images_are_vectors(space: gymnasium.Space, observation: object, vector: list) -> None:
    settings = config(Given(space, TWO, [observation]))
    spec = environment_spec(settings)
    assert (spec.observation_shape, spec.observation_dtype, spec.images) == ((len(vector),), "float32", False)
    low, high = np.array(spec.observation_bounds)
    assert (low <= vector).all()
    assert (vector <= high).all()
    assert spec.left_out == (("word",) if isinstance(space, Dict) else ())
    environment = VectorEnvironment(settings, 1)
    np.testing.assert_array_equal(environment.reset(0), [vector])
    to = np.full((1, len(vector)), np.nan, np.float32)
    assert environment.step(np.zeros(1, np.int32), to).observations is to
    np.testing.assert_array_equal(to, [vector])


def continuous(size: int) -> ActionSpec:
    return ActionSpec(size, continuous=True)


@pytest.mark.parametrize(
    ("space", "actions", "spec", "taken"),
    [
        (Discrete(3, start=5), np.int32(2), ActionSpec(3), 7),
        (Discrete(3), np.int32(2), ActionSpec(3), 2),
        (MultiDiscrete([3, 2], start=[1, -1]), np.int32([2, 0]), ActionSpec(5, choices=(3, 2)), [3, -1]),
        (MultiBinary([2, 2]), np.int32([0, 1, 1, 0]), ActionSpec(8, choices=(2,) * 4), [[0, 1], [1, 0]]),
        (Box(-4, 8, (2, 2)), np.float32([-1, 0, 0.5, 9]), continuous(4), [[-4, 2], [5, 8]]),
        (Box(-np.inf, np.inf, (1,)), np.float32([7]), continuous(1), [7]),
        (Box(0, 10, (2,), np.int64), np.float32([-1, 0.05]), continuous(2), [0, 5]),
        (Box(0, 1, (3,), np.bool_), np.float32([-1, -0.1, 0.1]), continuous(3), [False, False, True]),
        (Box(np.float32([-1, 5]), np.float32([3, np.inf])), np.float32([np.nan] * 2), continuous(2), [1, 5]),
        (Box(0, 10, (2,), np.int64), np.float32([np.nan, np.inf]), continuous(2), [5, 10]),
        # Ranges that are too wide for float32.
        (Box(0, 2**31 - 1, (2,), np.int32), np.float32([-1, 1]), continuous(2), [0, 2**31 - 1]),
        # The largest float stands for no bound.
        (Box(-WIDEST, WIDEST, (3,)), np.float32([-1, 0, 1]), continuous(3), [-1, 0, 1]),
        # One bound clips, and the result has the dtype of the space: 0.3 in float32 is outside.
        (Box(np.array([0, -0.1]), np.array([np.inf, 0.3]), dtype=float), np.float32([-3, 3]), continuous(2), [0, 0.3]),
        (Box(-(2**63), 2**63 - 1, (1,), np.int64), np.float32([3]), continuous(1), [2**63 - 1]),
        # Gymnasium has the dtype's ends in place of an infinity.
        (Box(0, np.inf, (3,), np.int32), np.float32([-2, 0.6, 3]), continuous(3), [0, 1, 3]),
    ],
)
def test_actions_of_all_kinds(space: gymnasium.Space, actions: np.ndarray, spec: ActionSpec, taken: object) -> None:
    environment = Given(Box(-1, 1, (1,)), space, [np.zeros(1, np.float32)] * 100)
    settings = config(environment)
    assert environment_spec(settings).actions == spec
    vector = VectorEnvironment(settings, 1)
    vector.reset(0)
    vector.step(actions[None])
    np.testing.assert_array_equal(environment.taken[-1], taken)
    assert environment.taken[-1].dtype == space.dtype
    # The environment itself refuses what is outside of its space.
    generator = np.random.default_rng(0)
    drawn = [random_actions(spec, 1, generator) for _ in range(50)]
    for one in drawn:
        vector.step(one)
    assert {one.shape for one in drawn} == {(1, *spec.shape)}
    assert len({one.tobytes() for one in drawn}) > 1


IMAGE = Box(0, 255, (32, 32, 3), np.uint8)


def picture(value: int) -> np.ndarray:
    """Half of it in one colour: 32 x 32."""
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, 16:] = (value, value, value)
    return image


@pytest.mark.parametrize(
    ("observations", "actions", "line"),
    [
        (Sequence(Box(0, 1, (1,))), TWO, "neither numbers nor choices; wrap it"),
        (Text(5), TWO, "there are no numbers in them"),
        (Discrete(10**6), TWO, "1,000,000 one-hot numbers take gigabytes; wrap it in an environment that gives fewer"),
        (MultiDiscrete([2**62] * 3), TWO, "13,835,058,055,282,163,712 one-hot numbers take gigabytes"),
        (Dict({"a": Box(-1, 1, (1_000_001,), np.float16)}), TWO, "1,000,001 numbers take gigabytes; wrap it"),
        (Box(0, 1, (1,)), MultiDiscrete([2**62] * 2), "9,223,372,036,854,775,808 outputs takes gigabytes"),
        (Box(0, 1, (1,)), MultiBinary(60_000), "120,000 outputs takes gigabytes"),
        (Box(0, 1, (1,)), Tuple((TWO, TWO)), "a choice, several choices or an array can be played, and no mixture"),
        (Box(0, 1, (1,)), Dict(go=Dict(gear=TWO), aim=Box(-1, 1, (2,))), r"actions are Dict\(.*'gear'.* no mixture of"),
    ],
)
def test_what_cannot_be_played_is_one_line(observations: gymnasium.Space, actions: gymnasium.Space, line: str) -> None:
    settings = config(Given(observations, actions, []))
    with pytest.raises(ConfigurationError, match=line) as error:
        environment_spec(settings)
    assert str(error.value).startswith("--environment.id Given-v0: ")
    assert "\n" not in str(error.value)


def test_the_largest_number_of_a_dtype_is_no_bound() -> None:
    description = Actions(Box(-np.inf, 2.0, (2,), np.float16)).description()
    assert (description["low"], description["high"]) == ([None, None], [2.0, 2.0])
    counters = config(Given(Box(0, np.inf, (2,), np.int32), TWO, [np.zeros(2, np.int32)]))
    assert environment_spec(counters).observation_bounds == ((0.0, 0.0), (np.inf, np.inf))


def test_images_are_resized_in_grey_and_stacked_with_the_newest_last() -> None:
    settings = config(Given(IMAGE, TWO, [picture(v) for v in (10, 20, 30)]), screen_size=16, frame_stack=3)
    spec = environment_spec(settings)
    assert (spec.observation_shape, spec.observation_dtype, spec.images) == ((16, 16, 3), "uint8", True)
    environment = VectorEnvironment(settings, 1)
    corner = environment.reset(0)[0, 0]
    assert (corner[0].tolist(), corner[-1].tolist()) == ([0] * 3, [10] * 3)
    to = np.empty((1, 16, 16, 3), np.uint8)
    environment.step(np.zeros(1, np.int32), to)
    assert to[0, 15, 15].tolist() == [10, 10, 20]
    environment.step(np.zeros(1, np.int32))
    environment.step(np.zeros(1, np.int32))
    after_reset = environment.step(np.zeros(1, np.int32)).observations
    assert after_reset[0, 15, 15].tolist() == [10, 10, 10]
    # Of a repeated action the last image is seen.
    repeating = VectorEnvironment(replace(settings, frame_skip=2), 1)
    repeating.reset(0)
    assert repeating.step(np.zeros(1, np.int32)).observations[0, 15, 15].tolist() == [10, 10, 30]


@pytest.mark.parametrize(
    ("image", "settings", "shape", "pixel"),
    [
        (picture(7), {"greyscale": False}, (32, 32, 3), [7, 7, 7]),
        (np.moveaxis(picture(7), -1, 0), {"screen_size": 20}, (20, 20, 1), [7]),
        (picture(7)[..., :2], {"screen_size": 20}, (20, 20, 2), [7, 7]),
        (np.full((17, 32, 32), 7, np.uint8), {"screen_size": 20}, (20, 20, 17), [7] * 17),
        # Thin lines stay visible, in proportion.
        (np.uint8(255) * (np.arange(32) == 31)[:, None].repeat(32, 1), {"screen_size": 16}, (16, 16, 1), [109]),
        (np.uint8(255) * (np.arange(32) == 30)[:, None].repeat(32, 1), {"screen_size": 16}, (16, 16, 1), [109]),
    ],
)
def test_images_of_all_shapes(image: np.ndarray, settings: dict, shape: tuple[int, ...], pixel: list[int]) -> None:
    given = Given(Box(0, 255, image.shape, np.uint8), TWO, [image])
    environment = VectorEnvironment(config(given, **{"screen_size": None, "frame_stack": 1, **settings}), 1)
    assert environment.spec().observation_shape == shape
    assert environment.reset(0)[0, -1, -1].tolist() == pixel


@pytest.mark.usefixtures("short_random_play")
def test_the_mean_observation_is_of_every_tenth_step() -> None:
    plain = {"screen_size": None, "greyscale": False, "frame_stack": 1}
    mean = measure_observation_mean(config(Given(IMAGE, TWO, [picture(v) for v in range(50)]), **plain), 0)
    assert (mean.dtype, mean.shape, mean[0, 0, 0], mean[0, -1, 0]) == (np.float32, (32, 32, 3), 0.0, 25.0)


def test_an_environment_may_draw_its_images_in_the_same_memory() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    seen = {"screen_size": None, "greyscale": False, "frame_stack": 3}
    environment = VectorEnvironment(config(Given(IMAGE, TWO, [image] * 9), **seen), 1)
    environment.reset(0)
    for stacked in ([0, 0, 1], [0, 1, 2]):
        image += 1
        assert environment.step(np.zeros(1, np.int32)).observations[0, 5, 5, ::3].tolist() == stacked


def test_a_program_may_draw_in_the_stack_that_it_was_given() -> None:
    given = Given(IMAGE, TWO, [picture(v) for v in (10, 20)])
    environment = adapter_of(config(given, screen_size=None, frame_stack=2)).make_single()
    seen, _ = environment.reset()
    seen[:] = 99
    assert environment.step(0)[0][:, -1, -1, 0].tolist() == [10, 20]


BESIDE = Dict(
    {
        "camera": IMAGE,
        "gear": Discrete(3, start=1),
        "word": Text(5),
        "inside": Tuple((Box(0, 255, (3, 20, 20), np.uint8), Box(-1, 1, (2,), np.float64))),
        "map": Box(0, 255, (2, 2), np.uint8),
    }
)


def beside(value: int) -> dict:
    return {
        "camera": picture(value),
        "gear": 2,
        "word": "left",
        "inside": (np.full((3, 20, 20), value + 1, np.uint8), np.array([value / 100, -0.3])),
        "map": np.full((2, 2), value + 2, np.uint8),
    }


def test_images_beside_numbers_are_one_row_of_bytes() -> None:
    """Each image as it is alone: in grey, in their size, stacked; and float32 numbers, to the bit."""
    settings = config(Given(BESIDE, TWO, [beside(10), beside(20), beside(30)]), screen_size=None, frame_stack=2)
    spec = environment_spec(settings)
    parts = spec.parts
    assert parts.numbers == (("gear", 3), ("inside.1", 2), ("map", 4))
    assert [tuple(image) for image in parts.images] == [("image_camera", (32, 32, 2)), ("image_inside_0", (20, 20, 2))]
    assert (spec.observation_shape, spec.observation_dtype) == ((4 * 9 + 32 * 32 * 2 + 20 * 20 * 2,), "uint8")
    assert (spec.images, spec.left_out, spec.image_shapes) == (True, ("word",), ((32, 32, 2), (20, 20, 2)))
    assert spec.observation_bounds == ((0, 0, 0, -1, -1, 0, 0, 0, 0), (1, 1, 1, 1, 1, 255, 255, 255, 255))
    environment = VectorEnvironment(settings, 1)
    rows = [environment.reset(0), environment.step(np.zeros(1, np.int32)).observations]
    # Into the buffer of a rollout.
    to = np.zeros((1, parts.row_size), np.uint8)
    assert environment.step(np.zeros(1, np.int32), to).observations is to
    for row, (old, new) in zip([*rows, to], [(10, 10), (10, 20), (20, 30)], strict=True):
        numbers = np.array([0, 1, 0, new / 100, -0.3, *[new + 2] * 4], np.float32)
        np.testing.assert_array_equal(parts.vectors(row), numbers[None])
        camera, inside = (row[0, where].reshape(image.shape) for image, where in parts.image_bytes())
        np.testing.assert_array_equal(camera[:, 16:], np.broadcast_to([old, new], (32, 16, 2)))
        assert not camera[:, :16].any()
        np.testing.assert_array_equal(inside, np.broadcast_to([old + 1, new + 1], (20, 20, 2)))


def test_each_row_of_a_batch_has_its_own() -> None:
    stack = Box(0, 255, (2, 16, 16, 3), np.uint8)
    packed = Observations(Tuple((Box(-9, 9, (1,)), stack)))
    random = np.random.default_rng(0)
    numbers = random.normal(size=(3, 1)).astype(np.float32)
    images = random.integers(0, 256, (3, *stack.shape), np.uint8)
    # A length that four does not divide, as rows of a longer buffer.
    rows = np.zeros((3, packed.parts.row_size + 3), np.uint8)[:, : packed.parts.row_size]
    packed.write((numbers, images), rows)
    np.testing.assert_array_equal(packed.parts.vectors(rows), numbers)
    together = np.moveaxis(images, 1, 3).reshape(3, -1)
    np.testing.assert_array_equal(rows[:, 4:], together)


def test_images_need_no_numbers_beside_them() -> None:
    keys = ("a b", "a_b", "a_b_1", "画")
    several = Dict(dict.fromkeys(keys, IMAGE))
    spec = environment_spec(config(Given(several, TWO, [dict.fromkeys(keys, picture(1))]), screen_size=16))
    assert (spec.parts.numbers, spec.observation_shape) == ((), (4 * 16 * 16 * 4,))
    # Of TensorFlow's characters, and none twice.
    assert [image.name for image in spec.parts.images] == ["image_a_b", "image_a_b_1", "image_a_b_1_2", "image__"]


@pytest.mark.parametrize(
    ("space", "seen", "numbers", "note"),
    [
        (IMAGE, {}, None, "image 32 × 32 × 3 → 84 × 84 grey, 4 stacked (--environment.screen-size, greyscale, frame-"),
        (Box(0, 255, (40, 40, 4), np.uint8), {"frame_stack": 1}, None, "image 40 × 40 × 4 → 84 × 84 × 4 (--env"),
        (Dict({"at": IMAGE, "x": TWO}), {"screen_size": 36}, 2, "at: image 32 × 32 × 3 → 36 × 36 grey, 4 stacked"),
        (Box(0, 2, (19, 19), np.uint8), {}, 361, "of uint8 [19, 19] are read as 361 numbers; images have values"),
        (Box(0, 1, (40, 40)), {}, 1600, "of float32 [40, 40] are read as 1,600 numbers; images are uint8"),
        (Box(0, 255, (2, 40, 40, 3), np.uint8), {}, None, "of uint8 [2, 40, 40, 3] are read as 2 images of 3 channels"),
    ],
)
def test_notes_on_observations(space: gymnasium.Space, seen: dict, numbers: int | None, note: str | None) -> None:
    spec = environment_spec(config(Given(space, TWO, [space.sample()] * 4), **seen), trial=True)
    assert (sum(size for _, size in spec.numbers) or None) == numbers
    assert [note in given for given in spec.notes] == [True] * (note is not None), spec.notes


def test_grey_is_the_luminance_of_all_three_colours() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    for channel in range(3):
        image[8 * channel :][:8, :, channel] = 255
    environment = VectorEnvironment(config(Given(IMAGE, TWO, [image]), screen_size=None, frame_stack=1), 1)
    # Red, green, blue and black (ITU-R 601).
    assert environment.reset(0)[0, ::8, 0, 0].tolist() == [76, 150, 29, 0]
