"""Several Ray nodes on this machine, and a run of `tributary train` on them."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from accounts import account_of
from ray.cluster_utils import Cluster
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES, wait_for
from watched_processes import rows

SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --total-frames 1000M "
    "--log-every-seconds 0.5 --checkpoint.every-seconds 1 --actor.environments 4 --actor.unroll-length 10"
)


class Training:
    """`tributary train` on a cluster, watched from outside."""

    def __init__(self, address: str, folder: Path, arguments: str = "") -> None:
        """A new run in `folder`; one that is there already goes on."""
        self.folder = folder
        what = ["--resume", str(folder)] if folder.exists() else [*SETTINGS.split(), "--run-dir", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch.cli", "train", *what, "--address", address, *arguments.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what, process=self.process, shown=self.log)

    def row(self) -> dict[str, Any]:
        return (rows(self.folder) or [{"actors_alive": 0, "updates": 0, "frames": 0}])[-1]

    def log(self) -> str:
        with suppress(OSError):
            return (self.folder / "log.txt").read_text()
        return ""

    def wait_for_actors(self, count: int) -> None:
        self.wait_for(lambda: self.row()["actors_alive"] == count, f"{count} actors at work")
        updates = self.row()["updates"]
        self.wait_for(lambda: self.row()["updates"] > updates, "progress")

    def stop(self) -> tuple[dict[str, Any], str]:
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 130, output
        return account_of(self.folder), output


def add(cluster: Cluster, cpus: int, **resources: float) -> Any:
    return cluster.add_node(num_cpus=cpus, resources=resources, object_store_memory=200 * 2**20)


def pids(cluster: Cluster, title: str) -> list[int]:
    """The cluster's processes whose title begins so."""
    found = []
    for entry in Path("/proc").iterdir():
        # A process may end at any moment; it is one of the cluster's if its parent is a raylet of it.
        with suppress(OSError, StopIteration):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(title.encode()):
                node_of(cluster, int(entry.name))
                found.append(int(entry.name))
    return found


def node_of(cluster: Cluster, pid: int) -> Any:
    """The node whose raylet is the parent of this process."""
    parent = int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]
    command = Path(f"/proc/{parent}/cmdline").read_bytes().decode()
    return next(node for node in cluster.list_all_nodes() if node.node_id in command)


def drain(cluster: Cluster, node: Any) -> None:
    """Have a node taken away in ten minutes."""
    deadline = int((time.time() + 600) * 1000)
    ray.init(cluster.address, logging_level="error")
    try:
        accepted, _ = ray._raylet.GcsClient(address=cluster.address).drain_node(
            node.node_id, 2, "the machine is taken back", deadline
        )
    finally:
        ray.shutdown()
    assert accepted
