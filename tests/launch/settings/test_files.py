"""The preset of an environment; settings in files and dictionaries."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium
import hypothesis
import msgspec
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from spaces import Given, registered

from launch.cli import main
from launch.files import write_json
from launch.presets import PRESETS, preset_for
from launch.python.run import resolved_run
from launch.settings.files import read_config_file, with_settings
from launch.settings.help import as_toml
from launch.settings.resolve import TrainRequest, resolve_request
from shared.config import EnvironmentConfig, NetworkConfig, RunConfig

CARTPOLE = PRESETS["cartpole"].config


def test_settings_change_what_they_name_only() -> None:
    """Two that are allowed together only, in one group; names with points or one in the other."""
    changed = with_settings(
        CARTPOLE,
        {
            "seed": 7,
            "optimizer.learning-rate": np.float32(0.5),
            "network": {"hidden_sizes": [8, 16], "layer_norm": True},
            "stop_at_return": None,
            "actors": "2:16",
            "environment.options": {"length": 5, "text": "5", "on": True},
        },
    )
    assert changed == replace(
        CARTPOLE,
        seed=7,
        stop_at_return=None,
        actors="2:16",
        optimizer=replace(CARTPOLE.optimizer, learning_rate=0.5),
        network=replace(CARTPOLE.network, hidden_sizes=(8, 16), layer_norm=True),
        environment=replace(CARTPOLE.environment, options={"length": 5, "text": "5", "on": True}),
    )
    assert with_settings(replace(changed, storage="s3://a"), {"storage": "None"}).storage is None
    assert type(with_settings(CARTPOLE, {"optimizer": {"learning_rate": 1}}).optimizer.learning_rate) is float


class Word(str, Enum):  # noqa: UP042
    """A text of a program, which other processes cannot import."""

    PRESET = "cartpole"


def test_settings_have_plain_values() -> None:
    assert type(resolved_run(Word.PRESET, {}).preset) is str
    options = {"name": np.str_("4x4"), "mass": np.float64(0.5), "size": np.int64(1)}
    environment = with_settings(
        CARTPOLE, {"environment.id": np.str_("CartPole-v1"), "environment.options": options}
    ).environment
    values = (environment.id, *environment.options.values())
    assert values == ("CartPole-v1", "4x4", 0.5, 1)
    assert [type(value) for value in values] == [str, str, float, int]


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("preset", PRESETS)
def test_what_config_prints_reads_back_equal(preset: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["config", preset, "--json", "config.json"]) == 0
    Path("mine.toml").write_text(capsys.readouterr().out)
    # By itself, over its preset, and over another one: it is whole.
    file = read_config_file(Path("mine.toml"))
    base = resolve_request(TrainRequest(config=Path("mine.toml")))
    assert (base.preset, base.config) == (preset, PRESETS[preset].config)
    assert with_settings(RunConfig(), file.settings) == PRESETS[preset].config
    assert with_settings(RunConfig(), read_config_file(Path("config.json")).settings) == PRESETS[preset].config


@pytest.mark.usefixtures("working_folder")
def test_a_json_file_of_a_few_settings_changes_the_preset(refused: Callable[[str], str]) -> None:
    Path("mine.json").write_text('{"optimizer": {"learning_rate": 0.25}}')
    config = resolve_request(TrainRequest("cartpole", config=Path("mine.json"))).config
    assert config == with_settings(PRESETS["cartpole"].config, {"optimizer.learning_rate": 0.25})
    Path("twice.json").write_text('{"optimizer": {"learning_rate": 0.25, "learning_rate": 0.5}}')
    assert "the name 'learning_rate' occurs more than once" in refused("train cartpole --config twice.json")
    assert main(["config", "pong", "--json", "whole.json"]) == 0
    assert "has all settings of a run, and those of the preset cartpole" in refused(
        "train cartpole --config whole.json"
    )


LOUD = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Loud(CartPoleEnv):
    def __init__(self, **options):
        print("loading [map]")
        super().__init__(**options)

print("Hello")
gymnasium.register("Loud-v0", Loud)
"""


