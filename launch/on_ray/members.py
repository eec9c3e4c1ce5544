"""What both Ray executors share: how processes are started, what they are given, and how their calls are completed."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Failed
from launch.machine.shared_memory import SharedVector
from launch.on_ray.actor_process import ActorNotMadeError, EvaluatorProcess, Weights
from launch.on_ray.cluster import ClusterView
from launch.on_ray.failures import failure_reason
from shared.config import RunConfig
from shared.types import EvaluationPolicy, WeightSnapshot
from shared.wire import WirePrecision, encode

_POLL_SECONDS = 0.5

# Ray retries nothing. A retried rollout would be counted twice, and a restarted process would begin its sequence
# numbers anew, so that its reports would be dropped as duplicates: the coordinator starts others under new ids instead.
# Nor does Ray keep a record of every call: within half an hour of CartPole they filled 400 MB of its server.
PROCESS_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}


class Published:
    """The published weights as objects in Ray's store.

    A snapshot becomes an object once, however many actors read it, and only when the first of them needs it.

    Args:
        precision: of the weights as they travel.
    """

    def __init__(self, precision: WirePrecision) -> None:
        self._precision = precision
        self._snapshot: WeightSnapshot | None = None
        self._object: ray.ObjectRef | None = None
        self._target: WeightSnapshot | None = None
        self._target_object: ray.ObjectRef | None = None
        self._target_versions: dict[int, int] = {}

    @property
    def snapshot(self) -> WeightSnapshot:
        """The snapshot that dispatches carry now."""
        assert self._snapshot is not None, "publish comes before dispatch"
        return self._snapshot

    def publish(self, snapshot: WeightSnapshot) -> None:
        """See `Executor`."""
        self._snapshot, self._object = snapshot, None

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        """See `Executor`."""
        self._target, self._target_object = snapshot, None

    def weights(self) -> ray.ObjectRef:
        """The snapshot as an object."""
        if self._object is None:
            self._object = self._put(self.snapshot)
        return self._object

    def weights_of(self, snapshot: WeightSnapshot) -> ray.ObjectRef:
        """Any snapshot as an object, be it the one that dispatches carry now or not."""
        return self.weights() if snapshot is self._snapshot else self._put(snapshot)

    def new_target(self, actor_id: int) -> WeightSnapshot | None:
        """The weights of the target network, or None if this actor was given them before: it keeps what it has."""
        if self._target is None or self._target_versions.get(actor_id) == self._target.version:
            return None
        # An actor takes its calls in order, so it has what an earlier call brought when this one begins.
        self._target_versions[actor_id] = self._target.version
        return self._target

    def new_target_object(self, actor_id: int) -> ray.ObjectRef | None:
        """The same as an object: `Weights` that are not encoded."""
        target = self.new_target(actor_id)
        if target is None:
            return None
        if self._target_object is None:
            self._target_object = ray.put(Weights(target.version, target.parameters, target.frames))
        return self._target_object

    def _put(self, snapshot: WeightSnapshot) -> ray.ObjectRef:
        parameters = encode(snapshot.parameters, self._precision)
        return ray.put(Weights(snapshot.version, parameters, snapshot.frames, snapshot.reward_factor))


class _Evaluator:
    """The evaluator's process. It starts when it is first needed, as it takes as much memory as an actor.

    In a run that evaluates at intervals it starts at once, beside the actors. It takes no core from their count:
    between evaluations it sleeps.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        self._config, self._spec = config, spec
        self._handle: Any = self._start() if config.evaluation.every_frames else None

    def run(self, weights: ray.ObjectRef, policy: EvaluationPolicy) -> ray.ObjectRef:
        """See `EvaluatorProcess.run`. Evaluations run one after the other."""
        if self._handle is None:
            self._handle = self._start()
        return self._handle.run.remote(weights, policy)

    def close(self) -> None:
        """End the process, dead or not. The next `run` starts another one."""
        if self._handle is not None:
            ray.kill(self._handle, no_restart=True)
        self._handle = None

    def _start(self) -> Any:
        return ray.remote(num_cpus=0, **PROCESS_OPTIONS)(EvaluatorProcess).remote(self._config, self._spec)


class Call(NamedTuple):
    """A call under way: of an actor, or an evaluation (`actor_id` None).

    `weights`, `target` and `reply_in` are its vectors in shared memory, if it has any: no other call may use them until
    it has ended.
    """

    actor_id: int | None
    weights: SharedVector | None = None
    target: SharedVector | None = None
    reply_in: SharedVector | None = None


class Member(Protocol):
    """A process that actors play in, by Ray's handle, and the id of its node."""

    @property
    def handle(self) -> Any: ...
    @property
    def node(self) -> str: ...


