"""The executor whose actors are Ray processes. It starts them and passes calls on; the loop decides."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from actors.environments import EnvironmentSpec
from launch.loop.executor import CallResult, Completion, Executor, Failed
from launch.on_ray.actor_process import ActorProcess, CallFailedError, WorkerProcess
from launch.on_ray.cluster import OUT_OF_MEMORY, on_node
from launch.on_ray.placement import Slots, desired_actors, next_node, worker_resources
from launch.on_ray.transport import Call, LocalConnection, LocalTransport
from shared.config import RunConfig
from shared.errors import last_line
from shared.types import EvaluationShare, WeightSnapshot

_POLL_SECONDS = 0.5
# With local calls and Ray's calls in flight at once: Ray's references cannot be waited for beside file descriptors, so
# they are polled between two waits of this length. That is so while actors start.
_GLANCE_SECONDS = 0.01
# A node's processes may end one after another, Ray's own last. So a node that responds at the death of an actor is
# asked again after this time, and the actor counts as failed only then.
DYING_SECONDS = 2.0

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
        serving: Ray's call that serves the connection, once it has been accepted.
        target_version: version of the target network that it was sent last.
        evaluation: number of the evaluation whose weights it was sent last.
        unfinished: of an aggregator whose last call ended without a sum. Gradients may wait in it.
        responded: a call has ended. Before that its process may take a minute to start.
    """

    process: Any
    node: str
    actors: int
    connection: LocalConnection | None
    serving: ray.ObjectRef | None = None
    target_version: int | None = None
    evaluation: int | None = None
    unfinished: bool = False
    responded: bool = False


