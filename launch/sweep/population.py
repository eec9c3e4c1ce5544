"""Population-based training on Ray Tune, whose scheduler says which trial goes on with whose weights, and when.

A trial reports whenever its frames reach a multiple of the interval, with a copy of its checkpoint of that moment. What
Tune then calls its checkpoint is put into the folder of the trial that is to take it (`launch/run/exploit.py`).
"""

from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import PopulationBasedTraining

from launch.run.exploit import offer_weights
from launch.run.folder import RunFolder
from launch.sweep.book import Exploit, trial_name
from launch.sweep.bookkeeper import Bookkeeper
from launch.sweep.explore import explored
from launch.sweep.file import Settings, Sweep


class Population(PopulationBasedTraining):
    """Tune's scheduler, for trials that keep their own account: frames are of the trial, whosever weights it has.

    Args:
        sweep: what is searched.
        folder: of the sweep.
        keeper: writes down what it decides.
    """

    def __init__(self, sweep: Sweep, folder: Path, keeper: Bookkeeper) -> None:
        assert sweep.plan.pbt is not None
        super().__init__(
            time_attr="intervals",
            metric="score",
            mode="max",
            perturbation_interval=1,
            quantile_fraction=sweep.plan.pbt.quantile,
            # It wants one, and is overridden below.
            custom_explore_fn=lambda config: config,
            log_config=False,
        )
        self._sweep, self._folder, self._keeper = sweep, folder, keeper
        self._explored: Settings = {}

    def _exploit(self, tune_controller: Any, trial: TuneTrial, trial_to_clone: TuneTrial) -> None:
        state, better = self._trial_state[trial], self._trial_state[trial_to_clone]
        own, source = _number(trial), _number(trial_to_clone)
        book = self._keeper.book
        generator = np.random.default_rng([self._sweep.plan.seed, own, len(book.exploits)])
        self._explored = explored(
            self._sweep, book.trials[own].settings, trial_to_clone.config["trial"]["settings"], generator
        )
        number = book.trials[own].exploits + 1
        try:
            offer_weights(
                RunFolder(self._folder / trial_name(own)), Path(better.last_checkpoint.path), number, trial_name(source)
            )
        except OSError as error:
            self._keeper.say(f"{trial_name(own)}: goes on as it is, as weights could not be copied: {error.strerror}")
            return
        self._keeper.exploited(
            Exploit(
                trial=own,
                source=source,
                settings=self._explored,
                frames=state.last_result["frames"],
                score=state.last_score,
                source_frames=better.last_result["frames"],
                source_score=better.last_score,
            )
        )
        times = state.last_perturbation_time, state.last_train_time
        super()._exploit(tune_controller, trial, trial_to_clone)
        # It gives a trial the time of the other one with its weights, and would have Tune read the checkpoint again,
        # which may be gone by the time when there is a core for the trial.
        state.last_perturbation_time, state.last_train_time = times
        trial.run_metadata.checkpoint_manager._latest_checkpoint_result = None

    def _get_new_config(self, trial: TuneTrial, _: TuneTrial) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"trial": {**trial.config["trial"], "settings": self._explored}}, {}

    def __reduce__(self) -> Any:
        return left_out, ()


class Reports(tune.Callback):
    """Tells the bookkeeper what becomes of the trials of a population."""

    def __init__(self, keeper: Bookkeeper) -> None:
        self._keeper = keeper

    def on_trial_result(self, **info: Any) -> None:
        self._keeper.reported(_number(info["trial"]), info["result"])

    def on_trial_complete(self, **info: Any) -> None:
        self._keeper.completed(_number(info["trial"]), info["trial"].last_result or None, error=False)

    def on_trial_error(self, **info: Any) -> None:
        self._keeper.completed(_number(info["trial"]), None, error=True)

    def __reduce__(self) -> Any:
        return left_out, ()


def left_out() -> None:
    """Stands in Tune's records, which nobody reads, for what cannot be pickled."""


def _number(trial: TuneTrial) -> int:
    return int(trial.config["trial"]["number"])
