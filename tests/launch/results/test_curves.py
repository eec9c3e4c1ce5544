"""Curves of runs, their aggregates against numbers worked out by hand, and plots of them."""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from written_runs import curve, write_rows, written_run

from launch.cli import main
from launch.results.curves import (
    Curve,
    aggregates,
    bands,
    interquartile_mean,
    read_curve,
    read_rows,
    stratified_resamples,
)
from launch.results.plot import curves_figure
from launch.run.folder import RunFolder
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError


def test_a_quarter_is_left_out_at_each_end() -> None:
    # Eight scores: 1, 2 and 70, 80 go; (3 + 4 + 50 + 60) / 4.
    assert interquartile_mean(np.array([80.0, 1.0, 3.0, 60.0, 2.0, 50.0, 4.0, 70.0])) == (3 + 4 + 50 + 60) / 4
    # One of six is trimmed at each end: a quarter is 1.5, rounded down.
    assert interquartile_mean(np.array([[0.0, 1, 2, 3, 4, 100], [5, 5, 5, 5, 5, 5]])).tolist() == [
        (1 + 2 + 3 + 4) / 4,
        5,
    ]
    # Below four nothing goes.
    assert interquartile_mean(np.array([1.0, 2.0, 9.0])) == 4.0


def test_runs_are_drawn_within_their_game_and_each_as_likely() -> None:
    drawn = stratified_resamples([np.array([0.0, 1.0]), np.array([10.0, 20.0, 30.0])], 20_000)
    assert drawn.shape == (20_000, 5)
    first, second = drawn[:, :2], drawn[:, 2:]
    assert set(np.unique(first)) == {0.0, 1.0}
    assert set(np.unique(second)) == {10.0, 20.0, 30.0}
    # All 2² draws of the first game come equally often, so draws are independent and with replacement.
    shares = [np.mean((first == pair).all(axis=1)) for pair in itertools.product((0.0, 1.0), repeat=2)]
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_scores_of_several_games_are_human_normalised() -> None:
    # Pong: random -20.7, human 14.6. Breakout: random 1.7, human 30.5.
    pong = [curve("ALE/Pong-v5", seed, [-20.7, 14.6]) for seed in (1, 2)]
    breakout = [curve("ALE/Breakout-v5", seed, [1.7, 1.7 + 2 * 28.8]) for seed in (1, 2)]
    (group,) = aggregates([*pong, *breakout], "mean_return_100")
    assert group.games == {"ALE/Pong-v5": 2, "ALE/Breakout-v5": 2}
    # At the end 1, 1, 2, 2: the middle half are a 1 and a 2. In each game all runs agree, so every resample does.
    assert group.centre[0] == pytest.approx(0.0)
    assert group.centre[-1] == group.low[-1] == group.high[-1] == pytest.approx(1.5)
    # So are groups of one game each.
    alone = [curve("ALE/Pong-v5", 1, [-20.7, 14.6]), curve("ALE/Breakout-v5", 1, [1.7, 30.5], rate=2e-3)]
    assert [group.centre[-1] for group in aggregates(alone, "mean_return_100")] == pytest.approx([1.0, 1.0])


def test_one_game_is_as_it_was_measured() -> None:
    runs = [curve("CartPole-v1", seed, [0.0, float(100 * seed)]) for seed in (1, 2, 3, 4)]
    (group,) = aggregates(runs, "mean_return_100")
    assert group.centre[-1] == pytest.approx(250.0)
    assert 100 <= group.low[-1] < 200 < 300 < group.high[-1] <= 400


def test_groups_are_algorithms_and_the_shortest_run_sets_the_end() -> None:
    runs = [
        curve("CartPole-v1", 1, [1.0, 1.0]),
        curve("CartPole-v1", 2, [1.0, 1.0], frames=60),
        curve("CartPole-v1", 1, [5.0, 5.0], rate=2e-3),
    ]
    first, second = aggregates(runs, "mean_return_100")
    assert first.label == "CartPole-v1, 2 runs, learning_rate 0.001"
    assert second.label == "CartPole-v1, 1 run, learning_rate 0.002"
    assert first.x[-1] == 60


