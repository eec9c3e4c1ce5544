"""The trials of a sweep on Ray Tune, which starts them where there is room, tries again what dies, and stops by ASHA.

Tune's own records, which are pickles, go to a folder that is deleted at the end. Whatever a sweep goes on from is in
trials.jsonl and in the folders of its runs.
"""

import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# All are read when Tune is imported, or by its workers: no loggers of its own, no other working directory, no tables,
# and signals are for this process to take.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
# Ray's own: a worker that ends would kill its children at once, and the process that trains is to save what it has.
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "0")

# First: it sets what ray reads when it is imported.
from launch.on_ray import cluster  # isort: skip
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from launch.machine.interrupts import children_outlive_hangups
from launch.output import usable_cores
from launch.run.exploit import copy_newest_checkpoint
from launch.run.folder import RunFolder
from launch.sweep.book import Trial, TrialBook, trial_name
from launch.sweep.bookkeeper import MOST_TRIES, Bookkeeper
from launch.sweep.file import Settings, Sweep
from launch.sweep.playing import (
    HopelessTrialError,
    Reading,
    StoppedTrialError,
    TrialRun,
    exploits_taken,
    play_trial,
)
from launch.sweep.population import Population, Reports, left_out
from launch.sweep.search import Search
from shared.errors import setting_error

