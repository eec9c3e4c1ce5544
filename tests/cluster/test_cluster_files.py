"""The cluster files hold what Ray's own schema asks for, and what the project promises of them. That for Slurm is run
with stand-ins for what it calls."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from waiting import DEADLINE_SECONDS, wait_for

CLUSTERS = Path(__file__).parents[2] / "launch" / "clusters"
SCHEMA = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
RAY_UP = ("onprem", "aws", "gcp")


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())


def defaults(provider: str) -> dict[str, Any]:
    folder = Path(ray.__file__).parent / "autoscaler" / provider
    return yaml.safe_load((folder / "defaults.yaml").read_text())


@pytest.mark.parametrize("name", RAY_UP)
def test_rays_schema_takes_the_file_with_its_token_and_versions(name: str) -> None:
    config = load(name)
    # As `ray up` does: it fills in what the provider's defaults say, and validates the result.
    validate_config(prepare_config(copy.deepcopy(config)))
    # A setting that Ray does not know would be passed over in silence.
    known = set(json.loads(SCHEMA.read_text())["properties"]) | set(defaults(config["provider"]["type"]))
    # The local provider reads this key before the schema is checked.
    known |= {"min_workers"} if name == "onprem" else set()
    assert set(config) <= known
    assert "." in config["file_mounts"].values()
    assert any(target.endswith(".ray/auth_token") for target in config["file_mounts"])
    assert any("--constraint constraints.txt" in command for command in config["setup_commands"])
    for kind, patience in (("head", "RAY_JOB_STOP_WAIT_TIME_S=120 "), ("worker", "")):
        (start,) = (command for command in config[f"{kind}_start_ray_commands"] if "ray start" in command)
        assert f"RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 {patience}ray start" in start
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_node_types_of_a_cloud(name: str) -> None:
    config = load(name)
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"]["learner"] == 1
    actor = types["actor"]
    assert 0 < actor["min_workers"] <= actor["max_workers"] <= config["max_workers"]
    assert "learner" not in actor["resources"]
    assert "spot" in json.dumps(actor["node_config"]).lower()
    assert "spot" not in json.dumps(types["learner"]["node_config"]).lower()
    gpu_actor = types["gpu_actor"]
    assert gpu_actor["resources"].pop("GPU") == 1
    assert "learner" not in gpu_actor["resources"]
    # Nothing is paid for it until it is switched on.
    assert (gpu_actor["min_workers"], gpu_actor["max_workers"]) == (0, 0)
    # All nodes need the same Python.
    images = json.dumps(types) if name == "gcp" else (CLUSTERS / "aws.yaml").read_text()
    assert len(re.findall(r"[Uu]buntu\D*24\.?04", images)) >= len(types)


@pytest.mark.parametrize("name", ["aws", "gcp"])
@pytest.mark.parametrize(("vendors", "extras"), [([], "cluster"), (["0x8086", "0x10de"], "cluster,gpu")])
def test_a_card_of_nvidia_installs_its_extra(name: str, vendors: list[str], extras: str, tmp_path: Path) -> None:
    for number, vendor in enumerate(vendors):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
    python = tmp_path / "tributary" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nfor last in "$@"; do :; done; echo "$last"\n')
    python.chmod(0o755)
    (install,) = (command for command in load(name)["setup_commands"] if "--editable" in command)
    install = install.replace("/sys/bus/pci/devices", str(tmp_path))
    ended = subprocess.run(
        ["bash", "-c", install], env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert ended.stdout == f".[{extras}]\n"


def test_kuberay() -> None:
    cluster = load("kuberay")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    constraints = (CLUSTERS.parents[1] / "constraints.txt").read_text()
    assert f"ray=={spec['rayVersion']}" in constraints
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert container["resources"]["requests"]["cpu"] == group["rayStartParams"]["num-cpus"]
        # The file of the token is its group's to read, and the image's user is another one than its owner.
        assert group["template"]["spec"]["securityContext"]["fsGroup"] == 1000
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    head, autoscaler = spec["headGroupSpec"]["template"]["spec"]["containers"][0], spec["autoscalerOptions"]
    assert autoscaler["env"] == head["env"]
    assert autoscaler["volumeMounts"][0] in head["volumeMounts"]
    # The quotes are for the shell that KubeRay starts Ray by.
    marked = json.loads(spec["headGroupSpec"]["rayStartParams"]["resources"].strip('"').replace('\\"', '"'))
    assert marked == {"learner": 1}
    workers = spec["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def test_the_image_installs_what_the_project_says() -> None:
    text = (CLUSTERS / "Dockerfile").read_text()
    copied = re.search(r"^COPY --chown=tributary (.+) \./$", text, re.M)
    for name in copied[1].split():
        assert (CLUSTERS.parents[1] / name).exists(), name
    packages = tomllib.loads((CLUSTERS.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    stubs = re.search(r"^RUN for package in (.+?);", text, re.M)
    assert {f"{name}*" for name in stubs[1].split()} == set(packages["find"]["include"])


# What tests/cluster/test_slurm.py has on Slurm itself is not here: a run that is saved, queued again and resumed.
# `srun` runs here what it is given, `ray` stays until it is killed, and a run learns nothing, or ends with $CODE.
STAND_INS = {
    "scontrol": '[[ $1 == requeue ]] && touch requeued; echo "NodeName=node1 NodeAddr=10.0.0.1 Port=7000"',
    "srun": 'while [[ $1 != bash ]]; do shift; done; exec "$@"',
    "ray": """echo "ray start --address='10.0.0.1:1234'"; echo "Ray runtime started."; exec sleep 600""",
    "tributary": """
