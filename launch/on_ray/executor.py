"""The executor whose actors are Ray processes. It starts them and passes calls on; the loop decides."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Failed, Heartbeat
from launch.machine import automatic_actors, usable_cores
from launch.on_ray.actor_process import ActorNotMadeError, ActorProcess, CallFailedError, Reply, WorkerProcess
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.placement import desired_actors, next_node, worker_resources
from launch.on_ray.transport import LocalConnection, LocalTransport, ended_calls
from shared.config import RunConfig
from shared.errors import last_line
from shared.types import EvaluationShare, Played, WeightSnapshot

_POLL_SECONDS = 0.5
# With local calls and Ray's calls in flight at once: Ray's references cannot be waited for beside file descriptors, so
# they are polled between two waits of this length. That is so while actors start.
_GLANCE_SECONDS = 0.01

# Ray retries nothing. A retried rollout would be counted twice, and a restarted process would begin its sequence
# numbers anew, so that its reports would be dropped as duplicates: the worker pool starts others under new ids instead.
# Nor does Ray keep a record of every call: within half an hour of CartPole they filled 400 MB of its server.
PROCESS_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}


@dataclass
class WorkerHandle:
    """A process with an actor, or with an aggregator and the actors of its node.

    Attributes:
        process: Ray's handle.
        node: id of its node; empty on a single machine.
        actors: number of actors.
        connection: offered to a process of this machine, until it cannot be accepted.
        serving: Ray's call that answers through the connection, once it has been accepted.
        target_version: version of the target network that it was sent last.
        evaluation: number of the evaluation whose weights it was sent last.
    """

    process: Any
    node: str
    actors: int = 1
    connection: LocalConnection | None = None
    serving: ray.ObjectRef | None = None
    target_version: int | None = None
    evaluation: int | None = None


class _Published:
    """A snapshot, which is put into Ray's object store when a call first needs it there.

    Ray frees it there when the last call that carries it has ended, and this object is gone.
    """

    def __init__(self, snapshot: WeightSnapshot) -> None:
        self.snapshot = snapshot

    @cached_property
    def reference(self) -> ray.ObjectRef:
        return ray.put(self.snapshot)


class RayExecutor:
    """An `Executor` over Ray processes.

    The first calls of an actor go through Ray: a snapshot is put in its object store once and travels as a reference,
    and a gradient comes back the same way. An actor of this machine is offered a connection with them. When it has
    accepted, its calls go through `launch.on_ray.transport`, and Ray only reports how its process ended.

    Args:
        actors: number of actors to start.
        first_actor_id: ids count up from here and are never reused.
        actor_process: class of the actors' processes.
        cluster: nodes with slots for actors. None: all actors are on one machine.
        node: id of that machine; empty: this one.
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
        self._config, self._spec, self._cluster, self._node = config, spec, cluster, node
        self._actor_process = actor_process
        self._ids = itertools.count(first_actor_id)
        self._workers: dict[int, WorkerHandle] = {}
        # The call in flight of each actor that has one, in the order of dispatch: Ray's reference, or the connection
        # that it went through.
        self._calls: dict[int, ray.ObjectRef | LocalConnection] = {}
        self._transport = LocalTransport()
        self._weights: _Published | None = None
        self._target: _Published | None = None
        self._evaluated: _Published | None = None
        self._cores, self._local_actors = automatic_actors(usable_cores()), actors
        for _ in range(actors):
            self.add()

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._workers)

    @property
    def actors(self) -> int:
        return sum(worker.actors for worker in self._workers.values())

    def actors_of(self, actor_id: int) -> int:
        return self._workers[actor_id].actors

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._weights = _Published(snapshot)

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._target = _Published(snapshot)

    def publish_evaluated(self, snapshot: WeightSnapshot) -> None:
        self._evaluated = _Published(snapshot)

    def dispatch(self, actor_id: int, share: EvaluationShare | None = None) -> None:
        worker, target, weights = self._workers[actor_id], self._target, self._weights
        if share is not None and worker.evaluation != share.number:
            weights, worker.evaluation = self._evaluated, share.number
        assert weights is not None, "publish comes before dispatch"
        if target is not None:
            # It keeps the target that it has.
            version = target.snapshot.version
            target = None if worker.target_version == version else target
            worker.target_version = version
        if worker.serving is None:
            address = worker.connection and worker.connection.address
            reference = None if target is None else target.reference
            self._calls[actor_id] = worker.process.run.remote(weights.reference, reference, share, address)
        else:
            assert worker.connection is not None
            target_snapshot = None if target is None else target.snapshot
            self._transport.call(worker.connection, weights.snapshot, target_snapshot, share)
            self._calls[actor_id] = worker.connection

    def next_completion(self) -> Completion | None:
        if not self._calls:
            # A replacement waits for its backoff, or the run for a node to join: Ray has no event to wait for.
            time.sleep(_POLL_SECONDS)
            return None
        # Take the ready call that was dispatched first: no actor is passed over for long.
        actor_id = self._first_ready(list(self._calls)[: 1 if self._config.lockstep else None], _POLL_SECONDS)
        if actor_id is None:
            return None
        try:
            result = self._result(actor_id)
        except RayError as error:
            # The call stays: until the actor is removed it counts as a rollout that is under way.
            return self._failed(actor_id, error)
        del self._calls[actor_id]
        return self._completion(actor_id, result)

    def has_completed(self, actor_id: int) -> bool:
        return self._first_ready([actor_id], 0) is not None

    def rollouts_under_way(self, actor_id: int) -> int:
        return int(actor_id in self._calls)

    def remove(self, actor_id: int) -> None:
        self._calls.pop(actor_id, None)
        self._end(self._workers.pop(actor_id))

    def add(self) -> int | None:
        node = self._node
        if self._cluster is not None:
            free = next_node(self._cluster.slots_by_node(), [worker.node for worker in self._workers.values()])
            if free is None:
                return None
            node = free
        actor_id = next(self._ids)
        threads, resources = self._share_of(node)
        self._workers[actor_id] = self._start(self._actor_process, resources, node, 1, actor_id, threads)
        return actor_id

    def _share_of(self, node: str) -> tuple[int, dict[str, float]]:
        """Threads for emulators of an actor on a node, and its resources."""
        if self._cluster is None:
            return worker_resources(self._config, self._cores, self._local_actors)
        slots = self._cluster.slots_by_node()
        return worker_resources(self._config, self._cluster.cores_of_actors(node), slots.get(node, 1))

    def _start(
        self,
        worker: type[WorkerProcess],
        resources: dict[str, float],
        node: str,
        actors: int,
        *arguments: Any,
    ) -> WorkerHandle:
        """Start the process of a worker with `actors` actors; `arguments` follow the configuration and the spec."""
        options = PROCESS_OPTIONS | (on_node(node) if node else {}) | resources
        process = ray.remote(**options)(worker).remote(self._config, self._spec, *arguments)
        # A process elsewhere could not open a pipe of this machine: it is not offered one.
        here = self._cluster is None or node == ray.get_runtime_context().get_node_id()
        connection = self._transport.offer() if here else None
        return WorkerHandle(process, node, actors, connection)

    def free_slots(self) -> int:
        if self._cluster is None:
            return 0
        return desired_actors(self._config, self._cluster.slots_by_node()) - len(self._workers)

    def draining(self) -> Sequence[int]:
        if self._cluster is None:
            return ()
        draining = {node.id for node in self._cluster.nodes() if node.draining}
        return [actor_id for actor_id, worker in self._workers.items() if worker.node in draining]

    def close(self) -> None:
        for worker in self._workers.values():
            self._end(worker)
        self._transport.close()
        self._workers, self._calls = {}, {}

    def _completion(self, actor_id: int, result: Any) -> Completion:
        """The completion of a call by its result."""
        if isinstance(result, Reply):
            self._answered_through_ray(self._workers[actor_id], result.accepted)
            result = result.result
        return Heartbeat(actor_id, result.expects_report) if isinstance(result, Played) else result

    def _answered_through_ray(self, worker: WorkerHandle, accepted: bool) -> None:
        if worker.connection is None or worker.serving is not None:
            return
        if accepted:
            worker.connection.accepted()
            worker.serving = worker.process.serve.remote()
        else:
            self._transport.disconnect(worker.connection)
            worker.connection = None

    def _first_ready(self, actor_ids: Sequence[int], seconds: float) -> int | None:
        """The first of these actors whose call has ended or ends within `seconds`."""
        calls = {self._calls[actor_id]: actor_id for actor_id in actor_ids}
        local = [call for call in calls if isinstance(call, LocalConnection)]
        references = [call for call in calls if not isinstance(call, LocalConnection)]
        if not local:
            ready, _ = ray.wait(references, num_returns=1, timeout=seconds)
            return calls[ready[0]] if ready else None
        ended: set[Any] = set(ended_calls(local, min(seconds, _GLANCE_SECONDS) if references else seconds))
        if references:
            ended.update(ray.wait(references, num_returns=len(references), timeout=0)[0])
        return next((actor_id for call, actor_id in calls.items() if call in ended), None)

    def _result(self, actor_id: int) -> Any:
        """The result of the call of an actor, which has ended.

        Raises:
            RayError: the call failed.
        """
        call = self._calls[actor_id]
        if not isinstance(call, LocalConnection):
            return ray.get(call)
        try:
            return self._transport.receive(call)
        except EOFError:
            # It raised, or its process died: Ray raises the reason.
            ray.get(self._workers[actor_id].serving)
            raise AssertionError("an actor serves until its connection is closed here") from None

    def _failed(self, actor_id: int, error: RayError) -> Failed:
        if isinstance(error, RayTaskError) and isinstance(error.cause, ActorNotMadeError):
            return Failed(actor_id, str(error.cause), not_made=True)
        failed = Failed(actor_id, failure_reason(error), raised=isinstance(error, RayTaskError))
        if self._cluster is None:
            return failed
        lost = isinstance(error, RayActorError) and self._cluster.has_lost(self._workers[actor_id].node)
        return failed._replace(node_lost=lost)

    def _end(self, worker: WorkerHandle) -> None:
        # Processes that an aggregator has started end with it.
        ray.kill(worker.process, no_restart=True)
        if worker.connection is not None:
            self._transport.disconnect(worker.connection)


def failure_reason(error: RayError) -> str:
    """The reason why a process or a call failed, in one line."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, CallFailedError):
        return f"its rollout raised: {error.cause}"
    reason = last_line(error)
    if not isinstance(error, RayActorError):
        return f"its rollout raised: {reason}"
    # Ray appends a paragraph of possible causes, the same each time.
    detail = reason.partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"
