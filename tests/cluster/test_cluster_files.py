"""The cluster files hold what Ray's own schema asks for, and what the project promises of them."""

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

CLUSTERS = Path(__file__).parents[2] / "launch" / "clusters"
SCHEMA = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
RAY_UP = ("onprem", "aws", "gcp")


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())


def defaults(provider: str) -> dict[str, Any]:
    folder = Path(ray.__file__).parent / "autoscaler" / provider
    return yaml.safe_load((folder / "defaults.yaml").read_text())


@pytest.mark.parametrize("name", RAY_UP)
def test_rays_schema_takes_the_file(name: str) -> None:
    config = load(name)
    # As `ray up` does: it fills in what the provider's defaults say, and validates the result.
    validate_config(prepare_config(copy.deepcopy(config)))
    broken = prepare_config(copy.deepcopy(config))
    broken["max_workers"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        validate_config(broken)
    # A setting that Ray does not know would be passed over in silence.
    known = set(json.loads(SCHEMA.read_text())["properties"]) | set(defaults(config["provider"]["type"]))
    # The local provider reads this key before the schema is checked.
    known |= {"min_workers"} if name == "onprem" else set()
    assert set(config) <= known


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


@pytest.mark.parametrize("name", RAY_UP)
def test_token_telemetry_revision_and_pinned_versions(name: str) -> None:
    config = load(name)
    assert "." in config["file_mounts"].values()
    assert any(target.endswith(".ray/auth_token") for target in config["file_mounts"])
    assert any("--constraint constraints.txt" in command for command in config["setup_commands"])
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        (start,) = (command for command in commands if "ray start" in command)
        assert "RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 ray start" in start
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
    assert "# CHANGE" in (CLUSTERS / f"{name}.yaml").read_text()


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
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
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
