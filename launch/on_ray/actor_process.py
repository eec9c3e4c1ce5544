"""The process of an actor, as a Ray actor. For its imports see `launch.on_ray.learner_process`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from actors.environments import EnvironmentSpec
from launch.loop.executor import CallResult
from launch.on_ray.transport import Call, Channel, ChannelAddress, open_channel, serve
from launch.processes import without_collections
from launch.tensorflow_setup import prepare_for
from shared.config import RunConfig
from shared.errors import EnvironmentFailedError, raised_at, typed_line
from shared.types import EvaluationShare, WeightSnapshot

if TYPE_CHECKING:
    from actors.actor import Actor


class WorkerProcess:
    """A process whose calls come through Ray, and from the executor's machine soon through a connection.

    A subclass handles them.
    """

    _channel: Channel | None = None

    def run(
        self,
        snapshot: WeightSnapshot,
        target: WeightSnapshot | None,
        share: EvaluationShare | None,
        address: ChannelAddress | None,
    ) -> tuple[CallResult, bool]:
        """Handle one call. Returns its result, and True once the connection at `address` is accepted: the process waits
        for the call of `serve`, and later calls come through it."""
        result = self.handle(Call(snapshot, target, share))
        if address is not None and self._channel is None:
            self._channel = open_channel(address)
        return result, self._channel is not None

    def serve(self) -> None:
        """Handle the calls of the accepted connection until its other end is closed."""
        assert self._channel is not None
        serve(self._channel, self.handle)

    def handle(self, call: Call) -> CallResult:
        """Do the work of one call, whose weights may be overwritten after it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all environments. The last call: the process is killed after it."""
        raise NotImplementedError


class CallFailedError(Exception):
    """A call raised an error, or the constructor before it. The message is one line.

    Ray passes on this exception in place of the original one, which it may not be able to pickle.
    """


class ActorProcess(WorkerProcess):
    """An `Actor` in a process of its own.

    Each call raises the constructor's error. To Ray, a constructor that raises is a process that died without a cause
    that a program can read, and Ray would print the traceback on the driver's terminal.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int, emulator_threads: int = 1) -> None:
        self._emulator_threads = emulator_threads
        self._not_made: str | None = None
        try:
            with without_collections(freeze=True):
                self._actor = self.make_actor(config, spec, actor_id)
        except Exception as error:
            self._not_made = f"could not be made: {_one_line(error)}"

    def make_actor(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> "Actor":
        """Construct the actor, after TensorFlow's threads and device are set."""
        prepare_for("actor", config)
        from actors.actor import Actor

        return Actor(config, spec, actor_id, emulator_threads=self._emulator_threads)

    def handle(self, call: Call) -> CallResult:
        """Run one rollout, or play on with a share of an evaluation; see `Actor`.

        Raises:
            CallFailedError: the constructor or the call raised an error.
        """
        if self._not_made is not None:
            raise CallFailedError(self._not_made)
        with one_line_errors():
            if call.share is not None:
                return self._actor.evaluate(call.weights, call.target, call.share)
            return self._actor.run(call.weights, call.target)

    def close(self) -> None:
        if self._not_made is None:
            self._actor.close()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise errors as a `CallFailedError`, with their type and place."""
    try:
        yield
    except Exception as error:
        raise CallFailedError(f"its rollout raised: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return str(error) if isinstance(error, EnvironmentFailedError) else f"{typed_line(error)}{raised_at(error)}"
