"""What has come of the trials of a sweep: which is the best, and which settings mattered."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launch.sweep.book import Exploit, Trial, TrialBook
from launch.sweep.file import Settings, Sweep
from launch.sweep.search import frozen_trial, new_study

# Importances of fewer trials are those of chance.
_FEWEST_FOR_IMPORTANCE = 8
# Of a dozen trials, Optuna's tenth would be one.
_BEST_SHARE = 0.25


class Outcome(NamedTuple):
    """What has come of a sweep so far. `best` is the trial of the highest score, among those that played to their end
    if there is one. `importances` say how much of what the best quarter has in common each setting explains, adding up
    to 1 (PED-ANOVA, arXiv 2304.10255); None where there are too few trials, or their settings have changed on the way.
    In a population `exploits` say which trial went on with whose weights, and `histories` are the settings of each
    trial with the frames that they began at."""

    sweep: Sweep
    folder: Path
    trials: list[Trial]
    best: Trial | None
    importances: dict[str, float] | None
    exploits: list[Exploit]
    histories: dict[int, list[tuple[int, Settings]]]


def outcome(sweep: Sweep, folder: Path, book: TrialBook) -> Outcome:
    """What the book says."""
    trials = [book.trials[number] for number in sorted(book.trials)]
    scored = [trial for trial in trials if trial.score is not None and trial.ended in ("done", "stopped")]
    done = [trial for trial in scored if trial.ended == "done"]
    best = max(done or scored, key=_score, default=None)
    changing = [] if sweep.plan.pbt is None else trials
    histories = {trial.number: book.history(trial.number) for trial in changing}
    return Outcome(sweep, folder, trials, best, _importances(sweep, done), book.exploits, histories)


def _score(trial: Trial) -> float:
    return -math.inf if trial.score is None else trial.score


def _importances(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, float] | None:
    if len(trials) < _FEWEST_FOR_IMPORTANCE or sweep.plan.pbt is not None:
        return None
    import optuna

    study = new_study()
    study.add_trials([frozen_trial(trial, sweep.space) for trial in trials])
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(found[name]) for name in found}
