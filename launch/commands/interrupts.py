"""Signals that ask a run to end: Ctrl-C, SIGTERM, and SIGHUP when its terminal is closed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """Whether somebody has asked a run to end. Use as a context around what starts, watches and concludes it.

    Within `watched` the first signal sets `asked`, and a second Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP
    only ever ask: whoever ends a job sends SIGTERM to each of its processes, and they to each other; the terminal sends
    a SIGHUP as it is closed, and the shell in it another. Before `watched` a SIGHUP raises KeyboardInterrupt, as a
    Ctrl-C does; after it nothing, for the run is saved. A process that ignored SIGHUP from its start, under nohup for
    example, goes on ignoring it.
    """

    def __init__(self) -> None:
        # No Event: to set one takes a lock, and a second signal within that moment would wait for the first for ever.
        self.asked = False
        self._watched = self._asked_at_the_keyboard = self._concluding = False

    def __enter__(self) -> "Interrupts":
        self._hangups_before = signal.getsignal(signal.SIGHUP)
        if self._hangups_before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._ask_only)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._hangups_before)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the run is watched, and can be asked to end cleanly."""
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask_only}
        before = {kind: signal.signal(kind, handler) for kind, handler in handlers.items()}
        self._watched = True
        try:
            yield
        finally:
            self._watched, self._concluding = False, True
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _ask(self, _signal: int, _frame: object) -> None:
        if self._asked_at_the_keyboard:
            raise KeyboardInterrupt
        self._asked_at_the_keyboard = True
        self.asked = True

    def _ask_only(self, _signal: int, _frame: object) -> None:
        if self._watched:
            self.asked = True
        elif not self._concluding:
            self._concluding = True
            raise KeyboardInterrupt


@contextmanager
def children_outlive_hangups() -> Iterator[None]:
    """A closed terminal does not end the processes started here, nor theirs: they inherit that SIGHUP waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
