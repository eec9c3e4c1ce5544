"""An executor whose rollouts run in Ray actors. It starts processes and passes calls on; the coordinator decides."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import ray

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion
from launch.machine import shared_memory
from launch.machine.line import Line, OfferedLine
from launch.machine.shared_memory import SharedVector, VectorPool
from launch.on_ray.actor_process import ActorProcess, Reply, Request, Weights
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.members import PROCESS_OPTIONS, Call, RayMembers
from launch.on_ray.placement import desired_actors, next_node
from shared.config import RunConfig
from shared.types import GradientReport, WeightSnapshot
from shared.wire import WirePrecision, decode, encode, wire_dtype

# With calls under way that only Ray can tell the end of, how long the lines are waited for before Ray is asked.
_GLANCE_SECONDS = 0.01


@dataclass
class _Member:
    """One actor. Once it has taken the line that it is offered, its calls go over that, its gradients are written to
    `vectors`, and `serving` is Ray's call that answers.
    """

    handle: Any
    node: str
    vectors: VectorPool
    offered: OfferedLine | None
    line: Line | None = None
    serving: ray.ObjectRef | None = None

    def close(self) -> None:
        """Close all that is shared with the actor."""
        # The vectors are given to no other actor: this one may still be writing to them.
        for shared in (self.vectors, self.offered, self.line):
            if shared is not None:
                shared.close()


class _LineCall:
    """The key of a call over a line, beside Ray's references."""

    def __init__(self, line: Line) -> None:
        self.line = line


class _InMemory(NamedTuple):
    """Weights as they are sent, and the vector that they are in."""

    weights: Weights
    vector: SharedVector