@pytest.mark.parametrize(
    ("y", "games", "message"),
    [
        ("mean_return_100", ("ALE/Pong-v5", "CartPole-v1"), "no human score of CartPole-v1"),
        ("policy_lag_mean", ("ALE/Pong-v5", "ALE/Breakout-v5"), "not comparable between environments"),
    ],
)
def test_what_cannot_be_compared_is_refused(y: str, games: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        aggregates([curve(game, 1, [0.0, 1.0]) for game in games], y)


def test_seeds_of_very_different_speed_end_where_they_end() -> None:
    """The band goes as far as two seeds do, and says how many it is of."""
    # The first and the last second of each seed, and its last return.
    seeds = {1: (0.1, 4.3, 10.0), 2: (1.0, 9.0, 20.0), 3: (5.0, 40.0, 30.0)}
    runs = [
        curve("CartPole-v1", seed, [0.0, most])._replace(x=np.array([first, last]))
        for seed, (first, last, most) in seeds.items()
    ]
    (band,) = bands(runs)
    # Two seeds from second 1 to second 4.3, and from 5 to 9; in between the second one is alone.
    assert (band.x[0], band.x[-1]) == (1.0, 9.0)
    assert set(band.seeds) == {2}
    assert not np.any((band.x > 4.4) & (band.x < 4.9))
    # At the end of the second: 20 of it, and 4 seconds of 35 of the third's way to 30.
    assert band.centre[-1] == pytest.approx((20.0 + 30.0 * 4 / 35) / 2)
    (alone,) = bands(runs[:1])
    assert (alone.x[-1], set(alone.seeds), alone.centre[-1]) == (4.3, {1}, 10.0)
    (apart,) = bands([runs[0], runs[2]])
    assert (apart.x.size, apart.centre.size) == (0, 0)


def test_a_null_breaks_neither_curve_nor_plot_nor_report(tmp_path: Path, refused: Callable[[str], str]) -> None:
    """As the mean of returns that are not finite."""
    row = {"episodes": 3, "stage_microseconds": {"acting": 5.0}}
    bad = {"frames": 7, "agent_steps": 2, "elapsed_seconds": 0.5, "mean_return": None, "median_return": None}
    bad |= {"standard_error": None, "collapsed_episodes": None, "episodes": 4}
    good = bad | {"frames": 12, "mean_return": -3.0, "median_return": -3.0}
    rows = row | {"frames": 10, "evaluations": [bad]}, row | {"frames": 20, "mean_return_100": 1.0}
    run = str(written_run(tmp_path, rows))
    read = read_curve(tmp_path, "frames", "mean_return_100")
    assert (read.x.tolist(), read.y.tolist(), read.evaluations) == ([20.0], [1.0], None)
    assert main(["plot", run]) == main(["report", run]) == 0
    refused(f"plot {run} --y evaluation_return")
    first = row | {"frames": 10, "mean_return_100": 1.0, "evaluations": [good, bad | {"frames": 13}]}
    write_rows(tmp_path, first, row | {"frames": 20})
    points = read_curve(tmp_path, "frames", "mean_return_100").evaluations
    assert [values.tolist() for values in points] == [[12.0], [-3.0], [0.0]]
    assert main(["report", run]) == 0
    assert "<td>best</td><td>12</td>" in (tmp_path / "report.html").read_text()
    write_rows(tmp_path, row | {"frames": 10})
    assert "none of its 3 episodes has a finite return" in refused(f"plot {run}")
    assert main(["report", run]) == 0
    assert "none of its 3 episodes has a finite return" in (tmp_path / "report.html").read_text()


def test_rows_that_were_played_again_after_a_resume_count_once(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"frames": frames, "turn": i} for i, frames in enumerate([10, 20, 30, 25, 35])))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 40, "tu')
    found = [(row["frames"], row["turn"]) for row in read_rows(RunFolder(tmp_path))]
    assert found == [(10, 0), (20, 1), (25, 3), (35, 4)]


PONG = [curve("ALE/Pong-v5", seed, [-21.0, 21.0], frames=1) for seed in (1, 2, 3)]
QBERT = [curve("ALE/Qbert-v5", 1, [0.0, 15_000.0]), curve("ALE/Qbert-v5", 1, [0.0, 4_000.0], rate=2e-3)]


def drawn(curves: Sequence[Curve]) -> list[Axes]:
    with curves_figure(bands(curves), "frames", "return") as figure:
        return figure.axes


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [" ".join(text.get_text().split()) for text in found.get_texts()]


