"""The settings: what one of them may be, and what two of them may not be together; and errors as one line."""

import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from shared.config import ActorConfig, ExplorationConfig, LearnerConfig, NetworkConfig, RunConfig
from shared.config.checks import Range, check_ranges
from shared.errors import ConfigurationError, last_line, one_line, typed_line


@dataclass(frozen=True)
class Settings:
    some: Annotated[float | None, Range(minimum=1)] = None
    other: Annotated[tuple[float, ...], Range(above=0)] = (1.0,)
    third: Annotated[float, Range(0, 1)] = 0.0
    fourth: Annotated[float, Range(minimum=0, below=1)] = 0.0
    fifth: Annotated[int, Range(0, 1_000_000)] = 0
    last: Annotated[float | None, Range()] = None
    whole: int | str = "auto"


@pytest.mark.parametrize("value", [1, 1.5, 1e300, None])
def test_a_number_within_its_range_passes(value: float | None) -> None:
    check_ranges(Settings(some=value, other=(1e-9,), third=1.0, last=value))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        *((Settings(some=value), f"--some {value}: must be at least 1") for value in (0, math.nan, math.inf)),
        (Settings(other=()), r"--other \(\): must have at least one value"),
        (Settings(other=(1.0, 0.0)), "--other 0.0: must be greater than 0"),
        (Settings(third=1.1), "--third 1.1: must be between 0 and 1"),
        (Settings(third=math.nan), "must be between 0 and 1"),
        (Settings(fourth=1.0), "must be at least 0 and less than 1"),
        (Settings(fifth=2_000_000), "must be between 0 and 1,000,000"),
        (Settings(last=-math.inf), "--last -inf: must be a finite number"),
        (Settings(whole=10**400), f"--whole {10**400}: must be at most 9,223,372,036,854,775,807"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_name(settings: Settings, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_ranges(settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"actors": "4:2"}, "--actors 4:2: must have its bounds in order"),
        ({"actors": "0:3"}, "at least 1"),
        *(({"actors": value}, f"--actors {value}: must be a number, auto, or MIN:MAX") for value in ("many", ":4")),
        ({"stop_at_return": math.nan}, "--stop-at-return nan: must be a finite number"),
        ({"exploration": ExplorationConfig(name="noisy")}, "--exploration.name noisy: no such explorer; the imported"),
        (
            {"network": NetworkConfig(recurrent="lstm"), "actor": ActorConfig(4, 6, minibatches=3)},
            "--actor.minibatches 3: does not divide --actor.environments 4: with a memory",
        ),
        (
            {"aggregation": "node", "learner": LearnerConfig(gradients_per_update=2, max_policy_lag=1)},
            "leave --learner.max-policy-lag out",
        ),
        (
            {"aggregation": "node", "learner": LearnerConfig(gradients_per_update=2), "executor": "inline"},
            "is for --executor ray",
        ),
    ],
)
def test_settings_that_cannot_be_together_are_refused(settings: dict, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RunConfig(**settings)
    assert problem in str(raised.value)


@pytest.mark.parametrize(("actors", "range_"), [(3, (3, 3)), ("auto", (1, None)), ("2:16", (2, 16))])
def test_actors_are_a_number_or_a_range(actors: int | str, range_: tuple[int, int | None]) -> None:
    assert RunConfig(actors=actors).actor_range == range_


@pytest.mark.parametrize(
    ("error", "most", "line", "last"),
    [
        (ValueError("two\n  lines \n"), 99, "two lines", "lines"),
        (ValueError("two\n  lines"), 5, "two l", "lines"),
        (ValueError(), 5, "ValueError", "ValueError"),
        (ValueError(" \n"), 99, "ValueError", "ValueError"),
        (ValueError("a\x1b[31mred\udce4"), 99, r"a\x1b[31mred\udce4", r"a\x1b[31mred\udce4"),
        (ValueError("x" * 9999), 2000, "x" * 2000, "x" * 2000),
    ],
)
def test_an_error_is_one_line_and_never_empty(error: Exception, most: int, line: str, last: str) -> None:
    """And its type stays however short its message has to be."""
    assert one_line(error, most) == line
    assert typed_line(error, most) == ("ValueError" if line == "ValueError" else f"ValueError: {line}")
    assert last_line(error) == last
    assert len(typed_line(error)) <= len("ValueError: ") + 2000


def test_the_line_of_a_tensorflow_error_begins_with_its_reason() -> None:
    error = ValueError("{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} run/part; No space left")
    assert one_line(error) == "run/part; No space left"
