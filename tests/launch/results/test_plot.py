"""`tributary plot`: panels, legends, files and their places."""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from PIL import Image
from written_runs import curve, written_run

from launch.cli import main
from launch.results.curves import Curve, bands
from launch.results.plot import curves_figure
from shared.config import EnvironmentConfig, RunConfig

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
    assert (pong.get_title("left"), qbert.get_title("left")) == ("ALE/Pong-v5", "ALE/Qbert-v5")
    assert max(pong.get_ylim()) < 30
    assert max(qbert.get_ylim()) > 15_000
    assert legend(pong) == ["median of 3 seeds, quartiles"]
    assert legend(qbert) == ["learning_rate 0.001", "learning_rate 0.002"]


def test_one_environment_stands_in_the_legend() -> None:
    (axes,) = drawn(PONG)
    assert legend(axes) == ["ALE/Pong-v5: median of 3 seeds, quartiles"]
    assert axes.get_ylabel() == "return"


def test_a_legend_says_how_many_seeds_a_band_is_of_where_they_differ() -> None:
    late, short = PONG[1]._replace(x=PONG[1].x + 0.5), PONG[2]._replace(x=0.8 * PONG[2].x)
    for curves, seeds in (
        ([PONG[0], PONG[1], short], "3 seeds (2 at the end)"),
        ([PONG[0], late, PONG[2]], "3 seeds (2 at the start)"),
        ([PONG[0], late, short], "3 seeds (2 at the start, 2 at the end)"),
        ([PONG[0], PONG[1]._replace(x=PONG[1].x + 2)], "2 seeds, no two of which overlap"),
    ):
        (axes,) = drawn(curves)
        assert legend(axes) == [f"ALE/Pong-v5: median of {seeds}, quartiles"]
        assert axes.get_xlim()[0] == 0.0


def test_four_environments_leave_no_empty_panel() -> None:
    assert len(drawn([curve(f"ALE/{game}-v5", 1, [0.0, 1.0]) for game in "ABCD"])) == 4


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


def test_what_is_made_of_several_runs_goes_into_the_folder_that_holds_them(
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
