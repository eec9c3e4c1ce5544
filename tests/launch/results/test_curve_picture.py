"""Curves of one environment share their axes, and those of several do not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from launch.results.curves import Curve, bands
from launch.results.plot import curves_figure
from shared.config import EnvironmentConfig, OptimizerConfig, RunConfig


def curve(environment: str, seed: int, returns: Sequence[float], rate: float = 1e-3) -> Curve:
    config = replace(
        RunConfig(seed=seed),
        environment=EnvironmentConfig(id=environment),
        optimizer=OptimizerConfig(learning_rate=rate),
    )
    return Curve(Path("run"), config, np.arange(len(returns), dtype=np.float64), np.array(returns))


PONG = [curve("ALE/Pong-v5", seed, [-21.0, 21.0]) for seed in (1, 2, 3)]
QBERT = [curve("ALE/Qbert-v5", 1, [0.0, 15_000.0]), curve("ALE/Qbert-v5", 1, [0.0, 4_000.0], rate=2e-3)]


def drawn(curves: Sequence[Curve], marks: Sequence[tuple[str, float]] = ()) -> list[Axes]:
    with curves_figure(bands(curves), "frames", "mean_return_100", marks=marks) as figure:
        return figure.axes


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [" ".join(text.get_text().split()) for text in found.get_texts()]


def test_each_environment_has_its_own_scale() -> None:
    pong, qbert = drawn([*PONG, *QBERT])
    assert (pong.get_title("left"), qbert.get_title("left")) == ("ALE/Pong-v5", "ALE/Qbert-v5")
    assert max(pong.get_ylim()) < 30
    assert max(qbert.get_ylim()) > 15_000
    assert legend(pong) == ["median of 3 seeds, quartiles"]
    assert legend(qbert) == ["learning_rate 0.001", "learning_rate 0.002"]


def test_one_environment_stands_in_the_legend() -> None:
    (axes,) = drawn(PONG)
    assert legend(axes) == ["ALE/Pong-v5: median of 3 seeds, quartiles"]
    assert axes.get_ylabel() == "return, mean of the last 100 training episodes"


def test_a_mark_is_drawn_where_it_belongs_and_once() -> None:
    without = [len(axes.lines) for axes in drawn([*PONG, *QBERT])]
    pong, qbert = drawn([*PONG, *QBERT], [("ALE/Pong-v5", 18.0), ("ALE/Pong-v5", 18.0), ("CartPole-v1", 475.0)])
    assert [len(pong.lines), len(qbert.lines)] == [without[0] + 1, without[1]]
    assert set(np.asarray(pong.lines[-1].get_ydata())) == {18.0}


def test_four_environments_leave_no_empty_panel() -> None:
    assert len(drawn([curve(f"ALE/{game}-v5", 1, [0.0, 1.0]) for game in "ABCD"])) == 4