def test_what_an_environment_prints_is_not_in_the_file(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.syspath_prepend(working_folder)
    Path("loud_environments.py").write_text(LOUD)
    assert main(["config", "loud_environments:Loud-v0"]) == 0
    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["environment"]["id"] == "loud_environments:Loud-v0"
    assert "Hello" in printed.err


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


# It is read from the source of the settings: how long that takes says nothing.
@hypothesis.settings(deadline=None, max_examples=30)
@given(
    options=st.dictionaries(_TEXT, _TEXT | st.integers(-(2**60), 2**60) | st.booleans() | st.floats(allow_nan=False))
)
def test_any_option_of_an_environment_reads_back_equal(options: dict[str, Any]) -> None:
    config = RunConfig(environment=EnvironmentConfig(options=options), network=NetworkConfig(hidden_sizes=(1, 20_000)))
    read = with_settings(RunConfig(), tomllib.loads(as_toml(config, None)))
    assert read == config
    # 1 == True == 1.0
    assert msgspec.json.encode(read) == msgspec.json.encode(config)


def test_the_preset_below_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"

    def base(text: str, *, environment_id: str | None = None, named: str | None = None) -> tuple[str, RunConfig]:
        file.write_text(text)
        typed = {} if environment_id is None else {"environment.id": environment_id}
        found = resolve_request(TrainRequest(named, typed, config=file))
        return found.preset, found.config

    pendulum = PRESETS["pendulum"].config
    assert base("seed = 3", named="pendulum") == ("pendulum", replace(pendulum, seed=3))
    assert base('preset = "pendulum"\nseed = 3') == ("pendulum", replace(pendulum, seed=3))
    assert base('preset = "pendulum"\nseed = 3', named="cartpole") == ("cartpole", replace(CARTPOLE, seed=3))
    assert base('environment.id = "Pendulum-v1"') == ("pendulum", pendulum)
    assert base('[environment]\nid = "Pendulum-v1"', environment_id="CartPole-v1")[0] == "cartpole"
    assert base("seed = 3") == ("pong", replace(PRESETS["pong"].config, seed=3))


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "--config mine.toml: cannot be read: No such file or directory"),
        ("seed = ", "mine.toml: is not TOML: Invalid value"),
        ('preset = "cartpol"', "mine.toml: unknown preset cartpol; did you mean cartpole?"),
        ("[optimizer]\nlr = 1", "--optimizer.lr: there is no such setting; did you mean optimizer.learning_rate?"),
        ('environment = "CartPole-v1"', "--environment CartPole-v1: is a group of settings, like environment.id"),
        ("seed = -1", "mine.toml: --seed -1: must be between"),
        (f"evaluation.every_frames = {10**20}", f"--evaluation.every-frames {10**20}: must be at most 9,223,372"),
        ("total_frames = inf", "mine.toml: --total-frames inf: must be a whole number"),
        ("total_frames = nan", "mine.toml: --total-frames nan: must be a whole number"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str | None, line: str, refused: Callable[[str], str]) -> None:
    if text is not None:
        Path("mine.toml").write_text(text)
    assert line in refused("train --config mine.toml")


@pytest.mark.usefixtures("working_folder")
def test_a_list_holds_no_settings(refused: Callable[[str], str]) -> None:
    Path("list.json").write_text("[1]")
    assert "--config list.json: is not the config.json of a run" in refused("train --config list.json")


def test_what_is_typed_comes_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    file, whole = tmp_path / "mine.toml", tmp_path / "config.json"
    file.write_text('preset = "cartpole"\ntotal_frames = 900\nnetwork.hidden_sizes = [8]\nstorage = "s3://copy"\n')
    config = resolve_request(TrainRequest(settings={"total_frames": 300}, config=file)).config
    assert (config.total_frames, config.network.hidden_sizes, config.method.return_lambda) == (300, (8,), 0.95)
    assert config.storage == "s3://copy"
    write_json(whole, msgspec.to_builtins(config))
    again = resolve_request(TrainRequest(settings={"environment.id": "CartPole-v0"}, config=whole)).config
    # The copy of the other run would be written over.
    assert again == replace(config, storage=None, environment=replace(config.environment, id="CartPole-v0"))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    for name, text in (("settings.toml", "total_frames = 9"), ("config.json", '{"total_frames": 9}')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert read_config_file(tmp_path / name).settings == {"total_frames": 9}


PRESET_OF = {
    "CartPole-v1": "cartpole",
    "gymnasium:CartPole-v1": "cartpole",
    "Acrobot-v1": "acrobot",
    "HalfCheetah-v5": "halfcheetah",
    "MiniGrid-Empty-8x8-v0": "minigrid",
    "ALE/Pong-v5": "pong",
    "PongNoFrameskip-v4": "pong",
    "ALE/Seaquest-v5": "atari",
    "MountainCar-v0": "vectors",
    "FrozenLake-v1": "vectors",
    # It cannot be made here.
    "phys2d/CartPole-v1": "vectors",
    "NoSuch-v0": "vectors",
}


def test_the_preset_of_an_environment() -> None:
    image = Box(0, 255, (40, 40, 3), "uint8")
    name = registered("Pictures-v0", Given(image, Discrete(2), [image.sample()]))
    expected = PRESET_OF | {name: "images"}
    assert {environment_id: preset_for(environment_id) for environment_id in expected} == expected


def test_the_preset_of_an_environment_depends_on_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*, pixels: bool = False, **_: Any) -> gymnasium.Env:
        space = Box(0, 255, (40, 40, 3), "uint8") if pixels else Box(0, 1, (2,))
        return Given(space, Discrete(2), [space.sample()])

    monkeypatch.setitem(gymnasium.registry, "Either-v0", EnvSpec("Either-v0", make))
    for options, preset in (({}, "vectors"), ({"environment.options": {"pixels": True}}, "images")):
        assert resolve_request(TrainRequest("Either-v0", options)).preset == preset
