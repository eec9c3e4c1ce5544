"""Calls between the executor and actors of one machine, beside Ray: pipes and shared memory.

Ray starts the processes, carries the first call of each actor and reports how a process ended. On one machine every
later call goes through a pair of pipes, and the vectors of weights and gradients through shared memory:

    executor                                        actor's process
    weights, written once per version  ──────────►  mapped, read in place           (memory of a file without a name)
    Call(addresses)                    ──pipe────►  rollout, gradient
    GradientReport without gradient    ◄──pipe────  gradient written to reply_in    (two vectors per actor, in turn)

No other file knows of this. It is available where `/proc` shows the open files of other processes. Neither pipes
nor memory have a name: they disappear with the last process that has them, however it ended.

Why both exist: with this transport a run of 2 actors on 2 cores made 1.07 (pong, 32 × 32), 1.16 (cartpole, 8 × 32) and
2.06 (cartpole, 1 × 8) times the agent steps per CPU second of one with Ray's calls alone; medians of three.

A call through Ray costs about 0.6 ms of CPU in each of both processes, a call through a pipe 0.04 ms. Pipes without
shared memory are no alternative: a vector of 677,000 parameters each way costs the learner's process 4.9 ms a gradient,
against 0.01 ms with shared memory, and that process limits the number of actors.
"""

import mmap
import os
import pickle
import resource
import select
import weakref
from collections import deque
from collections.abc import Callable, Set
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import numpy as np

from launch.loop.executor import NO_GRADIENT, CallResult
from launch.processes import of_this_process
from shared.types import AggregatedReport, EvaluationShare, Float32Array, GradientReport, WeightSnapshot

_MEMORY_NAME = "tributary"
_ELEMENT_BYTES = 4
_ONE_EVENT = select.EPOLLIN | select.EPOLLONESHOT
# Number of vectors of an actor, used in turn: the last gradient stays while the next one is written.
REPLY_VECTORS = 2


class VectorAddress(NamedTuple):
    """Location of a shared vector: open in process `pid` under the number `descriptor`."""

    pid: int
    descriptor: int
    size: int


class ChannelAddress(NamedTuple):
    """Location of the far end of a channel: open in process `pid` under these two numbers."""

    pid: int
    reads: int
    writes: int


class Call(NamedTuple):
    """A call of an actor (`NextCall`), or of a share of an evaluation, with these weights. `target` None: the actor
    keeps its target network.

    In a channel its weights are addresses. Gradients are written to the vectors `reply_in` in turn, whose addresses
    come with the first call of a connection.
    """

    weights: WeightSnapshot
    target: WeightSnapshot | None
    share: EvaluationShare | None
    reply_in: tuple[VectorAddress, ...] = ()


