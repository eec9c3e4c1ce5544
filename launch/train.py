"""The library: `train` runs one training run from its checks to its summary, and reports it by typed events.

The command line calls `train`; `tributary_rl`, several seeds and benchmarks call it by
`launch.driver.train_in_process`, which takes the same arguments and runs it in a process of its own.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launch.interrupts import StoppedBeforeTrainingError, StopRequest, take_all
from launch.machine import ThreadBudget, thread_budget, usable_gpus
from launch.on_ray.placement import (
    Placement,
    gpus_in_reach,
    gradients_per_sum_by_node,
    local_placement,
    place,
    placement_lines,
)
from launch.presets import PRESETS, advice_on_preset
from launch.processes import without_collections
from launch.run.events import Event, Message, Preparing, Progressed, Started, Stopped
from launch.run.folder import RunFolder, centres_observations, manifest, read_object
from launch.run.lock import lock_folder
from launch.run.session_thread import SessionThread
from launch.run.storage import RemoteCopy, check_storage
from launch.run.summary import reached_limit
from launch.run.tensorboard import check_trackers
from launch.run.weights import FirstWeights, weights_to_start_from, write_weights
from launch.settings.check import check_checkpoint, check_network, notes_on, on_device, resume_lines
from launch.settings.resolve import divided_among, rollouts_line
from launch.tensorflow_setup import kernels, prepare_for
from shared.config import RunConfig
from shared.errors import ConfigurationError, EnvironmentFailedError, TrainingFailedError

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec
    from launch.on_ray.learner_process import RemoteLearner

OnEvent = Callable[[Event], object]


class Result(NamedTuple):
    """A run that has ended.

    Attributes:
        folder: of the run.
        summary: the content of its summary.json.
        trained: False for a resumed run that had reached a limit before.
    """

    folder: Path
    summary: dict[str, Any]
    trained: bool = True

    @property
    def status(self) -> str:
        """frames_reached, return_reached, time_reached, interrupted or failed."""
        return str(self.summary["status"])


def train(
    config: RunConfig,
    folder: Path,
    on_event: OnEvent,
    *,
    preset: str = "",
    resume: bool = False,
    start_from: Path | None = None,
    stop: StopRequest | None = None,
) -> Result:
    """Train until a limit of the settings is reached or the run is stopped.

    With the inline executor TensorFlow of this process is limited to one thread; with Ray this process joins the
    cluster, or starts one for itself. A program that has other uses for either calls `train_in_process`.

    Args:
        config: settings of the run.
        folder: of the run; new, or with `resume` that of a run with a checkpoint.
        on_event: called with each event, in this thread. It raises nothing: the errors of a caller's function are those
            of `train_in_process`.
        preset: name of the preset that the settings started from.
        resume: continue the run in `folder`. A run that has reached a limit of `config` is not trained further.
        start_from: folder of a run whose best weights the new run starts with.
        stop: by which another thread or a signal handler stops the run.

    Raises:
        ConfigurationError: the run cannot start. No new folder is left behind, and an old one keeps all but its
            summary.
        TrainingFailedError: it failed. The learned weights are saved, unless the message says otherwise.
        KeyboardInterrupt: one was raised in this thread. What was learned since the last checkpoint is lost.
    """
    run = _Run(config, RunFolder(folder), on_event, stop or StopRequest(), preset, resume)
    try:
        ended = _prepare(run, start_from)
        if ended is not None:
            return Result(run.folder.path, ended, trained=False)
        summary = _train_inline(run) if config.executor == "inline" else _train_on_ray(run)
    except ConfigurationError as error:
        if resume or preset not in PRESETS:
            raise
        raise ConfigurationError(f"{error}{advice_on_preset(preset, config.environment.id)}") from error
    on_event(Stopped(str(run.folder.path), summary))
    return Result(run.folder.path, summary)


@dataclass
class _Run:
    """A run on its way from its checks to its learner.

    Attributes:
        budget: actors and threads; None on a cluster before its nodes are known.
        first: weights of another run that it starts from.
        training: whether its learner is ready.
    """

    config: RunConfig
    folder: RunFolder
    on_event: OnEvent
    stop: StopRequest
    preset: str
    resume: bool
    started: float = field(default_factory=time.time)
    spec: "EnvironmentSpec" = field(init=False)
    budget: ThreadBudget | None = None
    first: FirstWeights | None = None
    training: bool = False

    def say(self, text: str | None) -> None:
        if text is not None:
            self.on_event(Message(text))


def _prepare(run: _Run, start_from: Path | None) -> dict[str, Any] | None:
    """Check all that can be checked before a worker starts. Returns the summary of a run with nothing left to do."""
    if run.resume:
        # Another process may hold the folder: the lock is known at once, and missing files of that process are not
        # reported.
        lock_folder(run.folder.path).close()
    _check(run)
    if run.resume:
        return _continue(run)
    _begin(run, start_from)
    return None


def _check(run: _Run) -> None:
    """Check settings, environment and storage, and set the environment's facts; on this machine also its share."""
    # Help, which imports this module, does without Gymnasium.
    from actors.environments import environment_spec

    config = run.config
    run.on_event(Preparing("checking the settings and the environment"))
    run.spec = environment_spec(config.environment, trial=True)
    check_network(config, run.spec)
    for note in notes_on(config, run.spec):
        run.say(f"note: {note}")
    check_trackers(config)
    if config.storage is not None:
        check_storage(config.storage, run.folder, resume=run.resume)
    if config.executor == "inline" or config.address == "local":
        config, device = on_device(config, run.spec, usable_gpus(), resume=run.resume)
        run.say(device)
        run.budget = thread_budget(config)
        run.config = config if run.resume else divided_among(config, run.budget.actors)


