"""What environments of users return and raise: converted, or refused in one line with the place in their code."""

import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from actors.environments import VectorEnvironment, environment_spec
from actors.environments.validation import info_number, info_numbers
from actors.environments.values import observation_check
from shared.config import EnvironmentConfig
from shared.config.task import read_option
from shared.errors import ConfigurationError, EnvironmentFailedError

TWO = Box(-1, 1, (2,), np.float32)
PICTURE = Box(0, 255, (16, 16), np.uint8)
FAILS_AT = 5


def stalls() -> None:
    raise RuntimeError("engine\n stalled")


def leaves() -> None:
    sys.exit(3)


class Faulty(gymnasium.Env):
    """At step 5, or at its reset, it does `what`: raises it, or returns it in place of its result or a part of it."""

    observation_space, action_space = TWO, Discrete(2)

    def __init__(self, what: Callable[[], object] = stalls, part: int | str | None = None) -> None:
        self._what, self._part = what, part

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._what() if self._part == "reset" else (np.zeros(2, np.float32), {})

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self._t += 1
        observation, info = np.full(2, self._t / 99, np.float32), {"path": np.zeros(self._t), "t": self._t}
        result: list[Any] = [observation, 1.0, self._t >= 9, False, info]
        if self._t == FAILS_AT and self._part is None:
            return self._what()
        if self._t == FAILS_AT and isinstance(self._part, int):
            result[self._part] = self._what()
        return tuple(result)

    def close(self) -> None:
        raise AttributeError("no viewer")


@pytest.fixture
def faulty() -> Any:
    def config(what: Callable[[], object] = stalls, part: int | str | None = None, **others: Any) -> EnvironmentConfig:
        gymnasium.register("Faulty-v0", Faulty, kwargs={"what": what, "part": part})
        return EnvironmentConfig(id="Faulty-v0", frame_skip=1, **others)

    yield config
    gymnasium.registry.pop("Faulty-v0", None)


def played(config: EnvironmentConfig, steps: int = 12) -> list[Any]:
    environment = VectorEnvironment(config, 2)
    try:
        environment.reset(0)
        return [environment.step(np.zeros(2, np.int32)) for _ in range(steps)]
    finally:
        environment.close()


@pytest.mark.parametrize(
    ("space", "came", "expected"),
    [
        (TWO, [0.5, 1], np.float32([0.5, 1])),
        (TWO, np.array([0.5, 1]), np.float32([0.5, 1])),
        (Box(-1, 1, (1,), np.float32), 0.5, np.float32([0.5])),
        (Box(0, 255, (2, 1, 1), np.uint8), [[[1]], [[255]]], np.uint8([[[1]], [[255]]])),
        (Discrete(3, start=2), np.array([4]), np.int64(4)),
        (Discrete(3, dtype=np.uint8), np.uint8(2), np.uint8(2)),
        (MultiDiscrete([2, 3]), [1, 2], np.array([1, 2])),
        (MultiBinary(2), np.array([True, False]), np.int8([1, 0])),
        (TWO, np.array([1e300, np.nan]), np.float32([np.inf, np.nan])),
    ],
)
def test_values_that_lose_nothing_are_converted(space: gymnasium.Space, came: Any, expected: Any) -> None:
    found = observation_check(space)(came)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == space.dtype


