"""What the events of a sweep mean: for its book, for its search, and for whoever looks on. No Ray."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.output import short
from launch.run.exploit import offered_number, withdraw
from launch.run.folder import RunFolder
from launch.sweep.book import Ended, Exploit, Trial, TrialBook, trial_name
from launch.sweep.file import Settings, Sweep
from launch.sweep.search import Search
from shared.errors import ConfigurationError

MOST_TRIES = 10


class Bookkeeper:
    """Takes in what trials report and how they end.

    Args:
        sweep: what is searched.
        book: what has become of the trials so far.
        search: chooses settings.
        asked_to_stop: whether the sweep is to end; trials that are under way then have not ended.
        say: takes a message.
    """

    def __init__(
        self,
        sweep: Sweep,
        book: TrialBook,
        search: Search,
        asked_to_stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._sweep, self.book, self._search = sweep, book, search
        self._asked_to_stop, self.say = asked_to_stop, say
        self._seen: dict[int, tuple[int, float]] = {}

    def new_trial(self) -> Trial:
        """The next trial that the search chooses."""
        number = len(self.book.trials)
        self.book.start(number, self._search.suggest(number))
        return self.book.trials[number]

    def members(self, folder: Path) -> list[Trial]:
        """The trials of a population that go on or begin: all of them at once, as they are compared with each other.

        Weights that a sweep was killed over, before it had written down which trial takes them, are taken back.
        """
        while len(self.book.trials) < self._sweep.trials:
            self.new_trial()
        left = [trial for trial in sorted(self.book.trials.values()) if trial.ended is None and self.begins(trial)]
        for trial in left:
            run = RunFolder(folder / trial.name)
            if offered_number(run) > trial.exploits:
                withdraw(run)
        return left

    def begins(self, trial: Trial) -> bool:
        """A trial is to begin, or to go on. False: its settings cannot be together, and it has ended."""
        try:
            self._sweep.config(trial.settings)
        except ConfigurationError as error:
            self._end(trial, "refused", reason=str(error))
            return False
        if trial.ended is None:
            self.say(f"{trial.name}: {in_words(trial.settings)}")
        return True

    def reported(self, number: int, result: Mapping[str, Any]) -> None:
        """A trial has come so far."""
        before = self._seen.get(number, (-1, 0.0))[0]
        # A further try begins with what the one before had reported.
        if result["frames"] > before and not math.isnan(result["score"]):
            self._seen[number] = result["frames"], result["score"]
            self._search.report(number, result["frames"], result["score"])

    def exploited(self, exploit: Exploit) -> None:
        """A trial goes on with the weights of another one."""
        self.book.exploit(exploit)
        self.say(
            f"{trial_name(exploit.trial)}: goes on with the weights of {trial_name(exploit.source)} (return "
            f"{exploit.source_score:.2f}, its own {exploit.score:.2f}), {in_words(exploit.settings)}"
        )

    def completed(self, number: int, result: Mapping[str, Any] | None, *, error: bool) -> None:
        """A trial goes on no more. `result` is its last one; `error`: it has died as often as it may."""
        trial = self.book.trials[number]
        if trial.ended is not None:
            return
        if result is not None and not error:
            self.reported(number, result)
            trial = self._without_what_it_never_took(trial, result.get("exploits"))
        if error:
            self._end(trial, "failed", reason=f"its process ended {MOST_TRIES} times before its run did")
        elif result is not None and result.get("hopeless"):
            self._end(trial, "failed", reason=str(result["hopeless"]))
        elif result is not None and result.get("stopped"):
            self._end(trial, "stopped", reason=str(result["stopped"]))
        elif result is not None and result.get("ended"):
            self._end(trial, "done")
        elif not self._asked_to_stop():
            self._end(trial, "stopped")

    def _without_what_it_never_took(self, trial: Trial, taken: int | None) -> Trial:
        """A trial may reach its frames while it is about to be stopped, to take weights and settings of another one."""
        if taken is None or taken >= trial.exploits:
            return trial
        self.book.take_back(trial.number, taken)
        trial = self.book.trials[trial.number]
        self.say(f"{trial.name}: had reached its frames before that; its settings are {in_words(trial.settings)}")
        return trial

    def _end(self, trial: Trial, how: Ended, reason: str | None = None) -> None:
        frames, score = self._seen.get(trial.number, (0, None))
        ended = trial._replace(ended=how, frames=frames, score=score, reason=reason)
        self.book.end(ended)
        self._search.ended(ended)
        left = sum(other.ended is None for other in self.book.trials.values())
        done = len(self.book.trials) - left
        reached = "no return" if score is None else f"{score:.2f} after {frames:,} frames"
        self.say(f"{trial.name}: {how}, {reason or reached}; {done} of {self._sweep.trials} have ended")


def in_words(settings: Settings) -> str:
    """Settings for a line that a person reads."""
    return ", ".join(f"{name} {short(value)}" for name, value in settings.items())
