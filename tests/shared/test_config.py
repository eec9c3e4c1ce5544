"""The settings: what one of them may be; and errors as one line."""

import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from shared.config import ExplorationConfig, OptimizerConfig, RunConfig
from shared.config.checks import Range, check_values
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
    check_values(Settings(some=value, other=(1e-9,), third=1.0, last=value))


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
        check_values(settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"stop_at_return": math.nan}, "--stop-at-return nan: must be a finite number"),
        ({"exploration": ExplorationConfig(name="noisy")}, "--exploration.name noisy: no such explorer; the imported"),
        ({"optimizer": OptimizerConfig(name="adamw")}, "--optimizer.name adamw: no such optimizer; there are rmsprop"),
    ],
)
def test_a_setting_of_a_section_is_refused_by_its_full_name(settings: dict, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{problem}"):
        RunConfig(**settings)


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
    assert one_line(error, most) == line
    assert typed_line(error) == ("ValueError" if line == "ValueError" else f"ValueError: {one_line(error)}")
    assert last_line(error) == last


def test_the_line_of_a_tensorflow_error_begins_with_its_reason() -> None:
    error = ValueError("{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} run/part; No space left")
    assert one_line(error) == "run/part; No space left"
