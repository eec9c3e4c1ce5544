"""A cluster of one node, and runs on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import Training
from ray.cluster_utils import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 * 2**20})
    yield made
    made.shutdown()


@pytest.fixture
def train(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[str], Training]]:
    started: list[Training] = []

    def start(arguments: str = "") -> Training:
        started.append(Training(cluster.address, tmp_path / f"run{len(started)}", arguments))
        return started[-1]

    yield start
    for training in started:
        training.process.kill()
        training.process.wait()
