"""The trials of a sweep on Ray Tune, which starts them where there is room, tries again what dies, and stops by ASHA.

Tune's own records, which are pickles, go to a folder that is deleted at the end. Whatever a sweep goes on from is in
trials.jsonl and in the folders of its runs.
"""

import logging
import math
import os
import sys
import tempfile
import threading
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

from launch.commands.interrupts import children_outlive_hangups
from launch.output.hardware import usable_cores
from launch.sweep.book import Ended, Trial, TrialBook, trial_name
from launch.sweep.file import Settings, Sweep
from launch.sweep.playing import HopelessTrialError, StoppedTrialError, TrialRun, play_trial
from launch.sweep.search import Search
from shared.errors import ConfigurationError, setting_error

_MOST_TRIES = 10


def run_trials(
    sweep: Sweep,
    folder: Path,
    book: TrialBook,
    search: Search,
    address: str,
    asked_to_stop: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Play all trials that have not ended, as many side by side as there are cores, until they have or are not wanted.

    Args:
        sweep: what is searched.
        folder: of the sweep, absolute, and on a cluster the same on all nodes.
        book: what has become of the trials so far.
        search: chooses settings.
        address: `local`, or of the Ray cluster to join.
        asked_to_stop: ends the sweep; the runs under way are saved.
        say: takes a message.

    Raises:
        ConfigurationError: no machine has as many cores as a trial needs.
        ConnectionError: there is no cluster at the address.
    """
    cores = sweep.cores
    # It would print a traceback for each process that dies.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with children_outlive_hangups():
        if address == "local":
            cluster.start_here(usable_cores())
        else:
            cluster.join(address)
    try:
        most = max(node.cores for node in cluster.cluster_nodes())
        if cores > most:
            raise setting_error("actors", sweep.base.actors, f"a trial needs {cores:g} cores, and no machine has them")
        queue = _Queue(sweep, book, search, asked_to_stop, say)
        scheduler = FIFOScheduler()
        if sweep.plan.asha is not None:
            scheduler = ASHAScheduler(
                time_attr="frames",
                metric="score",
                mode="max",
                max_t=sweep.base.total_frames,
                grace_period=sweep.plan.asha.grace_frames,
                reduction_factor=sweep.plan.asha.reduction_factor,
            )
        trainable = tune.with_parameters(_play, sweep=sweep, folder=folder, command=sys.argv)
        # On a cluster Tune checks that all nodes see them.
        shared = None if address == "local" else folder
        with tempfile.TemporaryDirectory(prefix=".tune-", dir=shared) as records:
            tuner = tune.Tuner(
                tune.with_resources(trainable, {"CPU": cores}),
                tune_config=tune.TuneConfig(search_alg=queue, scheduler=scheduler, num_samples=queue.left),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=records,
                    verbose=0,
                    stop=_Asked(asked_to_stop),
                    callbacks=[_Recoveries(say)],
                    failure_config=tune.FailureConfig(max_failures=_MOST_TRIES - 1),
                ),
            )
            tuner.fit()
    finally:
        ray.shutdown()


def _play(config: dict[str, Any], sweep: Sweep, folder: Path, command: list[str]) -> None:
    """One try of one trial, in a worker of Tune. `command` is what was typed for the sweep."""
    # The manifest of a run names it, and a worker's own line is Ray's.
    sys.argv = command
    settings: Settings = config["settings"]
    run = TrialRun(
        folder / trial_name(config["number"]),
        sweep.config(settings),
        sweep.preset,
        sweep.plan.maximise,
        known=config["known"],
    )
    try:
        for reading in play_trial(run):
            score = math.nan if reading.score is None else reading.score
            tune.report({"frames": reading.frames, "score": score, "ended": reading.ended})
    except HopelessTrialError as error:
        tune.report({"frames": 0, "score": math.nan, "ended": True, "hopeless": str(error)})
    except StoppedTrialError as error:
        tune.report({"frames": 0, "score": math.nan, "ended": True, "stopped": str(error)})


class _Asked(tune.Stopper):
    def __init__(self, asked: threading.Event) -> None:
        self._asked = asked

    def __call__(self, *_: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._asked.is_set()

    def __reduce__(self) -> Any:
        return _left_out, ()


class _Recoveries(tune.Callback):
    """Says when the process of a trial has died, and another try begins."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_trial_recover(self, **info: Any) -> None:
        name = trial_name(info["trial"].config["number"])
        self._say(f"{name}: its process died, see {name}.log; another try goes on from its checkpoint")

    def __reduce__(self) -> Any:
        return _left_out, ()


def _left_out() -> None:
    """Stands in Tune's records, which nobody reads, for what cannot be pickled."""


class _Queue(Searcher):
    """Gives Tune the trials in their order, and writes down what becomes of them.

    First come trials of earlier processes: with ASHA those that have ended too, which are only read, so that its rungs
    are what they were.
    """

    def __init__(
        self, sweep: Sweep, book: TrialBook, search: Search, asked_to_stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        super().__init__(metric="score", mode="max")
        self._sweep, self._book, self._search = sweep, book, search
        self._asked_to_stop, self._say = asked_to_stop, say
        before = sorted(book.trials.values())
        ended = [trial for trial in before if trial.ended is not None and trial.score is not None]
        self._again = [*(ended if sweep.plan.asha is not None else ()), *(t for t in before if t.ended is None)]
        self.left = len(self._again) + sweep.trials - len(before)
        self._numbers: dict[str, int] = {}
        self._seen: dict[int, tuple[int, float]] = {}
        self._next = iter(self._trials())

    def _trials(self) -> Iterator[Trial]:
        yield from self._again
        for number in range(len(self._book.trials), self._sweep.trials):
            settings = self._search.suggest(number)
            self._book.start(number, settings)
            yield self._book.trials[number]

    def suggest(self, trial_id: str) -> Any:
        for trial in self._next:
            try:
                self._sweep.config(trial.settings)
            except ConfigurationError as error:
                self._end(trial, "refused", reason=str(error))
                continue
            self._numbers[trial_id] = trial.number
            if trial.ended is None:
                self._say(f"{trial.name}: {_words(trial.settings)}")
            return {"number": trial.number, "settings": trial.settings, "known": trial.ended is not None}
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        number = self._numbers[trial_id]
        before = self._seen.get(number, (-1, 0.0))[0]
        # A further try begins with what the one before had reported.
        if result["frames"] > before and not math.isnan(result["score"]):
            self._seen[number] = result["frames"], result["score"]
            self._search.report(number, result["frames"], result["score"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._book.trials[self._numbers[trial_id]]
        if trial.ended is not None:
            return
        if result is not None and not error:
            self.on_trial_result(trial_id, result)
        if error:
            self._end(trial, "failed", reason=f"its process ended {_MOST_TRIES} times before its run did")
        elif result is not None and result.get("hopeless"):
            self._end(trial, "failed", reason=str(result["hopeless"]))
        elif result is not None and result.get("stopped"):
            self._end(trial, "stopped", reason=str(result["stopped"]))
        elif result is not None and result.get("ended"):
            self._end(trial, "done")
        elif not self._asked_to_stop.is_set():
            self._end(trial, "stopped")

    def _end(self, trial: Trial, how: Ended, reason: str | None = None) -> None:
        frames, score = self._seen.get(trial.number, (0, None))
        ended = trial._replace(ended=how, frames=frames, score=score, reason=reason)
        self._book.end(ended)
        self._search.ended(ended)
        left = sum(other.ended is None for other in self._book.trials.values())
        done = len(self._book.trials) - left
        reached = "no return" if score is None else f"{score:.2f} after {frames:,} frames"
        self._say(f"{trial.name}: {how}, {reason or reached}; {done} of {self._sweep.trials} have ended")

    def __reduce__(self) -> Any:
        return _left_out, ()

    def save(self, checkpoint_path: str) -> None:
        """Nothing: trials.jsonl has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep goes on from trials.jsonl."""


def _words(settings: Settings) -> str:
    return ", ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in settings.items())