MemberT = TypeVar("MemberT", bound=Member)


class RayMembers(ABC, Generic[MemberT]):
    """What an `Executor` over Ray does alike, whether an actor id stands for one actor or for those of a node.

    A subclass starts its members, and then the evaluator: actors are waited for sooner.

    Args:
        config: of the run.
        spec: of its environment.
        cluster: where there are places for actors. None: all are on one machine.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, cluster: ClusterView | None) -> None:
        self._config, self._spec, self._cluster = config, spec, cluster
        self._members: dict[int, MemberT] = {}
        # By Ray's reference to the result, or by what stands for it.
        self._calls: dict[Any, Call] = {}
        self._published = Published(config.transfer.precision)
        self._evaluator: _Evaluator | None = None

    def _start_evaluator(self) -> None:
        self._evaluator = _Evaluator(self._config, self._spec)

    @abstractmethod
    def _completion(self, call: Call, result: Any) -> Completion:
        """What the result of an actor's call is for the coordinator."""

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._members)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._published.publish(snapshot)

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._published.publish_target(snapshot)

    def evaluate(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None:
        assert self._evaluator is not None
        self._calls[self._evaluator.run(self._published.weights_of(snapshot), policy)] = Call(None)

    def drop_evaluations(self) -> None:
        self._calls = {key: call for key, call in self._calls.items() if call.actor_id is not None}

    def next_completion(self) -> Completion | None:
        if not self._calls:
            time.sleep(_POLL_SECONDS)
            return None
        # The calls of one actor are taken in order: its sequence numbers count up, and a report that came before an
        # older one would make the older one a duplicate. `ray.wait` keeps no such order, so only the oldest call of
        # each actor is waited for. Of several that are ready it returns the first in the list, the one that was
        # dispatched first: no actor is passed over for long.
        oldest: dict[int | None, Any] = {}
        for key, call in self._calls.items():
            oldest.setdefault(call.actor_id, key)
        key = self._first_ready(list(oldest.values())[: 1 if self._config.lockstep else None], _POLL_SECONDS)
        if key is None:
            return None
        call = self._calls[key]
        try:
            result = self._result(key, call)
        except RayError as error:
            # The call is left where it is: until the actor is removed it counts as a rollout that is under way.
            return self._failed(call.actor_id, error)
        del self._calls[key]
        return result if call.actor_id is None else self._completion(call, result)

    def has_completed(self, actor_id: int) -> bool:
        oldest = next(key for key, call in self._calls.items() if call.actor_id == actor_id)
        return self._first_ready([oldest], 0) is not None

    def _first_ready(self, keys: Sequence[Any], seconds: float) -> Any | None:
        """The key of the first of these calls that has ended, or ends within so many seconds."""
        ready, _ = ray.wait(list(keys), num_returns=1, timeout=seconds)
        return ready[0] if ready else None

    def _result(self, key: Any, call: Call) -> Any:  # noqa: ARG002
        """What a call that has ended gave.

        Raises:
            RayError: it failed.
        """
        return ray.get(key)

    def remove(self, actor_id: int) -> None:
        # Its further calls would each end with its death again.
        self._calls = {key: call for key, call in self._calls.items() if call.actor_id != actor_id}
        # Ray ends the actors that a process has started with it.
        ray.kill(self._members.pop(actor_id).handle, no_restart=True)

    def draining(self) -> Sequence[int]:
        if self._cluster is None:
            return ()
        draining = {node.id for node in self._cluster.nodes() if node.draining}
        return [actor_id for actor_id, member in self._members.items() if member.node in draining]

    def replace_evaluator(self) -> None:
        assert self._evaluator is not None
        # Its further calls would each end with its death again.
        self.drop_evaluations()
        self._evaluator.close()

    def state(self) -> None:
        return None

    def restore(self, state: dict[str, Any]) -> Sequence[int]:  # noqa: ARG002
        raise AssertionError("processes have no fixed order, and so no state for a bit-exact resume")

    def close(self) -> None:
        for member in self._members.values():
            ray.kill(member.handle, no_restart=True)
        if self._evaluator is not None:
            self._evaluator.close()
        self._members, self._calls = {}, {}

    def _failed(self, actor_id: int | None, error: RayError) -> Failed:
        if isinstance(error, RayTaskError) and isinstance(error.cause, ActorNotMadeError):
            return Failed(actor_id, str(error.cause), not_made=True)
        reason = failure_reason(error, "its evaluation" if actor_id is None else "its rollout")
        failed = Failed(actor_id, reason, raised=isinstance(error, RayTaskError))
        if self._cluster is None or actor_id is None:
            return failed
        lost = isinstance(error, RayActorError) and self._cluster.has_lost(self._members[actor_id].node)
        return failed._replace(node_lost=lost)
