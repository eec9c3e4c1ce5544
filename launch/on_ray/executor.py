"""An executor whose rollouts run in Ray actors. It starts processes and passes calls on; the coordinator decides."""

import itertools
from dataclasses import dataclass
from typing import Any

import ray

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion
from launch.machine import shared_memory
from launch.machine.shared_memory import SharedVector, VectorPool
from launch.on_ray.actor_process import ActorProcess, Reply, Weights
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.members import PROCESS_OPTIONS, Call, RayMembers
from launch.on_ray.placement import next_node, wanted
from shared.config import RunConfig
from shared.types import WeightSnapshot
from shared.wire import decode, encode, wire_dtype


@dataclass
class _Member:
    """One actor, and the vectors that its gradients are written to. `in_memory` is True once one was."""

    handle: Any
    node: str
    vectors: VectorPool
    in_memory: bool = False


class RayExecutor(RayMembers[_Member]):
    """An `Executor` over Ray actors.

    Weights and gradients of actors on this machine pass through shared memory. Whether an actor is on this machine
    shows in its first report: its gradient is in the vector that was offered, or it is not. For all others, a snapshot
    is put in Ray's object store once and travels as a reference, and a gradient comes back the same way.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many to start.
        first_actor_id: ids count up from here, and are never used again.
        actor_process: the class that is started in each process.
        cluster: where there are places for actors. None: all are on one machine.
        node: the id of that machine; empty: this one.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int = 0,
        actor_process: type[ActorProcess] = ActorProcess,
        cluster: ClusterView | None = None,
        node: str = "",
    ) -> None:
        super().__init__(config, spec, cluster)
        self._actor_process, self._node = actor_process, node
        self._ids = itertools.count(first_actor_id)
        self._uses_memory = config.transfer.shared_memory and shared_memory.available()
        # The snapshot for actors here; written when the first of them needs it.
        self._snapshot_vector: SharedVector | None = None
        self._weight_vectors = VectorPool(wire_dtype(config.transfer.precision))
        for _ in range(actors):
            self.add()
        self._start_evaluator()

    @property
    def actors(self) -> int:
        return len(self._members)

    @property
    def actors_in_memory(self) -> int:
        """How many actors have sent a gradient through shared memory."""
        return sum(member.in_memory for member in self._members.values())

    def publish(self, snapshot: WeightSnapshot) -> None:
        super().publish(snapshot)
        self._snapshot_vector = None

    def dispatch(self, actor_id: int) -> None:
        member = self._members[actor_id]
        weights, vector = self._weights_for(member)
        target = self._published.new_target(actor_id)
        reply_in = self._reply_vector(member) if self._uses_memory else None
        address = reply_in.address if reply_in is not None else None
        self._calls[member.handle.run.remote(weights, target, address)] = Call(actor_id, vector, reply_in)

    def _completion(self, call: Call, result: Reply) -> Completion:
        assert call.actor_id is not None
        gradient = result.gradient
        if gradient is None:
            assert call.reply_in is not None, "a gradient is left only where a vector was offered"
            self._members[call.actor_id].in_memory = True
            gradient = call.reply_in.values
        return result.report._replace(gradient=decode(gradient))

    def rollouts_under_way(self, actor_id: int) -> int:
        return sum(call.actor_id == actor_id for call in self._calls.values())

    def remove(self, actor_id: int) -> None:
        vectors = self._members[actor_id].vectors
        super().remove(actor_id)
        # Not given to another actor: this one may still be writing to them.
        vectors.close()

    def add(self) -> int | None:
        options, node = PROCESS_OPTIONS, self._node
        if self._cluster is not None:
            # The node with the most free places.
            place = next_node(self._cluster.places(), [member.node for member in self._members.values()])
            if place is None:
                return None
            node = place
        if node:
            options = options | on_node(node)
        actor_id = next(self._ids)
        gpus = self._config.actor.gpus if self._config.actor.device == "gpu" else 0
        remote = ray.remote(num_cpus=self._config.actor.cores, num_gpus=gpus, **options)
        handle = remote(self._actor_process).remote(self._config, self._spec, actor_id)
        self._members[actor_id] = _Member(handle, node, VectorPool(wire_dtype(self._config.transfer.precision)))
        return actor_id

    def room(self) -> int:
        if self._cluster is None:
            return 0
        return wanted(self._config, self._cluster.places()) - len(self._members)

    def close(self) -> None:
        pools = [self._weight_vectors, *(member.vectors for member in self._members.values())]
        super().close()
        for pool in pools:
            pool.close()

    def _weights_for(self, member: _Member) -> tuple[Weights | ray.ObjectRef, SharedVector | None]:
        """The published snapshot for this actor, and the vector that it is in, if it is in shared memory."""
        if not member.in_memory:
            return self._published.weights(), None
        snapshot = self._published.snapshot
        if self._snapshot_vector is None:
            in_use = [call.weights for call in self._calls.values()]
            self._snapshot_vector = self._weight_vectors.free(snapshot.parameters.size, in_use)
            self._snapshot_vector.values[...] = encode(snapshot.parameters, self._config.transfer.precision)
        vector = self._snapshot_vector
        return Weights(snapshot.version, vector.address, snapshot.frames), vector

    def _reply_vector(self, member: _Member) -> SharedVector:
        in_use = [call.reply_in for call in self._calls.values()]
        return member.vectors.free(self._published.snapshot.parameters.size, in_use)
