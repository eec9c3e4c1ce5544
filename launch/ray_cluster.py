"""Start or join a Ray cluster, and start the learner on it."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Read when ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from actors.environments import EnvironmentSpec
from launch.bench.synthetic import BenchLearnerProcess
from launch.budget import Node, ThreadBudget
from launch.ray_processes import LearnerProcess
from shared.config import RunConfig
from shared.errors import setting_error

# The learner's `run` occupies one thread; `view` and `interrupt` are answered beside it.
_LEARNER_THREADS = 3
_LOCAL_OBJECT_STORE_BYTES = 2**30
_ANSWER_SECONDS = 5.0

# Ray never starts a process or a call again by itself: it would be counted twice. Nor does it keep a record of every
# call: in half an hour of CartPole its server had grown to 400 MB by them.
PROCESS_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}


def connect(config: RunConfig, actors: int) -> None:
    """Start Ray on this machine for this run alone, or join the cluster at `config.address`.

    Raises:
        ConnectionError: there is no cluster at the address.
    """
    quiet = {"log_to_driver": True, "logging_level": "error", "include_dashboard": False}
    if config.address == "local":
        # As many slots as actors: how many the machine should have was decided, and warned about, before.
        cores = max(1, int(actors * config.actor.cores + 0.999))
        ray.init("local", num_cpus=cores, object_store_memory=_LOCAL_OBJECT_STORE_BYTES, **quiet)
    else:
        check_address(config.address)
        ray.init(config.address, log_to_driver=True, logging_level="error")


def check_address(address: str) -> None:
    """Refuse an address that nobody listens at: Ray would try for over a minute, and end the process.

    Raises:
        ConfigurationError: it is neither `auto` nor the HOST:PORT of something that answers.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise setting_error("address", address, "must be local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise setting_error("address", address, f"no Ray cluster answers there: {error}") from error


def check_devices(config: RunConfig) -> None:
    """Refuse a device that the cluster lacks: Ray would wait for it without end.

    Raises:
        ConfigurationError: a GPU is asked for and there is none.
    """
    if config.learner.device == "gpu" and ray.cluster_resources().get("GPU", 0) < 1:
        raise setting_error("learner.device", "gpu", "Ray finds no GPU; use cpu, or auto to take one if there is one")


def cluster_nodes() -> Sequence[Node]:
    """The machines of the cluster that was joined."""
    return [
        Node(node["Resources"].get("CPU", 0.0), int(node["Resources"].get("memory", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]


def start_learner(
    config: RunConfig,
    spec: EnvironmentSpec,
    folder: Path,
    budget: ThreadBudget,
    *,
    resume: bool,
    death: tuple[str, int] | None = None,
) -> Any:
    """Start the learner's process, with a GPU if `learner.device` asks for one or the cluster has one.

    `death` has the fields of `launch.session.LearnerDeath`, if this process takes over from one that died.
    """
    gpu = config.learner.device == "gpu" or (
        config.learner.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1
    )
    remote = ray.remote(num_cpus=0, num_gpus=int(gpu), max_concurrency=_LEARNER_THREADS, **PROCESS_OPTIONS)
    return remote(LearnerProcess).remote(config, spec, str(folder), budget, resume=resume, gpu=gpu, death=death)


def start_bench_learner(config: RunConfig, spec: EnvironmentSpec, budget: ThreadBudget) -> Any:
    """Start the learner of `tributary bench learner`, on CPUs."""
    return ray.remote(num_cpus=0, **PROCESS_OPTIONS)(BenchLearnerProcess).remote(config, spec, budget.learner_threads)


def failure_reason(error: ray.exceptions.RayError) -> str:
    """Why a process or a call failed, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    died = isinstance(error, ray.exceptions.RayActorError)
    if not lines:
        return type(error).__name__
    if not died:
        return f"its rollout raised: {lines[-1]}"
    # Ray adds a paragraph of possible causes, the same each time.
    detail = lines[-1].partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"