def _continue(run: _Run) -> dict[str, Any] | None:
    config, folder = run.config, run.folder
    run.spec = folder.as_trained(config, run.spec)
    check_checkpoint(config, run.spec, folder)
    summary = read_object(folder.summary)
    reached = reached_limit(config, summary)
    if reached is not None:
        run.say(reached)
        if config.storage is not None:
            # It may have missed the end of the run.
            with lock_folder(folder.path):
                RemoteCopy(folder.path, config.storage, run.say).complete()
        return summary
    for line in resume_lines(config, folder):
        run.say(line)
    return None


def _begin(run: _Run, start_from: Path | None) -> None:
    from actors.environments import measure_observation_mean

    config = run.config
    run.folder.check_free()
    if start_from is not None:
        run.first = weights_to_start_from(config, run.spec, RunFolder(start_from))
        run.spec = run.first.spec
    elif centres_observations(config, run.spec):
        run.on_event(Preparing("measuring the mean observation"))
        run.spec = replace(run.spec, observation_mean=measure_observation_mean(config.environment, config.seed))


def _train_inline(run: _Run) -> dict[str, Any]:
    config, spec, budget = run.config, run.spec, run.budget
    assert budget is not None
    with _opened_folder(run, budget):
        run.on_event(Preparing("importing TensorFlow"))
        # All of it is on one device: networks, gradients and updates.
        prepare_for("actor", config)
        from launch.loop.inline import InlineExecutor
        from launch.run.session import TrainingSession

        executor = partial(
            InlineExecutor, config, spec, budget.actors, emulator_threads=max(budget.emulator_threads, 1)
        )
        run.on_event(Preparing("building networks and environments"))
        make = partial(TrainingSession, config, spec, run.folder.path, executor, resume=run.resume, started=run.started)
        try:
            session = SessionThread(make)
            session.made()
        except EnvironmentFailedError as error:
            raise ConfigurationError(f"--environment.id {error}") from error
        except KeyboardInterrupt:
            # A constructor that hangs is not waited for.
            run.stop.interrupted = True
            raise StoppedBeforeTrainingError from None
        try:
            with run.stop.training():
                _start(run, budget)
                return _watch(run, session)
        except EnvironmentFailedError as error:
            raise TrainingFailedError(str(error)) from error


