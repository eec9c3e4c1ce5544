"""Several Ray nodes on this machine."""

import re
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster


def add(cluster: Cluster, cpus: int, gpus: int = 0, **resources: float) -> Any:
    return cluster.add_node(num_cpus=cpus, num_gpus=gpus, resources=resources, object_store_memory=200 * 2**20)


def node_of(cluster: Cluster, pid: int) -> Any:
    parent = int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]
    command = Path(f"/proc/{parent}/cmdline").read_bytes().decode()
    return next(node for node in cluster.list_all_nodes() if node.node_id in command)
