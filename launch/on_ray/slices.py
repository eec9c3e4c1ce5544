"""The learner's slices in processes of their own, and what its own process has in their place.

The learner's process calls them in the order of its account, and Ray keeps the order of calls: so there is one order
of versions. Most calls are not waited for. Gradients and weights go from actors to slices and back as Ray's objects, of
which the learner's process has the references only.

A slice that has missed a call must not go on. Calls are numbered, so it fails from then on; with it, the weights that
actors wait for. The state of the run is lost with any slice: the learner's process says so, and ends the run.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from launch.loop.worker_pool import LearnerLostError
from launch.on_ray.cluster import on_node
from launch.on_ray.failures import failure_reason
from launch.on_ray.members import PROCESS_OPTIONS
from launch.on_ray.placement import Node
from launch.on_ray.slice_process import SliceProcess
from shared.blocks import block_size, slice_bounds
from shared.config import RunConfig
from shared.types import Float32Array

if TYPE_CHECKING:
    from learner.slices import Part, State

# The custom resource of nodes that slices are to be on: one of it for each.
SLICE_RESOURCE = "slice"
# By when a slice has to answer, its start included.
_ANSWER_SECONDS = 180.0
# Every so many calls of a slice one is remembered, and so many of these may not have ended: the learner's process must
# not run ahead of its slices for ever.
_CALLS_PER_MARK = 16
_MOST_MARKS = 2


class _RemotePart:
    """A `Part` in a `SliceProcess`.

    Args:
        process: Ray's handle.
        name: which of the slices it is, in words.
    """

    def __init__(self, process: Any, name: str) -> None:
        self._process, self._name = process, name
        self._calls = 0
        self._marks: deque[ray.ObjectRef] = deque()
        # The parameters as the last update has left them.
        self._piece: ray.ObjectRef | None = None

    def add(self, gradient: Any, weight: float) -> None:
        self._call("add", gradient, weight)

    def complete(self, gradient: Any, weight: float, scale: float) -> Callable[[], Float32Array]:
        return self._waited_for("complete", gradient, weight, scale)

    def update(self, gradient: Any | None, learning_rate: float, factor: float) -> None:
        self._piece = self._call("update", gradient, learning_rate, factor)

    def discard(self) -> None:
        self._call("discard")

    def write(self, begin: int, values: Float32Array) -> None:
        self._piece = None
        self._call("write", begin, values)

    def keep_target(self) -> None:
        self._call("keep_target")

    def state(self) -> "Callable[[], State]":
        return self._waited_for("state")

    def restore(self, state: "State") -> None:
        self._piece = None
        self._call("restore", state)

    def read(self) -> Callable[[], Float32Array]:
        return self._waited_for("read")

    def read_target(self) -> Callable[[], Float32Array]:
        return self._waited_for("read_target")

    def piece(self) -> ray.ObjectRef:
        if self._piece is None:
            self._piece = self._call("piece")
        return self._piece

    def target_piece(self) -> ray.ObjectRef:
        # Not encoded: see `Published`.
        return self._call("read_target")

    def check(self) -> None:
        """Wait until all calls have been done.

        Raises:
            LearnerLostError: one was not, and none after it will be.
        """
        self._waited_for("check")()

    def close(self) -> None:
        """End the process."""
        ray.kill(self._process, no_restart=True)

    def _waited_for(self, method: str, *arguments: Any) -> Callable[[], Any]:
        called = self._call(method, *arguments)

        def wait() -> Any:
            with self._losses():
                return ray.get(called, timeout=_ANSWER_SECONDS)

        return wait

    def _call(self, method: str, *arguments: Any) -> ray.ObjectRef:
        self._calls += 1
        with self._losses():
            called: ray.ObjectRef = getattr(self._process, method).remote(self._calls, *arguments)
        if self._calls % _CALLS_PER_MARK == 0:
            self._marks.append(called)
            if len(self._marks) > _MOST_MARKS:
                ray.wait([self._marks.popleft()], timeout=_ANSWER_SECONDS, fetch_local=False)
        return called

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except GetTimeoutError as error:
            raise LearnerLostError(f"{self._name}: no answer for {_ANSWER_SECONDS:g} s, it hangs") from error
        except RayError as error:
            raise LearnerLostError(f"{self._name}: {failure_reason(error, 'its call')}") from error


class SliceProcesses:
    """The processes of a run's slices. They end with the process that has started them.

    If there is one of Ray's resource `slice` for each, they are on the nodes that have it, else on the learner's node.

    Args:
        config: of the run.
        node: of the learner, on a cluster. None: everything is on this machine.
    """

    def __init__(self, config: RunConfig, node: Node | None) -> None:
        self._config, self._node = config, node
        self._parts: list[_RemotePart] = []

    def start(self, initial: Float32Array) -> "Sequence[Part]":
        """Start them with these parameters, float32 [P].

        Raises:
            ConfigurationError: there are too few parameters for so many slices.
        """
        shards, block = self._config.learner.shards, block_size(len(initial))
        options = PROCESS_OPTIONS | self._where(shards)
        remote = ray.remote(num_cpus=0, **options)(SliceProcess)
        target = self._config.method.uses_target_network
        for number, (begin, end) in enumerate(slice_bounds(len(initial), shards), start=1):
            handle = remote.remote(
                initial[begin:end], block, self._config.optimizer, self._config.transfer.precision, target=target
            )
            self._parts.append(_RemotePart(handle, f"slice {number} of {shards}"))
        return self._parts

    def check(self) -> None:
        """Wait until all slices have done all that they were asked for.

        Raises:
            LearnerLostError: one of them has not.
        """
        for part in self._parts:
            part.check()

    def close(self) -> None:
        """End them."""
        for part in self._parts:
            part.close()
        self._parts = []

    def _where(self, shards: int) -> dict[str, Any]:
        if ray.cluster_resources().get(SLICE_RESOURCE, 0.0) >= shards:
            return {"resources": {SLICE_RESOURCE: 1}, "scheduling_strategy": "SPREAD"}
        return {} if self._node is None else on_node(self._node.id)