trap 'kill -KILL $!; exit 130' HUP
echo "$@" > arguments
[[ $CODE ]] && exit "$CODE"
touch training
sleep 600 & wait
""",
}


@pytest.fixture
def job(working_folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the batch file in the working folder, as slurmd would."""
    programs = working_folder / "programs"
    for folder in (programs, working_folder / ".venv" / "bin"):
        folder.mkdir(parents=True)
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (programs / name).chmod(0o755)
    activate = f"PATH={programs}:{Path(sys.executable).parent}:$PATH\n"
    (working_folder / ".venv" / "bin" / "activate").write_text(activate)

    def start(code: str = "", restarts: int = 0) -> subprocess.Popen[str]:
        given = {"JOB_ID": "17", "JOB_NUM_NODES": "1", "CPUS_PER_TASK": "2", "RESTART_COUNT": str(restarts)}
        slurm = {f"SLURM_{name}": value for name, value in given.items()} | {"SLURMD_NODENAME": "node1", "CODE": code}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        # These tests may run within a job.
        others = {name: value for name, value in os.environ.items() if not name.startswith("SLURM") and name != "RUN"}
        return subprocess.Popen(["bash", str(CLUSTERS / "slurm.sh")], env=others | slurm, text=True, **output)

    return start


def test_a_run_that_learns_nothing_within_its_time_ends_the_job(job: Callable) -> None:
    process = job()
    wait_for(Path("training").exists, "the training", process=process)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, "nothing was learned within the time limit" in output) == (1, True), output
    assert not Path("requeued").exists()


def test_a_start_that_saved_nothing_is_put_aside_and_a_failed_run_ends_the_job(job: Callable) -> None:
    """As after a node was lost in the first minute. A folder that somebody else named is not touched."""
    empty = Path("runs/slurm-17")
    empty.mkdir(parents=True)
    (empty / "config.json").touch()
    for restarts, moved in ((0, False), (1, True)):
        process = job("2", restarts)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 2, output
        assert "--run-dir" in Path("arguments").read_text()
        assert Path("runs/slurm-17.empty-1/config.json").exists() == moved
    assert not Path("requeued").exists()