class RayExecutor(Executor):
    """An `Executor` over Ray processes. It starts one actor in each slot that the run needs.

    The first calls of an actor go through Ray: a snapshot is put in its object store once and travels as a reference,
    and a gradient comes back the same way. An actor of this machine is offered a connection with them. When it has
    accepted, its calls go through `launch.on_ray.transport`, and Ray only reports how its process ended. Ids of actors
    count up from `first_actor_id` and are never reused.
    """

    # A process has this time to end its call and to close its environments, before it is killed.
    _close_seconds = 5.0

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        slots: Slots,
        first_actor_id: int = 0,
        actor_process: type[ActorProcess] = ActorProcess,
    ) -> None:
        self._config, self._spec, self._slots = config, spec, slots
        self._actor_process = actor_process
        self._next_id = first_actor_id
        self._workers: dict[int, WorkerHandle] = {}
        # The call in flight of each actor that has one, in the order of dispatch: Ray's reference, or the connection
        # that it went through.
        self._calls: dict[int, ray.ObjectRef | LocalConnection] = {}
        # Calls in flight whose process died on a node that responded, with the error and the time to ask it again.
        self._died: dict[int, tuple[RayError, float]] = {}
        # Actors whose calls have ended, in the order of their ends as far as that is known. All that have ended are
        # taken at once: a wait costs as much as a report, and no actor is passed over for long.
        self._ended: deque[int] = deque()
        # Processes that close their environments: the call to do so, and the time to kill them.
        self._closing: dict[ray.ObjectRef, tuple[Any, float]] = {}
        self._transport = LocalTransport()
        # The snapshots in Ray's object store, by their use. Calls that carry an older one keep it there.
        self._stored: dict[str, tuple[WeightSnapshot, ray.ObjectRef]] = {}
        for _ in range(self.free_slots()):
            self.add()

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._workers)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def dispatch(self, actor_id: int, share: EvaluationShare | None = None) -> None:
        worker, target = self._workers[actor_id], self._target
        use, weights = "training", self._weights
        if share is not None and worker.evaluation != share.number:
            use, weights, worker.evaluation = "evaluation", self._evaluation_weights, share.number
        assert weights is not None, "publish comes before dispatch"
        if target is not None:
            # The actor keeps its target network.
            version = target.version
            target = None if worker.target_version == version else target
            worker.target_version = version
        if worker.serving is not None and worker.connection is not None:
            self._transport.call(worker.connection, Call(weights, target, share))
            self._calls[actor_id] = worker.connection
            return
        address = worker.connection and worker.connection.address
        references = self._reference(use, weights), None if target is None else self._reference("target", target)
        self._calls[actor_id] = worker.process.run.remote(*references, share, address)

    def _reference(self, use: str, snapshot: WeightSnapshot) -> ray.ObjectRef:
        """A snapshot in Ray's object store, where it is put when a call first needs it there."""
        stored = self._stored.get(use)
        if stored is None or stored[0] is not snapshot:
            self._stored[use] = stored = snapshot, ray.put(snapshot)
        return stored[1]

    def next_completion(self) -> Completion | None:
        self._kill_closed()
        for died, (error, due) in self._died.items():
            if time.monotonic() >= due:
                return self._failed(died, error)
        if not self._ended:
            self._ended.extend(self._wait())
        if not self._ended:
            return None
        actor_id = self._ended.popleft()
        try:
            result = self._result(actor_id)
        except RayError as error:
            # The call stays: until the actor is removed it counts as a rollout that is under way.
            return self._failed(actor_id, error)
        del self._calls[actor_id]
        return result

    def has_completed(self, actor_id: int) -> bool:
        call = self._calls[actor_id]
        if isinstance(call, LocalConnection):
            return call.near.has_message()
        return bool(ray.wait([call], timeout=0)[0])

    def rollouts_under_way(self, actor_id: int) -> int:
        return int(actor_id in self._calls)

    def remove(self, actor_id: int) -> None:
        self._calls.pop(actor_id, None)
        self._died.pop(actor_id, None)
        if actor_id in self._ended:
            self._ended.remove(actor_id)
        self._close(self._workers.pop(actor_id), self._close_seconds)

    def add(self) -> int | None:
        slots = self._slots.slots_by_node()
        node = next_node(slots, [worker.node for worker in self._workers.values()])
        if node is None:
            return None
        actor_id, self._next_id = self._next_id, self._next_id + 1
        threads, resources = worker_resources(self._config, self._slots.cores(node), slots[node])
        self._workers[actor_id] = self._start(self._actor_process, resources, node, 1, actor_id, threads)
        return actor_id

    def _start(
        self, worker: type[WorkerProcess], resources: dict[str, float], node: str, actors: int, *arguments: Any
    ) -> WorkerHandle:
        """Start the process of a worker with `actors` actors; `arguments` follow its settings and the spec."""
        options = PROCESS_OPTIONS | on_node(node) | resources
        process = ray.remote(**options)(worker).remote(self._config, self._spec, *arguments)
        # A process elsewhere could not open a pipe of this machine: it is not offered one.
        here = node in ("", ray.get_runtime_context().get_node_id())
        return WorkerHandle(process, node, actors, self._transport.offer() if here else None)

    def free_slots(self) -> int:
        return desired_actors(self._config, self._slots.slots_by_node()) - len(self._workers)

    def close(self) -> None:
        for worker in self._workers.values():
            self._close(worker, self._close_seconds if worker.responded else 0.0)
        self._workers, self._calls, self._died = {}, {}, {}
        self._ended.clear()
        self._kill_closed()
        while self._closing:
            self._kill_closed(_POLL_SECONDS)

    def _wait(self) -> list[int]:
        """Wait a moment until a call ends. Returns the actors of all calls that have."""
        waiting = {call: actor_id for actor_id, call in self._calls.items() if actor_id not in self._died}
        references = [call for call in waiting if not isinstance(call, LocalConnection)]
        ended: list[Any] = []
        if len(references) < len(waiting):
            ended += self._transport.wait(_GLANCE_SECONDS if references else _POLL_SECONDS)
        elif references:
            ray.wait(references, num_returns=1, timeout=_POLL_SECONDS)
        else:
            # A replacement is not due yet, or the run waits for a node to join: Ray has no event to wait for.
            time.sleep(_POLL_SECONDS)
        if references:
            # All that have ended by now.
            ended += ray.wait(references, num_returns=len(references), timeout=0)[0]
        return [waiting[call] for call in ended if call in waiting]

    def _result(self, actor_id: int) -> CallResult:
        """The result of the call of an actor, which has ended. A RayError has the reason why it failed."""
        call, worker = self._calls[actor_id], self._workers[actor_id]
        if isinstance(call, LocalConnection):
            try:
                return self._transport.receive(call)
            except EOFError:
                # The call raised, or its process died: Ray raises the reason.
                ray.get(worker.serving)
                raise AssertionError("an actor serves until its connection is closed here") from None
        result, accepted = ray.get(call)
        worker.responded = True
        if worker.connection is not None and worker.serving is None:
            if accepted:
                worker.connection.accepted()
                worker.serving = worker.process.serve.remote()
            else:
                self._transport.disconnect(worker.connection)
                worker.connection = None
        return result

    def has_lost_node(self, actor_id: int) -> bool:
        return self._slots.has_lost(self._workers[actor_id].node)

    def _failed(self, actor_id: int, error: RayError) -> Failed | None:
        """The failure of an actor; None if its node, which responds, may be about to end like its process."""
        lost = False
        # The second: its node died before the process was there; the third: with a report that had not arrived.
        if isinstance(error, RayActorError | ActorUnschedulableError | ObjectLostError):
            lost = self.has_lost_node(actor_id)
            if self._workers[actor_id].node and not lost and actor_id not in self._died:
                self._died[actor_id] = error, time.monotonic() + DYING_SECONDS
                return None
        raised = isinstance(error, RayTaskError)
        return Failed(actor_id, failure_reason(error), raised=raised, node_lost=lost)

    def _close(self, worker: WorkerHandle, seconds: float) -> None:
        """Request a process to close its environments after its call, and kill it after these seconds at the latest."""
        if worker.connection is not None:
            self._transport.disconnect(worker.connection)
        self._closing[worker.process.close.remote()] = worker.process, time.monotonic() + seconds

    def _kill_closed(self, wait: float = 0.0) -> None:
        """Kill the processes that have closed their environments, or whose time is over."""
        if not self._closing:
            return
        closed = ray.wait(list(self._closing), num_returns=len(self._closing), timeout=wait)[0]
        for call, (process, due) in list(self._closing.items()):
            if call in closed or time.monotonic() >= due:
                # Processes that an aggregator has started end with it.
                ray.kill(process, no_restart=True)
                del self._closing[call]


def failure_reason(error: RayError) -> str:
    """The reason why a process or a call failed, in one line."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, CallFailedError):
        return str(error.cause)
    reason = last_line(error)
    if isinstance(error, OutOfMemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, ActorUnschedulableError):
        return "its process could not be placed on its node"
    if isinstance(error, ObjectLostError):
        return "its report was lost before it arrived"
    if not isinstance(error, RayActorError):
        return f"its rollout raised: {reason}"
    # Ray appends a paragraph of possible causes, the same each time.
    detail = reason.partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"
