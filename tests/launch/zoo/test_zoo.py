"""The agents and the runs that ship: they load, play, and are as good as the documents say."""

import json
import math
import re
import shlex
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from actors.environments import environment_spec
from actors.policy import Policy
from launch import zoo
from launch.cli import main
from launch.commands.train import TrainArguments
from launch.presets import PRESETS
from launch.results.curves import read_rows
from launch.run.folder import RunFolder
from launch.run.lookup import run_path
from launch.run.weights import load_weights
from launch.settings.files import by_full_name, read_config_file
from launch.settings.parse import parse
from launch.settings.resolve import divided_among, resolve_request
from shared.config import RunConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", zoo.agents())
def test_an_agent_is_whole(name: str) -> None:
    folder = RunFolder(run_path(name))
    assert folder.name == name
    config = folder.read_config("run")
    spec = folder.as_trained(config, environment_spec(config.environment))
    policy = Policy(config, spec, training=False)
    # The layout's fingerprint is in the file: weights of another network are refused.
    snapshot, source = load_weights(folder, "auto", policy.layout)
    assert np.isfinite(snapshot.parameters).all()
    assert f"(update {snapshot.version})" in source
    assert folder.best_weights.stat().st_size <= 3_500_000
    with np.load(folder.best_weights, allow_pickle=False) as weights:
        assert (str(weights["layout"]), weights["parameters"].dtype) == (policy.layout.fingerprint, np.float16)
    assert 2 <= len(read_rows(folder)) <= 100
    texts = [file.read_text() for file in folder.path.iterdir() if file.suffix in (".json", ".jsonl")]
    assert config.storage is None
    assert not any(re.search(r'"/\w', text) for text in texts), "a folder of a machine"
    words = shlex.split(json.loads(folder.manifest.read_text())["command"])
    trained = resolve_request(parse(TrainArguments, "train", words[2:])).config
    for setting in ("environment.id", "seed", "total_frames", "stop_at_return", "optimizer.learning_rate"):
        assert attrgetter(setting)(trained) == attrgetter(setting)(config), setting
    atari = config.environment.id.startswith("ALE/")
    evaluations = {file.stem: json.loads(file.read_text()) for file in folder.path.glob("evaluation-*.json")}
    assert evaluations.keys() == ({"evaluation-noop", "evaluation-machado"} if atari else {"evaluation-training"})
    for made in evaluations.values():
        assert made["episodes"] == 100
        assert made["version"] == snapshot.version
        protocol = made["protocol"]["name"]
        assert shlex.split(made["command"]) == ["tributary", "evaluate", name, "--protocol", protocol]


def test_agents_are_listed(working_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["zoo", "--json", "zoo.json"]) == 0
    shown, listed = capsys.readouterr().out, json.loads((working_folder / "zoo.json").read_text())
    assert listed.keys() == set(zoo.agents()) >= {"zoo:pong", "zoo:cartpole"}
    assert listed["zoo:pong"]["environment"] == "ALE/Pong-v5"
    for name, agent in listed.items():
        assert f"{name} " in shown
        assert agent["environment"] in shown
        for made in agent["evaluations"]:
            assert f"{made['mean_return']:.2f} ± {made['standard_error']:.2f}" in shown


def test_no_command_writes_to_an_agent(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def content() -> dict[Path, tuple[int, bytes]]:
        """The files of the agent, and when they were written."""
        return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in agent.iterdir()}

    agent = zoo.agent_folder("zoo:cartpole")
    before = content()
    with np.load(agent / "best.npz", allow_pickle=False) as weights:
        version = int(weights["version"])
    for command in ("evaluate {} --episodes 2", "record {} --format gif", "plot {}", "report {}", "export {}"):
        assert main(command.replace("{}", "zoo:cartpole").split()) == 0
    assert main(["plot", "zoo:cartpole", "zoo:pong"]) == 0
    out = working_folder / "runs" / "zoo-cartpole"
    made = {path.name for path in out.iterdir()}
    files = {"evaluation-training.json", "videos", "curve.png", "curve.svg", "report.html"}
    assert made == files | {f"export-update-{version}"}
    with Image.open(out / "videos" / f"update-{version}.gif") as film:
        assert film.n_frames > 3
        assert json.loads(film.info["comment"]).keys() >= {"command", "revision", "versions", "hardware"}
    with Image.open(out / "curve.png") as picture:
        assert json.loads(picture.text["Description"]).keys() >= {"command", "revision", "hardware"}
    # The picture of several runs.
    assert (working_folder / "curve.png").is_file()
    shown = capsys.readouterr().out
    assert all(f"runs/zoo-cartpole/{name}" in shown for name in made - {"videos"})
    result = json.loads((out / "evaluation-training.json").read_text())
    assert result["episodes"] == 2
    # The report is of this user's evaluation.
    assert "2 episodes, 2 distinct games" in (out / "report.html").read_text()
    assert content() == before


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
    error = math.hypot(said["standard_error"] or 0.0, result["standard_error"] or 0.0)
    assert abs(result["mean_return"] - said["mean_return"]) <= 4 * error


