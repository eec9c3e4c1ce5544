"""The bound on throughput: what one agent step costs one core in environment, acting and gradient.

Each is measured in one process alone, and in several at once: on busy cores everything takes longer, and what the
machine takes from the whole system is told from what the system adds.
"""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec
from launch.bench.work import seconds_per_agent_step
from launch.machine.tensorflow_process import prepare_tensorflow
from shared.config import RunConfig
from shared.errors import ConfigurationError

_REPEATS = 3
_SECONDS = 0.7
# From a request until its window opens: each process has the request by then, and is at work.
_NOTICE_SECONDS = 0.1
_WARM_UP_CALLS = 3
_READY = "ready"
_SPAWN = multiprocessing.get_context("spawn")


class Components(NamedTuple):
    """e, a and E·g of the bound: seconds of one core per agent step, of each repeat; with E epochs all of them."""

    environment: list[float]
    acting: list[float]
    gradient: list[float]

    def median(self, part: str) -> float:
        """Median of the repeats of e, a or g, by the name of its field."""
        return float(np.median(getattr(self, part)))

    def medians(self) -> dict[str, float]:
        """The medians of e, a and g, by the names of their fields."""
        return {part: self.median(part) for part in self._fields}

    def step_seconds(self) -> float:
        """e + a + E·g, each the median of its repeats: seconds of one core for one agent step."""
        return sum(self.medians().values())

    def bound(self, cores: int) -> float:
        """Agent steps per second that so many cores cannot exceed by doing these three alone: C / (e + a + E·g)."""
        return cores / self.step_seconds()

    def __add__(self, other: "Components") -> "Components":  # type: ignore[override]
        """The repeats of the two measurements together."""
        return Components(*(mine + others for mine, others in zip(self, other, strict=True)))


def measure_components(config: RunConfig, spec: EnvironmentSpec, counts: Sequence[int]) -> dict[int, Components]:
    """e, a and g with so many processes at work at the same time, by their number; each has one thread.

    The numbers take turns, so that a noisy minute is in all of them. With several processes a repeat is their mean.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_Process(config, spec)) for _ in range(max(counts))]
        for process in processes:
            process.wait_until_ready()
        measured = {count: Components([], [], []) for count in counts}
        for _ in range(_REPEATS):
            for part in Components._fields:
                for count in measured:
                    getattr(measured[count], part).append(_measure(processes[:count], part))
    return measured


def _measure(processes: "Sequence[_Process]", part: str) -> float:
    """Seconds per agent step of a part that all of them do, in a window in which each is at work."""
    opens = time.monotonic() + _NOTICE_SECONDS
    for process in processes:
        process.ask(part, opens, opens + _SECONDS)
    return float(np.mean([process.answer() for process in processes]))


class _Process:
    """A process that measures. As a context: it ends with it. Interrupts do not reach it."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        self._connection, self._other_end = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(self._other_end, config, spec), daemon=True)

    def __enter__(self) -> "_Process":
        # The first process that is spawned starts this one, which would let interrupts through again.
        resource_tracker.ensure_running()
        # It inherits that an interrupt waits, and so does not print where it was: it is ended from here.
        with _interrupts_wait():
            self._process.start()
        self._other_end.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def wait_until_ready(self) -> None:
        """It has made what it does, and done it before.

        Raises:
            ConfigurationError: it could not.
        """
        assert self._received() == _READY

    def ask(self, part: str, opens: float, closes: float) -> None:
        """Ask for seconds per agent step of a part between two moments of `time.monotonic`."""
        self._connection.send((part, opens, closes))

    def answer(self) -> float:
        """The answer to the oldest question.

        Raises:
            ConfigurationError: the process has died.
        """
        return self._received()

    def _received(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise ConfigurationError(
                "environment, acting and gradient could not be measured: a process that does them has died"
            ) from error


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """An interrupt comes when the context ends, and never to a process that is started in it."""
    came: list[int] = []
    # This thread blocks it; another thread of the process may not, and take it.
    handler = signal.signal(signal.SIGINT, lambda kind, _: came.append(kind))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def _serve(connection: Connection, config: RunConfig, spec: EnvironmentSpec) -> None:
    """What such a process does, until nobody can ask any more."""
    prepare_tensorflow(1, gpu=False)
    from launch.bench.plain_work import make_works

    works = make_works(config, spec)
    for work in works.values():
        for _ in range(_WARM_UP_CALLS):
            work.call()
    connection.send(_READY)
    while True:
        try:
            part, opens, closes = connection.recv()
        except EOFError:
            return
        connection.send(seconds_per_agent_step(works[part], opens, closes))
