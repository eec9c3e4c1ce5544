"""`tributary train`: check everything first, start the processes, show progress, stop cleanly."""

import itertools
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec, measure_observation_mean
from launch.arrivals import Arrivals
from launch.budget import ThreadBudget, budget_for, thread_budget
from launch.display import Display, summary_lines
from launch.folder_copy import Stamp, apply_changes, changes_since
from launch.placement import Placement, place, placement_lines
from launch.process import prepare_tensorflow
from launch.progress import View
from launch.ray_processes import MARK, SentFolder
from launch.run_folder import RunFolder, centres_observations, check_json_file, manifest, write_json
from launch.sinks import check_trackers
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.methods import METHODS

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
_VIEW_SECONDS = 1.0
_COPY_SECONDS = 10.0


@dataclass(frozen=True)
class TrainArguments:
    """Train with an asynchronous n-step method. Ctrl-C once finishes cleanly and saves, twice leaves at once."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """Folder of the run. Default: runs/<preset>-<time>."""
    resume: Path | None = None
    """Folder of a run to go on with from its last checkpoint. Its settings are the defaults."""
    seeds: str | None = None
    """Seeds like 1,2,3 or 1-10: train once for each, into seed-N folders of --run-dir, and summarise them."""
    side_by_side: int = 1
    """With --seeds: how many to train at a time. Set --actors, so that there are cores for all."""
    json: Path | None = None
    """File to write the summary to, besides the run folder's summary.json."""


def train(arguments: TrainArguments, preset: str) -> int:
    """Run `tributary train`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings, found before any worker started.
    """
    config = arguments.config
    console = Console()
    check_json_file(arguments.json)
    spec = environment_spec(config.environment)
    _check_network(config, spec)
    check_trackers(config)
    if arguments.resume is not None:
        # The order of a run is written and repeated from its beginning only.
        config = replace(config, record_arrivals=None, replay_arrivals=None)
    here = config.executor == "inline" or config.address == "local"
    budget = thread_budget(config) if here else None
    _check_arrivals(config, budget)
    if arguments.resume is not None:
        folder = RunFolder(arguments.resume)
        spec = folder.with_observation_mean(config, spec)
        _check_checkpoint(arguments, config, spec, folder)
    else:
        folder = RunFolder(arguments.run_dir or default_run_dir(preset))
        folder.check_free()
        if centres_observations(config, spec):
            spec = replace(spec, observation_mean=measure_observation_mean(config.environment, config.seed))
    run = _Run(arguments, config, spec, folder, preset, console)
    if config.executor == "inline":
        assert budget is not None
        return _train_inline(run, budget)
    return _train_on_ray(run, budget)


class _Run(NamedTuple):
    """What the ways to run share."""

    arguments: TrainArguments
    config: RunConfig
    spec: EnvironmentSpec
    folder: RunFolder
    preset: str
    console: Console


def _train_inline(run: _Run, budget: ThreadBudget) -> int:
    _open_folder(run, budget)
    prepare_tensorflow(1, gpu=False)
    from launch.inline_executor import InlineExecutor
    from launch.session import TrainingSession

    config, spec = run.config, run.spec
    with run.folder:
        session = TrainingSession(
            config,
            spec,
            run.folder.path,
            lambda first_id: InlineExecutor(config, spec, budget.actors, first_id),
            resume=run.arguments.resume is not None,
        )
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(session.run)

            def wait() -> dict[str, Any] | None:
                with suppress(TimeoutError):
                    return result.result(_VIEW_SECONDS)
                return None

            try:
                summary = _watch(config, run.console, wait, session.view, session.interrupt)
            except KeyboardInterrupt:
                # The second Ctrl-C leaves at once, and the training thread would be waited for.
                os._exit(EXIT_INTERRUPTED)
    return _conclude(run, summary)


def _train_on_ray(run: _Run, budget: ThreadBudget | None) -> int:
    # Importing ray takes a second or two: after all that can be checked without it.
    import ray

    from launch.ray_cluster import cluster_nodes, connect
    from launch.ray_doctor import check_nodes

    config, console = run.config, run.console
    try:
        connect(config, budget.actors if budget else 0)
        placement = None
        if budget is None:
            check_nodes()
            nodes = cluster_nodes()
            placement = place(config, nodes)
            budget = budget_for(config, placement.total_actors, int(sum(node.cores for node in nodes)))
            for line in placement_lines(placement, nodes):
                _print(console, line)
        _open_folder(run, budget)
        with run.folder:
            summary = _run_learners(run, budget, placement)
        return _conclude(run, summary)
    except ConnectionError as error:
        raise setting_error("address", config.address, f"no Ray cluster answers there: {error}") from error
    except ray.exceptions.RayError as error:
        _print(console, f"training failed: {_last_line(error)}")
        _print(console, f"run folder:   {run.folder.path}")
        return EXIT_FAILED
    finally:
        ray.shutdown()