@pytest.mark.parametrize(
    ("space", "came", "line"),
    [
        (TWO, None, "the observation is None, where float32 [2] is expected"),
        (TWO, np.zeros((2, 2), np.float32), "is an array float32 [2, 2], where float32 [2] is expected"),
        (TWO, np.ma.array([1.0, 0.5], mask=[0, 1]), "is an array float64 [2] with masked numbers, where"),
        (PICTURE, np.full((16, 16), 0.5), "is an array float64 [16, 16] with 0.5, where uint8 [16, 16] is expected"),
        (Discrete(3), 3, "the observation is 3, where its space has 0 to 2"),
        (Discrete(3), 0.5, "with 0.5, where a whole number from 0 to 2 is expected"),
        (MultiBinary(2), [0, 2], "the observation has 2, which its space int8 [2] has not"),
        (MultiDiscrete([2, 3], start=[1, 1]), [1, 0], "the observation has 0, which its space int64 [2] has not"),
        (MultiDiscrete([2, 3], start=[1, 1]), [2, 4], "the observation has 4, which its space int64 [2] has not"),
        (Dict({"a": TWO, "b": Discrete(2)}), {"a": [0, 0]}, "is a dict with 'a', where a dictionary with 'a', 'b'"),
        (Tuple((TWO, TWO)), ([0, 0],), "is a tuple of 1 (list), where a tuple of 2 is expected"),
        (Tuple((TWO, TWO)), ([0, 0],) * 3, "is a tuple of 3 (list, list, list), where a tuple of 2 is expected"),
    ],
)
def test_values_of_another_kind_are_refused(space: gymnasium.Space, came: Any, line: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        observation_check(space)(came)
    assert line in str(error.value)


def test_dictionaries_of_any_class() -> None:
    check = observation_check(Dict({"a": TWO, "word": Text(3)}))
    found = check(OrderedDict(word=None, a=[0, 1], more="more"))
    assert list(found) == ["a", "word"]
    assert isinstance(found["word"], str)


# Neither the pickled form of its error nor its text makes another one.
ENGINE = """
import gymnasium, numpy
from gymnasium.spaces import Box, Discrete

class EngineError(Exception):
    def __init__(self, code, text):
        super().__init__(f"E{code}: {text}")

def stall():
    raise EngineError(17, "engine stalled")

class Engine(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    def reset(self, seed=None, options=None):
        self.left = 5 - (seed or 0)
        return numpy.zeros(2, numpy.float32), {"path": numpy.zeros(self.left)}
    def step(self, action):
        self.left -= 1
        if not self.left:
            stall()
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {"path": numpy.zeros(self.left)}

gymnasium.register("Engine-v0", Engine)
"""


# Gymnasium warns with a traceback where the process of a copy ends.
@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_error_of_one_copy_names_its_place(vectorization: Any, working_folder: Path, monkeypatch) -> None:
    # The infos of the copies have arrays of different lengths, which cannot be assembled.
    (working_folder / "engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(working_folder)
    config = EnvironmentConfig(id="engine:Engine-v0", frame_skip=1, vectorization=vectorization)
    with pytest.raises(EnvironmentFailedError) as error:
        played(config)
    where = 1 + ENGINE.splitlines().index("def stall():") + 1
    expected = f"engine:Engine-v0: step() raised EngineError: E17: engine stalled (engine.py:{where}, in stall)"
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("what", "part", "line"),
    [
        (lambda: None, None, "returned None, where (observation, reward, terminated, truncated, info) is expected"),
        (lambda: None, 0, "the observation is None, where float32 [2] is expected"),
        (lambda: "1.0", 1, "the reward is '1.0', where a number is expected"),
        (lambda: 10**5000, 1, "int too large to convert to float"),
        (lambda: None, 2, "terminated is None, where True or False is expected"),
        (lambda: 0.5, 3, "truncated is 0.5, where True or False is expected"),
        (stalls, None, "raised RuntimeError: engine stalled"),
        (leaves, None, "raised SystemExit: 3"),
        (lambda: None, "reset", "returned None, where (observation, info) is expected"),
        (lambda: (None, {}), "reset", "the observation is None, where float32 [2] is expected"),
        (lambda: (np.zeros(3, np.float32), {}), "reset", "is an array float32 [3], where float32 [2] is expected"),
    ],
)
def test_a_wrong_result_is_one_line(faulty: Any, what: Any, part: int | str | None, line: str) -> None:
    method = "reset" if part == "reset" else "step"
    where = method if what.__name__ == "<lambda>" else what.__name__
    text = rf"^Faulty-v0: {method}\(\):? .*{re.escape(line)} \(test_validation.py:\d+, in {where}\)$"
    with pytest.raises(EnvironmentFailedError, match=text):
        played(faulty(what, part))


@pytest.mark.parametrize(
    ("value", "part", "reward"),
    [(np.array([1.0]), 1, 1), (2**70, 1, 2**70), (np.False_, 2, 1), (0, 3, 1), (None, 4, 1)],
)
def test_results_of_neighbouring_types_are_meant(faulty: Any, value: object, part: int, reward: float) -> None:
    steps = played(faulty(lambda: value, part), 9)
    assert [float(step.rewards[0]) for step in steps] == [1, 1, 1, 1, reward, 1, 1, 1, 1]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 8 + [True]


@pytest.mark.parametrize("part", ["observation_space", "action_space"])
def test_a_space_of_another_library_is_named(faulty: Any, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(Faulty, part, range(2))
    line = rf"cannot be made: TypeError: its {part} is range\(0, 2\) \(builtins\), where one of Gymnasium is expected"
    with pytest.raises(ConfigurationError, match=line):
        environment_spec(faulty())


def test_an_error_in_the_first_steps_is_found_before_training(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.FAILS_AT", 2)
    config = faulty()
    assert environment_spec(config).observation_shape == (2,)
    with pytest.raises(ConfigurationError, match=r"--environment.id Faulty-v0: step\(\) raised RuntimeError"):
        environment_spec(config, trial=True)


def test_only_requested_info_is_read(faulty: Any) -> None:
    # Arrays of different lengths cannot be assembled.
    assert played(faulty(lambda: {"why": "crash"}, 4))[0].info == {}
    gymnasium.registry.pop("Faulty-v0")
    steps = played(faulty(dict, 4, log_info=("path", "t")), 10)
    # At the ends of episodes.
    times = [[math.nan] * 2] * 8 + [[9, 9], [math.nan] * 2]
    np.testing.assert_equal([step.info for step in steps], [{"path": [math.nan] * 2, "t": time} for time in times])
    gymnasium.registry.pop("Faulty-v0")
    truncated = played(faulty(lambda: True, 3, log_info=("t",)), FAILS_AT)
    np.testing.assert_equal(truncated[-1].info, {"t": [FAILS_AT] * 2})


@pytest.mark.parametrize(
    ("info", "name", "number"),
    [
        ({"episode": {"r": 7.5}}, "episode.r", 7.5),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", 1.0),
        ({"x": np.array([3])}, "x", 3.0),
        ({"x": np.zeros(2)}, "x", math.nan),
        ({"episode": {"r": 1}}, "episode", math.nan),
        (None, "x", math.nan),
    ],
)
def test_numbers_of_info(info: Any, name: str, number: float) -> None:
    np.testing.assert_equal(info_number(info, name), number)


def test_a_copy_of_a_vector_may_lack_a_number() -> None:
    info = {"x": np.array([1.0, 0.0]), "_x": np.array([True, False])}
    np.testing.assert_equal(info_numbers(info, "x", 2), [1.0, math.nan])
    nested = {"goal": {"x": np.array([1.0, 0.0])}, "_goal": np.array([True, False])}
    np.testing.assert_equal(info_numbers(nested, "goal.x", 2), [1.0, math.nan])


def test_options_are_read_by_the_type_of_their_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {}

    def make(  # type: ignore[no-untyped-def]
        level=0,
        limit: float = 1.0,
        code: str = "",
        seed: "int | None" = None,
        depth: "int | None" = 10,
        text: str = "",
        fast: bool = False,  # noqa: ARG001
        goal=np.zeros(2),  # noqa: ARG001, B008
        **others: Any,
    ) -> gymnasium.Env:
        taken.update(level=level, limit=limit, code=code, seed=seed, depth=depth, text=text, **others)
        return Faulty()

    options = {
        "level": ("007", 7),
        "limit": ("inf", math.inf),
        "code": (12, "12"),
        "seed": ("007", 7),
        "name": ("12e4", "12e4"),
        "rate": (read_option("1e-3"), 1e-3),
        "flag": (read_option("true"), True),
        "depth": ("None", None),
        "text": ("None", "None"),
        "maze": (None, None),
        "map": ("007", "007"),
    }
    monkeypatch.setitem(gymnasium.registry, "Options-v0", gymnasium.envs.registration.EnvSpec("Options-v0", make))
    typed = {name: value for name, (value, _) in options.items()}
    environment_spec(EnvironmentConfig(id="Options-v0", frame_skip=1, options=typed))
    taken.pop("render_mode", None)
    assert taken == {name: value for name, (_, value) in options.items()}
    for name, value, expected in (
        ("limit", "1,5", "float"),
        ("depth", "deep", "int"),
        ("depth", "2.5", "int"),
        ("fast", "2", "bool"),
    ):
        config = EnvironmentConfig(id="Options-v0", frame_skip=1, options={name: read_option(value)})
        with pytest.raises(ConfigurationError, match=f"--environment.options {name} {value}: is no {expected}"):
            environment_spec(config)
    texts = EnvironmentConfig(options={"limit": math.inf, "depth": None}).options
    assert texts == {"limit": "inf", "depth": None}
