"""Signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP when a terminal is closed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def take_all(numbers: dict[str, float]) -> dict[str, float]:
    """Empty a dict that other threads may update, and return its content."""
    return dict(numbers.popitem() for _ in range(len(numbers)))


class StopRequest:
    """Shared by a run and its caller, which sets it from any thread, or from a signal handler.

    Plain attributes and no Event: setting an Event takes a lock, and a second signal in that moment would deadlock.

    Attributes:
        requested: finish the rollouts under way, save and end.
        interrupted: the request came from Ctrl-C; the next KeyboardInterrupt leaves without saving.
        numbers: of the caller by name, for the next row of the run. Any thread may update them.
        reason: the origin of the request, for its message; empty for Ctrl-C.
    """

    def __init__(self) -> None:
        self.requested = self.interrupted = False
        self.reason = ""
        self.numbers: dict[str, float] = {}

    def request(self, reason: str) -> None:
        """Set `requested` for `reason`, unless it is set already."""
        if not self.requested:
            self.reason, self.requested = reason, True

    @contextmanager
    def training(self) -> Iterator[None]:
        """The period in which a run honours `requested`. Before it there is nothing to save, after it all is saved."""
        yield


class StoppedBeforeTrainingError(KeyboardInterrupt):
    """A run was stopped before its processes were ready: there is nothing to save."""


class StoppedWithoutLearnerError(KeyboardInterrupt):
    """A run was stopped after its learner's process had died, before another was ready: its last checkpoint is its
    result."""


class Interrupts(StopRequest):
    """A stop request set by signals. Use as a context, in the main thread: a command line runs within one, and a
    command that trains within another one.

                  before training     while training                        after training

        SIGINT    KeyboardInterrupt   request; the second one interrupts    KeyboardInterrupt
        SIGTERM   KeyboardInterrupt   request                               ignored
        SIGHUP    KeyboardInterrupt   request                               ignored

    SIGTERM and SIGHUP arrive several times: a job scheduler signals each process of a job, a closed terminal and its
    shell both send SIGHUP. SIGHUP stays ignored under nohup. SIGINT does not stay ignored in a process that a script
    started with `&`: `tributary stop` sends it.

    Attributes:
        concluding: no run trains any more, or will; what it has learned is saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = self.concluding = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        self._handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
        self._handle()
        return self

    def _handle(self) -> None:
        for kind, handler in self._handlers.items():
            if kind == signal.SIGINT and handler == signal.SIG_IGN:
                signal.signal(kind, signal.default_int_handler)
            elif kind != signal.SIGINT and handler != signal.SIG_IGN:
                signal.signal(kind, self._request_only)

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._handlers.items():
            signal.signal(kind, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        # A copy of the environment, which was looked at before, may have set handlers of its own.
        self._handle()
        before = signal.signal(signal.SIGINT, self._ask)
        self._training, self.concluding = True, False
        try:
            yield
        finally:
            self._training, self.concluding = False, True
            signal.signal(signal.SIGINT, before)

    def _ask(self, _signal: int, _frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.requested = self.interrupted = True

    def _request_only(self, kind: int, _frame: object) -> None:
        if self.concluding:
            return
        # Before training, too: an exception that is raised in a callback, as imports have them, is lost.
        self.request("SIGHUP" if kind == signal.SIGHUP else "SIGTERM")
        if not self._training:
            self.concluding = True
            raise StoppedBeforeTrainingError