def test_each_environment_has_its_own_scale() -> None:
    pong, qbert = drawn([*PONG, *QBERT])
    assert (pong.get_title("left"), qbert.get_title("left")) == ("ALE/Pong-v5", "ALE/Qbert-v5, one run each")
    assert max(pong.get_ylim()) < 30
    assert max(qbert.get_ylim()) > 15_000
    assert legend(pong) == ["median of 3 seeds, quartiles; thin: each seed"]
    assert legend(qbert) == ["learning_rate 0.001", "learning_rate 0.002"]


def test_a_legend_says_how_many_seeds_a_band_is_of_where_they_differ() -> None:
    late, short = PONG[1]._replace(x=PONG[1].x + 0.5), PONG[2]._replace(x=0.8 * PONG[2].x)
    for curves, seeds in (
        (PONG, "3 seeds"),
        ([PONG[0], PONG[1], short], "3 seeds (2 at the end)"),
        ([PONG[0], late, short], "3 seeds (2 at the start, 2 at the end)"),
        ([PONG[0], PONG[1]._replace(x=PONG[1].x + 2)], "2 seeds, no two of which overlap"),
    ):
        (axes,) = drawn(curves)
        assert legend(axes) == [f"ALE/Pong-v5: median of {seeds}, quartiles; thin: each seed"]
        assert axes.get_xlim()[0] == 0.0


def test_plot_draws_an_aggregate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for game, seed in itertools.product(("ALE/Pong-v5", "ALE/Breakout-v5"), (1, 2)):
        rows = [{"frames": frames, "mean_return_100": 2.0 + seed * frames} for frames in (0, 5, 10)]
        config = RunConfig(seed=seed, environment=EnvironmentConfig(id=game))
        written_run(tmp_path / f"{game[4:]}-{seed}", rows, config)
    file = tmp_path / "iqm.json"
    assert main(["plot", str(tmp_path), "--aggregate", "iqm", "--json", str(file)]) == 0
    (group,) = json.loads(file.read_text())["groups"]
    assert group["games"] == {"ALE/Breakout-v5": 2, "ALE/Pong-v5": 2}
    assert len(group["x"]) == len(group["interquartile_mean"]) == len(group["interval_95_low"])
    assert "2 games, 4 runs: at 10 frames interquartile mean of human-normalised returns" in capsys.readouterr().out
    assert (tmp_path / "curve.png").is_file()


def test_a_run_in_which_no_episode_has_ended_has_no_curve_yet(tmp_path: Path, refused: Callable[[str], str]) -> None:
    written_run(tmp_path, [{"frames": 5}])
    assert "no training episode has ended, so that" in refused(f"plot {tmp_path}")
    assert "--y nothing: " in refused(f"plot {tmp_path} --y nothing")


def test_plots_of_several_runs_go_into_their_common_folder(
    cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side_by_side = [tmp_path / "seeds" / run.name for run in cartpole_runs]
    apart = tmp_path / "elsewhere" / "run"
    for run, copy in zip([*cartpole_runs, cartpole_runs[1]], [*side_by_side, apart], strict=True):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    cases = [([tmp_path / "seeds"], tmp_path / "seeds"), ([side_by_side[0], apart], here), ([apart], apart)]
    for runs, folder in cases:
        before = set(tmp_path.rglob("*"))
        assert main(["plot", *map(str, runs)]) == 0
        assert main(["report", *map(str, runs)]) == 0
        made = {folder / name for name in ("curve.png", "curve.svg", "report.html")}
        assert set(tmp_path.rglob("*")) - before == made
        out = capsys.readouterr().out
        assert all(str(file) in out for file in made)
    with Image.open(apart / "curve.png") as opened:
        assert json.loads(opened.text["Description"]).keys() >= {"command", "revision", "hardware"}


def test_a_run_without_a_row_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, rows in ((1, [{"frames": 5, "mean_return_100": 1.0}, {"frames": 9, "mean_return_100": 2.0}]), (2, [])):
        written_run(tmp_path / f"seed-{seed}", rows, RunConfig(seed=seed))
    for command in ("plot", "report"):
        assert main([command, str(tmp_path)]) == 0
        assert f"left out: {tmp_path / 'seed-2'} has no metrics yet" in capsys.readouterr().out.replace("\n", "")
    assert (tmp_path / "curve.svg").is_file()
    assert (tmp_path / "report.html").is_file()
