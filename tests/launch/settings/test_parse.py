"""What is typed after a command is read by the types of the fields that it is for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from launch.commands.train import TrainArguments
from launch.settings.parse import Operand, Settings, parse
from shared.errors import ConfigurationError


@dataclass(frozen=True)
class Arguments:
    """A field of each kind."""

    words: Operand[tuple[str, ...]] = ()
    settings: Settings = field(default_factory=dict)
    steps: int = 1
    mark: float | None = None
    sizes: tuple[int, ...] = ()
    limit: int | str = "auto"
    folder: Path | None = None
    title: str = ""
    kind: Literal["a", "b", "c"] = "a"
    fast: bool = False


def own(line: str) -> Arguments:
    return parse(Arguments, "test", line.split())


def typed(line: str) -> dict[str, Any]:
    """The settings of a line."""
    return parse(Arguments, "test", line.split()).settings


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("300K", 300_000),
        ("2.5k", 2_500),
        ("1e6", 1_000_000),
        ("1,000,000", 1_000_000),
        ("1_000_000", 1_000_000),
        ("7", 7),
        ("-5", -5),
    ],
)
def test_counts_may_be_written_short(text: str, count: int) -> None:
    for join in (" ", "="):
        # A setting of several numbers takes no commas.
        several = text.replace(",", "")
        line = f"--steps{join}{text} --limit{join}{text} --sizes{join}{several} 32"
        assert own(line) == Arguments(steps=count, limit=count, sizes=(count, 32))
        assert typed(f"--total-frames{join}{text}") == typed(f"--frames{join}{text}") == {"total_frames": count}


@pytest.mark.parametrize("text", ["1.5", "2.0005k", "1,00", "1,0000", "k", "many", "1e-3", "1.5e0", "10g", "", "1e999"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^--steps {text}: must be a whole number, like 20000, 20k, 2M or"):
        own(f"--steps={text}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--mark soon", "--mark soon: must be a number, like 0.001, 1e-3 or 2M"),
        ("--mark 0,001", "--mark 0,001: must be a number"),
        ("--sizes 64,64", "--sizes 64,64: must be numbers with spaces between them, like 64 64"),
        ("--checkpoint.every-seconds 5m", "--checkpoint.every-seconds 5m: must be a number of seconds, like 600"),
        ("--environment.no-greyscale=yes", "--environment.greyscale yes: must be True or False"),
        ("--steps", "--steps: the value is missing"),
        ("--stpes 3", "--stpes: there is no such option; did you mean --steps?"),
        ("--optimizer.lr 1", "--optimizer.lr: there is no such option; did you mean --optimizer.learning-rate?"),
        ("--lern-rate 1", "--lern-rate: there is no such option; did you mean --optimizer.learning-rate?"),
        ("--environments 4", "--environments: there is no such option; did you mean --actor.environments or --ev"),
        ("--evaluation.x 1", "--evaluation.x: there is no such option; see tributary test --help-all"),
        ("--xyzzy 1", "--xyzzy: there is no such option; see tributary test --help-all"),
        ("--environment.options length", "--environment.options length: must be names and values, like length 5 goal"),
    ],
)
def test_a_mistake_names_the_option_the_value_and_the_remedy(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        own(line)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # What is not for a count stays as it was typed.
        ("--folder 40k --title=1e3", Arguments(folder=Path("40k"), title="1e3")),
        ("--folder=1,000 --title 40M --limit 2:16", Arguments(folder=Path("1,000"), title="40M", limit="2:16")),
        ("--mark -1e-3", Arguments(mark=-0.001)),
        ("--mark=10k", Arguments(mark=10_000.0)),
        ("--mark None", Arguments()),
        ("--sizes None", Arguments(sizes=())),
        # Operands stand before, between and after options.
        ("x --steps 3 y --fast z", Arguments(words=("x", "y", "z"), steps=3, fast=True)),
        # The last of several counts.
        ("--sizes 1 2 --sizes 3 --steps 1 --steps 2", Arguments(sizes=(3,), steps=2)),
        (
            "--environment.wrappers a:B --environment.wrappers c:D e:F",
            Arguments(settings={"environment.wrappers": ("a:B", "c:D", "e:F")}),
        ),
        ("--environment.wrappers a:B --environment.wrappers None", Arguments(settings={"environment.wrappers": ()})),
        # Flags may be given their values.
        ("--fast", Arguments(fast=True)),
        ("--fast=False", Arguments(fast=False)),
        ("--no-fast", Arguments(fast=False)),
        ("--no-fast=false", Arguments(fast=True)),
        ("--fast False x", Arguments(words=("x",), fast=False)),
        ("x --no-fast true", Arguments(words=("x",), fast=False)),
        ("--environment.fire-on-reset", Arguments(settings={"environment.fire_on_reset": True})),
        ("--environment.no-fire_on_reset", Arguments(settings={"environment.fire_on_reset": False})),
    ],
)
def test_a_line_is_read_by_the_types_of_fields(line: str, expected: Arguments) -> None:
    assert own(line) == expected


def test_options_of_an_environment_are_read_by_their_looks() -> None:
    options = typed(
        "--environment.options length 5 tiny -1e-3 render False max-size 9 "
        "--environment.options slippery true name 4x4 size 40k id 1,000 map 8_8"
    )["environment.options"]
    expected = {"length": 5, "tiny": -0.001, "render": False, "max-size": 9, "slippery": True}
    expected |= {"name": "4x4", "size": "40k", "id": "1,000", "map": "8_8"}
    assert options == expected
    assert [*map(type, options.values())] == [*map(type, expected.values())]


def test_a_tilde_that_the_shell_left_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(TrainArguments, "train", ["--run-dir=~/runs/a"]).run_dir == tmp_path / "runs" / "a"