STUDIES = ROOT / "docs" / "studies"


@pytest.mark.parametrize(
    "file",
    [*sorted(zoo.FOLDER.glob("*/evaluation-*.json")), *sorted(STUDIES.glob("atari/*/evaluation-*.json"))],
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_a_score_is_that_of_its_games(file: Path) -> None:
    said = json.loads(file.read_text())
    returns = np.array(said["returns"])
    assert said["episodes"] == said["distinct_games"] == len(returns) == len(said["lengths_agent_steps"])
    assert said["mean_return"] == pytest.approx(returns.mean())
    assert said["median_return"] == np.median(returns)
    assert said["standard_error"] == pytest.approx(returns.std(ddof=1) / math.sqrt(len(returns)))
    if said["human_normalised_percent"] is not None:
        scores = json.loads((ROOT / "launch" / "results" / "human_scores.json").read_text())
        human, random = scores[said["environment"].removeprefix("ALE/").removesuffix("-v5")]
        percent = 100 * (said["mean_return"] - random) / (human - random)
        assert said["human_normalised_percent"] == pytest.approx(percent)


RUNS = sorted((STUDIES / "reference_runs").glob("*/config.json"))
SHIPPED = [*sorted(STUDIES.glob("*/*/config.json")), *sorted(zoo.FOLDER.glob("*/config.json"))]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.parent.name)
def test_what_ships_has_no_setting_that_is_removed(file: Path) -> None:
    """One that is added has its default there, with equal behaviour."""
    read_config_file(file)
    assert by_full_name(json.loads(file.read_text())).keys() <= by_full_name(msgspec.to_builtins(RunConfig())).keys()


# What the documents tell as results of presets of today.
MADE_BY = {zoo.FOLDER / "pong-a3c": "a3c", zoo.FOLDER / "pong-a3c-lstm": "a3c-lstm"}
MADE_BY |= {file.parent: "pong" for file in RUNS} | {STUDIES / "a3c" / "pong-default": "pong"}
MADE_BY |= {STUDIES / "a3c" / name: "a3c" for name in ("pong-seed-2", "pong-seed-3", "breakout")}


@pytest.mark.parametrize("folder", MADE_BY, ids=lambda folder: folder.name)
def test_what_the_presets_made_has_their_settings(folder: Path) -> None:
    """A preset that is changed: measure it anew, or tell in docs/scores.md and docs/a3c.md which one was measured."""
    config, preset = RunFolder(folder).read_settings(), PRESETS[MADE_BY[folder]].config
    # The words of their commands.
    typed = {name: getattr(config, name) for name in ("seed", "actors", "executor", "stop_at_return")}
    game = replace(preset.environment, id=config.environment.id)
    divided = divided_among(replace(preset, environment=game, **typed), int(config.actors))
    made = by_full_name(json.loads(msgspec.json.encode(divided)))
    # A setting of today that the file lacks did not exist: it must not have changed the others.
    file = by_full_name(json.loads(RunFolder(folder).settings_file.read_text()))
    assert {name: made[name] for name in file} == file


@pytest.mark.parametrize("config", RUNS, ids=lambda file: file.parent.name)
def test_a_reference_run_is_whole(config: Path) -> None:
    folder = RunFolder(config.parent)
    summary, manifest = json.loads(folder.summary.read_text()), json.loads(folder.manifest.read_text())
    assert manifest.keys() >= {"command", "revision", "versions", "hardware", "environment_protocol"}
    assert manifest["seeds"]["run"] == folder.read_config().seed
    assert read_rows(folder)[-1]["frames"] == summary["frames"]
    assert summary["status"] == "return_reached"