class LocalTransport:
    """The executor's side: connections to actors of this machine, and the weights that they read."""

    def __init__(self) -> None:
        # An actor takes eight. Processes under `ray start` have the soft limit, which is 1,024 as a rule.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._weights, self._targets = _SharedSnapshots(), _SharedSnapshots()
        # The vectors that the calls in flight read: the actor reads weights in place during the rollout.
        self._read: dict[LocalConnection, list[SharedVector]] = {}
        # Kept: with 64 actors `multiprocessing.connection.wait`, which registers all at each call, takes longer than
        # a report. Each call arms its connection for one event.
        self._epoll = select.epoll()
        self._registered: dict[int, LocalConnection] = {}
        # The message of most calls of a version, in which nothing is of one actor.
        self._message: tuple[WeightSnapshot | None, bytes] = (None, b"")

    def offer(self) -> "LocalConnection | None":
        """A connection for one actor of this machine to accept; None where too many files are open."""
        with suppress(OSError):
            return LocalConnection()
        return None

    def call(self, connection: "LocalConnection", call: Call) -> None:
        """Send a call to an actor that has accepted `connection`, and has no call in flight."""
        weights, *read = self._weights.shared(call.weights, self._in_use)
        target = None
        if call.target is not None:
            target, vector = self._targets.shared(call.target, self._in_use)
            read.append(vector)
        self._read[connection] = read
        reply_in: tuple[VectorAddress, ...] = ()
        if not connection.reply_in:
            connection.reply_in.extend(SharedVector(call.weights.parameters.size) for _ in range(REPLY_VECTORS))
            reply_in = tuple(vector.address for vector in connection.reply_in)
        if target is None and call.share is None and not reply_in:
            if self._message[0] is not weights:
                self._message = weights, pickled(Call(weights, None, None))
            connection.near.send(self._message[1])
        else:
            connection.near.send(pickled(Call(weights, target, call.share, reply_in)))
        descriptor = connection.near.fileno()
        if descriptor not in self._registered:
            self._registered[descriptor] = connection
            self._epoll.register(descriptor, _ONE_EVENT)
        else:
            self._epoll.modify(descriptor, _ONE_EVENT)

    def wait(self, seconds: float) -> "list[LocalConnection]":
        """Wait at most `seconds` until a call ends. Returns the connections of all that have since the last wait."""
        return [self._registered[descriptor] for descriptor, _ in self._epoll.poll(seconds)]

    def _in_use(self) -> "Set[SharedVector]":
        return {vector for vectors in self._read.values() for vector in vectors}

    def receive(self, connection: "LocalConnection") -> CallResult:
        """The result of a call that has ended. An EOFError: the actor raised, or its process died."""
        result: CallResult = connection.near.receive()
        del self._read[connection]
        if not isinstance(result, GradientReport | AggregatedReport):
            return result
        # Not copied: the actor writes its next gradient to its other vector, and only after the report of that one to
        # this again.
        connection.reply_in.rotate()
        return result._replace(gradient=connection.reply_in[-1].values)

    def disconnect(self, connection: "LocalConnection") -> None:
        self._read.pop(connection, None)
        # Before the close, after which the number may be another file's.
        if self._registered.pop(connection.near.fileno(), None) is not None:
            self._epoll.unregister(connection.near.fileno())
        connection.close()


class _SharedSnapshots:
    """The newest snapshot in shared memory. A version that no call needs is not written: that would cost a copy.

    It has as many vectors as are in use at the same time.
    """

    def __init__(self) -> None:
        self._vectors: list[SharedVector] = []
        self._newest: WeightSnapshot | None = None
        self._shared: tuple[WeightSnapshot, SharedVector]

    def shared(
        self, snapshot: WeightSnapshot, in_use: "Callable[[], Set[SharedVector]]"
    ) -> "tuple[WeightSnapshot, SharedVector]":
        """The snapshot, which must not change, with the address of its parameters in a vector that is not in use."""
        if snapshot is not self._newest:
            busy = in_use()
            vector = next((vector for vector in self._vectors if vector not in busy), None)
            if vector is None:
                vector = SharedVector(snapshot.parameters.size)
                self._vectors.append(vector)
            vector.values[...] = snapshot.parameters
            self._newest = snapshot
            address: Any = vector.address
            self._shared = snapshot._replace(parameters=address), vector
        return self._shared


class LocalConnection:
    """The executor's end of a connection to one actor, which accepts the `address` of the far end.

    Its vectors for gradients, of which the next one is first, are made at the first call. They are used for no other
    actor: after a failure this one may still write to them. The constructor raises an OSError where too many files are
    open.
    """

    def __init__(self) -> None:
        far_incoming, outgoing = Pipe(duplex=False)
        incoming, far_outgoing = Pipe(duplex=False)
        self.near, self._far = Channel(incoming, outgoing), Channel(far_incoming, far_outgoing)
        self.address = ChannelAddress(os.getpid(), far_incoming.fileno(), far_outgoing.fileno())
        self.reply_in: deque[SharedVector] = deque()

    def accepted(self) -> None:
        """Close the far end here. The actor's process has it now, so that it closes when that process ends."""
        self._far.close()

    def close(self) -> None:
        self._far.close()
        self.near.close()


