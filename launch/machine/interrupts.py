"""Requests to stop a run, and the signals that make them: Ctrl-C, SIGTERM, and SIGHUP when a terminal is closed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Shared by a run and its caller, which sets it from any thread, or from a signal handler.

    Plain attributes and no Event: setting an Event takes a lock, and a second signal in that moment would deadlock.

    Attributes:
        asked: finish the rollouts under way, save and end.
        interrupted: the user asked by Ctrl-C; the next KeyboardInterrupt leaves without saving.
        at_once: end without saving, for runs in another process, which no KeyboardInterrupt of this one reaches.
    """

    def __init__(self) -> None:
        self.asked = self.interrupted = self.at_once = False

    @contextmanager
    def training(self) -> Iterator[None]:
        """The period in which a run honours `asked`. Before it there is nothing to save, after it all is saved."""
        yield


class Interrupts(StopRequest):
    """A stop request that signals make. Use as a context, in the main thread, around the whole command.

    While training, the first signal sets `asked` and a second Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP never
    count as a second Ctrl-C, because they come in numbers: whatever ends a job sends SIGTERM to each of its processes,
    and these to each other; a closed terminal sends SIGHUP, and its shell another one. Before training a SIGHUP raises
    KeyboardInterrupt, as Ctrl-C does; after it, it is ignored. A process that ignored SIGHUP from its start, as under
    nohup, goes on ignoring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = self._concluding = False

    def __enter__(self) -> "Interrupts":
        self._hangups_before = signal.getsignal(signal.SIGHUP)
        if self._hangups_before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._ask_only)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._hangups_before)

    @contextmanager
    def training(self) -> Iterator[None]:
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask_only}
        before = {kind: signal.signal(kind, handler) for kind, handler in handlers.items()}
        self._training, self._concluding = True, False
        try:
            yield
        finally:
            self._training, self._concluding = False, True
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _ask(self, _signal: int, _frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.asked = self.interrupted = True

    def _ask_only(self, _signal: int, _frame: object) -> None:
        if self._training:
            self.asked = True
        elif not self._concluding:
            self._concluding = True
            raise KeyboardInterrupt


@contextmanager
def children_outlive_hangups() -> Iterator[None]:
    """A closed terminal does not end the processes started here, nor theirs: they inherit that SIGHUP is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