def _train_on_ray(run: _Run) -> dict[str, Any]:
    # Importing ray takes half a second or more: after all that can be checked without it.
    with without_collections():
        from launch.on_ray.cluster import connect, disconnecting, machines_requested
        from launch.on_ray.learner_process import LearnerStart, run_learners

    with disconnecting():
        run.on_event(Preparing("starting Ray" if run.budget else f"joining the cluster at {run.config.address}"))
        connect(run.config, run.budget.actors if run.budget else 0)
        placement, budget = _placed(run)
        config = run.config
        with _opened_folder(run, budget), machines_requested(config, placement.learner):
            if sums := gradients_per_sum_by_node(config, placement):
                sizes = f"{min(sums)} to {max(sums)}" if min(sums) < max(sums) else str(max(sums))
                run.say(f"aggregation:  {sizes} gradients of a node make one message")
            # Across a restart of the learner too: a signal that comes between two learners is honoured.
            with run.stop.training():
                _start(run, budget)
                run.on_event(Preparing("learner and actors: importing TensorFlow"))
                start = LearnerStart(config, run.spec, run.folder.path, placement, run.resume, run.started)
                summary = run_learners(start, partial(_watch, run), run.say, run.stop)
            if run.stop.interrupted and not (run.resume or summary["agent_steps_sampled"]):
                # Its learner was ready, and no actor. The folder is discarded.
                raise StoppedBeforeTrainingError
            return summary


def _placed(run: _Run) -> tuple[Placement, ThreadBudget]:
    """The placement of a run on the machine or the cluster that was joined, to which its settings are fitted."""
    from launch.on_ray.cluster import checked_nodes

    if run.budget is not None:
        return local_placement(run.budget), run.budget
    nodes = checked_nodes()
    run.config, device = on_device(run.config, run.spec, gpus_in_reach(run.config, nodes), resume=run.resume)
    run.say(device)
    placement = place(run.config, nodes)
    for line in placement_lines(run.config, placement, nodes):
        run.say(line)
    if not run.resume:
        # Actors that join later get the same share: the algorithm must not change with the nodes.
        run.config = divided_among(run.config, max(run.config.actor_range[1] or 0, placement.total_actors))
    return placement, ThreadBudget(int(sum(node.cores for node in nodes)), placement.total_actors)


def _start(run: _Run, budget: ThreadBudget) -> None:
    run.training = True
    run.on_event(Started(str(run.folder.path), run.config, budget.actors))


def _watch(run: _Run, learner: "SessionThread | RemoteLearner") -> dict[str, Any]:
    """Pass events on until the run has ended, and a stop request once. Returns the summary."""
    passed_on = False
    while True:
        view = learner.poll(take_all(run.stop.numbers))
        for event in (*view.events, Progressed(view.progress)):
            run.on_event(event)
        if view.summary is not None:
            return view.summary
        if run.stop.requested and not passed_on:
            passed_on = True
            learner.interrupt()
            reason, finishing = run.stop.reason, "finishing the gradients under way and saving"
            run.say(f"stopped by {reason}: {finishing}" if reason else f"{finishing}; Ctrl-C again leaves at once")


@contextmanager
def _opened_folder(run: _Run, budget: ThreadBudget) -> Iterator[None]:
    """Create the run's folder, or take over that of a resumed run, hold its lock, and describe the run.

    If the run cannot start, a new folder is removed again.
    """
    config, folder, first, say = run.config, run.folder, run.first, run.say
    used = kernels(config.network, in_this_process=config.executor == "inline")
    threads = f"{budget.describe(config.executor)}; kernels: {used}"
    with lock_folder(folder.path) if run.resume else folder.make():
        try:
            if not run.resume:
                origin = {} if first is None else {"started_from": first.origin}
                folder.create(config, run.spec, manifest(config, run.spec, run.preset, threads) | origin)
            if first is not None:
                write_weights(folder.first_weights, first.snapshot, first.layout, first.origin["weights"])
            say(f"run folder:   {folder.path}")
            say(f"threads:      {threads}")
            say(rollouts_line(config, budget.actors))
            if first is not None:
                say("starts from:  {run}: {weights}, of {agent_steps:,} agent steps".format(**first.origin))
            crowded = budget.warning() if config.executor == "ray" else None
            # A new run divides its environments among its actors.
            crowding = config.actor.crowding(budget.actors) if run.resume else None
            for warning in (crowded, crowding):
                say(warning and f"warning: {warning}")
            yield
        except BaseException as error:
            began = run.training and not isinstance(error, StoppedBeforeTrainingError | ConfigurationError)
            if not (run.resume or began):
                folder.discard()
            raise
