"""`tributary train`: check everything first, start the processes, show progress, stop cleanly."""

import os
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec, measure_observation_mean
from launch.commands.checks import check_arrivals, check_checkpoint, check_network, check_video
from launch.commands.display import Display, starting, summary_lines
from launch.commands.interrupts import Interrupts, children_outlive_hangups
from launch.machine.budget import ThreadBudget, budget_for, thread_budget
from launch.machine.import_path import check_packages, namesakes
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.on_ray.placement import aggregation, place, placement_lines, with_actor_device
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, check_json_file, print_line, write_json
from launch.run.folder import RunFolder, centres_observations, manifest, read_summary
from launch.run.metrics import View, annealing_warning
from launch.run.saving import FirstWeights, check_storage, weights_to_start_from
from launch.run.status import RunPath, default_run_dir, reached_limit, why_it_goes_on
from launch.run.trackers import check_trackers
from shared.config import RunConfig
from shared.errors import ConfigurationError, last_line, setting_error

_VIEW_SECONDS = 1.0


@dataclass(frozen=True)
class TrainArguments:
    """Train with an asynchronous n-step method. Ctrl-C once finishes cleanly and saves, twice leaves at once."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """File of settings: TOML, in which a PRESET's may be changed (tributary config prints one), or a run's config.json.
    Those that are typed come before it."""
    run_dir: Path | None = None
    """Folder of the run. Default: runs/<preset>-<time>."""
    resume: RunPath | None = None
    """Folder of a run to go on with from its last checkpoint. Its settings are the defaults. The folder of several
    seeds: go on with those that are not done."""
    start_from: RunPath | None = None
    """Run whose best weights a new run starts from: its folder, latest, zoo:NAME, or a URL. Its settings are the
    defaults where no PRESET is named. Optimizer, schedules and counts start anew."""
    seeds: str | None = None
    """Seeds like 1,2,3 or 1-10: train once for each, into seed-N folders of --run-dir, and summarise them."""
    side_by_side: int = 1
    """With --seeds: how many to train at a time on this machine. --actors auto divides its cores among them."""
    detach: bool = False
    """Train in a process that outlives this terminal; tributary runs, attach and stop find it. On a cluster: ray job
    submit."""
    trust_imports: bool = False
    """With --resume, --start-from or --config: import the modules that the settings of that run name, and run their
    code. A module that the same command names, by --environment.import for example, needs no such permission."""
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
    check_packages()
    for line in namesakes(Path.cwd()):
        print_line(console, line)
    spec = environment_spec(config.environment)
    check_network(config, spec)
    if spec.left_out:
        print_line(console, f"note: left out of observations, as it is text: {', '.join(spec.left_out)}")
    check_trackers(config)
    check_video(config)
    if config.storage is not None:
        check_storage(config.storage, new=arguments.resume is None)
    if arguments.resume is not None:
        # The order of a run is written and repeated from its beginning only.
        config = replace(config, record_arrivals=None, replay_arrivals=None)
    here = config.executor == "inline" or config.address == "local"
    budget = thread_budget(config) if here else None
    first: FirstWeights | None = None
    check_arrivals(config, budget)
    if arguments.resume is not None:
        folder = RunFolder(arguments.resume)
        spec = folder.with_observation_mean(config, spec)
        if arguments.run_dir is not None:
            raise setting_error("run_dir", arguments.run_dir, "a resumed run stays in its folder; leave --run-dir out")
        check_checkpoint(config, spec, folder, budget)
        summary = read_summary(folder)
        reached = reached_limit(config, summary)
        if reached is not None:
            print_line(console, reached)
            if arguments.json is not None:
                write_json(arguments.json, summary)
            return EXIT_DONE
        ended = why_it_goes_on(config, summary)
        if ended is not None:
            print_line(console, ended)
    else:
        folder = RunFolder(arguments.run_dir or default_run_dir(preset))
        folder.check_free()
        if arguments.start_from is not None:
            first = weights_to_start_from(
                config, spec, RunFolder(arguments.start_from), trust_imports=arguments.trust_imports
            )
            spec = first.spec
        elif centres_observations(config, spec):
            spec = replace(spec, observation_mean=measure_observation_mean(config.environment, config.seed))
    with Interrupts() as interrupts:
        run = _Run(arguments, config, spec, folder, preset, console, interrupts, first)
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
    interrupts: Interrupts
    first: FirstWeights | None


def _train_inline(run: _Run, budget: ThreadBudget) -> int:
    _open_folder(run, budget)
    prepare_tensorflow(1, gpu=False)
    from launch.loop.inline import InlineExecutor, ReplayExecutor
    from launch.loop.worker_pool import TrainingStoppedError
    from launch.run.session import TrainingSession

    config, spec = run.config, run.spec
    kind = InlineExecutor if config.replay_arrivals is None else ReplayExecutor
    with _kept_if_it_starts(run):
        session = TrainingSession(
            config,
            spec,
            run.folder.path,
            lambda first_id: kind(config, spec, budget.actors, first_id),
            resume=run.arguments.resume is not None,
        )
        with futures.ThreadPoolExecutor(1) as pool:
            try:
                result = pool.submit(session.run)

                def wait() -> dict[str, Any] | None:
                    done, _ = futures.wait([result], _VIEW_SECONDS)
                    return result.result() if done else None

                summary = _watch(run, budget.actors, wait, session.view, session.interrupt)
            except TrainingStoppedError as error:
                return _failed(run, str(error))
            except KeyboardInterrupt:
                # The second Ctrl-C leaves at once, and the training thread would be waited for.
                os._exit(EXIT_INTERRUPTED)
    return _conclude(run, summary)


def _train_on_ray(run: _Run, budget: ThreadBudget | None) -> int:
    # Importing ray takes a second or two: after all that can be checked without it.
    import ray

    from launch.on_ray.cluster import cluster_nodes, connect, machines_requested, takes_gpu_here, total_gpus
    from launch.on_ray.learner_run import run_learners
    from launch.on_ray.probe import check_nodes

    config, console = run.config, run.console
    try:
        with children_outlive_hangups():
            connect(config, budget.actors if budget else 0)
        placement = None
        if budget is None:
            check_nodes()
            nodes = cluster_nodes()
            config = with_actor_device(config, sum(node.gpus for node in nodes))
            placement = place(config, nodes)
            budget = budget_for(config, placement.total_actors, int(sum(node.cores for node in nodes)))
            for line in placement_lines(placement, nodes):
                print_line(console, line)
        else:
            config = with_actor_device(config, total_gpus())
            takes_gpu_here(config)
        _open_folder(run, budget)
        if config.learner.gradients_per_update > 1:
            level, why = aggregation(config, placement)
            print_line(console, f"aggregation:  {'none' if level == 'none' else f'by {level}'}: {why}")
        with _kept_if_it_starts(run), machines_requested(config):
            summary = run_learners(
                config,
                run.spec,
                run.folder,
                budget,
                placement,
                resume=run.arguments.resume is not None,
                watch=partial(_watch, run, budget.actors),
                say=partial(print_line, console),
            )
        return _conclude(run, summary)
    except ConnectionError as error:
        raise setting_error("address", config.address, f"no Ray cluster answers there: {error}") from error
    except ray.exceptions.RayError as error:
        # The name of the class says nothing that its message does not.
        return _failed(run, last_line(error).removeprefix("launch.loop.worker_pool.TrainingStoppedError: "))
    finally:
        ray.shutdown()


def _watch(
    run: _Run,
    actors: int,
    wait: Callable[[], dict[str, Any] | None],
    view: Callable[[], View],
    interrupt: Callable[[], None],
) -> dict[str, Any]:
    """Show progress until `wait` returns the summary; pass the first interrupt on."""
    interrupts = run.interrupts
    with interrupts.watched(), Display(run.config, run.console, starting(actors)) as display:
        passed_on = False
        while True:
            summary = wait()
            seen = view()
            for message in seen.messages:
                display.message(message)
            display.update(seen.progress)
            if summary is not None:
                return summary
            if interrupts.asked and not passed_on:
                passed_on = True
                display.message("finishing the rollouts under way and saving; Ctrl-C again leaves at once")
                interrupt()


def _open_folder(run: _Run, budget: ThreadBudget) -> None:
    folder, config, first = run.folder, run.config, run.first
    if run.arguments.resume is not None:
        with folder:
            folder.write_config(config)
    else:
        made = manifest(config, run.spec, run.preset, budget.describe())
        if first is not None:
            made["started_from"] = first.told
        folder.create(config, run.spec, made)
        if first is not None:
            first.write(folder)
    print_line(run.console, f"run folder:   {folder.path}")
    print_line(run.console, f"threads:      {budget.describe()}")
    if first is not None:
        print_line(run.console, f"starts from:  {first.run}: {first.source}, of {first.agent_steps:,} agent steps")
    for warning in (budget.warning(), annealing_warning(config)):
        if warning is not None:
            print_line(run.console, f"warning: {warning}")


@contextmanager
def _kept_if_it_starts(run: _Run) -> Iterator[None]:
    """Hold the run's folder. That of a new run that turns out unable to start is not left behind."""
    with run.folder:
        try:
            yield
        except ConfigurationError:
            if run.arguments.resume is None:
                run.folder.discard()
            raise


def _conclude(run: _Run, summary: dict[str, Any]) -> int:
    path = run.folder.path
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    for line in summary_lines(summary, str(shown)):
        print_line(run.console, line)
    if run.arguments.json is not None:
        write_json(run.arguments.json, summary)
    return {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}.get(summary["status"], EXIT_DONE)


def _failed(run: _Run, reason: str) -> int:
    print_line(run.console, f"training failed: {reason}")
    print_line(run.console, f"run folder:   {run.folder.path}")
    summary = read_summary(run.folder)
    # One of another status is of an earlier session: nothing was left to write this one's.
    if run.arguments.json is not None and summary.get("status") == "failed":
        write_json(run.arguments.json, summary)
    return EXIT_FAILED
