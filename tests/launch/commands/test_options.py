"""What is typed is read by the type of the field that it is for."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from launch.commands.options import parse
from launch.commands.train import TrainArguments
from shared.config import EnvironmentConfig, RunConfig


@dataclass(frozen=True)
class Inner:
    """One level down."""

    steps: int | None = None
    """Steps."""
    fast: bool = False
    """Fast."""


@dataclass(frozen=True)
class Settings:
    """One field of each type."""

    frames: int = 1
    """Frames."""
    sizes: tuple[int, ...] = ()
    """Sizes."""
    actors: int | str = "auto"
    """Actors."""
    seconds: float | None = None
    """Seconds."""
    folder: Path | None = None
    """Folder."""
    name: str = ""
    """Name."""
    kind: Literal["a", "b"] = "a"
    """Kind."""
    shared_memory: bool = True
    """On."""
    inner: Inner = field(default_factory=Inner)


def settings(line: str) -> Settings:
    return parse(Settings, "test", line.split(), Settings())


def refused(line: str, capsys: pytest.CaptureFixture) -> str:
    """The printed reason, in one line."""
    with pytest.raises(SystemExit) as ended:
        settings(line)
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("300k", 300_000),
        ("300K", 300_000),
        ("40m", 40_000_000),
        ("40M", 40_000_000),
        ("2.5k", 2_500),
        ("1e6", 1_000_000),
        ("1.5e3", 1_500),
        ("1,000,000", 1_000_000),
        ("1_000_000", 1_000_000),
        ("7", 7),
        ("-5", -5),
    ],
)
@pytest.mark.parametrize("join", [" ", "="])
def test_counts_may_be_written_short(text: str, count: int, join: str) -> None:
    assert settings(f"--frames{join}{text}") == Settings(frames=count)
    assert settings(f"--inner.steps{join}{text}") == Settings(inner=Inner(steps=count))
    assert settings(f"--actors{join}{text}") == Settings(actors=count)
    assert settings(f"--sizes{join}{text} 32") == Settings(sizes=(count, 32))


@pytest.mark.parametrize("text", ["1.5", "2.0005k", "1,00", "1,0000", "k", "many", "1e-3", "1.5e0", "10g", "", "1e999"])
def test_what_is_no_count_is_refused_by_the_name_of_its_field(text: str, capsys: pytest.CaptureFixture) -> None:
    assert "--frames" in refused(f"--frames={text}", capsys)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--frames 1.5", "--frames|1.5: must be a whole number, like 20000, 20k, 2M or 2e4"),
        ("--seconds soon", "--seconds|soon: must be a number, like 0.001, 1e-3 or 2M"),
        ("--kind c", "invalid choice 'c'|--kind|('a', 'b')"),
        ("--frames", "Missing value|--frames"),
        ("--framse 3", "--framse|Perhaps you meant|--frames"),
        ("--steps 3", "--steps|Perhaps you meant|--inner.steps"),
        ("--frames 3 pong", "pong"),
    ],
)
def test_a_mistake_names_the_option_and_the_remedy(line: str, parts: str, capsys: pytest.CaptureFixture) -> None:
    printed = refused(line, capsys)
    for part in parts.split("|"):
        assert part in printed


def test_what_is_not_for_a_count_stays_as_it_was_typed() -> None:
    assert settings("--folder 40k --name=1e3") == Settings(folder=Path("40k"), name="1e3")
    assert settings("--folder=1,000 --name 40M --actors 2:16") == Settings(
        folder=Path("1,000"), name="40M", actors="2:16"
    )
    assert settings("--seconds 1e-3").seconds == 0.001
    assert settings("--seconds=10k").seconds == 10_000.0
    assert settings("--seconds None") == Settings()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("--fast", True),
        ("--fast=True", True),
        ("--fast=true", True),
        ("--fast=False", False),
        ("--no-fast", False),
        ("--no-fast=True", False),
        ("--no-fast=false", True),
    ],
)
def test_a_flag_may_be_given_its_value(line: str, value: bool) -> None:
    inner = line.replace("--", "--inner.")
    assert settings(inner) == Settings(inner=Inner(fast=value))
    outer = line.replace("fast", "shared-memory")
    assert settings(outer) == settings(outer.replace("-memory", "_memory")) == Settings(shared_memory=value)


def test_a_flag_is_true_or_false(capsys: pytest.CaptureFixture) -> None:
    assert "Unrecognized options: maybe" in refused("--inner.fast=maybe", capsys)


def test_options_of_an_environment_are_numbers_and_truth_values_where_they_look_so() -> None:
    typed = (
        "--environment.options length 5 depth -3 rate 0.5 tiny 1e-3 render False slippery true name 4x4 size 40k "
        "id 1,000 map 8_8"
    )
    parsed = parse(RunConfig, "test", typed.split(), RunConfig())
    expected = {
        "length": 5,
        "depth": -3,
        "rate": 0.5,
        "tiny": 0.001,
        "render": False,
        "slippery": True,
        "name": "4x4",
        "size": "40k",
        "id": "1,000",
        "map": "8_8",
    }
    assert parsed == RunConfig(environment=EnvironmentConfig(options=expected))
    assert {name: type(value) for name, value in parsed.environment.options.items()} == {
        name: type(value) for name, value in expected.items()
    }
    with pytest.raises(SystemExit):
        parse(RunConfig, "test", ["--environment.options", "length"], RunConfig())


def test_defaults_of_options_are_kept_as_they_are() -> None:
    """A resumed run's settings are the defaults, and 5 is not the text 5."""
    before = replace(RunConfig(), environment=EnvironmentConfig(options={"length": 5, "text": "5", "on": True}))
    assert parse(RunConfig, "test", [], before) == before


def test_a_tilde_that_the_shell_left_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    parsed = parse(TrainArguments, "train", ["--run-dir=~/runs/a"], TrainArguments(config=RunConfig()))
    assert parsed.run_dir == tmp_path / "runs" / "a"
