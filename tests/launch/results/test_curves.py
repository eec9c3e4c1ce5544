"""Curves of runs, their medians against numbers worked out by hand, and plots of them."""

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from written_runs import curve, write_rows, written_run

from launch.cli import main
from launch.results.curves import Curve, XAxis, bands, curve_of, read_metrics, read_rows
from launch.results.plot import curves_figure, default_output
from launch.run.folder import RunFolder
from shared.config import OptimizerConfig, RunConfig


def test_seeds_of_very_different_speed_end_where_they_end() -> None:
    """The band goes as far as all seeds do: where a good seed has ended, the median of the others would fall."""
    # The first and the last second of each seed, and its last return.
    seeds = {1: (0.1, 4.3, 10.0), 2: (1.0, 9.0, 20.0), 3: (5.0, 40.0, 30.0)}
    runs = [
        curve("CartPole-v1", seed, [0.0, most])._replace(x=np.array([first, last]))
        for seed, (first, last, most) in seeds.items()
    ]
    (band,) = bands(runs)
    assert (band.x.size, band.median.size) == (0, 0)
    # From second 1 to second 4.3.
    (band,) = bands(runs[:2])
    assert (band.x[0], band.x[-1]) == (1.0, 4.3)
    assert band.median[-1] == pytest.approx((10.0 + 20.0 * 3.3 / 8) / 2)
    (alone,) = bands(runs[:1])
    assert (alone.x[-1], alone.median[-1]) == (4.3, 10.0)


def test_a_curve_of_one_point_is_seen() -> None:
    one = curve("CartPole-v1", 1, [3.0])
    with curves_figure(bands([one]), "frames", "return") as figure:
        assert figure.axes[0].lines[0].get_marker() == "o"


def test_a_null_breaks_neither_curve_nor_plot_nor_report(tmp_path: Path, refused: Callable[[str], str]) -> None:
    """As the mean of returns that are not finite."""
    page, row = tmp_path / "report.html", {"episodes": 3, "stage_microseconds": {"acting": 5.0}}
    bad = {"frames": 7, "agent_steps": 2, "elapsed_seconds": 0.5, "mean_return": None, "median_return": None}
    bad |= {"standard_error": None, "collapsed_episodes": None, "episodes": 4}
    good = bad | {"frames": 12, "mean_return": -3.0, "median_return": -3.0}
    rows = row | {"frames": 10, "evaluations": [bad]}, row | {"frames": 20, "mean_return_100": 1.0}
    run = str(written_run(tmp_path, rows))
    read = curve_of(read_metrics(tmp_path), "frames", "mean_return_100")
    assert (read.x.tolist(), read.y.tolist(), read.evaluations.size) == ([20.0], [1.0], 0)
    assert main(["plot", run]) == main(["report", run]) == 0
    assert "--y evaluation_return: " in refused(f"plot {run} --y evaluation_return")
    write_rows(tmp_path, rows[1] | {"evaluations": [good, bad | {"frames": 13}]})
    assert curve_of(read_metrics(tmp_path), "frames", "mean_return_100").evaluations.tolist() == [[12.0], [-3.0], [0.0]]
    assert main(["report", run]) == 0
    assert "<td>-3.00, median -3.00, - collapsed, at 12 frames</td>" in page.read_text()
    write_rows(tmp_path, {"frames": 10, "stage_microseconds": {}, "episodes": 3})
    assert "no training episode with a finite return" in refused(f"plot {run}")
    assert main(["report", run]) == 0
    assert "no training episode with a finite return" in page.read_text()


def test_rows_that_were_played_again_after_a_resume_count_once(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"frames": frames, "turn": i} for i, frames in enumerate([10, 20, 30, 25, 25, 35])))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 40, "tu')
    found = [(row["frames"], row["turn"]) for row in read_rows(RunFolder(tmp_path))]
    assert found == [(10, 0), (20, 1), (25, 4), (35, 5)]


def test_a_row_without_new_frames_stays_unless_it_has_no_later_seconds(tmp_path: Path) -> None:
    """While actors evaluate, and between the gradients of one rollout, no frames are played."""
    times = [(10, 1.0), (20, 2.0), (20, 3.0), (20, 3.0), (30, 4.0)]
    write_rows(tmp_path, *({"frames": f, "elapsed_seconds": s, "turn": i} for i, (f, s) in enumerate(times)))
    assert [row["turn"] for row in read_rows(RunFolder(tmp_path))] == [0, 1, 3, 4]


def test_seconds_of_a_curve_never_fall(tmp_path: Path) -> None:
    """After a resume they begin with those of the checkpoint."""
    rows = [(10, 5.0), (20, 4.0), (30, 6.0)]
    run = written_run(tmp_path, ({"frames": f, "elapsed_seconds": s, "mean_return_100": 1.0} for f, s in rows))
    assert list(curve_of(read_metrics(run), "seconds", "mean_return_100").x) == [5.0, 5.0, 6.0]


PONG = [curve("ALE/Pong-v5", seed, [-21.0, 21.0], frames=1) for seed in (1, 2, 3)]
QBERT = [curve("ALE/Qbert-v5", 1, [0.0, 15_000.0]), curve("ALE/Qbert-v5", 2, [0.0, 4_000.0], rate=2e-3)]


def drawn(curves: Sequence[Curve], x: XAxis = "frames") -> tuple[list[Axes], list[str]]:
    """The panels of a figure, and the labels of its legend."""
    with curves_figure(bands(curves), x, "return") as figure:
        (legend,) = figure.legends
        return figure.axes, [text.get_text() for text in legend.get_texts()]


