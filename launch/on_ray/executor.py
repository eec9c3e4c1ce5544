"""An executor whose rollouts run in Ray actors. It starts processes and passes calls on; the coordinator decides."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Failed
from launch.machine import shared_memory
from launch.machine.shared_memory import SharedVector, VectorPool
from launch.on_ray.actor_process import ActorNotMadeError, ActorProcess, Reply, Weights
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.evaluator import EvaluatorMember
from launch.on_ray.failures import failure_reason
from launch.on_ray.members import PROCESS_OPTIONS, Published
from launch.on_ray.placement import next_node, wanted
from shared.config import RunConfig
from shared.types import EvaluationPolicy, WeightSnapshot
from shared.wire import decode, encode, wire_dtype

_POLL_SECONDS = 0.5


@dataclass
class _Member:
    """One actor, and the vectors that its gradients are written to. `in_memory` is True once one was."""

    handle: Any
    node: str
    vectors: VectorPool
    in_memory: bool = False


class _Call(NamedTuple):
    """A rollout under way, or an evaluation (`actor_id` None). No other call may use its vectors until it has ended."""

    actor_id: int | None
    weights: SharedVector | None = None
    reply_in: SharedVector | None = None


class RayExecutor:
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
        self._config, self._spec, self._actor_process = config, spec, actor_process
        self._cluster, self._node = cluster, node
        self._ids = itertools.count(first_actor_id)
        self._actors: dict[int, _Member] = {}
        self._calls: dict[ray.ObjectRef, _Call] = {}
        self._uses_memory = config.transfer.shared_memory and shared_memory.available()
        self._published = Published(config.transfer.precision)
        # The snapshot for actors here; written when the first of them needs it.
        self._snapshot_vector: SharedVector | None = None
        self._weight_vectors = VectorPool(wire_dtype(config.transfer.precision))
        for _ in range(actors):
            self._start_actor()
        self._evaluator = EvaluatorMember(config, spec)

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._actors)

    @property
    def actors(self) -> int:
        return len(self._actors)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    @property
    def actors_in_memory(self) -> int:
        """How many actors have sent a gradient through shared memory."""
        return sum(member.in_memory for member in self._actors.values())

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._published.publish(snapshot)
        self._snapshot_vector = None

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._published.publish_target(snapshot)

    def dispatch(self, actor_id: int) -> None:
        member = self._actors[actor_id]
        weights, vector = self._weights_for(member)
        target = self._published.new_target(actor_id)
        reply_in = self._reply_vector(member) if self._uses_memory else None
        address = reply_in.address if reply_in is not None else None
        self._calls[member.handle.run.remote(weights, target, address)] = _Call(actor_id, vector, reply_in)

    def evaluate(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None:
        self._calls[self._evaluator.run(self._published.weights_of(snapshot), policy)] = _Call(None)

    def next_completion(self) -> Completion | None:
        if not self._calls:
            time.sleep(_POLL_SECONDS)
            return None
        # The calls of one actor are taken in order: its sequence numbers count up, and a report that came before an
        # older one would make the older one a duplicate. `ray.wait` keeps no such order, so only the oldest call of
        # each actor is waited for. Of several that are ready it returns the first in the list, the one that was
        # dispatched first: no actor is passed over for long.
        oldest: dict[int | None, ray.ObjectRef] = {}
        for ref, call in self._calls.items():
            oldest.setdefault(call.actor_id, ref)
        refs = list(oldest.values())[: 1 if self._config.lockstep else None]
        ready, _ = ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
        if not ready:
            return None
        call = self._calls.pop(ready[0])
        try:
            result = ray.get(ready[0])
        except RayError as error:
            return self._failed(call.actor_id, error)
        if not isinstance(result, Reply):
            return result
        gradient = result.gradient
        if gradient is None:
            assert call.actor_id is not None
            assert call.reply_in is not None, "a gradient is left only where a vector was offered"
            self._actors[call.actor_id].in_memory = True
            gradient = call.reply_in.values
        return result.report._replace(gradient=decode(gradient))

    def has_completed(self, actor_id: int) -> bool:
        oldest = next(ref for ref, call in self._calls.items() if call.actor_id == actor_id)
        return bool(ray.wait([oldest], timeout=0)[0])

    def rollouts_under_way(self, actor_id: int) -> int:
        return sum(call.actor_id == actor_id for call in self._calls.values())

    def remove(self, actor_id: int) -> None:
        # The actor's further calls would each end with its death again.
        self._calls = {ref: call for ref, call in self._calls.items() if call.actor_id != actor_id}
        member = self._actors.pop(actor_id)
        ray.kill(member.handle, no_restart=True)
        # Not given to another actor: this one may still be writing to them.
        member.vectors.close()

    def add(self) -> int | None:
        return self._start_actor()

    def room(self) -> int:
        if self._cluster is None:
            return 0
        return wanted(self._config, self._cluster.places()) - len(self._actors)

    def draining(self) -> Sequence[int]:
        if self._cluster is None:
            return ()
        draining = {node.id for node in self._cluster.nodes() if node.draining}
        return [actor_id for actor_id, member in self._actors.items() if member.node in draining]

    def replace_evaluator(self) -> None:
        # The evaluator's further calls would each end with its death again.
        self._calls = {ref: call for ref, call in self._calls.items() if call.actor_id is not None}
        self._evaluator.close()

    def state(self) -> None:
        return None

    def restore(self, state: dict[str, Any]) -> Sequence[int | None]:  # noqa: ARG002
        raise AssertionError("processes have no fixed order, and so no state for a bit-exact resume")

    def close(self) -> None:
        for member in self._actors.values():
            ray.kill(member.handle, no_restart=True)
            member.vectors.close()
        self._weight_vectors.close()
        self._evaluator.close()
        self._actors, self._calls = {}, {}

    def _start_actor(self) -> int | None:
        """Start an actor on the node with the most free places; None if all are full."""
        options, node = PROCESS_OPTIONS, self._node
        if self._cluster is not None:
            place = next_node(self._cluster.places(), [member.node for member in self._actors.values()])
            if place is None:
                return None
            node = place
        if node:
            options = options | on_node(node)
        actor_id = next(self._ids)
        gpus = self._config.actor.gpus if self._config.actor.device == "gpu" else 0
        remote = ray.remote(num_cpus=self._config.actor.cores, num_gpus=gpus, **options)
        handle = remote(self._actor_process).remote(self._config, self._spec, actor_id)
        self._actors[actor_id] = _Member(handle, node, VectorPool(wire_dtype(self._config.transfer.precision)))
        return actor_id

    def _failed(self, actor_id: int | None, error: RayError) -> Failed:
        if isinstance(error, RayTaskError) and isinstance(error.cause, ActorNotMadeError):
            return Failed(actor_id, str(error.cause), not_made=True)
        if self._cluster is None or actor_id is None:
            return Failed(actor_id, failure_reason(error))
        lost = isinstance(error, RayActorError) and self._cluster.has_lost(self._actors[actor_id].node)
        return Failed(actor_id, failure_reason(error), node_lost=lost)

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
