"""Start or join a Ray cluster, and start the learner on it."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Read when ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# The autoscaler's lines would come between those of the run, which says itself when actors join or go.
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.environments import EnvironmentSpec
from launch.bench.synthetic import BenchLearnerProcess
from launch.machine.budget import ThreadBudget
from launch.on_ray.placement import Node, Placement, aggregates, room
from launch.on_ray.processes import EvaluatorProcess, LearnerProcess, SentFolder
from shared.config import RunConfig
from shared.errors import setting_error

# The learner's `run` occupies one thread; `view` and `interrupt` are answered beside it.
_LEARNER_THREADS = 3
_LOCAL_OBJECT_STORE_BYTES = 2**30
_ANSWER_SECONDS = 5.0
_LOOKUP_SECONDS = 2.0
_NODE_SECONDS = 1.0
# Between two tries to reach a node that did not answer.
_RETRY_SECONDS = 10.0
# The custom resource of the node that the learner has to be on.
_LEARNER_RESOURCE = "learner"
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
        join(config.address)


def join(address: str) -> None:
    """Join the cluster at an address.

    Raises:
        ConfigurationError: nobody listens there, or the cluster runs another version of Ray or Python.
        ConnectionError: what listens there is no cluster.
    """
    check_address(address)
    try:
        ray.init(address, log_to_driver=True, logging_level="error")
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if "ersion mismatch" not in text:
            raise
        raise setting_error("address", address, f"{text}; install the same versions on all nodes") from error


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


def cluster_nodes() -> list[Node]:
    """The machines of the cluster that was joined, those that are alive."""
    draining = _draining_nodes()
    return [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cores=node["Resources"].get("CPU", 0.0),
            bytes=int(node["Resources"].get("memory", 0)),
            gpus=node["Resources"].get("GPU", 0.0),
            marked=node["Resources"].get(_LEARNER_RESOURCE, 0.0) > 0,
            head="node:__internal_head__" in node["Resources"],
            draining=node["NodeID"] in draining,
            port=node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


@contextmanager
def machines_requested(config: RunConfig) -> Iterator[None]:
    """Ask the cluster's autoscaler, if it has one, for the cores of as many actors as the run may have at most."""
    _, most = config.actor_range
    if config.address == "local" or most is None or isinstance(config.actors, int):
        yield
        return
    request_resources(bundles=[{"CPU": config.actor.cores}] * most)
    try:
        yield
    finally:
        request_resources(bundles=[])


def total_gpus() -> float:
    """GPUs of all nodes."""
    return float(ray.cluster_resources().get("GPU", 0.0))


def _draining_nodes() -> set[str]:
    # Ray Serve asks the same way; there is no public one.
    return set(ray._private.state.state.get_draining_nodes())


class ClusterView:
    """The places for actors, as they are now. Looked up again every two seconds.

    Args:
        config: of the run.
        learner: the node of the learner.
    """

    def __init__(self, config: RunConfig, learner: Node) -> None:
        self._config, self._learner = config, learner
        self._nodes: list[Node] = []
        # Since when nodes do not answer that Ray's server still takes for alive.
        self._silent: dict[str, float] = {}
        self._looked_up = -_LOOKUP_SECONDS

    def nodes(self, *, fresh: bool = False) -> list[Node]:
        """The nodes that are alive, as far as is known."""
        now = time.monotonic()
        if fresh or now - self._looked_up >= _LOOKUP_SECONDS:
            self._nodes = [node for node in cluster_nodes() if not self._is_silent(node, now)]
            self._looked_up = now
        return self._nodes

    def has_lost(self, node_id: str) -> bool:
        """Whether this node is gone, which Ray's server may find out half a minute later."""
        node = next((node for node in self.nodes(fresh=True) if node.id == node_id), None)
        if node is None:
            return True
        if _answers(node):
            return False
        self._silent[node_id] = time.monotonic()
        self._nodes = [node for node in self._nodes if node.id != node_id]
        return True

    def _is_silent(self, node: Node, now: float) -> bool:
        """A node that did not answer is tried again now and then: it may only have been busy."""
        since = self._silent.get(node.id)
        if since is None:
            return False
        if now - since >= _RETRY_SECONDS:
            if _answers(node):
                del self._silent[node.id]
                return False
            self._silent[node.id] = now
        return True

    def places(self) -> dict[str, int]:
        """How many actors each node takes, by its id."""
        return room(self._config, self.nodes(), self._learner)


def _answers(node: Node) -> bool:
    try:
        socket.create_connection((node.address, node.port), _NODE_SECONDS).close()
    except OSError:
        return False
    return True


def start_evaluator(config: RunConfig, spec: EnvironmentSpec) -> Any:
    """Start the evaluator's process. It takes no core from the actors' count: between evaluations it sleeps."""
    return ray.remote(num_cpus=0, **PROCESS_OPTIONS)(EvaluatorProcess).remote(config, spec)


def on_node(node: str) -> dict[str, Any]:
    """Options of a process that runs on this node or not at all."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def start_learner(
    config: RunConfig,
    spec: EnvironmentSpec,
    folder: Path,
    budget: ThreadBudget,
    placement: Placement | None,
    *,
    resume: bool,
    death: tuple[str, int] | None = None,
    sent: SentFolder | None = None,
) -> Any:
    """Start the learner's process where the placement has it; without one, on this machine.

    `death` has the fields of `LearnerDeath`, if this process takes over from one that died. `sent` is the run folder,
    for a learner that may be on another machine.
    """
    if placement is None:
        gpu, where = config.learner.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1, {}
        if config.learner.device == "gpu" and not gpu:
            raise setting_error(
                "learner.device", "gpu", "Ray finds no GPU; use cpu, or auto to take one if there is one"
            )
    else:
        gpu, where = placement.gpu, on_node(placement.learner.id)
    options = PROCESS_OPTIONS | where
    remote = ray.remote(num_cpus=0, num_gpus=int(gpu), max_concurrency=_LEARNER_THREADS, **options)
    node = None if placement is None else placement.learner
    return remote(LearnerProcess).remote(
        config,
        spec,
        str(folder),
        budget,
        node,
        resume=resume,
        gpu=gpu,
        aggregate=aggregates(config, placement)[0],
        death=death,
        sent=sent,
    )


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
