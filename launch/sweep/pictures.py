"""Pictures of a sweep: the return over each setting, or in a population each setting over its frames."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from launch.output import short
from launch.results.plot import COLOURS, figure, save
from launch.sweep.file import Range, Value
from launch.sweep.outcome import Outcome

_MOST_PICTURES = 6


def draw_importance(found: Outcome, paths: Sequence[Path]) -> None:
    """Return over each setting that was searched, the most important one first."""
    order = list(found.importances or found.sweep.space)[:_MOST_PICTURES]
    with figure(width=max(4.0, 2.9 * len(order)), height=3.4, columns=len(order)) as (drawn, all_axes):
        for axes, name in zip(all_axes, order, strict=True):
            _draw_setting(axes, found, name)
        all_axes[0].set_ylabel("return of a trial")
        save(drawn, paths, sweep=str(found.folder))


def _span(axes: Axes, part: Range) -> None:
    """The whole range that was searched, whatever of it was tried."""
    if not part.log:
        margin = 0.05 * (part.high - part.low)
        axes.set_xlim(part.low - margin, part.high + margin)
        return
    factor = (part.high / part.low) ** 0.05
    axes.set_xscale("log")
    axes.set_xlim(part.low / factor, part.high * factor)
    if part.high / part.low >= 10:
        # Labels between powers of ten would overlap.
        axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_setting(axes: Axes, found: Outcome, name: str) -> None:
    part = found.sweep.space[name]
    for how, marker, colour in (("done", "o", COLOURS[0]), ("stopped", "x", COLOURS[1])):
        trials = [trial for trial in found.trials if trial.ended == how and trial.score is not None]
        if isinstance(part, list):
            # Side by side where they would hide each other.
            spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(trials))
            x = [part.index(trial.settings[name]) + shift for trial, shift in zip(trials, spread, strict=True)]
        else:
            x = [float(trial.settings[name]) for trial in trials]
        if trials:
            axes.scatter(x, [trial.score or 0.0 for trial in trials], marker=marker, s=22, color=colour, label=how)
    if isinstance(part, list):
        axes.set_xticks(range(len(part)), [short(value) for value in part])
        axes.set_xlim(-0.5, len(part) - 0.5)
    elif isinstance(part, Range):
        _span(axes, part)
    axes.set_xlabel(name)
    if found.importances is not None:
        axes.set_title(f"{100 * found.importances[name]:.0f} % of the importance")
    if any(trial.ended == "stopped" for trial in found.trials):
        axes.legend(fontsize=8)


def draw_population(found: Outcome, paths: Sequence[Path]) -> None:
    """Each setting that was perturbed over the frames of the trials, the best trial in front."""
    names = [name for name in found.sweep.mutable if _numbers(found.sweep.space[name])][:_MOST_PICTURES]
    if not names:
        return
    with figure(width=max(4.0, 3.4 * len(names)), height=3.4, columns=len(names)) as (drawn, all_axes):
        for axes, name in zip(all_axes, names, strict=True):
            for trial in sorted(found.trials, key=lambda trial: trial == found.best):
                steps = found.histories[trial.number]
                values = [float(settings[name]) for _, settings in steps]
                best = trial == found.best
                axes.step(
                    [*(frames for frames, _ in steps), max(trial.frames, steps[-1][0])],
                    [*values, values[-1]],
                    where="post",
                    color=COLOURS[1] if best else COLOURS[0],
                    alpha=1.0 if best else 0.35,
                    label=f"best: {trial.name}" if best else None,
                )
            part = found.sweep.space[name]
            if isinstance(part, Range) and part.log:
                axes.set_yscale("log")
            axes.set_xlabel("frames of the trial")
            axes.set_ylabel(name)
            if found.best is not None:
                axes.legend(fontsize=8)
        save(drawn, paths, sweep=str(found.folder))


def _numbers(part: list[Value] | Range) -> bool:
    return isinstance(part, Range) or all(isinstance(value, int | float) for value in part)
