"""The folder of a run: its status, its holder, its name, the limits of a resume, and the weights it starts from."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from untrained_runs import policy_of
from waiting import UNTIL_FRAMES
from written_runs import written_run

from actors.environments import environment_spec
from actors.policy import Policy
from launch import zoo
from launch.cli import main
from launch.files import write_json
from launch.run.folder import RunFolder, agent_steps_learned, manifest
from launch.run.lock import lock_folder
from launch.run.lookup import discard_if_empty, new_run_dir, run_folders, run_path
from launch.run.summary import reached_limit, run_status
from launch.run.weights import WeightsName, write_weights
from shared.config import EnvironmentConfig, NetworkConfig, RunConfig
from shared.errors import ConfigurationError
from shared.types import Float32Array, WeightSnapshot


def write_run(folder: Path, frames: list[int], *, summary: int | None = None) -> Path:
    written_run(folder, [{"frames": n} for n in frames], RunConfig(total_frames=100))
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"frames": 9')
    if summary is not None:
        write_json(folder / "summary.json", {"status": "interrupted", "frames": summary})
    return folder


@pytest.mark.parametrize(
    ("frames", "summary", "status"),
    [
        ([10, 20], 20, "interrupted"),
        ([10, 20], None, "died"),
        # It was resumed after that summary, and killed.
        ([10, 20, 30], 20, "died"),
        ([], None, "died"),
    ],
)
def test_a_run_is_held_or_has_ended(frames: list[int], summary: int | None, status: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", frames, summary=summary)
    run = run_status(folder)
    assert (run.status, run.holder, run.row.get("frames")) == (status, None, frames[-1] if frames else None)
    with lock_folder(folder):
        run = run_status(folder)
        assert (run.status, run.holder.pid) == ("running", os.getpid())


def started(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "manifest.json"):
        (folder / name).write_text("{}")
    os.utime(folder / "manifest.json", (at, at))
    return folder


def test_runs_of_seeds_are_found_newest_first_and_folders_of_other_programs_are_not(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    write_json(tmp_path / "exp" / "config.json", {"model": "yolo"})
    names = ["a", "b/seed-1", "study/cartpole/seed-3"]
    for age, name in enumerate(names):
        started(tmp_path / name, 100 - age)
    assert [str(path.relative_to(tmp_path)) for path in run_folders(tmp_path)] == names


def test_latest_is_a_name_only_where_nothing_has_it(working_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is none"):
        run_path("latest")
    started(working_folder / "runs" / "older", 1)
    newest = started(working_folder / "runs" / "pong", 2)
    assert run_path("latest").absolute() == newest
    assert run_path("runs/pong") == Path("runs/pong")
    assert run_path("pong") == Path("runs/pong"), "as tributary runs lists it"
    with pytest.raises(ConfigurationError, match=r"pnog: there is no such folder; there are runs/pong, runs/older \("):
        run_path("pnog")
    (working_folder / "latest").mkdir()
    assert run_path("latest") == Path("latest")
    (working_folder / "pong").mkdir()
    assert run_path("pong") == Path("pong")


CONFIG = RunConfig(total_frames=1_000_000, stop_at_return=18.0, stop_after_seconds=600.0)
SUMMARY = {"status": "interrupted", "frames": 500_000, "wall_seconds": 300.0, "mean_return_100": 12.0}


@pytest.mark.parametrize(
    ("ended", "limit"),
    [
        ({"frames": 1_000_320, "status": "frames_reached"}, {"total_frames": 2_000_000}),
        ({"wall_seconds": 600.4, "status": "time_reached"}, {"stop_after_seconds": 900.0}),
        ({"evaluation": {"mean_return": 18.2}, "status": "return_reached"}, {"stop_at_return": 19.0}),
        ({"evaluation": {"mean_return": 18.0}, "status": "return_reached"}, {"stop_at_return": None}),
    ],
)
def test_a_limit_holds_until_it_is_changed(ended: dict, limit: dict) -> None:
    summary = SUMMARY | ended
    (name,) = limit
    assert f"--{name.replace('_', '-')}" in reached_limit(CONFIG, summary)
    assert reached_limit(replace(CONFIG, **limit), summary) is None
    # Its last checkpoint may be of fewer frames: a full disk.
    assert reached_limit(CONFIG, summary | {"status": "failed"}) is None
    for summary in ({}, SUMMARY, SUMMARY | {"status": "return_reached", "mean_return_100": 19.0, "evaluation": None}):
        assert reached_limit(CONFIG, summary) is None


@pytest.mark.usefixtures("working_folder")
def test_runs_of_one_second_have_folders_of_their_own() -> None:
    meet = threading.Barrier(8)

    def make(_: int) -> Path:
        meet.wait()
        return new_run_dir("cartpole")

    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(make, range(8)))
    assert len(set(folders)) == 8
    for folder in folders[1:]:
        discard_if_empty(folder)
    assert list(Path("runs").iterdir()) == [Path("runs", folders[0].name)]
    folders[0].rmdir()
    discard_if_empty(folders[0])
    assert not Path("runs").exists()


SMALL = f"--executor inline --actors 1 --actor.environments 2 --actor.unroll-length 4 {UNTIL_FRAMES}"


def weights_of(run: Path, weights: WeightsName = "auto") -> Float32Array:
    return policy_of(run, weights)[0].initial_parameters()


def test_a_run_starts_from_an_agent_that_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, agent = RunFolder(tmp_path / "run"), RunFolder(zoo.agent_folder("zoo:pong"))
    assert main(f"train --start-from zoo:pong {SMALL} --total-frames 64 --run-dir {run.path}".split()) == 0
    assert "starts from:  zoo:pong: the weights that were best" in capsys.readouterr().out
    for file in run.checkpoints.glob("update-*"):
        if not file.name.startswith("update-0."):
            file.unlink()
    np.testing.assert_array_equal(weights_of(run.path, "latest"), weights_of(agent.path))
    # With the mean that these weights were trained with, and in the agent's settings.
    np.testing.assert_array_equal(np.load(run.observation_mean), np.load(agent.observation_mean))
    before, config = agent.read_config(), run.read_config()
    assert (config.optimizer, config.environment) == (before.optimizer, before.environment)
    manifest = json.loads(run.manifest.read_text())
    assert manifest["preset"] == "zoo-pong"
    assert manifest["started_from"]["run"] == "zoo:pong"
    assert manifest["started_from"]["agent_steps"] == json.loads(agent.summary.read_text())["agent_steps_sampled"]


def test_a_run_with_first_weights_is_resumed_and_is_itself_started_from(working_folder: Path) -> None:
    other, new, agent = (RunFolder(Path(path)) for path in ("other", "new", zoo.agent_folder("zoo:cartpole")))
    assert main(f"train cartpole --start-from zoo:cartpole {SMALL} --total-frames 400 --run-dir other".split()) == 0
    assert json.loads(other.manifest.read_text())["preset"] == "cartpole"
    updates = json.loads(other.summary.read_text())["updates"]
    assert main(["train", "--resume", "other", "--total-frames", "800"]) == 0
    assert json.loads(other.summary.read_text())["updates"] > updates
    assert f" continues from update {updates:,}, after " in other.log.read_text()
    # It has moved on from there, and not gone back.
    before, after = weights_of(agent.path), weights_of(other.path, "latest")
    assert 0.0 < np.abs(after - before).mean() < 0.1 * np.abs(before).mean()
    # What belongs to a run is not taken over.
    storage = f"file://{working_folder}/copy"
    other.write_config(replace(other.read_config(), storage=storage))
    assert json.loads(other.summary.read_text())["untrained_mean_return"] is None, "that of zoo:cartpole is unknown"
    # What untrained play is does not change with the weights.
    other.summary.write_text(json.dumps(json.loads(other.summary.read_text()) | {"untrained_mean_return": 12.5}))
    assert main(["train", "--start-from", "other", "--total-frames", "40", "--run-dir", "new"]) == 0
    assert {entry.name for entry in working_folder.iterdir()} == {"other", "new"}
    assert json.loads(new.summary.read_text())["untrained_mean_return"] == 12.5
    # All that was played before counts: also by the run after the next, and of a run that was killed.
    steps = [json.loads(folder.summary.read_text())["agent_steps_sampled"] for folder in (agent, other, new)]
    new.summary.write_text(json.dumps({"agent_steps_sampled": 1}))
    assert agent_steps_learned(new) == sum(steps), "its summary is of before a resume that was killed"
    new.summary.unlink()
    assert agent_steps_learned(new) == sum(steps)
    # The weights are those of its last checkpoint, for want of best ones.
    assert not other.best_weights.exists()
    assert "the last checkpoint" in json.loads(new.manifest.read_text())["started_from"]["weights"]


@pytest.mark.usefixtures("working_folder")
def test_a_run_starts_with_the_moments_of_the_observations_before() -> None:
    options = f"{SMALL} --network.observation-scaling running"
    assert main(f"train cartpole {options} --total-frames 400 --run-dir other".split()) == 0
    assert main(f"train --start-from other {options} --total-frames 8 --run-dir new".split()) == 0
    np.testing.assert_array_equal(weights_of(Path("new"), 0), weights_of(Path("other")))


class Steered(gymnasium.Env):
    observation_space, action_space = Box(0, 1, (2,)), Box(-1, 1, (1,))


def test_a_run_keeps_its_bounds_where_the_environment_has_others(tmp_path: Path, monkeypatch, refused) -> None:
    monkeypatch.setitem(gymnasium.registry, "Steered-v0", EnvSpec("Steered-v0", Steered))
    network = NetworkConfig(name="mlp", hidden_sizes=(8,), observation_scaling="bounds")
    config = RunConfig(environment=EnvironmentConfig(id="Steered-v0", frame_skip=1), network=network)
    run, spec = RunFolder(tmp_path / "run"), environment_spec(config.environment)
    run.make().close()
    run.create(config, spec, manifest(config, spec, "", ""))
    policy, observations = Policy(config, spec), np.array([[0.2, 0.9]], np.float32)
    write_weights(run.best_weights, WeightSnapshot(1, policy.initial_parameters()), policy.layout, "its weights")
    value = policy.values(observations)
    monkeypatch.setattr(Steered, "observation_space", Box(0, 1000, (2,)))
    assert policy_of(run.path)[0].values(observations) == value
    monkeypatch.setattr(Steered, "observation_space", Box(0, 1, (2,)))
    monkeypatch.setattr(Steered, "action_space", Box(-2, 2, (1,)))
    for command in (f"evaluate {run.path}", f"export {run.path}"):
        assert refused(command).endswith(
            f"has actions from [-2.0] to [2.0], and {run.path} was trained with actions from [-1.0] to [1.0]"
        )
