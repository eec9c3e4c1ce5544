"""Several Ray nodes on this machine."""

import re
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster


def add(cluster: Cluster, cpus: int, gpus: int = 0, **resources: float) -> Any:
    return cluster.add_node(num_cpus=cpus, num_gpus=gpus, resources=resources, object_store_memory=200 * 2**20)


def node_of(cluster: Cluster, pid: int) -> Any:
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