# Here and in Tune's workers, which import this: a traceback for each process that dies, a line for each checkpoint.
for _name in ("ray.tune", "ray.train"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
# Of a trial in a population: others may still take the weights of one before its last.
_CHECKPOINTS_KEPT = 4


def run_trials(
    sweep: Sweep,
    folder: Path,
    book: TrialBook,
    search: Search,
    address: str,
    asked_to_stop: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Play all trials that have not ended, as many side by side as there are cores, until they have or are not wanted.

    Args:
        sweep: what is searched.
        folder: of the sweep, absolute, and on a cluster the same on all nodes.
        book: what has become of the trials so far.
        search: chooses settings.
        address: `local`, or of the Ray cluster to join.
        asked_to_stop: whether the sweep is to end; the runs under way are saved.
        say: takes a message.

    Raises:
        ConfigurationError: no machine has as many cores as a trial needs.
        ConnectionError: there is no cluster at the address.
    """
    cores = sweep.cores
    # A trial is a process of its own in any case.
    warnings.filterwarnings("ignore", "Consider boosting PBT performance")
    with children_outlive_hangups():
        if address == "local":
            cluster.start_here(usable_cores())
        else:
            cluster.join(address)
    try:
        most = max(node.cores for node in cluster.cluster_nodes())
        if cores > most:
            raise setting_error("actors", sweep.base.actors, f"a trial needs {cores:g} cores, and no machine has them")
        keeper = Bookkeeper(sweep, book, search, asked_to_stop, say)
        trainable = tune.with_parameters(_play, sweep=sweep, folder=folder, command=sys.argv)
        # On a cluster Tune checks that all nodes see them.
        shared = None if address == "local" else folder
        with tempfile.TemporaryDirectory(prefix=".tune-", dir=shared) as records:
            trials = _population(sweep, folder, keeper) if sweep.plan.pbt is not None else _queue(sweep, keeper)
            callbacks = [_Recoveries(say), *([Reports(keeper)] if sweep.plan.pbt is not None else ())]
            tuner = tune.Tuner(
                tune.with_resources(trainable, {"CPU": cores}),
                **trials,
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=records,
                    verbose=0,
                    stop=_Asked(asked_to_stop),
                    callbacks=callbacks,
                    failure_config=tune.FailureConfig(max_failures=MOST_TRIES - 1),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=_CHECKPOINTS_KEPT),
                ),
            )
            tuner.fit()
    finally:
        ray.shutdown()


def _queue(sweep: Sweep, keeper: Bookkeeper) -> dict[str, Any]:
    """What Tune is given of trials that are begun one after another, and may be stopped by ASHA."""
    queue, scheduler = _Queue(sweep, keeper), FIFOScheduler()
    if sweep.plan.asha is not None:
        scheduler = ASHAScheduler(
            time_attr="frames",
            metric="score",
            mode="max",
            max_t=sweep.base.total_frames,
            grace_period=sweep.plan.asha.grace_frames,
            reduction_factor=sweep.plan.asha.reduction_factor,
        )
    return {"tune_config": tune.TuneConfig(search_alg=queue, scheduler=scheduler, num_samples=queue.left)}


def _population(sweep: Sweep, folder: Path, keeper: Bookkeeper) -> dict[str, Any]:
    """What Tune is given of trials that go on with each other's weights: all of them at once, and no search."""
    return {
        "param_space": {"trial": tune.grid_search([_given(trial) for trial in keeper.members(folder)])},
        "tune_config": tune.TuneConfig(scheduler=Population(sweep, folder, keeper)),
    }


def _given(trial: Trial) -> dict[str, Any]:
    """What the worker of a trial is given."""
    return {"number": trial.number, "settings": trial.settings, "known": trial.ended is not None}


def _play(config: dict[str, Any], sweep: Sweep, folder: Path, command: list[str]) -> None:
    """One try of one trial, in a worker of Tune. `command` is what was typed for the sweep."""
    # The manifest of a run names it, and a worker's own line is Ray's.
    sys.argv = command
    settings: Settings = config["trial"]["settings"]
    pbt = sweep.plan.pbt
    run = TrialRun(
        folder / trial_name(config["trial"]["number"]),
        sweep.config(settings),
        sweep.preset,
        sweep.plan.maximise,
        known=config["trial"]["known"],
        interval_frames=None if pbt is None else pbt.interval_frames,
    )
    try:
        for reading in play_trial(run):
            if reading.ended:
                tune.report({**_result(reading), "exploits": exploits_taken(RunFolder(run.folder))})
                continue
            if pbt is None:
                tune.report(_result(reading))
                continue
            with tempfile.TemporaryDirectory() as copy:
                copy_newest_checkpoint(RunFolder(run.folder), Path(copy))
                checkpoint = tune.Checkpoint.from_directory(copy)
                tune.report(_result(reading, reading.frames // pbt.interval_frames), checkpoint=checkpoint)
    except HopelessTrialError as error:
        tune.report({**_result(Reading(0, None, True)), "hopeless": str(error)})
    except StoppedTrialError as error:
        tune.report({**_result(Reading(0, None, True)), "stopped": str(error)})


def _result(reading: Reading, intervals: int = 0) -> dict[str, Any]:
    """A reading as Tune takes it. With 0 `intervals` a population is not compared."""
    score = math.nan if reading.score is None else reading.score
    return {"frames": reading.frames, "score": score, "ended": reading.ended, "intervals": intervals}


class _Asked(tune.Stopper):
    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, *_: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._asked()

    def __reduce__(self) -> Any:
        return left_out, ()


class _Recoveries(tune.Callback):
    """Says when the process of a trial has died, and another try begins."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_trial_recover(self, **info: Any) -> None:
        name = trial_name(info["trial"].config["trial"]["number"])
        self._say(f"{name}: its process died, see {name}.log; another try goes on from its checkpoint")

    def __reduce__(self) -> Any:
        return left_out, ()


class _Queue(Searcher):
    """Gives Tune the trials in their order, and tells the bookkeeper what becomes of them.

    First come trials of earlier processes: with ASHA those that have ended too, which are only read, so that its rungs
    are what they were.
    """

    def __init__(self, sweep: Sweep, keeper: Bookkeeper) -> None:
        super().__init__(metric="score", mode="max")
        self._sweep, self._keeper = sweep, keeper
        before = sorted(keeper.book.trials.values())
        ended = [trial for trial in before if trial.ended is not None and trial.score is not None]
        self._again = [*(ended if sweep.plan.asha is not None else ()), *(t for t in before if t.ended is None)]
        self.left = len(self._again) + sweep.trials - len(before)
        self._numbers: dict[str, int] = {}
        self._next = iter(self._trials())

    def _trials(self) -> Iterator[Trial]:
        yield from self._again
        while len(self._keeper.book.trials) < self._sweep.trials:
            yield self._keeper.new_trial()

    def suggest(self, trial_id: str) -> Any:
        for trial in self._next:
            if self._keeper.begins(trial):
                self._numbers[trial_id] = trial.number
                return {"trial": _given(trial)}
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._keeper.reported(self._numbers[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._keeper.completed(self._numbers[trial_id], result, error=error)

    def __reduce__(self) -> Any:
        return left_out, ()

    def save(self, checkpoint_path: str) -> None:
        """Nothing: trials.jsonl has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep goes on from trials.jsonl."""
