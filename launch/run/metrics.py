"""The numbers and messages of a run: progress, rows of metrics.jsonl, and log.txt; and the timers of its actions."""

import errno
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from launch.files import replacement, to_json
from launch.interrupts import take_all
from launch.run.events import Episodes, Message, Progress, Row, SessionEvent
from launch.run.folder import RunFolder, object_of
from shared.config import RunConfig
from shared.errors import counted
from shared.schedules import crossed_multiple, scheduled_value
from shared.types import StageSeconds, info_means

if TYPE_CHECKING:
    from learner.learner import Learner, Outcome


# Prefixes of the environment's numbers and of the caller's.
INFO, OWN = "info/", "own/"


def lag_summary(counts: Counter[int]) -> tuple[float, int, int]:
    """Mean, 95th percentile and maximum of the policy lag in updates, from numbers of gradients by lag."""
    if not counts:
        return 0.0, 0, 0
    lags, numbers = np.array(sorted(counts.items())).T
    cumulative = numbers.cumsum()
    return (
        float(lags @ numbers / cumulative[-1]),
        int(lags[np.searchsorted(cumulative, 0.95 * cumulative[-1])]),
        int(lags[-1]),
    )


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file. After an OSError, as on a full disk, no part of it is left."""
    # Without a buffer: a killed process loses no row that it has written.
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if file.write(line) != len(line):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class Timer:
    """An action and its interval, which ends after `seconds`, or at a multiple of `frames`.

    `since` are the seconds of training and the frames at which the interval began.
    """

    action: Callable[[], object]
    seconds: float
    frames: int | None = None
    since: tuple[float, int] = (0.0, 0)

    def tick(self, now: Callable[[], tuple[float, int]], *, due: bool = False) -> None:
        """Call the action if its interval has ended, or if `due`. The next one begins when the action has ended."""
        seconds, frames = now()
        reached = self.frames is not None and crossed_multiple(self.since[1], frames, self.frames)
        if due or reached or seconds - self.since[0] >= self.seconds:
            self.action()
            self.since = now()


# Rates over much less than a second would be those of an instant.
_RATE_SECONDS = 1.0
_ROWS_OF_A_RUN = 200
# The signature of a network killed by its first updates (docs/tuning.md, "When a run does not learn").
_DEAD_SHARE = 0.6
_UNEXPLAINED = 0.05
_PATIENCE_ROWS = 6
_SILENT_EPISODES = 100


class Metrics:
    """The numbers of a run: sums of outcomes over a logging interval, and the totals of the learner beside them.

    Its `timers` write a row for each interval, which ends by its seconds or by its frames, and update `latest` every
    second; in short runs an interval is shorter than that.

    Rates are measured from rollout to rollout. Only the gradients of a rollout's first epoch bring new agent steps, and
    an interval of about a second may have none: the last rates hold until the next such gradient, and fall when it
    takes longer.

    Args:
        now: returns the seconds of training, the living actors, and the actors that were replaced.
        on_row: gets a row a second at most, and every row with an evaluation or numbers of the caller.

    Attributes:
        evaluation_return: of the last evaluation.
        latest: the last view or row, which other threads may read.
        own: numbers of the caller for the next row, which another thread updates.
        drains: no further rollout is to come, so that the rates hold.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        learner: "Learner",
        now: Callable[[], tuple[float, int, int]],
        on_row: Callable[[Progress], None],
        messages: "Messages",
    ) -> None:
        self._learner, self._now, self._on_row, self._messages = learner, now, on_row, messages
        self._steps_of_actor = config.actor.agent_steps_in_flight
        self.evaluation_return: float | None = None
        self._file, self._rows_fail = folder.metrics, False
        # A resumed run continues the file.
        drop_rows_after(self._file, learner.account.frames)
        self._view_seconds = min(_RATE_SECONDS, config.log_every_seconds)
        every_frames = max(1, config.total_frames // _ROWS_OF_A_RUN)
        self.timers = (
            Timer(self.write_row, config.log_every_seconds, every_frames),
            Timer(self._update_view, self._view_seconds),
        )
        self.own: dict[str, float] = {}
        self.drains = False
        self._suspicious_rows = 0
        # Episodes so far, for the names of `--environment.log-info` of which none has given a number.
        self._without_number = dict.fromkeys(config.environment.log_info, 0)
        # Seconds at the last rollout, and at the last row that was a view.
        self._last_rollout = self._shown_seconds = self._now()[0]
        # Seconds, frames, agent steps and updates: at the last rollout of an earlier interval, and of a span before it.
        self._mark = self._counted()
        self._span_before = np.zeros(4)
        self._begin(self._last_rollout)
        self.latest = self.progress()

    def _counted(self) -> npt.NDArray[np.float64]:
        account = self._learner.account
        return np.array([self._last_rollout, account.frames, account.ledger.sampled, account.ledger.updates])

    def add(self, outcome: "Outcome") -> None:
        report = outcome.report
        if report.agent_steps:
            self._last_rollout = self._now()[0]
        self._agent_steps += report.agent_steps
        self._samples += report.samples
        self._gradients += 1
        self._learner_seconds += outcome.seconds
        self._stages += report.stage_seconds
        if outcome.updated:
            self._norms.append(outcome.gradient_norm)
        # As in the account: the episodes of a duplicate were counted before.
        if outcome.dropped != "duplicate":
            for name, values in report.episodes.info.items():
                self._info.setdefault(name, []).extend(values.tolist())
            self._returns += report.episodes.returns.tolist()
            self._lengths += report.episodes.lengths.tolist()
        if outcome.dropped is None:
            self._lags[outcome.policy_lag] += 1
            self._statistics.update(report.statistics)

    def add_evaluation(self, entry: dict[str, Any]) -> None:
        """Add an evaluation; see `Evaluations.receive`. Rows show its mean return until the next one."""
        self.evaluation_return = entry["mean_return"]
        self._evaluations.append(entry)

    def progress(self) -> Progress:
        """The state of the run. The interval continues."""
        elapsed_seconds, actors_alive, actor_restarts = self._now()
        learner, ledger = self._learner, self._learner.account.ledger
        agent_steps, returns = self._agent_steps, np.array(self._returns)
        returns = returns[np.isfinite(returns)]
        span = self._counted() - self._mark
        if span[0] < _RATE_SECONDS:
            span = span + self._span_before
        # A row with an evaluation may come a moment after the one before.
        interval = max(elapsed_seconds - self._started, 0.1 if self._evaluations else 1e-9)
        since_rollout = 0.0 if self.drains else elapsed_seconds - self._last_rollout
        lag_mean, _, lag_max = lag_summary(self._lags)
        frames, steps, updates = (span[1:] / max(span[0], since_rollout, 1e-9)).tolist()
        return Progress(
            frames=learner.account.frames,
            agent_steps=ledger.sampled,
            updates=ledger.updates,
            episodes=learner.account.episodes,
            elapsed_seconds=elapsed_seconds,
            mean_return_100=learner.account.mean_return,
            interval_episodes=returns.size,
            interval_mean_return=float(returns.mean()) if returns.size else None,
            frames_per_second=frames,
            agent_steps_per_second=steps,
            updates_per_second=updates,
            gradients_per_second=self._gradients / interval,
            policy_lag_mean=lag_mean,
            policy_lag_max=lag_max,
            policy_lag_counts=dict(self._lags),
            gradients_per_update=learner.gradients_per_update,
            agent_steps_applied=ledger.applied,
            agent_steps_dropped=dict(ledger.dropped),
            agent_steps_in_flight=actors_alive * self._steps_of_actor,
            actors_alive=actors_alive,
            actor_restarts=actor_restarts,
            stage_microseconds={
                stage: 1e6 * total / agent_steps
                for stage, total in zip(StageSeconds._fields, self._stages.tolist(), strict=True)
                if agent_steps
            },
            learner_milliseconds=1e3 * self._learner_seconds / max(self._gradients, 1),
            learning_rate=learner.account.learning_rate,
            gradient_norm=float(np.mean(self._norms)) if self._norms else None,
            passes=self._samples / agent_steps if agent_steps else None,
            evaluation_return=self.evaluation_return,
            evaluations=list(self._evaluations),
            statistics={name: total / self._lags.total() for name, total in self._statistics.items()},
            info=info_means({name: np.array(values) for name, values in self._info.items()}),
        )

    def _update_view(self) -> None:
        view = self.progress()
        # A row may just have been the view.
        if view.elapsed_seconds - self.latest.elapsed_seconds >= self._view_seconds:
            self.latest = view

    def write_last_row(self) -> None:
        """Write the last row, unless its interval is empty and has no rates."""
        if self._gradients or self._evaluations:
            self.write_row(last=True)
        self._warn_of_missing_info(1)

    def write_row(self, *, last: bool = False) -> None:
        """Write a row and start a new interval."""
        row = replace(self.progress(), own=take_all(self.own))
        values = asdict(row)
        numbers = {part + name: value for part in (INFO, OWN) for name, value in values.pop(part[:-1]).items()}
        # A method of the user may have a statistic with the name of a column.
        statistics = {(OWN if name in values else "") + name: mean for name, mean in values.pop("statistics").items()}
        line = to_json(values | statistics | numbers).encode() + b"\n"
        try:
            append_line(self._file, line)
            self._rows_fail = False
        except OSError as error:
            # One message for each time that the disk is full, not for each row.
            if not self._rows_fail:
                self._messages.log(f"warning: metrics could not be written: {error.strerror}; training goes on")
            self._rows_fail = True
        if self._returns:
            self._messages.emit(Episodes(row.frames, self._returns, self._lengths))
        # Decoded again: listeners get the types that a reader of the file gets, such as strings for keys.
        self._messages.emit(Row(json.loads(line)))
        # Not more often: TensorBoard takes 15 ms of this process for a row, metrics.jsonl 0.1.
        shows = last or row.elapsed_seconds - self._shown_seconds >= self._view_seconds
        if shows:
            self._shown_seconds = row.elapsed_seconds
        if shows or row.evaluations:
            # No later row may show the evaluation.
            self.latest = row
        if shows or row.evaluations or row.own:
            self._on_row(row)
        span = self._counted() - self._mark
        if span[0] >= _RATE_SECONDS:
            self._mark, self._span_before = self._mark + span, span
        self._warn_of_missing_info(_SILENT_EPISODES)
        self._warn_if_dead(row.statistics)
        self._begin(row.elapsed_seconds)

    def _warn_of_missing_info(self, least: int) -> None:
        """Log the names that are no number at the end of at least `least` episodes, each once."""
        for name, before in list(self._without_number.items()):
            values = self._info.get(name, [])
            self._without_number[name] = episodes = before + len(values)
            is_missing = np.isnan(values).all()
            if is_missing and episodes >= least:
                self._messages.log(f"warning: {missing_info(name, episodes)}")
            if not is_missing or episodes >= least:
                del self._without_number[name]

    def _warn_if_dead(self, statistics: Mapping[str, float]) -> None:
        dead, explained = statistics.get("dead_units", 0.0), statistics.get("explained_variance", 1.0)
        suspicious = dead > _DEAD_SHARE and abs(explained) < _UNEXPLAINED
        self._suspicious_rows = self._suspicious_rows + 1 if suspicious else 0
        if self._suspicious_rows == _PATIENCE_ROWS:
            self._messages.log(
                f"warning: {dead:.0%} of the hidden units are dead and the value explains nothing (explained variance "
                f"{explained:.2f}): the first updates were probably too large; try --optimizer.bias-correction, a "
                f"larger --optimizer.epsilon or a lower --optimizer.learning-rate"
            )

    def _begin(self, elapsed_seconds: float) -> None:
        self._started = elapsed_seconds
        self._agent_steps = self._samples = self._gradients = 0
        self._learner_seconds = 0.0
        self._stages = np.zeros(len(StageSeconds._fields))
        self._lags: Counter[int] = Counter()
        self._norms: list[float] = []
        self._evaluations: list[dict[str, Any]] = []
        self._statistics: Counter[str] = Counter()
        self._info: dict[str, list[float]] = {}
        self._returns, self._lengths = list[float](), list[int]()


def drop_rows_after(file: Path, frames: int) -> None:
    """Drop half a line, and the rows of a session that was killed after its last checkpoint, which has these frames."""
    if not file.is_file():
        return
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(file, len(whole))
    lines = whole.splitlines(keepends=True)
    kept = [line for line in lines if object_of(line).get("frames", 0) <= frames]
    if len(kept) < len(lines):
        # A full disk is no reason to stop. Readers pass over the rows.
        with suppress(OSError), replacement(file) as part:
            part.write_bytes(b"".join(kept))


def missing_info(name: str, episodes: int) -> str:
    return (
        f"--environment.log-info {name}: the info at the end of {counted(episodes, 'episode')} has no number of this "
        f"name; one within a dictionary is named like episode.r"
    )


def annealing_warning(config: RunConfig) -> str | None:
    """A warning for a run whose learning rate reaches 0 before its end; None for other runs."""
    idle = config.total_frames - config.annealing_frames
    if idle <= 0 or scheduled_value(1.0, config.optimizer.schedule, 1, 1) != 0.0:
        return None
    return (
        f"--optimizer.annealing-frames {config.annealing_frames:,} is before --total-frames {config.total_frames:,}: "
        f"the learning rate is 0 in the last {idle:,} frames, and nothing is learned in them"
    )


# ---- Messages


class Messages:
    """The queue of a session's events. Messages are also appended to log.txt, with the time. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._waiting: deque[SessionEvent] = deque()
        self.emit = self._waiting.append

    def log(self, message: str) -> None:
        self.emit(Message(message))
        self.write(message)

    def write(self, message: str) -> None:
        """Append a message to log.txt without an event."""
        # On a full disk it is queued only.
        with suppress(OSError), open(self._file, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def take(self) -> list[SessionEvent]:
        """The events since the last call."""
        # Another thread may add events meanwhile: they stay for the next call.
        return [self._waiting.popleft() for _ in range(len(self._waiting))]
