"""A sweep on Ray Tune: `Tuner` with Optuna, ASHA or population-based training, and `Tuner.restore`.

The runs of the trials are in the sweep's folder, in trial-00 and so on, and Tune's records in its subfolder `.tune`.
These are pickles: only a sweep in a trusted folder can be continued.
"""

import logging
import os
import random
import re
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

# Read when Tune is imported, or by its workers: metrics.jsonl has the rows, paths are relative to the user's directory,
# and no tables are printed. A killed driver loses this many seconds of Tune's records.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "2")
# A worker that dies would kill its children at once; the process that trains saves its run first.
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "0")

# First: it sets variables that ray reads when it is imported.
from launch.on_ray import cluster  # isort: skip
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher

from launch.interrupts import blocked, on_hangup
from launch.machine import usable_cores
from launch.output import finite, short
from launch.results.curves import EVALUATION_RETURN, TRAINING_RETURN
from launch.sweep.file import Range, Settings, Space, Sweep, Value, cores_of
from launch.sweep.trainable import SweepTrial, run_trainable
from shared.errors import setting_error

# A traceback for each process that dies, and a line for each checkpoint.
for _name in ("ray.tune", "ray.train"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_MOST_TRIES = 10
# Another trial may still load one before the last.
_CHECKPOINTS_KEPT = 4


def run_trials(sweep: Sweep, folder: Path, address: str) -> tune.ResultGrid:
    """Train all trials that have not ended, as many at a time as there are cores.

    SIGINT, SIGTERM and SIGHUP save the runs under way and return.

    Args:
        sweep: the search.
        folder: of the sweep, absolute; on a cluster on storage that all nodes share.
        address: `local`, or of the Ray cluster to join.

    Raises:
        ConfigurationError: no node has the cores of a trial.
        ConnectionError: there is no cluster at the address.
    """
    warnings.filterwarnings("ignore", "Consider boosting PBT performance")
    # A closed terminal does not end Ray's processes.
    with blocked(signal.SIGHUP):
        if address == "local":
            cluster.start_here(usable_cores())
        else:
            cluster.join(address)
    try:
        cores, most = cores_of(sweep.base), max(node.cores for node in cluster.cluster_nodes())
        if cores > most:
            raise setting_error("actors", sweep.base.actors, f"a trial needs {cores} cores, and no machine has them")
        # They end Tune's loop as SIGUSR1 does, by Tune's own handler.
        with on_hangup(lambda *_: signal.raise_signal(signal.SIGUSR1)):
            return _tuner(sweep, folder).fit()
    finally:
        ray.shutdown()


def score_name(sweep: Sweep) -> str:
    """The column of metrics.jsonl that a sweep maximises."""
    return TRAINING_RETURN if sweep.plan.maximise == "training" else EVALUATION_RETURN


def _tuner(sweep: Sweep, folder: Path) -> tune.Tuner:
    trainable = run_trainable(sweep.base, sweep.preset, kind=SweepTrial, runs=folder)
    records = folder / ".tune"
    if any(records.glob("experiment_state-*")) and tune.Tuner.can_restore(str(records)):
        return tune.Tuner.restore(str(records), trainable)
    shutil.rmtree(records, ignore_errors=True)
    search, samples = _search(sweep)
    # Seed of the draws of population-based training.
    random.seed(sweep.plan.seed)
    return tune.Tuner(
        trainable,
        param_space={name: _domain(part, grid=sweep.plan.search == "grid") for name, part in sweep.space.items()},
        tune_config=tune.TuneConfig(
            metric=score_name(sweep),
            mode="max",
            search_alg=search,
            scheduler=_scheduler(sweep),
            num_samples=samples,
            trial_dirname_creator=partial(_trial_name, first=1 if sweep.plan.search == "optuna" else 0),
        ),
        run_config=tune.RunConfig(
            name=records.name,
            storage_path=str(folder),
            verbose=0,
            callbacks=[_Messages(sweep.trials, score_name(sweep))],
            failure_config=tune.FailureConfig(max_failures=_MOST_TRIES - 1),
            # A trial continues from its run folder; population-based training saves checkpoints when it needs one.
            checkpoint_config=tune.CheckpointConfig(num_to_keep=_CHECKPOINTS_KEPT, checkpoint_at_end=False),
        ),
    )


def _search(sweep: Sweep) -> tuple[Searcher | SearchAlgorithm, int]:
    """Tune's search, and the number of draws from the space."""
    if sweep.plan.search != "optuna":
        draws = 1 if sweep.plan.search == "grid" else sweep.trials
        return BasicVariantGenerator(random_state=sweep.plan.seed), draws
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # constant_liar: running trials count as bad ones, so that those side by side differ.
    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=sweep.plan.seed, constant_liar=True)), sweep.trials


