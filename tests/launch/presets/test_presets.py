"""The preset of a command that names an environment and no preset."""

import json
from pathlib import Path

import pytest
from gymnasium.spaces import Box, Discrete
from spaces import Given, registered

from launch.cli import main
from launch.presets import preset_for
from launch.train import Result


@pytest.mark.parametrize(
    ("environment_id", "preset"),
    [
        ("CartPole-v1", "cartpole"),
        ("gymnasium:CartPole-v1", "cartpole"),
        ("Acrobot-v1", "acrobot"),
        ("HalfCheetah-v5", "halfcheetah"),
        ("MiniGrid-Empty-8x8-v0", "minigrid"),
        ("ALE/Pong-v5", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("ALE/Seaquest-v5", "atari"),
        ("MountainCar-v0", "vectors"),
        ("FrozenLake-v1", "vectors"),
        # It cannot be made here.
        ("phys2d/CartPole-v1", "vectors"),
        ("NoSuch-v0", None),
    ],
)
def test_the_preset_of_an_environment(environment_id: str, preset: str | None) -> None:
    assert preset_for(environment_id) == preset


def test_images_that_are_no_ataris() -> None:
    image = Box(0, 255, (40, 40, 3), "uint8")
    name = registered("Pictures-v0", Given(image, Discrete(2), [image.sample()]))
    assert preset_for(name) == "images"


@pytest.mark.usefixtures("working_folder")
def test_an_id_in_the_place_of_a_preset_starts_from_the_one_that_fits_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    small = "--executor inline --actors 1 --total-frames 300 --evaluation.every-frames 0 --stop-measure training"
    assert main(f"train MountainCar-v0 {small} --run-dir other".split()) == 0
    assert "preset:       vectors: any environment that shows no images" in capsys.readouterr().out
    config = json.loads(Path("other/config.json").read_text())
    assert (config["environment"]["id"], config["environment"]["frame_skip"]) == ("MountainCar-v0", 1)
    monkeypatch.setattr(
        "launch.commands.train.train", lambda _config, folder, *_, **__: Result(folder, {"status": "frames_reached"})
    )
    assert main(["train", "CartPole-v1"]) == 0
    assert "preset:       cartpole: CartPole-v1 to a mean of 475" in capsys.readouterr().out
    assert main(["train", "--environment.id=ALE/Seaquest-v5"]) == 0
    assert "preset:       atari: " in capsys.readouterr().out
    assert main(["train", "ALE/Pong-v5"]) == main(["train"]) == 0
    assert capsys.readouterr().out == "preset:       pong: Pong to a mean return of 18; the default\n"