def serve(
    channel: "Channel",
    run: Callable[[Call], CallResult],
    write: Callable[[Float32Array, Float32Array], Any] = np.copyto,
) -> None:
    """The actor's side: handle the requests of a channel by `run` until its other end is closed.

    `write` puts a gradient, its second argument, into the first.
    """
    vector = cache(attach)
    reply_in: deque[Float32Array] = deque()

    def read(shared: WeightSnapshot) -> WeightSnapshot:
        address: Any = shared.parameters
        return shared._replace(parameters=vector(address))

    try:
        while True:
            try:
                call: Call = channel.receive()
            except EOFError:
                return
            reply_in.extend(map(attach, call.reply_in))
            weights, target, share, _ = call
            result = run(Call(read(weights), target and read(target), share))
            if isinstance(result, GradientReport | AggregatedReport):
                write(reply_in[0], result.gradient)
                reply_in.rotate()
                result = result._replace(gradient=NO_GRADIENT)
            channel.send(pickled(result))
    finally:
        # The executor, which may wait for a reply, sees the end.
        channel.close()


class Channel:
    """One end of a pair of pipes, for messages that are `pickled`."""

    def __init__(self, incoming: Connection, outgoing: Connection) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, message: bytes) -> None:
        """Send a message. It is lost if the other end is closed; `receive` raises then."""
        with suppress(BrokenPipeError):
            self._outgoing.send_bytes(message)

    def receive(self) -> Any:
        """Wait for the next message. An EOFError: the other end is closed, or its process has ended."""
        try:
            return pickle.loads(self._incoming.recv_bytes())
        except OSError as error:
            # The process ended within a message.
            raise EOFError from error

    def has_message(self) -> bool:
        """True if `receive` would not wait, also after the close of the other end."""
        return self._incoming.poll()

    def fileno(self) -> int:
        """The descriptor to wait on for a message or the close of the other end."""
        return self._incoming.fileno()

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()


def pickled(message: Any) -> bytes:
    # `Connection.send` makes a new pickler with a copied table for each message, which took longer than the message.
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def open_channel(address: ChannelAddress) -> Channel | None:
    """Open the far end of a channel of another process; None if it cannot be reached from this process."""
    pid, reads, writes = address
    with suppress(OSError):
        # A connection is closed when nothing refers to it any more.
        incoming = Connection(_open_file(pid, reads, "pipe:", os.O_RDONLY), writable=False)
        outgoing = Connection(_open_file(pid, writes, "pipe:", os.O_WRONLY), readable=False)
        return of_this_process(Channel(incoming, outgoing))
    return None


def _open_file(pid: int, descriptor: int, kind: str, flags: int) -> int:
    """Open a file that another process has open, or raise an OSError if it cannot be reached from this process."""
    path = f"/proc/{pid}/fd/{descriptor}"
    # The process id may belong to another process by now.
    if not os.readlink(path).startswith(kind):
        raise FileNotFoundError(path)
    return os.open(path, flags)


class SharedVector:
    """A vector float32 of `size` in shared memory. Messages decide which process may write it at which moment.

    Its file is closed with this object. The memory stays as long as a process maps it.
    """

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create(_MEMORY_NAME)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size * _ELEMENT_BYTES)
        self.values: Float32Array = _map(descriptor, size)
        self.address = VectorAddress(os.getpid(), descriptor, size)


def attach(address: VectorAddress) -> Float32Array:
    """Map a vector of another process. An OSError: it cannot be reached from this process."""
    kind = f"/memfd:{_MEMORY_NAME}"
    descriptor = _open_file(address.pid, address.descriptor, kind, os.O_RDWR)
    try:
        return _map(descriptor, address.size)
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int) -> Float32Array:
    # A mapping starts at a page, so TensorFlow takes the array without a copy, see `shared.graph.Graph`.
    return np.frombuffer(mmap.mmap(descriptor, size * _ELEMENT_BYTES), np.float32)
