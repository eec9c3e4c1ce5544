"""The agents that ship: they load, play and say how good they are, and nothing writes to them."""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch import zoo
from launch.cli import main
from launch.commands.zoo import page
from launch.results.curves import read_rows
from launch.run.folder import RunFolder, load_weights
from launch.run.status import run_path
from shared.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


def content() -> dict[str, tuple[int, bytes]]:
    """Every file that ships, and when it was written."""
    files = [file for file in zoo.FOLDER.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@pytest.mark.parametrize("name", zoo.agents())
def test_an_agent_is_whole(name: str) -> None:
    folder = RunFolder(run_path(name))
    assert folder.name == name
    config = folder.read_config("run")
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    policy = Policy(config, spec, training=False)
    # The layout's fingerprint is in the file: weights of another network are refused.
    snapshot, source = load_weights(folder, "auto", policy.layout)
    assert np.isfinite(snapshot.parameters).all()
    assert f"(update {snapshot.version})" in source
    assert folder.best_weights.stat().st_size <= 3_500_000
    with np.load(folder.best_weights, allow_pickle=False) as weights:
        assert str(weights["layout"]) == policy.layout.fingerprint
    assert 2 <= len(read_rows(folder)) <= 100
    atari = config.environment.id.startswith("ALE/")
    evaluations = {file.stem: json.loads(file.read_text()) for file in folder.path.glob("evaluation-*.json")}
    assert evaluations.keys() == ({"evaluation-noop", "evaluation-machado"} if atari else {"evaluation-training"})
    for made in evaluations.values():
        assert made["episodes"] == 100
        assert made["version"] == snapshot.version
        protocol = made["protocol"]["name"]
        assert shlex.split(made["command"]) == ["tributary", "evaluate", name, "--protocol", protocol]


def test_what_ships_names_no_place_and_is_in_the_package() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    packaged = tool["setuptools"]["package-data"]["launch.zoo"]
    files = [Path(name) for name in content() if not name.endswith(".py")]
    assert len(files) > 10
    for file in files:
        assert any(fnmatch(str(file.relative_to(zoo.FOLDER)), pattern) for pattern in packaged), file
        if file.suffix in (".json", ".jsonl"):
            assert not re.search(r"(?<![\w.:/])/\w+/", file.read_text()), file


def test_the_page_of_the_agents_is_up_to_date() -> None:
    assert (ROOT / "docs" / "zoo.md").read_text() == page(), "run python -m launch.commands.zoo > docs/zoo.md"


def test_they_are_listed_in_80_columns(
    working_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["zoo", "--json", "zoo.json"]) == 0
    shown, listed = capsys.readouterr().out, json.loads((working_folder / "zoo.json").read_text())
    assert listed.keys() == set(zoo.agents()) >= {"zoo:pong", "zoo:cartpole"}
    assert listed["zoo:pong"]["environment"] == "ALE/Pong-v5"
    for agent in listed.values():
        assert agent["environment"] in shown
        for made in agent["evaluations"]:
            assert f"{made['mean_return']:.2f} ± {made['standard_error']:.2f}" in shown


@pytest.mark.parametrize("command", ["evaluate zoo:pnog", "plot zoo:", "train --start-from zoo:pnog", "watch zoo:a/.."])
def test_an_agent_that_does_not_ship_is_answered_with_those_that_do(
    command: str, refused: Callable[[str], str]
) -> None:
    line = refused(command)
    assert all(name in line for name in zoo.agents())


def test_a_name_without_its_prefix_is_helped(working_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="the agent that ships is zoo:pong"):
        run_path("pong")
    (working_folder / "pong").mkdir()
    assert run_path("pong") == Path("pong")


def test_every_command_takes_an_agent_and_none_writes_to_it(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content()
    version = load_version("zoo:cartpole")
    for command in (
        "evaluate {} --episodes 2",
        "record {} --format gif",
        "plot {}",
        "report {}",
        "export {}",
        "plot {} {}",
    ):
        assert main(command.replace("{}", "zoo:cartpole").split()) == 0
    out = working_folder / "runs" / "zoo-cartpole"
    made = {path.name for path in out.iterdir()}
    files = {"evaluation-training.json", "videos", "curve.png", "curve.svg", "report.html"}
    assert made == files | {f"export-update-{version}"}
    assert (out / "videos" / f"update-{version}.gif").is_file()
    # Trained in several runs.
    assert (working_folder / "curve.png").is_file()
    shown = capsys.readouterr().out
    assert all(f"runs/zoo-cartpole/{name}" in shown for name in made - {"videos"})
    result = json.loads((out / "evaluation-training.json").read_text())
    assert result["episodes"] == 2
    # The report is of this user's evaluation.
    assert ">2 / 2<" in (out / "report.html").read_text()
    assert content() == before


def load_version(name: str) -> int:
    with np.load(RunFolder(run_path(name)).best_weights, allow_pickle=False) as weights:
        return int(weights["version"])


def test_weights_of_another_network_of_the_same_size_are_refused(
    working_folder: Path, refused: Callable[[str], str]
) -> None:
    shutil.copytree(zoo.agent_folder("zoo:cartpole"), working_folder / "run")
    file = working_folder / "run" / "best.npz"
    with np.load(file, allow_pickle=False) as weights:
        np.savez(file, **{**weights, "layout": np.array("0123456789abcdef")})
    line = "another network: it has 9,155 parameters (layout 0123456789abcdef)"
    assert line in refused("evaluate run --episodes 1")


def test_an_agent_that_ships_plays_as_well_as_is_said(working_folder: Path) -> None:
    said = json.loads((zoo.FOLDER / "pong" / "evaluation-noop.json").read_text())
    assert main(["evaluate", "zoo:pong", "--protocol", "noop", "--episodes", "1", "--json", "result.json"]) == 0
    result = json.loads((working_folder / "result.json").read_text())
    assert min(result["returns"]) >= said["minimum_return"] - 3


@pytest.mark.zoo
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "file", sorted(zoo.FOLDER.glob("*/evaluation-*.json")), ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_the_command_repeats_the_score(file: Path, working_folder: Path) -> None:
    said = json.loads(file.read_text())
    assert main([*shlex.split(said["command"])[1:], "--json", "result.json"]) == 0
    result = json.loads((working_folder / "result.json").read_text())
    # To the game on the same processor; on another one rounding may draw other actions.
    error = max(said["standard_error"] or 0.0, result["standard_error"] or 0.0)
    assert abs(result["mean_return"] - said["mean_return"]) <= 4 * error