class RayExecutor(RayMembers[_Member]):
    """An `Executor` over Ray actors.

    The first calls of an actor go through Ray: a snapshot is put in its object store once and travels as a reference,
    and a gradient comes back the same way. An actor on this machine is offered a line with its first call; when it has
    taken that, calls go over the line, weights and gradients through shared memory, and Ray only says how it ended.

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
        # What was published last, for actors here; written when the first of them needs it.
        self._weights: _InMemory | None = None
        self._target: _InMemory | None = None
        self._weight_vectors = VectorPool(wire_dtype(config.transfer.precision))
        self._target_vectors = VectorPool(wire_dtype("float32"))
        for _ in range(actors):
            self.add()
        self._start_evaluator()

    @property
    def actors(self) -> int:
        return len(self._members)

    def publish(self, snapshot: WeightSnapshot) -> None:
        super().publish(snapshot)
        self._weights = None

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        super().publish_target(snapshot)
        self._target = None

    def dispatch(self, actor_id: int) -> None:
        member = self._members[actor_id]
        if member.line is None:
            weights, target = self._published.weights(), self._published.new_target_object(actor_id)
            offered = None if member.offered is None else member.offered.address
            self._calls[member.handle.run.remote(weights, target, offered)] = Call(actor_id)
            return
        shared, target = self._weights_in_memory(), self._target_in_memory(actor_id)
        reply_in = self._reply_vector(member)
        call = Call(actor_id, shared.vector, None if target is None else target.vector, reply_in)
        self._calls[_LineCall(member.line)] = call
        member.line.send(Request(shared.weights, None if target is None else target.weights, reply_in.address))

    def _completion(self, call: Call, result: Reply | GradientReport) -> Completion:
        assert call.actor_id is not None
        if isinstance(result, GradientReport):
            assert call.reply_in is not None
            return result._replace(gradient=decode(call.reply_in.values))
        member = self._members[call.actor_id]
        if member.offered is not None:
            if result.took_line:
                member.line = member.offered.taken()
                # After the calls that it has from Ray already.
                member.serving = member.handle.serve.remote()
            else:
                member.offered.close()
            member.offered = None
        return result.report._replace(gradient=decode(result.gradient))

    def _first_ready(self, keys: Sequence[Any], seconds: float) -> Any | None:
        over_lines: dict[Any, _LineCall] = {key.line.fileno(): key for key in keys if isinstance(key, _LineCall)}
        if not over_lines:
            return super()._first_ready(keys, seconds)
        refs = [key for key in keys if not isinstance(key, _LineCall)]
        # Ray's references cannot be waited for beside lines: they are looked at in between.
        ended = wait(over_lines, min(seconds, _GLANCE_SECONDS) if refs else seconds)
        ready = {over_lines[descriptor] for descriptor in ended}
        if refs:
            ready.update(ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        return next((key for key in keys if key in ready), None)

    def _result(self, key: Any, call: Call) -> Any:
        if not isinstance(key, _LineCall):
            return super()._result(key, call)
        try:
            return key.line.receive()
        except EOFError:
            # It raised, or its process died: Ray raises the reason.
            assert call.actor_id is not None
            ray.get(self._members[call.actor_id].serving)
            raise AssertionError("an actor serves until its line is closed here") from None

    def rollouts_under_way(self, actor_id: int) -> int:
        return sum(call.actor_id == actor_id for call in self._calls.values())

    def remove(self, actor_id: int) -> None:
        member = self._members[actor_id]
        super().remove(actor_id)
        member.close()

    def add(self) -> int | None:
        options, node = PROCESS_OPTIONS, self._node
        if self._cluster is not None:
            # The node with the most free places.
            place = next_node(self._cluster.slots_by_node(), [member.node for member in self._members.values()])
            if place is None:
                return None
            node = place
        if node:
            options = options | on_node(node)
        actor_id = next(self._ids)
        gpus = self._config.actor.gpus if self._config.actor.device == "gpu" else 0
        remote = ray.remote(num_cpus=self._config.actor.cores, num_gpus=gpus, **options)
        handle = remote(self._actor_process).remote(self._config, self._spec, actor_id)
        vectors = VectorPool(wire_dtype(self._config.transfer.precision))
        self._members[actor_id] = _Member(handle, node, vectors, self._offer(node))
        return actor_id

    def free_slots(self) -> int:
        if self._cluster is None:
            return 0
        return desired_actors(self._config, self._cluster.slots_by_node()) - len(self._members)

    def close(self) -> None:
        shared: list[VectorPool | _Member] = [self._weight_vectors, self._target_vectors, *self._members.values()]
        super().close()
        for part in shared:
            part.close()

    def _offer(self, node: str) -> OfferedLine | None:
        """A line for an actor on this node, if that is this machine's."""
        here = self._cluster is None or node == ray.get_runtime_context().get_node_id()
        if not (self._uses_memory and here):
            return None
        try:
            return OfferedLine()
        except OSError:
            # Too many files are open: Ray's way needs none.
            return None

    def _weights_in_memory(self) -> _InMemory:
        if self._weights is None:
            in_use = [call.weights for call in self._calls.values()]
            precision = self._config.transfer.precision
            self._weights = _write(self._published.snapshot, precision, self._weight_vectors, in_use)
        return self._weights

    def _target_in_memory(self, actor_id: int) -> _InMemory | None:
        """None if the actor has these weights already."""
        target = self._published.new_target(actor_id)
        if target is None:
            return None
        if self._target is None:
            in_use = [call.target for call in self._calls.values()]
            self._target = _write(target, "float32", self._target_vectors, in_use)
        return self._target

    def _reply_vector(self, member: _Member) -> SharedVector:
        in_use = [call.reply_in for call in self._calls.values()]
        return member.vectors.free(self._published.snapshot.parameters.size, in_use)


def _write(
    snapshot: WeightSnapshot, precision: WirePrecision, pool: VectorPool, in_use: Iterable[SharedVector | None]
) -> _InMemory:
    vector = pool.free(snapshot.parameters.size, in_use)
    vector.values[...] = encode(snapshot.parameters, precision)
    return _InMemory(Weights(snapshot.version, vector.address, snapshot.frames, snapshot.reward_factor), vector)
