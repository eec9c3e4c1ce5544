"""Interquartile means and their bands, against numbers worked out by hand."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from launch.cli import main
from launch.output import write_json
from launch.results.curves import Curve, aggregates, interquartile_mean, stratified_resamples
from launch.run.progress import Progress
from shared.config import EnvironmentConfig, OptimizerConfig, RunConfig
from shared.errors import ConfigurationError


def test_a_quarter_is_left_out_at_each_end() -> None:
    # Eight scores: 1, 2 and 70, 80 go; (3 + 4 + 50 + 60) / 4.
    assert interquartile_mean(np.array([80.0, 1.0, 3.0, 60.0, 2.0, 50.0, 4.0, 70.0])) == (3 + 4 + 50 + 60) / 4
    # Of six, one goes at each end: a quarter is 1.5, rounded down.
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


def curve(game: str, seed: int, y: list[float], *, frames: int = 100, rate: float = 1e-3) -> Curve:
    config = RunConfig(seed=seed, environment=EnvironmentConfig(id=game), optimizer=OptimizerConfig(learning_rate=rate))
    return Curve(Path(f"{game}-{seed}"), config, np.linspace(0, frames, len(y)), np.array(y))


def test_scores_of_several_games_are_human_normalised() -> None:
    # Pong: random -20.7, human 14.6. Breakout: random 1.7, human 30.5.
    pong = [curve("ALE/Pong-v5", seed, [-20.7, 14.6]) for seed in (1, 2)]
    breakout = [curve("ALE/Breakout-v5", seed, [1.7, 1.7 + 2 * 28.8]) for seed in (1, 2)]
    (group,) = aggregates([*pong, *breakout], "mean_return_100")
    assert group.games == {"ALE/Pong-v5": 2, "ALE/Breakout-v5": 2}
    # At the end 1, 1, 2, 2: the middle half are a 1 and a 2. In each game all runs agree, so every resample does.
    assert group.iqm[0] == pytest.approx(0.0)
    assert group.iqm[-1] == group.low[-1] == group.high[-1] == pytest.approx(1.5)


def test_a_group_of_one_game_is_normalised_beside_another_of_another_game() -> None:
    runs = [curve("ALE/Pong-v5", 1, [-20.7, 14.6]), curve("ALE/Breakout-v5", 1, [1.7, 30.5], rate=2e-3)]
    assert [group.iqm[-1] for group in aggregates(runs, "mean_return_100")] == pytest.approx([1.0, 1.0])


def test_one_game_is_as_it_was_measured_and_its_band_is_that_of_its_runs() -> None:
    runs = [curve("CartPole-v1", seed, [0.0, float(100 * seed)]) for seed in (1, 2, 3, 4)]
    (group,) = aggregates(runs, "mean_return_100")
    assert group.iqm[-1] == pytest.approx(250.0)
    assert 100 <= group.low[-1] < 200 < 300 < group.high[-1] <= 400


def test_groups_are_algorithms_and_the_shortest_run_sets_the_end() -> None:
    runs = [
        curve("CartPole-v1", 1, [1.0, 1.0]),
        curve("CartPole-v1", 2, [1.0, 1.0], frames=60),
        curve("CartPole-v1", 1, [5.0, 5.0], rate=2e-3),
    ]
    first, second = aggregates(runs, "mean_return_100")
    assert (first.label, second.label) == (
        "CartPole-v1, 2 runs, learning_rate 0.001",
        "CartPole-v1, 1 run, learning_rate 0.002",
    )
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


def test_plot_draws_an_aggregate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for game, seed in itertools.product(("ALE/Pong-v5", "ALE/Breakout-v5"), (1, 2)):
        folder = tmp_path / f"{game[4:]}-{seed}"
        folder.mkdir()
        config = replace(RunConfig(seed=seed), environment=EnvironmentConfig(id=game))
        write_json(folder / "config.json", msgspec.to_builtins(config))
        rows = [
            msgspec.to_builtins(Progress(frames=frames, mean_return_100=2.0 + seed * frames)) for frames in (0, 5, 10)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "iqm.json"
    assert main(["plot", str(tmp_path), "--aggregate", "iqm", "--json", str(file)]) == 0
    (group,) = json.loads(file.read_text())["groups"]
    assert group["games"] == {"ALE/Breakout-v5": 2, "ALE/Pong-v5": 2}
    assert len(group["x"]) == len(group["interquartile_mean"]) == len(group["interval_95_low"])
    assert "2 games, 4 runs: at 10 frames interquartile mean of human-normalised returns" in capsys.readouterr().out
    assert (tmp_path / "curve.png").is_file()


def test_a_run_in_which_no_episode_has_ended_has_no_curve_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "config.json", msgspec.to_builtins(RunConfig()))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(msgspec.to_builtins(Progress(frames=5))) + "\n")
    assert main(["plot", str(tmp_path)]) == 2
    assert "no training episode has ended in this run" in capsys.readouterr().err
    assert main(["plot", str(tmp_path), "--y", "nothing"]) == 2
    assert "--y nothing: " in capsys.readouterr().err