def _run_learners(run: _Run, budget: ThreadBudget, placement: Placement | None) -> dict[str, Any]:
    """Run a learner to its end; one that dies is followed by another, from the last checkpoint."""
    import ray

    from launch.ray_cluster import failure_reason, start_learner

    config, folder = run.config, run.folder.path
    resume, death = run.arguments.resume is not None, None
    for restarts in itertools.count():
        sent = None if placement is None else _send_folder(folder)
        learner = start_learner(config, run.spec, folder, budget, placement, resume=resume, death=death, sent=sent)
        watched = _WatchedLearner(learner, folder, sent)
        try:
            return _watch(config, run.console, watched.wait, watched.view, watched.interrupt)
        except ray.exceptions.RayActorError as error:
            # Who has asked the run to stop does not want another learner.
            if watched.interrupted or restarts == config.supervision.max_learner_restarts:
                raise
            _print(
                run.console, f"learner: its process died; another one goes on from the last checkpoint ({restarts + 1})"
            )
            # What is left of it frees its resources, and its actors end with it.
            ray.kill(learner, no_restart=True)
            resume = resume or any(run.folder.checkpoints.glob("update-*.index"))
            death = failure_reason(error), watched.agent_steps
            if placement is not None:
                placement = _place_again(run)
    raise AssertionError("unreachable")


def _send_folder(folder: Path) -> SentFolder:
    """The run folder for a learner that may be on another machine, and a mark by which it sees whether it is."""
    mark = secrets.token_hex(8)
    (folder / MARK).write_text(mark)
    return SentFolder(mark, changes_since(folder, {}))


def _place_again(run: _Run) -> Placement:
    """Plan for the nodes that are left, once there are enough of them."""
    from launch.ray_cluster import cluster_nodes

    told = ""
    while True:
        nodes = cluster_nodes()
        try:
            placement = place(run.config, nodes)
        except ConfigurationError as error:
            if str(error) != told:
                _print(run.console, f"waiting for nodes: {error}")
                told = str(error)
            time.sleep(_VIEW_SECONDS)
            continue
        for line in placement_lines(placement, nodes):
            _print(run.console, line)
        return placement


class _WatchedLearner:
    """A learner's process, and how far it was seen to come. Where it is on another machine, its folder is copied."""

    def __init__(self, process: Any, folder: Path, sent: SentFolder | None) -> None:
        self._process = process
        self._result = process.run.remote()
        self._folder = folder
        self._stamps = None if sent is None else dict[str, Stamp]()
        self._copied = time.monotonic()
        self.agent_steps = 0
        self.interrupted = False

    def wait(self) -> dict[str, Any] | None:
        """The summary, if the run ends within a moment."""
        import ray

        ready, _ = ray.wait([self._result], timeout=_VIEW_SECONDS)
        summary = ray.get(self._result) if ready else None
        if self._stamps is not None and (ready or time.monotonic() - self._copied >= _COPY_SECONDS):
            changes = ray.get(self._process.folder_changes.remote(self._stamps))
            if changes.stamps:
                apply_changes(self._folder, changes)
                self._stamps = changes.stamps
            self._copied = time.monotonic()
        return summary

    def view(self) -> View:
        """See `TrainingSession.view`."""
        import ray

        view: View = ray.get(self._process.view.remote())
        self.agent_steps = max(self.agent_steps, view.progress.agent_steps)
        return view

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        import ray

        self.interrupted = True
        ray.get(self._process.interrupt.remote())


