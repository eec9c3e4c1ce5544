"""Starts or joins a Ray cluster, and sees which of its nodes are alive."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Read when ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# The autoscaler's lines would come between those of the run, which says itself when actors join or go.
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")

import ray
from ray.autoscaler.sdk import request_resources
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launch.machine.import_path import worker_path
from launch.on_ray.placement import Node, slots_by_node
from shared.config import RunConfig
from shared.errors import ConfigurationError, one_line, setting_error

_LOCAL_OBJECT_STORE_BYTES = 2**30
_ANSWER_SECONDS = 5.0
_LOOKUP_SECONDS = 2.0
_NODE_SECONDS = 1.0
# Between two tries to reach a node that did not answer.
_RETRY_SECONDS = 10.0
# The custom resource of the node that the learner has to be on.
LEARNER_RESOURCE = "learner"


class _ProjectFirst(JobConfig):
    """Has workers look for modules in the project's folder first, then in the driver's working directory.

    Ray would put the driver's working directory first: a file `shared.py` there would be taken for our package.
    """

    def __init__(self) -> None:
        super().__init__(_py_driver_sys_path=worker_path())

    def _runtime_env_has_working_dir(self) -> bool:
        # Ray asks this before it adds its own folders in front; True keeps it from that.
        return True


def connect(config: RunConfig, actors: int) -> None:
    """Start Ray on this machine for this run alone, or join the cluster at `config.address`.

    Raises:
        ConnectionError: there is no cluster at the address.
        ConfigurationError: Ray did not start in time.
    """
    if config.address == "local":
        # As many cores as the actors need, whatever the machine has: that was decided, and warned about, before.
        start_here(max(1, int(actors * config.actor.cores + 0.999)))
    else:
        join(config.address)


def start_here(cores: int) -> None:
    """Start Ray on this machine, with so many cores, for this process alone.

    Raises:
        ConfigurationError: it did not start in time.
    """
    quiet = {"log_to_driver": True, "logging_level": "error", "include_dashboard": False}
    memory = _LOCAL_OBJECT_STORE_BYTES
    try:
        with _own_sigterm():
            ray.init("local", num_cpus=cores, object_store_memory=memory, job_config=_ProjectFirst(), **quiet)
    except Exception as error:
        # It has no type of its own.
        if "timed out during startup" not in str(error):
            raise
        raise ConfigurationError(
            "Ray did not start within its 30 seconds: is this machine busy? Try again, or train without Ray: "
            "--executor inline"
        ) from error


def join(address: str) -> None:
    """Join the cluster at an address.

    Raises:
        ConfigurationError: nobody listens there, or the cluster runs another version of Ray or Python.
        ConnectionError: something listens there, and it is no Ray cluster.
    """
    check_address(address)
    try:
        with _own_sigterm():
            ray.init(address, log_to_driver=True, logging_level="error", job_config=_ProjectFirst())
    except RuntimeError as error:
        text = one_line(error)
        if "ersion mismatch" not in text:
            raise
        raise setting_error("address", address, f"{text}; install the same versions on all nodes") from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray sets a handler for SIGTERM, by which a process leaves at once. One that this process has set stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before != signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


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
            marked=node["Resources"].get(LEARNER_RESOURCE, 0.0) > 0,
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


def takes_gpu_here(config: RunConfig) -> bool:
    """Whether the learner takes a GPU of this machine.

    Raises:
        ConfigurationError: it should, and Ray finds none.
    """
    gpu = config.learner.may_use_gpu and total_gpus() >= 1
    if config.learner.device == "gpu" and not gpu:
        raise setting_error("learner.device", "gpu", "Ray finds no GPU; use cpu, or auto to take one if there is one")
    return gpu


def _draining_nodes() -> set[str]:
    # There is no public function for it; Ray Serve asks the same way.
    return set(ray._private.state.state.get_draining_nodes())


class ClusterView:
    """The nodes of the cluster and their places for actors, looked up again every two seconds.

    Args:
        config: of the run.
        learner: the node of the learner.
    """

    def __init__(self, config: RunConfig, learner: Node) -> None:
        self._config, self.learner = config, learner
        self._nodes: list[Node] = []
        # When each node that Ray's server still takes for alive was last found not to answer.
        self._silent: dict[str, float] = {}
        self._looked_up = -_LOOKUP_SECONDS

    def nodes(self, *, fresh: bool = False) -> list[Node]:
        """The nodes that Ray's server takes for alive, less those that were found not to answer."""
        now = time.monotonic()
        if fresh or now - self._looked_up >= _LOOKUP_SECONDS:
            self._nodes = [node for node in cluster_nodes() if not self._is_silent(node, now)]
            self._looked_up = now
        return self._nodes

    def has_lost(self, node_id: str) -> bool:
        """Whether this node is gone. It is asked itself: Ray's server may take half a minute to notice."""
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

    def slots_by_node(self) -> dict[str, int]:
        """How many actors each node takes, by its id."""
        return slots_by_node(self._config, self.nodes(), self.learner)


def _answers(node: Node) -> bool:
    try:
        socket.create_connection((node.address, node.port), _NODE_SECONDS).close()
    except OSError:
        return False
    return True


def on_node(node: str) -> dict[str, Any]:
    """Ray's options for a process that runs on this node or not at all."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
