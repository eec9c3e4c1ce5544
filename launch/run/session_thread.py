"""The thread of a training session, which the driver polls: in its own process, or in the learner's. No TensorFlow."""

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any

from launch.run.events import View

if TYPE_CHECKING:
    from launch.run.session import TrainingSession

VIEW_SECONDS = 1.0


class SessionThread:
    """A thread that makes a training session by `make`, and runs it from the first `poll` on.

    One thread for both: some environments are bound to the one that makes them.
    """

    def __init__(self, make: Callable[[], "TrainingSession"]) -> None:
        # Not as a context: a program that leaves at once does not wait for the thread.
        self._thread = futures.ThreadPoolExecutor(1)
        self._session = self._thread.submit(make)
        self._summary: futures.Future[dict[str, Any]] | None = None

    def made(self) -> "TrainingSession":
        """Wait until the session is made. Raises the error of `make`."""
        return self._session.result()

    def poll(self, numbers: Mapping[str, float]) -> View:
        """Wait a moment for the end of the run; see `TrainingSession.view`. Raises the error of the session at last."""
        session = self.made()
        self._summary = self._summary or self._thread.submit(session.run)
        ended, _ = futures.wait([self._summary], VIEW_SECONDS)
        view = session.view(numbers)
        return view._replace(summary=self._summary.result()) if ended and not view.events else view

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        self.made().interrupt()