def _domain(part: list[Value] | Range, *, grid: bool = False) -> Any:
    if isinstance(part, list):
        return tune.grid_search(part) if grid else tune.choice(part)
    if part.whole:
        return (tune.lograndint if part.log else tune.randint)(int(part.low), int(part.high) + 1)
    return (tune.loguniform if part.log else tune.uniform)(float(part.low), float(part.high))


def _scheduler(sweep: Sweep) -> TrialScheduler | None:
    asha, pbt = sweep.plan.asha, sweep.plan.pbt
    if asha is not None:
        return ASHAScheduler(
            time_attr="frames",
            max_t=sweep.base.total_frames,
            grace_period=asha.grace_frames,
            reduction_factor=asha.reduction_factor,
        )
    if pbt is None:
        return None
    parts = {name: sweep.space[name] for name in sweep.mutable}
    return PopulationBasedTraining(
        time_attr="frames",
        perturbation_interval=pbt.interval_frames,
        quantile_fraction=pbt.quantile,
        hyperparam_mutations={n: part if isinstance(part, list) else _domain(part) for n, part in parts.items()},
        custom_explore_fn=partial(_within_space, sweep.space),
    )


def _within_space(space: Space, settings: Settings) -> Settings:
    """Settings that Tune multiplied by 0.8 or 1.2, kept in their ranges."""
    ranges = {name: part for name, part in space.items() if isinstance(part, Range)}
    tried: dict[str, Any] = dict(settings)
    return tried | {name: min(max(tried[name], part.low), part.high) for name, part in ranges.items()}


def _trial_name(trial: Any, *, first: int) -> str:
    """trial-00 and so on; the tag of a trial begins with its number, which Tune counts from `first`."""
    number = re.match(r"\d+", trial.experiment_tag)
    assert number is not None
    return f"trial-{int(number[0]) - first:02}"


class _Messages(tune.Callback):
    """Prints a line when a trial starts, is tried again, or ends."""

    def __init__(self, trials: int, score: str) -> None:
        self._trials, self._score = trials, score

    def on_trial_start(self, *_: Any, trial: Any, **__: Any) -> None:
        settings = ", ".join(f"{name} {short(value)}" for name, value in trial.config.items())
        self._print(trial, settings)

    def on_trial_recover(self, *_: Any, trial: Any, **__: Any) -> None:
        self._print(trial, "its process died; another try continues from its checkpoint")

    def on_trial_complete(self, *_: Any, trials: list[Any], trial: Any, **__: Any) -> None:
        row = trial.last_result or {}
        score = finite(row.get(self._score))
        reached = f"{'no return' if score is None else f'{score:.2f}'} after {row.get('frames', 0):,} frames"
        # Tune sets the status of this one later.
        ended = 1 + sum(other.is_finished() for other in trials)
        self._print(
            trial, f"{row.get('ended', 'stopped')}, {row.get('reason', reached)}; {ended} of {self._trials} have ended"
        )

    def on_trial_error(self, *_: Any, trial: Any, **__: Any) -> None:
        self._print(trial, f"failed, its process ended {_MOST_TRIES} times before its run did")

    def _print(self, trial: Any, message: str) -> None:
        print(f"{Path(trial.path).name}: {message}", flush=True)
