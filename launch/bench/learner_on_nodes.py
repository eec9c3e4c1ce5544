"""What a learner does on a node of its own, with synthetic actors on other logical nodes of this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from actors.environments import EnvironmentSpec
from launch.bench.learner import start_learner
from launch.on_ray.tree import Aggregation
from shared.config import RunConfig

# An actor's gradient that does not come.
_NEVER_SECONDS = 1e6


def measure_on_nodes(
    config: RunConfig, spec: EnvironmentSpec, aggregation: Aggregation, nodes: int, pace: float, seconds: float
) -> dict[str, Any]:
    """What the learner did, and what that cost, with its actors on so many nodes.

    Each of the `config.actors` sends a gradient every `pace` seconds.
    """
    import ray

    with _learner_on_nodes(config, spec, aggregation, nodes, pace) as (process, made):
        measured: dict[str, Any] = ray.get(process.run.remote(made, seconds, os.getpid()))
        return measured


def measure_idle(config: RunConfig, spec: EnvironmentSpec, nodes: int, seconds: float) -> float:
    """CPU seconds per second of a learner to which nothing comes: Ray's threads, and looking for nodes."""
    import ray

    aggregation = Aggregation("none", 1, "nothing comes")
    with _learner_on_nodes(config, spec, aggregation, nodes, _NEVER_SECONDS) as (process, made):
        idle: float = ray.get(process.idle.remote(made, seconds))
        return idle


@contextmanager
def _learner_on_nodes(
    config: RunConfig, spec: EnvironmentSpec, aggregation: Aggregation, nodes: int, pace: float
) -> Iterator[tuple[Any, Any]]:
    """The learner's process, and what makes its executor."""
    from launch.bench.synthetic import executor_on_nodes
    from launch.on_ray.cluster import cluster_nodes, on_node
    from launch.on_ray.logical_nodes import logical_nodes
    from launch.on_ray.placement import learner_node

    actors, _ = config.actor_range
    with logical_nodes(actors, nodes):
        learner, _ = learner_node(config, cluster_nodes())
        process = start_learner(config, spec, 1, **on_node(learner.id))
        yield process, partial(executor_on_nodes, config, spec, aggregation, learner, pace)
