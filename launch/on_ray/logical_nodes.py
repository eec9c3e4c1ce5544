"""Several Ray nodes on this machine, each with an object store of its own: what a bench has in a cluster's place."""

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

from launch.machine.budget import ACTOR_BYTES
from launch.on_ray.cluster import LEARNER_RESOURCE, join
from launch.on_ray.placement import LARGE_NODE_CORES

_STORE_BYTES = 256 * 2**20


@contextmanager
def logical_nodes(actors: int, nodes: int) -> Iterator[None]:
    """Join a cluster that has room for so many actors on so many nodes, and one more node for the learner.

    What passes between the nodes is copied from store to store by Ray's own processes, as between machines, over the
    loopback device. `actors` is a multiple of `nodes`.
    """
    each = actors // nodes
    # A large node keeps a core free.
    cores = each + (each >= LARGE_NODE_CORES)
    head = {"num_cpus": 1, "resources": {LEARNER_RESOURCE: 1}, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cores, memory=each * ACTOR_BYTES, object_store_memory=_STORE_BYTES)
        join(cluster.address)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
