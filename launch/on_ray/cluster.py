"""A Ray cluster: starting or joining one, its nodes, and probes of them."""

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Read when ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# The run reports actors that join or go: the autoscaler's lines would only come between.
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")
# It reports processes that died, too: Ray prints twelve lines about each.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed while executing a task")
# Ray's own 15 lets a busy machine starve the learner: runs were seen not to start within minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Under `uv run` Ray would send the working folder to its workers, and refuse a large one.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import ray
from ray.autoscaler.sdk import request_resources
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from launch.doctor import check_reports, probe, quick_probe
from launch.interrupts import StoppedBeforeTrainingError
from launch.machine import ACTORS_A_GPU, machine_bytes, usable_cores, usable_gpus
from launch.on_ray.placement import Node, Slots, cores_of_actors, cores_to_request, slots_by_node
from launch.processes import worker_path
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError, last_line, one_line, setting_error

# Weights and gradients of one machine pass by shared memory of their own; the store holds a few snapshots.
_LOCAL_OBJECT_STORE_BYTES = 2**30
_CONNECT_SECONDS = 5.0
_LOOKUP_SECONDS = 2.0
# In place of Ray's last line, which refers to its pages.
OUT_OF_MEMORY = (
    "Ray ended its process, as the memory of its machine was nearly full: start fewer --actors, or fewer environments "
    "by --actor.total-environments"
)
_NODE_SECONDS = 1.0
# A node that does not respond is passed over for this time. Then Ray's server has noticed, or the node was only busy.
_SILENT_SECONDS = 60.0
# The custom resource that marks the node of the learner.
_LEARNER_RESOURCE = "learner"

# Enough for a process that imports TensorFlow on a busy machine.
_PROBE_SECONDS = 120.0
# Set while `ray.init` forks Ray's processes.
_ray_starts = threading.Event()


class _ProjectFirst(JobConfig):
    """Makes workers look for modules in the project's folder before the driver's working directory.

    Ray would look in the working directory first, and take a file `shared.py` there for this project's package.
    """

    def __init__(self) -> None:
        super().__init__(_py_driver_sys_path=worker_path())

    def _runtime_env_has_working_dir(self) -> bool:
        # True keeps Ray from adding its own folders in front.
        return True


