"""The display of a training run: a live table on a terminal, plain lines where the output is no terminal."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launch.loop.evaluation import evaluation_line
from launch.output import duration, mean_return, number, print_line, quoted
from launch.presets import usual_agent_steps
from launch.run.events import COLUMNS, Event, Message, Preparing, Progress, Progressed, Started, Stopped
from launch.run.lookup import trust_option
from shared.config import RunConfig
from shared.errors import counted

_PLAIN_LINE_SECONDS = 10.0
_EXPECTATION_SECONDS = 10.0
# A narrower terminal gets one number a line: with two, the table broke numbers in their middle.
_TWO_NUMBERS_COLUMNS = 80
# Numbers that rollouts bring.
_MEASURED = ("stage_microseconds", "learner_milliseconds", "gradient_norm", "statistics")
# The option that takes a run beyond the limit at which it ended.
_FURTHER = {
    "frames_reached": " --total-frames N",
    "return_reached": " --stop-at-return N",
    "time_reached": " --stop-after-seconds N",
}


class Display:
    """Shows the events of a run, whose settings started from `preset`. Use as a context.

    An error in it is reported once, and does not reach the run.
    """

    def __init__(self, config: RunConfig, console: Console, preset: str = "") -> None:
        self._config = config
        self._console = console
        # Rich draws nothing again on a dumb terminal.
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        # None once the line about it has been shown.
        self._usual = usual_agent_steps(preset, config)
        # The last progress of actors that have reported.
        self._shown: Progress | None = None
        self._waiting, self._began = "", time.monotonic()
        self._live = Live(get_renderable=self._screen, console=console, refresh_per_second=2, transient=True)
        self._last_line = -_PLAIN_LINE_SECONDS
        self._failed = self._ended = False

    def __enter__(self) -> "Display":
        if self._is_live:
            self._show(self._live.start)
        return self

    def __exit__(self, *_: object) -> None:
        self._show(self._live.stop)

    def show(self, event: Event) -> None:
        """Show an event; a listener for `launch.train`."""
        match event:
            case Message(text):
                self.message(text)
            case Preparing(text):
                # A pipe or a log has the messages, which remain true.
                if self._is_live and self._shown is None:
                    self.wait_for(text)
            case Started(actors=actors, config=config):
                text = f"starting {counted(actors, 'actor')}"
                if steps := config.actor.max_warm_up_rollouts * config.actor.agent_steps_in_flight:
                    text += f"; each first plays up to {steps:,} agent steps, which are not counted"
                self.wait_for(text)
            case Progressed(progress):
                self.update(progress)
            case Stopped():
                self._ended = True
                self.__exit__()
                folder = Path(event.folder)
                # It may be elsewhere, and the working directory may have been deleted.
                with suppress(ValueError, FileNotFoundError):
                    folder = folder.relative_to(Path.cwd())
                for line in summary_lines(event.summary, quoted(folder), trust_option(self._config)):
                    self.message(line)

    def wait_for(self, text: str) -> None:
        """Show a text with the seconds since the first one, until there is progress or another text."""
        if not self._is_live:
            self.message(f"{text}…")
            return
        self._waiting = text
        self._show(self._live.refresh)

    def _screen(self) -> Group | Text:
        """The table; before it, the reason for waiting and the seconds since the start."""
        if self._shown is not None:
            return progress_table(self._shown, self._config, self._console.width, ended=self._ended)
        return Text(f"{self._waiting}… {time.monotonic() - self._began:.0f} s" if self._waiting else "")

    def message(self, text: str) -> None:
        """Print one line above the table."""
        self._show(lambda: print_line(self._console, text))

    def update(self, progress: Progress) -> None:
        """Show the progress once actors have reported. A resumed run has frames before that."""
        if self._shown is not None or progress.agent_steps_per_second > 0:
            self._show(lambda: self._update(progress))
        # The first rows have the actors' first, slow calls.
        if self._usual is not None and progress.elapsed_seconds > _EXPECTATION_SECONDS:
            line = expectation_line(self._usual, progress, self._config)
            if line is not None:
                self._usual = None
                self.message(line)

    def _update(self, progress: Progress) -> None:
        if self._shown is not None:
            # An interval without a rollout, as the last one may be, has measured nothing: the numbers before it stay.
            names = [name for name in _MEASURED if not getattr(progress, name)]
            progress = replace(progress, **{name: getattr(self._shown, name) for name in names})
        self._shown = progress
        if self._is_live:
            # The last table stays on the screen.
            self._live.transient = False
        elif progress.elapsed_seconds - self._last_line >= _PLAIN_LINE_SECONDS:
            self._last_line = progress.elapsed_seconds
            self.message(progress_line(progress, self._config))

    def _show(self, action: Callable[[], object]) -> None:
        """Call `action` unless an earlier one failed: a closed terminal must not end a run."""
        if self._failed:
            return
        try:
            action()
        except Exception as error:
            self._failed = True
            with suppress(OSError):
                print(f"warning: progress cannot be shown any more, training goes on: {error!r}", file=sys.stderr)


def _time_left(progress: Progress, config: RunConfig) -> str:
    """The time until the frames or the seconds run out, at the mean speed of the run: a confirmation slows training
    down for some intervals.

    It is an upper bound for a run that ends at a return.
    """
    label = "left at most" if config.stop_at_return is not None else "left"
    # The first calls are slow: the first line of a minute of CartPole had six hours.
    if not progress.frames or progress.elapsed_seconds < _EXPECTATION_SECONDS:
        return f"{label} -"
    remaining = (config.total_frames - progress.frames) * progress.elapsed_seconds / progress.frames
    if config.stop_after_seconds is not None:
        remaining = min(remaining, config.stop_after_seconds - progress.elapsed_seconds)
    return f"{label} {duration(max(0.0, remaining))}"


def expectation_line(usual: int, progress: Progress, config: RunConfig) -> str | None:
    remaining, rate = usual - progress.agent_steps, progress.agent_steps_per_second
    if remaining <= 0 or not rate:
        return None
    takes = f"a return of {config.stop_at_return:g} usually takes {usual:,} agent steps"
    if usual * config.environment.frame_skip > config.total_frames:
        return f"{takes}, and --total-frames {config.total_frames} ends the run before that"
    # A rise above the target in training is no confirmation yet.
    more = ", plus confirmations; seeds differ by a factor of 3" if config.stop_measure == "training" else ""
    return f"{takes}: at {rate:,.0f} a second it is reached in about {duration(remaining / rate)}{more}"


def progress_line(progress: Progress, config: RunConfig) -> str:
    counts = (f"{name} {number}" for name, number in _counts(progress, config).items())
    return " | ".join([duration(progress.elapsed_seconds), *counts, _time_left(progress, config)])


def _counts(p: Progress, config: RunConfig) -> dict[str, str]:
    return {
        "frames": f"{p.frames:,} ({100.0 * p.frames / config.total_frames:.1f} %)",
        "frames/s": f"{p.frames_per_second:,.0f}",
        "agent steps": f"{p.agent_steps:,}",
        "agent steps/s": f"{p.agent_steps_per_second:,.0f}",
        "updates": f"{p.updates:,}",
        "updates/s": f"{p.updates_per_second:,.1f}",
        "return, last 100": mean_return(p.mean_return_100, p.episodes),
        "episodes": f"{p.episodes:,}",
        "policy lag mean/max": f"{p.policy_lag_mean:.2f} / {p.policy_lag_max}",
        "dropped agent steps": f"{sum(p.agent_steps_dropped.values()):,}",
        "actors alive": f"{p.actors_alive}",
        "actors replaced": f"{p.actor_restarts}",
    }


def progress_table(progress: Progress, config: RunConfig, columns: int, *, ended: bool = False) -> Group:
    """The live table for a terminal of `columns` columns, and a caption. A run that has `ended` shows no time left."""
    p, stages = progress, progress.stage_microseconds
    cells = _counts(progress, config) | {
        "environment": _stage(stages, "environment"),
        "acting": _stage(stages, "acting"),
        "gradient": _stage(stages, "gradient"),
        "synchronise + wait": _stage(stages, "synchronise", "wait"),
    }
    for name, column in COLUMNS.items():
        if column.label:
            value = getattr(p, name)
            cells[column.label] = "-" if value is None else column.text.format(value)
    for name, value in sorted(p.statistics.items()):
        cells[name.replace("_", " ")] = format(value, ".1%" if name == "dead_units" else ".3f")
    # Not the caption of the table, which is padded to its width: the terminal's own ^C at the end of a full line would
    # start another one, and leave a line of the old table on the screen.
    caption = " times: per agent step; the learner's: per gradient"
    if p.agent_steps_dropped:
        caption += "\n dropped: " + ", ".join(f"{reason} {count:,}" for reason, count in p.agent_steps_dropped.items())
    title = f"{config.environment.id}  {duration(p.elapsed_seconds)}"
    table = Table(title=Text(title if ended else f"{title}, {_time_left(p, config)}"), show_header=False)
    in_a_row = 2 if columns >= _TWO_NUMBERS_COLUMNS else 1
    for _ in range(in_a_row):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", overflow="fold")
    for first in range(0, len(cells), in_a_row):
        table.add_row(*chain(*list(cells.items())[first : first + in_a_row]))
    return Group(table, Text(caption, "table.caption"))


def summary_lines(summary: dict[str, Any], run: str, trust: str) -> list[str]:
    """The last lines of a run: its result, its folder, and the next commands.

    `run` is its folder as the shell reads it, and `trust` its `trust_option`.
    """
    evaluation, confirmed = summary["evaluation"], summary["confirmed_crossing"]
    lines = [
        f"{summary['status'].replace('_', ' ')} after {duration(summary['wall_seconds'])} "
        f"and {summary['startup_seconds']:.0f} s of start-up: {summary['frames']:,} frames, "
        f"{summary['agent_steps_sampled']:,} agent steps ({summary['agent_steps_per_second']:,.0f}/s), "
        f"{summary['updates']:,} updates"
    ]
    if summary["episodes"]:
        episodes, mean = min(100, summary["episodes"]), number(summary["mean_return_100"], ".2f")
        lines.append(f"mean return of the last {episodes} training episodes: {mean}")
    else:
        lines.append("no training episode has ended")
    if evaluation is not None and evaluation.get("confirms"):
        # A confirmation has selected the weights: it is no score.
        selected = "; it selected these weights: tributary evaluate gives their score"
        lines.append(f"last confirmation: {evaluation_line(evaluation)}{selected}")
    elif evaluation is not None:
        lines.append(f"last evaluation: {evaluation_line(evaluation)}")
    if confirmed is not None:
        tries = summary.get("confirmation_tries") or 0
        lines.append(
            f"target reached{f' at try {tries}' * (tries > 1)}: after {duration(confirmed['seconds'])}, "
            f"{confirmed['agent_steps']:,} agent steps, {confirmed['frames']:,} frames"
        )
    lines.append(f"run folder:   {run}")
    # Before the first rollout there are no rows, and nothing to look at.
    if summary["frames"]:
        # No curve without a return.
        plot = f"tributary plot {run}, or " if summary["episodes"] else ""
        lines += [
            f"curves:       {plot}tensorboard --logdir {run}",
            f"evaluate:     tributary evaluate {run}{trust}",
            f"video, page:  tributary record {run}{trust}; tributary report {run}",
        ]
    return [*lines, f"continue:     tributary train --resume {run}{trust}{_FURTHER.get(summary['status'], '')}"]


def _stage(stages: dict[str, float], *names: str) -> str:
    return f"{sum(stages.get(name, 0.0) for name in names):.0f} µs"
