"""Summation of gradients on their node, so that an update needs one message to the learner, or a few, in place of K.

    node                                                     node of the learner
    actor ─┐  shared memory
    actor ─┼────────────────► NodeAggregator ─── one sum ───► AggregatingExecutor ──► coordinator, learner
    actor ─┘                  (GradientAggregator over        (an actor id is an aggregator's)
                              a RayExecutor of this node)

On the learner's own machine the sum travels through shared memory too. It equals the learner's own sum, ((g₁ + g₂) +
g₃) …, in the order of arrival. The learner still admits and accounts for each gradient.
"""

from actors.environments import EnvironmentSpec
from launch.loop.aggregator import GradientAggregator
from launch.loop.executor import CallResult
from launch.machine import usable_cores
from launch.on_ray.actor_process import ActorProcess, WorkerProcess, one_line_errors
from launch.on_ray.executor import RayExecutor
from launch.on_ray.placement import Slots, desired_actors, gradients_per_sum, spread
from launch.on_ray.transport import Call
from shared.config import RunConfig
from shared.types import AggregatedReport, WeightSnapshot

# An aggregator and its actors have a range of ids, so that no id is ever used twice.
_IDS_PER_NODE = 1_000_000


class NodeAggregator(WorkerProcess):
    """A node's process that runs the node's actors, with ids from `first_actor_id`, and sums their gradients."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        slots: Slots,
        gradients: int,
        first_actor_id: int,
        actor_process: type[ActorProcess],
    ) -> None:
        self._executor = RayExecutor(config, spec, slots, first_actor_id, actor_process)
        self._aggregator = GradientAggregator(self._executor, gradients, config.supervision, config.evaluation)
        self._weights: WeightSnapshot | None = None

    def handle(self, call: Call) -> CallResult:
        if self._weights is None or self._weights.version != call.weights.version:
            # Actors may start with these weights after the call, when their memory may have the next ones.
            self._weights = _copy(call.weights)
        with one_line_errors():
            return self._aggregator.collect(self._weights, call.target and _copy(call.target), call.share)

    def close(self) -> None:
        self._executor.close()


class AggregatingExecutor(RayExecutor):
    """An `Executor` whose actor ids stand for aggregators, one on each node. For arguments see `RayExecutor`."""

    aggregates = True
    # Its call, of 7.5 seconds by default, and those of its actors.
    _close_seconds = 15.0

    def actors_of(self, actor_id: int) -> int:
        return self._workers[actor_id].actors

    def rollouts_under_way(self, actor_id: int) -> int:
        # Each actor has one, except the actor that completed the last sum. A sum of at most K is sent as soon as it is
        # complete: an incomplete one holds up to K - 1 gradients that are finite, and seldom one that is not.
        worker = self._workers[actor_id]
        incomplete = worker.unfinished or actor_id in self._calls
        return worker.actors - 1 + incomplete * self._config.learner.gradients_per_update

    def add(self) -> int | None:
        free = self._free_nodes()
        if not free:
            return None
        node, actors = max(free.items(), key=lambda item: item[1])
        node_id, self._next_id = self._next_id, self._next_id + _IDS_PER_NODE
        # A single machine may have more actors than cores.
        at_work = actors if node else min(actors, usable_cores())
        gradients = gradients_per_sum(self._config, at_work)
        # Cores that Ray has, which may be fewer than the node's.
        arguments = (Slots(actors, node, self._slots.cores(node)), gradients, node_id + 1, self._actor_process)
        # It takes no core from the actors' count: it adds a few vectors a rollout.
        self._workers[node_id] = self._start(NodeAggregator, {"num_cpus": 0}, node, actors, *arguments)
        return node_id

    def free_slots(self) -> int:
        return len(self._free_nodes())

    def _result(self, actor_id: int) -> CallResult:
        result = super()._result(actor_id)
        self._workers[actor_id].unfinished = not isinstance(result, AggregatedReport)
        return result._replace(actor_id=actor_id)

    def _free_nodes(self) -> dict[str, int]:
        """Number of actors for each node without an aggregator, by node id."""
        slots = self._slots.slots_by_node()
        remaining = desired_actors(self._config, slots) - self.actors
        nodes_in_use = {worker.node for worker in self._workers.values()}
        return spread({node: count for node, count in slots.items() if node not in nodes_in_use}, remaining)


def _copy(snapshot: WeightSnapshot) -> WeightSnapshot:
    return snapshot._replace(parameters=snapshot.parameters.copy())