def _watch(
    config: RunConfig,
    console: Console,
    wait: Callable[[], dict[str, Any] | None],
    view: Callable[[], View],
    interrupt: Callable[[], None],
) -> dict[str, Any]:
    """Show progress until `wait` returns the summary; pass the first interrupt on."""
    with Display(config, console) as display, _interrupts() as interrupted:
        passed_on = False
        while True:
            summary = wait()
            seen = view()
            for message in seen.messages:
                display.message(message)
            display.update(seen.progress)
            if summary is not None:
                return summary
            if interrupted.is_set() and not passed_on:
                passed_on = True
                display.message("finishing the rollouts under way and saving; Ctrl-C again leaves at once")
                interrupt()


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an event; the second raises KeyboardInterrupt."""
    event = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {kind: signal.signal(kind, handle) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield event
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def default_run_dir(preset: str) -> Path:
    """A new folder below runs/."""
    return Path("runs") / f"{preset}-{datetime.now():%Y%m%d-%H%M%S}"


def _check_checkpoint(arguments: TrainArguments, config: RunConfig, spec: EnvironmentSpec, folder: RunFolder) -> None:
    """Check that the newest checkpoint fits the network, method and optimizer that the settings make."""
    if arguments.run_dir is not None:
        raise setting_error("run_dir", arguments.run_dir, "a resumed run stays in its folder; leave --run-dir out")
    before = folder.read_config()
    for setting in ("method.name", "optimizer.name", "optimizer.centred"):
        was, now = attrgetter(setting)(before), attrgetter(setting)(config)
        if was != now:
            raise setting_error(setting, now, f"the checkpoint in {folder.path} was made with {was}; start a new run")
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy
    from learner.checkpoint import read_checkpoint

    read_checkpoint(folder.checkpoints, Policy(config, spec).layout)


def _open_folder(run: _Run, budget: ThreadBudget) -> None:
    folder, config = run.folder, run.config
    if run.arguments.resume is not None:
        with folder:
            folder.write_config(config)
    else:
        folder.create(config, run.spec, manifest(config, run.spec, run.preset, budget.describe()))
    _print(run.console, f"run folder:   {folder.path}")
    _print(run.console, f"threads:      {budget.describe()}")
    warning = budget.warning()
    if warning is not None:
        _print(run.console, f"warning: {warning}")


def _conclude(run: _Run, summary: dict[str, Any]) -> int:
    path = run.folder.path
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    for line in summary_lines(summary, str(shown)):
        _print(run.console, line)
    if run.arguments.json is not None:
        write_json(run.arguments.json, summary)
    return EXIT_INTERRUPTED if summary["status"] == "interrupted" else EXIT_DONE


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _check_arrivals(config: RunConfig, budget: ThreadBudget | None) -> None:
    if config.record_arrivals is not None:
        parent = Path(config.record_arrivals).absolute().parent
        if not parent.is_dir():
            raise setting_error("record_arrivals", config.record_arrivals, f"there is no folder {parent}")
    if config.replay_arrivals is not None and budget is not None:
        recorded = len(Arrivals(config.replay_arrivals).actor_ids)
        if recorded != budget.actors:
            raise setting_error("actors", budget.actors, f"{config.replay_arrivals} is of a run with {recorded}")


def _check_network(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Refuse a network or method that cannot take what the environment gives, without importing TensorFlow."""
    images = len(spec.observation_shape) == 3
    if images != (config.network.name != "mlp"):
        wanted = "a3c_cnn or nature_cnn" if images else "mlp"
        raise setting_error(
            "network.name",
            config.network.name,
            f"{config.environment.id} gives observations of shape {spec.observation_shape}; use {wanted}",
        )
    if spec.actions.continuous and not METHODS[config.method.name].continuous_actions:
        able = [name for name, entry in METHODS.items() if entry.continuous_actions]
        raise setting_error(
            "method.name",
            config.method.name,
            f"{config.environment.id} has continuous actions; use {' or '.join(able)}",
        )
    if config.network.observation_scaling == "bounds":
        assert spec.observation_bounds is not None
        unbounded = [i for i, pair in enumerate(zip(*spec.observation_bounds, strict=True)) if not _finite(pair)]
        if unbounded:
            raise setting_error(
                "network.observation_scaling",
                "bounds",
                f"{config.environment.id} has no finite bounds in observation {unbounded}; use running",
            )
    if images and spec.observation_shape[0] < 36:
        raise setting_error("environment.screen_size", spec.observation_shape[0], "must be at least 36 for a CNN")


def _finite(bounds: tuple[float, float]) -> bool:
    # Gymnasium writes "no bound" as an infinity, or as the largest float32.
    low, high = bounds
    return -1e30 < low < high < 1e30


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
