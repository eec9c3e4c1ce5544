"""Runs the learner on Ray from start to summary, and starts another one when its process or machine is lost."""

import itertools
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from actors.environments import EnvironmentSpec
from launch.machine.budget import ThreadBudget
from launch.machine.interrupts import StopRequest
from launch.on_ray.cluster import cluster_nodes
from launch.on_ray.executor import failure_reason
from launch.on_ray.learner_process import MARK, SentFolder, start_learner
from launch.on_ray.placement import Placement, place, placement_lines
from launch.run.events import View
from launch.run.folder import RunFolder
from launch.run.saving import Stamp, apply_changes, changes_since
from launch.run.status import LearnerDeath
from shared.config import RunConfig
from shared.errors import ConfigurationError

VIEW_SECONDS = 1.0
_COPY_SECONDS = 10.0

Summary = dict[str, Any]
# Called with `wait`, `view` and `interrupt`: shows what `view` returns, calls `interrupt` when the user asks the run to
# stop, and returns the summary as soon as `wait` does.
Watch = Callable[[Callable[[], Summary | None], Callable[[], View], Callable[[], None]], Summary]


def run_learners(
    config: RunConfig,
    spec: EnvironmentSpec,
    folder: RunFolder,
    budget: ThreadBudget,
    placement: Placement | None,
    *,
    resume: bool,
    watch: Watch,
    say: Callable[[str], None],
    stop: StopRequest,
) -> Summary:
    """Run a learner to its end. If its process dies, another one goes on from the last checkpoint.

    Raises:
        ConfigurationError: the run cannot start; nothing was learned.
        RayError: the run failed, or its learner died more often than it may.
        KeyboardInterrupt: the run was to stop while it waited for nodes. Its last checkpoint is what there is.
    """
    death = None
    for restarts in itertools.count():
        sent = None if placement is None else _send_folder(folder.path)
        learner = start_learner(config, spec, folder.path, budget, placement, resume=resume, death=death, sent=sent)
        watched = _WatchedLearner(learner, folder.path, sent, say)
        try:
            return watch(watched.wait, watched.view, watched.interrupt)
        except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
            if isinstance(error, ray.exceptions.RayTaskError):
                # It raised and its process lives: another one would raise the same.
                if restarts == 0 and isinstance(error.cause, ConfigurationError):
                    raise error.cause from None
                raise
            # A user who has asked the run to stop does not want another learner.
            if stop.asked or restarts == config.supervision.max_learner_restarts:
                raise
            say(f"learner: its process died; another one goes on from the last checkpoint ({restarts + 1})")
            # Its node may be unreachable and not dead: Ray then frees its resources, and its actors end with it.
            ray.kill(learner, no_restart=True)
            resume = resume or folder.has_checkpoint
            death = LearnerDeath(failure_reason(error), watched.agent_steps)
            if placement is not None:
                placement = _place_again(config, say, stop)
    raise AssertionError("unreachable")


def _send_folder(folder: Path) -> SentFolder:
    """The run folder for a learner that may be on another machine, and a mark by which it sees whether it is."""
    mark = secrets.token_hex(8)
    (folder / MARK).write_text(mark)
    return SentFolder(mark, changes_since(folder, {}))


def _place_again(config: RunConfig, say: Callable[[str], None], stop: StopRequest) -> Placement:
    """Wait until the nodes have room for the run, and plan where it goes on."""
    told = ""
    while True:
        if stop.asked:
            raise KeyboardInterrupt
        nodes = cluster_nodes()
        try:
            placement = place(config, nodes)
        except ConfigurationError as error:
            if str(error) != told:
                say(f"waiting for nodes: {error}")
                told = str(error)
            time.sleep(VIEW_SECONDS)
            continue
        for line in placement_lines(placement, nodes):
            say(line)
        return placement


class _WatchedLearner:
    """A learner's process as the driver sees it. Remembers how far it had come, and copies its folder to this machine.

    Args:
        process: the handle.
        folder: of the run, on this machine.
        sent: what the learner was sent of it. None: both are on one machine, and nothing is copied.
        say: called with a line for the user.
    """

    def __init__(self, process: Any, folder: Path, sent: SentFolder | None, say: Callable[[str], None]) -> None:
        self._process = process
        self._result = process.run.remote()
        self._folder = folder
        self._stamps = None if sent is None else dict[str, Stamp]()
        self._copied = time.monotonic()
        self._say, self._copy_fails = say, False
        self.agent_steps = 0

    def wait(self) -> dict[str, Any] | None:
        """The summary, if the run ends within a moment."""
        ready, _ = ray.wait([self._result], timeout=VIEW_SECONDS)
        if ready:
            # Before its result, which may be an error: a run that fails has saved. If its process died, that says so.
            with suppress(ray.exceptions.RayActorError):
                self._copy()
            return ray.get(self._result)
        if time.monotonic() - self._copied >= _COPY_SECONDS:
            self._copy()
        return None

    def _copy(self) -> None:
        """Bring the folder here up to date, if it is a copy. A disk that is full here ends no run elsewhere."""
        if self._stamps is None:
            return
        self._copied = time.monotonic()
        changes = ray.get(self._process.folder_changes.remote(self._stamps))
        if not changes.stamps:
            return
        try:
            apply_changes(self._folder, changes)
        except OSError as error:
            if not self._copy_fails:
                self._say(
                    f"warning: the copy of the run in {self._folder} cannot be written: {error.strerror}; the run goes "
                    f"on, and the copy is tried again every {_COPY_SECONDS:.0f} seconds"
                )
            self._copy_fails = True
            # Whatever was written of it: the next copy is whole.
            self._stamps = {}
            return
        if self._copy_fails:
            self._say(f"the copy of the run in {self._folder} is up to date again")
        self._copy_fails = False
        self._stamps = changes.stamps

    def view(self) -> View:
        """See `TrainingSession.view`."""
        view: View = ray.get(self._process.view.remote())
        self.agent_steps = max(self.agent_steps, view.progress.agent_steps)
        return view

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        ray.get(self._process.interrupt.remote())