def test_each_environment_has_its_own_scale() -> None:
    """A legend names presets, and settings only between runs of one preset."""
    others = [curve("ALE/Pong-v5", 1, [0.0, 1.0], rate=rate, preset="a3c") for rate in (2e-3, 3e-3)]
    (pong, qbert), labels = drawn([PONG[0], *others, *QBERT])
    assert (pong.get_title("left"), qbert.get_title("left")) == (
        "ALE/Pong-v5, one run each",
        "ALE/Qbert-v5, one run each",
    )
    assert max(pong.get_ylim()) < 30
    assert max(qbert.get_ylim()) > 15_000
    assert labels == [
        "ALE/Pong-v5, pong",
        "ALE/Pong-v5, a3c, learning_rate 0.002",
        "ALE/Pong-v5, a3c, learning_rate 0.003",
        "ALE/Qbert-v5, learning_rate 0.001",
        "ALE/Qbert-v5, learning_rate 0.002",
    ]
    _, labels = drawn([PONG[0], curve("ALE/Pong-v5", 1, [0.0, 1.0], rate=2e-3, preset="")])
    assert labels == ["ALE/Pong-v5, pong", "ALE/Pong-v5, no preset"]


def test_a_time_is_in_its_largest_unit() -> None:
    for seconds, unit, end in ((100, "seconds", 100), (3600, "minutes", 60), (9 * 3600, "hours", 9)):
        x = np.array([0.0, seconds])
        (axes,), _ = drawn([PONG[0]._replace(x=x, evaluations=np.array([x, x, x]))], "seconds")
        assert axes.get_xlabel() == f"{unit} of training"
        assert [line.get_xdata()[-1] for line in axes.lines] == [end, end]


def test_a_run_counts_once_and_one_without_a_row_is_left_out(tmp_path: Path, capsys) -> None:
    row = {"frames": 5, "mean_return_100": 1.0, "episodes": 1, "stage_microseconds": {}}
    for name, seed, rows in (("a", 1, [row]), ("b", 1, [row]), ("c", 2, [row]), ("d", 3, [])):
        written_run(tmp_path / name, rows, RunConfig(seed=seed))
    shown = []
    # Not in the style of the user: LaTeX, which papers are set with, may not be installed.
    with rc_context({"text.usetex": True}):
        for command in (["plot"], ["report"], ["plot", str(tmp_path / "a" / ".." / "b"), f"--output={tmp_path}/x.svg"]):
            assert main([*command, str(tmp_path)]) == 0
            shown.append(capsys.readouterr().out.replace("\n", ""))
            assert f"left out: {tmp_path / 'd'} has no metrics yet" in shown[-1]
    assert "ALE/Pong-v5: at the end 1.0 (seed 1), 1.0 (seed 1), 1.0 (seed 2)" in shown[0]
    assert "ALE/Pong-v5, 3 runs" in (tmp_path / "report.html").read_text()
    assert shown[2].count("(seed ") == 3, "the same run twice is one"
    assert (tmp_path / "curve.svg").is_file()


def test_labels_and_a_grid_for_other_programs(tmp_path: Path, refused: Callable[[str], str]) -> None:
    """Each run is at the same x in the file of --json, where all have data."""
    for name, seed, rate, frames in (("a", 1, 1e-3, (0, 10)), ("b", 2, 1e-3, (2, 12)), ("c", 1, 2e-3, (1, 8))):
        rows = [{"frames": each, "mean_return_100": float(each)} for each in frames]
        written_run(tmp_path / name, rows, RunConfig(seed=seed, optimizer=OptimizerConfig(learning_rate=rate)))
    out, found = tmp_path / "curve.pdf", tmp_path / "curve.json"
    assert main(["plot", str(tmp_path), f"--output={out}", f"--json={found}", "--labels", "slow", "fast"]) == 0
    assert out.read_bytes()[:5] == b"%PDF-"
    made = json.loads(found.read_text())
    assert [group["label"] for group in made["groups"]] == ["slow", "fast"]
    assert (made["grid"][0], made["grid"][-1]) == (2.0, 8.0)
    for run in (run for group in made["groups"] for run in group["runs"]):
        assert run["on_grid"] == pytest.approx(made["grid"])
    line = refused(f"plot {tmp_path} --labels slow")
    assert (
        "--labels slow: 2 labels are needed, for ALE/Pong-v5, learning_rate 0.001; ALE/Pong-v5, learning_rate" in line
    )


def test_the_metadata_of_a_picture_has_no_folders_of_a_machine(
    working_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, row = tmp_path_factory.mktemp("elsewhere"), {"frames": 5, "mean_return_100": 1.0}
    here = written_run(working_folder / "runs" / "a", [row])
    line = ["plot", str(here), str(written_run(elsewhere / "b", [row])), f"--output={elsewhere / 'c.svg'}"]
    monkeypatch.setattr("sys.argv", ["/some/where/bin/tributary", *line])
    assert main(line) == 0
    text = (elsewhere / "c.svg").read_text()
    assert not {str(folder) for folder in (elsewhere, working_folder) if str(folder) in text}
    made = json.loads(html.unescape(re.findall("<dc:description>(.*)</dc:description>", text)[0]))
    assert (made["runs"], made["command"]) == (["a", "b"], "tributary plot a b --output=c.svg")


def test_plots_of_several_runs_go_into_their_common_folder(working_folder: Path) -> None:
    runs = [working_folder / name for name in ("seeds/1", "seeds/2", "elsewhere/run")]
    assert default_output(runs[:2], "curve.png") == working_folder / "seeds" / "curve.png"
    assert default_output(runs, "curve.png") == working_folder / "curve.png"
    assert default_output(runs[2:], "curve.png") == working_folder / "elsewhere" / "run" / "curve.png"
