"""Runs whose actors are on a GPU, which this machine pretends to have: its CPU computes their graphs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from ale_py.vector_env import AtariVectorEnv
from fake_ray import FakeRay

from actors.environments import environment_spec
from launch import machine
from launch.cli import main
from launch.machine import PRETENDED_GPUS, ThreadBudget, thread_budget, usable_gpus
from launch.on_ray import cluster, learner_process
from launch.on_ray.placement import Node, cores_of_actors, local_placement, place, placement_lines, worker_resources
from launch.presets import PRESETS
from launch.settings.check import on_device
from launch.settings.files import with_settings
from launch.settings.resolve import divided_among
from shared.config import RunConfig
from shared.errors import ConfigurationError

GIB = 2**30
HEAD = Node("h", "10.0.0.1", 4.0, 64 * GIB, head=True)
WORKERS = [Node("g", "10.0.0.2", 17.0, 64 * GIB, gpus=2.0), Node("c", "10.0.0.3", 16.0, 64 * GIB)]
SMALL = (
    "--actor.device gpu --actor.environments 4 --actor.unroll-length 5 --environment.screen-size 36 --actors 2 "
    "--log-every-seconds 0.3 --network.no-centre-observations"
)
PONG = PRESETS["pong"].config


def config_of(preset: str = "pong", **settings: Any) -> RunConfig:
    names = {name.replace("__", "."): value for name, value in settings.items()}
    return with_settings(PRESETS[preset].config, {"actor.device": "gpu", **names})


@pytest.fixture(scope="module")
def spec() -> Any:
    return environment_spec(PONG.environment)


# ---- Runs


@pytest.mark.usefixtures("working_folder")
def test_a_run_is_evaluated_and_resumed_on_the_cpu(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(PRETENDED_GPUS, "1")
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    made, make = set[tuple[int, int]](), AtariVectorEnv.__init__

    def recorded(vector: AtariVectorEnv, game: str, count: int, *, num_threads: int, **settings: Any) -> None:
        made.add((count, num_threads))
        make(vector, game, count, num_threads=num_threads, **settings)

    monkeypatch.setattr(AtariVectorEnv, "__init__", recorded)
    inline = f"{SMALL} --executor inline --actor.epochs 2 --actor.minibatches 2"
    evaluations = "--evaluation.every-frames 800 --evaluation.episodes 2 --environment.max-episode-frames 120"
    assert main(f"train pong {inline} {evaluations} --total-frames 1600 --run-dir run".split()) == 0
    # Vectors of two actors that share seven cores, and copies that are looked at or evaluated.
    assert made == {(2, 2), (1, 1)}
    line = "2 actors and the learner, in one thread, and 2 of an actor for its emulators"
    assert line in " ".join(capsys.readouterr().out.split())
    first = account_of(Path("run"))
    assert first["agent_steps_sampled"] >= 400
    assert first["evaluation"]["episodes"] == 2
    monkeypatch.delenv(PRETENDED_GPUS)
    # The folder is that of a machine with a GPU.
    assert main(["train", "--resume", "run", "--total-frames", "2400"]) == 2
    assert main(["train", "--resume", "run", "--actor.device", "cpu", "--total-frames", "2400"]) == 0
    last = account_of(Path("run"))
    assert last["agent_steps_sampled"] >= 600
    assert last["updates"] > first["updates"]


# ---- Placement


def test_gpus_are_counted_by_their_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DEVICES", str(tmp_path))
    for name in (PRETENDED_GPUS, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert usable_gpus() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert usable_gpus() == 2
    for visible in ("1", "0,-1,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert usable_gpus() == 1


@pytest.mark.parametrize(
    ("cores", "gpus", "settings", "actors", "threads"),
    [
        (16, 1, {}, 2, 6),
        (16, 2, {}, 4, 2),
        (2, 1, {}, 2, 1),
        (2, 2, {}, 2, 1),
        (16, 2, {"learner__device": "gpu"}, 2, 6),
    ],
)
def test_two_actors_share_a_gpu(cores: int, gpus: int, settings: dict, actors: int, threads: int, monkeypatch) -> None:
    monkeypatch.setenv(PRETENDED_GPUS, str(gpus))
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    assert thread_budget(config_of(**settings)) == ThreadBudget(cores, actors, threads)
    line = f"--actors {actors + 1}: there is room for {actors} GPU actors, 2 on each of "
    with pytest.raises(ConfigurationError, match=line):
        thread_budget(config_of(actors=actors + 1, **settings))


def test_a_learner_does_not_wait_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.machine.usable_gpus", lambda: 0)
    with pytest.raises(ConfigurationError, match=r"--learner\.device gpu: there is no GPU; use cpu"):
        thread_budget(config_of(actor__device="cpu", learner__device="gpu"))


def test_an_autoscaler_is_asked_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[dict[str, float]]] = []
    monkeypatch.setattr(cluster, "request_resources", lambda bundles: requests.append(bundles))
    monkeypatch.setattr(cluster, "cluster_nodes", list)
    for device in ("gpu", "cpu"):
        with cluster.machines_requested(config_of(address="auto", actors="1:3", actor__device=device), HEAD):
            pass
    assert requests == [3 * [{"CPU": 1, "GPU": 0.5}], [], 3 * [{"CPU": 1}], []]


def test_nodes_of_a_cluster_have_actors_by_their_gpus() -> None:
    config, nodes = config_of(actors="auto"), [HEAD, *WORKERS]
    # The learner draws no GPU: these are the actors'.
    placement = place(config, nodes)
    assert placement == (HEAD, {"g": 4}, ("10.0.0.3 has room for 0: 16 cores, 0 GPUs, 65536 MiB",))
    assert "10.0.0.2: 4 GPU actors  (17 cores, 2 GPU, 64 GiB)" in placement_lines(config, placement, nodes)
    shared = with_settings(config, {"learner.device": "gpu"})
    with_learner = place(shared, nodes)
    assert with_learner[:2] == (nodes[1], {"g": 2})
    assert placement_lines(shared, with_learner, nodes)[0].startswith("10.0.0.2: learner on a GPU + 2 GPU actors  (17")
    one_each = [HEAD, Node("g", "10.0.0.2", 17.0, 64 * GIB, gpus=1.0)]
    with pytest.raises(ConfigurationError, match=r"room for 0 on .*, a core of a GPU node and 950 MiB each"):
        place(config_of(actors="auto", learner__device="gpu"), one_each)
    # The learner leaves a GPU to actors unless it shall have one. Cores and memory are limits, too.
    others = [Node("m", "10.0.0.4", 16.0, GIB, gpus=1.0), Node("z", "10.0.0.5", 0.0, 64 * GIB, gpus=1.0)]
    assert place(config, [replace(HEAD, gpus=1.0), *others]).actors == {"h": 2, "m": 1}
    assert worker_resources(config, cores_of_actors(nodes[1], HEAD), 4) == (3, {"num_cpus": 4, "num_gpus": 0.5})
    assert worker_resources(PONG, 16.0, 15) == (1, {"num_cpus": 1})


@pytest.mark.parametrize(("device", "gpus"), [("auto", 0), ("gpu", 1)])
def test_the_learner_reserves_a_gpu_if_it_shall_have_one(device: str, gpus: int, spec: Any, monkeypatch) -> None:
    monkeypatch.setattr(learner_process, "ray", ray := FakeRay())
    config, placement = config_of(learner__device=device), local_placement(ThreadBudget(2, 1))
    learner_process.start_learner(learner_process.LearnerStart(config, spec, Path(), placement, False, 0.0))
    assert [process.options["num_gpus"] for process in ray.processes] == [gpus]


# ---- The choice of the device


def test_a_resume_does_not_divide_the_environments_again(spec: Any) -> None:
    """3 actors of Pong have 11 environments each. A new run on GPUs would have an even number."""
    alone = with_settings(divided_among(PONG, 3), {"actor.device": "gpu"})
    assert alone.actor.environments == 11
    assert on_device(alone, spec, 1) == (alone, None)
    with pytest.raises(ConfigurationError, match="environments 11: must be even"):
        on_device(alone, spec, 1, resume=True)
    auto = with_settings(alone, {"actor.device": "auto"})
    assert on_device(auto, spec, 1, resume=True)[0].actor.device == "cpu"
    assert divided_among(with_settings(PONG, {"actor.device": "auto"}), 22).actor.environments % 2 == 0


@pytest.mark.parametrize(("preset", "gpus", "device"), [("pong", 1, "gpu"), ("pong", 0, "cpu"), ("cartpole", 1, "cpu")])
def test_auto_takes_a_gpu_where_there_is_one(preset: str, gpus: int, device: str) -> None:
    requested = {name: config_of(preset, actor__device=name) for name in ("auto", "cpu", "gpu")}
    spec = environment_spec(requested["auto"].environment)
    line = f"device:       actors on the {device.upper()}"
    assert on_device(requested["auto"], spec, gpus) == (requested[device], line)
    for name in ("cpu", "gpu"):
        assert on_device(requested[name], spec, 1) == (requested[name], None)


@pytest.mark.parametrize(
    ("settings", "gpus", "message"),
    [
        ({}, 0, "--actor.device gpu: there is no GPU for actors; use cpu"),
        ({"learner__device": "gpu"}, 1, "--actor.device gpu: there is no GPU for actors"),
        ({"network__recurrent": "lstm"}, 1, "--network.recurrent lstm: has a memory"),
        ({"method__name": "sarsa"}, 1, "--method.name sarsa: bootstraps from an action of the next rollout"),
        ({"exploration__noise": "state_dependent"}, 1, "--exploration.noise state_dependent: is kept for"),
        ({"actor__environments": 3, "actor__total_environments": None, "actor__minibatches": 1}, 1, "3: must be even"),
    ],
)
def test_what_gpu_actors_do_not_carry_is_refused(settings: dict[str, Any], gpus: int, message: str, spec: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        on_device(config_of(**settings), spec, gpus)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
