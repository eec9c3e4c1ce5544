"""Which executor a run has: one of actors, of nodes that add their gradients, of groups of nodes, or for slices."""

from actors.environments import EnvironmentSpec
from launch.loop.executor import Executor
from launch.on_ray.actor_process import ActorProcess
from launch.on_ray.aggregation import NodesExecutor
from launch.on_ray.cluster import ClusterView
from launch.on_ray.executor import RayExecutor
from launch.on_ray.groups import GroupsExecutor
from launch.on_ray.sliced_executor import SlicedExecutor
from launch.on_ray.slices import SliceProcesses
from launch.on_ray.tree import Aggregation
from shared.config import RunConfig


def make_executor(
    config: RunConfig,
    spec: EnvironmentSpec,
    aggregation: Aggregation,
    actors: int,
    first_actor_id: int,
    cluster: ClusterView | None,
    actor_process: type[ActorProcess] = ActorProcess,
    slices: SliceProcesses | None = None,
) -> Executor:
    """Start the actors of a run, and who adds their gradients.

    Args:
        config: of the run.
        spec: of its environment.
        aggregation: where gradients are added.
        actors: how many, where there is no cluster.
        first_actor_id: ids count up from here, and are never used again.
        cluster: where there are places for actors. None: all are on this machine.
        actor_process: the class that is started in each actor's process.
        slices: the processes that the learner's slices are in, if they are.
    """
    if slices is not None:
        return SlicedExecutor(config, spec, actors, first_actor_id, actor_process, cluster, slices)
    level, node_gradients, _ = aggregation
    if level == "group":
        assert cluster is not None, "the settings refuse groups without a cluster"
        return GroupsExecutor(config, spec, first_actor_id, cluster, node_gradients, actor_process)
    if level == "node":
        return NodesExecutor(config, spec, actors, first_actor_id, cluster, node_gradients, actor_process)
    return RayExecutor(config, spec, actors, first_actor_id, actor_process, cluster=cluster)