def connect(config: RunConfig, actors: int) -> None:
    """Start Ray on this machine for this process alone, or join the cluster at `config.address`; see `join`."""
    if config.address != "local":
        join(config.address)
        return
    # As many cores as the actors need, even beyond those of the machine: a warning has been shown before. GPU actors
    # share the cores of the machine. Ray may count other GPUs, and processes would wait for them.
    cores, gpus = max(usable_cores() if config.actor.device == "gpu" else 1, actors), usable_gpus()
    memory = min(_LOCAL_OBJECT_STORE_BYTES, machine_bytes() // 4)
    # Without a key of its processes Ray would write one to the home folder, for all users of the machine to read.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _ray_starts.set()
    try:
        _init("local", num_cpus=cores, num_gpus=gpus, object_store_memory=memory, include_dashboard=False)
    finally:
        _ray_starts.clear()


@contextmanager
def disconnecting() -> Iterator[None]:
    """Leave the cluster at the end, or end the one that `connect` has started.

    Raises:
        TrainingFailedError: Ray raised an error, or one of its processes did. The message is its reason in one line.
    """
    try:
        yield
    except ray.exceptions.RayError as error:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else None
        # Otherwise the last line of a traceback, or Ray's reason for the death of a process.
        reason = str(cause) if isinstance(cause, TrainingFailedError) else last_line(error)
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            reason = OUT_OF_MEMORY
        raise TrainingFailedError(reason) from error
    finally:
        ray.shutdown()


def join(address: str) -> None:
    """Join the cluster at an address; `auto`: at RAY_ADDRESS, or the one that runs on this machine.

    Raises:
        ConfigurationError: no Ray cluster answers there, or it takes another token.
        RuntimeError: it runs another version of Ray or Python.
    """
    if address == "auto":
        # Ray takes the variable before it looks for a cluster on this machine.
        address = os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            problem = "must be local, auto or HOST:PORT; auto is RAY_ADDRESS where that is set"
            raise setting_error("address", address, problem)
        try:
            # Ray would try for over a minute, and end the process. Brackets separate an IPv6 address from its port.
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise _no_cluster(address, error) from error
    try:
        _init(address)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        raise _no_cluster(address, error) from error


def _init(address: str, **options: Any) -> None:
    """Start Ray, or join it. Its handler of SIGTERM, which exits, does not replace this process's own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=True, logging_level="error", job_config=_ProjectFirst(), **options)
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        # By Ray's handler. This process's own one raises the same, and ignores a second SIGTERM from then on.
        if callable(before):
            before(signal.SIGTERM, None)
        raise StoppedBeforeTrainingError from None
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _in_child() -> None:
    """Leave this process's group. Python runs this in forked processes: Ray's are started with a `preexec_fn`."""
    if _ray_starts.is_set():
        # `timeout`, `kill -- -GROUP` and a closed terminal signal a whole process group: Ray would end before the run
        # is saved. Without this process the raylet and the workers end at once, and its agents within a minute.
        os.setsid()


os.register_at_fork(after_in_child=_in_child)


def _no_cluster(address: str, error: Exception) -> ConfigurationError:
    token = "where its head has a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or ~/.ray/auth_token are needed here"
    problem = f"no Ray cluster answers there: {one_line(error)}; {token}; --address local needs no cluster"
    return setting_error("address", address, problem)


def cluster_nodes() -> list[Node]:
    """The live nodes of the cluster that was joined."""
    return [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cores=node["Resources"].get("CPU", 0.0),
            bytes=int(node["Resources"].get("memory", 0)),
            gpus=node["Resources"].get("GPU", 0.0),
            marked=node["Resources"].get(_LEARNER_RESOURCE, 0.0) > 0,
            head="node:__internal_head__" in node["Resources"],
            port=node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def on_node(node: str) -> dict[str, Any]:
    """Ray's options for a process that must run on this node; none for the empty id of this machine alone."""
    return {} if not node else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@contextmanager
def machines_requested(config: RunConfig, learner: Node) -> Iterator[None]:
    """Request cores for the largest number of actors from the cluster's autoscaler, if it has one.

    The autoscaler counts all cores of the cluster, also those that take no actors.
    """
    _, most = config.actor_range
    if config.address == "local" or most is None or isinstance(config.actors, int):
        yield
        return
    share = {"GPU": 1 / ACTORS_A_GPU} if config.actor.device == "gpu" else {}
    others = max(0, cores_to_request(config, cluster_nodes(), learner) - most)
    request_resources(bundles=[{"CPU": 1, **share}] * most + [{"CPU": 1}] * others)
    try:
        yield
    finally:
        request_resources(bundles=[])


class ClusterSlots(Slots):
    """The slots of the cluster's nodes, which are looked up again every two seconds.

    `beside`: a node that is marked for the learner takes actors while it is alone.
    """

    def __init__(self, config: RunConfig, learner: Node, *, beside: bool = True) -> None:
        self._config, self._learner, self._beside = config, learner, beside
        self._nodes: list[Node] = []
        # Nodes that did not respond, and until when they are passed over.
        self._silent: dict[str, float] = {}
        self._looked_up = -_LOOKUP_SECONDS

    def nodes(self, *, fresh: bool = False) -> Sequence[Node]:
        """The responding nodes among those that Ray's server lists as alive."""
        now = time.monotonic()
        if fresh or now - self._looked_up >= _LOOKUP_SECONDS:
            self._nodes = [node for node in cluster_nodes() if self._silent.get(node.id, now) <= now]
            self._looked_up = now
        return self._nodes

    def slots_by_node(self) -> dict[str, int]:
        return slots_by_node(self._config, self.nodes(), self._learner, beside=self._beside)

    def cores(self, node_id: str) -> float:
        return next((cores_of_actors(node, self._learner) for node in self.nodes() if node.id == node_id), 0.0)

    def has_lost(self, node_id: str) -> bool:
        """True if this node is lost. Contacts the node itself: Ray's server may take half a minute to notice."""
        node = next((node for node in self.nodes(fresh=True) if node.id == node_id), None)
        if node is None:
            return True
        if _responds(node):
            return False
        # From now on its slots are not offered, before Ray's server has noticed.
        self._silent[node_id] = time.monotonic() + _SILENT_SECONDS
        self._nodes.remove(node)
        return True


def _responds(node: Node) -> bool:
    try:
        socket.create_connection((node.address, node.port), _NODE_SECONDS).close()
    except OSError:
        return False
    return True


def probe_cluster(address: str, console: Console) -> list[dict[str, Any]]:
    """A full report of each node. For errors see `join`."""
    try:
        join(address)
        nodes = cluster_nodes()
        console.print(f"{len(nodes)} nodes …", style="dim", highlight=False)
        return _reports(nodes, probe)
    finally:
        ray.shutdown()


def checked_nodes() -> list[Node]:
    """The nodes of the joined cluster, each compared with this process; see `check_reports`. Takes seconds."""
    nodes = cluster_nodes()
    reports = zip(nodes, _reports(nodes, quick_probe), strict=True)
    # Ray's server lists a node for some time after its machine is gone.
    there = [(node, report) for node, report in reports if "error" not in report or _responds(node)]
    check_reports([report for _, report in there])
    return [node for node, _ in there]


def _reports(nodes: list[Node], function: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run a probe on all nodes at once. One report each, in their order; a failed probe's report has an `error`."""
    calls = [ray.remote(function).options(num_cpus=0, max_retries=0, **on_node(node.id)).remote() for node in nodes]
    reports = []
    deadline = time.monotonic() + _PROBE_SECONDS
    for node, call in zip(nodes, calls, strict=True):
        try:
            report = ray.get(call, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            report = {"error": f"no answer within {_PROBE_SECONDS:.0f} s", "advice": "see ray logs on that node"}
        except ray.exceptions.RayError as error:
            advice = "copy this folder there and run: pip install --editable ., or see ray logs on that node"
            report = {"error": one_line(error)[-200:], "advice": advice}
        reports.append(report | {"node": node.address})
    return reports
