"""Rows, views and messages of a run, and the learning rate that reaches 0 before its end."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from learners import make_learner, report
from waiting import UNTIL_FRAMES

from launch.cli import main
from launch.presets import PRESETS
from launch.run.events import Message, Progress
from launch.run.folder import RunFolder
from launch.run.metrics import Messages, Metrics, Reporting, annealing_warning, dropped_message
from launch.run.tensorboard import scalars
from shared.config import OptimizerConfig, RunConfig
from shared.types import StageSeconds


def reporting_of(metrics: Metrics, config: RunConfig, folder: Path, now: Callable[[], float], on_row: Any) -> Reporting:
    progress = lambda: metrics.progress(now(), 1, 0)  # noqa: E731
    return Reporting(config, RunFolder(folder), metrics, progress, on_row, Messages(folder / "log.txt"))


def test_a_run_of_seconds_has_rows_by_its_frames_and_views_of_a_second(cartpole: RunConfig, tmp_path: Path) -> None:
    """100 reports in 6 seconds, first of 200 frames and then of 600."""
    config = replace(cartpole, total_frames=40_000, log_every_seconds=10.0)
    learner, now, views, tracked = make_learner(config), 0.0, dict[float, float](), list[float]()
    metrics = Metrics(learner)
    reporting = reporting_of(metrics, config, tmp_path, lambda: now, lambda row: tracked.append(row.elapsed_seconds))
    clock = lambda: (now, learner.account.frames)  # noqa: E731
    reporting.start(0.0)
    for sequence in range(1, 101):
        now, before = now + 0.0625, reporting.latest
        steps = 200 if learner.account.frames < 10_000 else 600
        metrics.add(learner.submit(report(sequence, agent_steps=steps)), now)
        if now == 2.25:
            metrics.add_evaluation({"mean_return": 1.0})
        for timer in reporting.timers:
            timer.tick(clock)
        if reporting.latest is not before:
            views[reporting.latest.elapsed_seconds] = reporting.latest.frames_per_second
    assert list(views) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    # Trackers take longer for a row than the file.
    assert tracked == [1.0, 2.0, 2.25, 3.0, 4.0, 5.0, 6.0]
    assert list(views.values())[:2] == [3_200.0, 3_200.0]
    assert list(views.values())[-1] == 9_600.0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 100
    assert max(b["frames"] - a["frames"] for a, b in pairwise(rows)) <= 600


def test_rates_hold_between_rollouts_and_fall_when_none_comes(cartpole: RunConfig, tmp_path: Path) -> None:
    """A rollout of 300 agent steps every 3 seconds, with two more gradients of it after the first; a row a second."""
    config = replace(cartpole, log_every_seconds=1.0)
    learner, now, rates = make_learner(config), 0.0, list[float]()
    metrics = Metrics(learner)
    reporting = reporting_of(metrics, config, tmp_path, lambda: now, lambda _row: None)
    clock = lambda: (now, learner.account.frames)  # noqa: E731

    def second(sequence: int, agent_steps: int | None) -> float:
        nonlocal now
        now += 1.0
        if agent_steps is not None:
            metrics.add(learner.submit(report(sequence, agent_steps=agent_steps)), now - 0.5)
        for timer in reporting.timers:
            timer.tick(clock)
        return reporting.latest.agent_steps_per_second

    reporting.start(0.0)
    rates = [second(sequence, 300 if sequence % 3 == 0 else 0) for sequence in range(1, 13)]
    assert rates[:2] == [0.0, 0.0]
    # The first one took 2.5 seconds.
    assert rates[2:5] == [120.0] * 3
    assert rates[5:] == [100.0] * 7
    metrics.drains = True
    assert [second(0, None) for _ in range(5)] == [100.0] * 5
    metrics.drains = False
    assert second(0, None) == pytest.approx(300 / 6.5)


def test_a_run_has_rows_by_its_frames(tmp_path: Path) -> None:
    """A 200th of them is 50, which two rollouts of 40 exceed."""
    line = f"train cartpole --executor inline --actors 1 --total-frames 10000 --log-every-seconds 1000 {UNTIL_FRAMES}"
    rollouts = "--actor.environments 8 --actor.unroll-length 5 --actor.minibatches 1"
    assert main(f"{line} {rollouts} --run-dir {tmp_path / 'run'}".split()) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 100 < len(rows) <= 200
    assert all(b["frames"] - a["frames"] >= 50 for a, b in pairwise(rows[:-1]))
    assert sum(row["interval_episodes"] for row in rows) == rows[-1]["episodes"] > 0
    assert rows[0]["episodes"] < 100
    assert rows[0]["interval_mean_return"] == pytest.approx(rows[0]["mean_return_100"])


@pytest.mark.parametrize(("empty", "rows"), [(False, 2), (True, 1)])
def test_an_end_right_after_a_row_writes_none(empty: bool, rows: int, cartpole: RunConfig, tmp_path: Path) -> None:
    """It would say that nothing was played in no time, and a terminal would keep that."""
    file, learner = tmp_path / "metrics.jsonl", make_learner(cartpole)
    # A killed process left half a line. The first row of the resumed run follows the whole lines.
    file.write_text('{"frames": 100}\n{"frames": 2')
    metrics = Metrics(learner)
    reporting = reporting_of(metrics, cartpole, tmp_path, lambda: 1.0, lambda _row: None)
    reporting.write_row()
    if not empty:
        metrics.add(learner.submit(report()), 1.0)
    shown = reporting.latest
    reporting.write_last_row()
    written = [json.loads(line)["frames"] for line in file.read_text().splitlines()]
    assert (written[0], len(written)) == (100, 1 + rows)
    assert (reporting.latest is shown) == empty


def test_an_interval_of_later_gradients_has_no_passes(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole)
    metrics = Metrics(learner)
    seconds = StageSeconds(0.1, 0.2, 0.3, 0.0, 0.0)
    metrics.add(learner.submit(report(1, samples=10, stage_seconds=seconds)), 1.0)
    metrics.add(learner.submit(report(2, samples=30, agent_steps=0, stage_seconds=seconds)), 1.0)
    row = metrics.progress(1.0, 1, 0)
    assert row.passes == 4.0
    assert row.stage_microseconds["gradient"] == pytest.approx(6e4)
    metrics.next_interval(row)
    assert metrics.progress(2.0, 1, 0).passes is None
    metrics.add(learner.submit(report(3, samples=40, agent_steps=0, stage_seconds=seconds)), 1.0)
    row = metrics.progress(2.0, 1, 0)
    assert (row.passes, row.stage_microseconds) == (None, {})
    assert row.gradients_per_second == 1.0
    assert "learning/passes" not in dict(scalars(row))


def test_a_network_that_dies_without_learning_is_named_once(cartpole: RunConfig) -> None:
    metrics = Metrics(make_learner(cartpole))
    sick, healthy = (Progress(statistics={"dead_units": 0.85, "explained_variance": value}) for value in (0.0, 0.5))
    warnings = [metrics.next_interval(row) or "" for row in (sick, healthy, *[sick] * 8)]
    assert [i for i, warning in enumerate(warnings) if warning] == [7]
    assert "85% of the hidden units are dead" in warnings[7]


def test_the_documents_list_every_column() -> None:
    text = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    table = text.split("## Columns of metrics.jsonl")[1].split("\n## ")[0]
    listed = [name for line in table.splitlines() for name in re.findall("`([^`]+)`", line.partition(" | ")[0])]
    columns = [field.name for field in fields(Progress)]
    assert listed[: len(columns) - 3] == columns[:-3]
    assert columns[-3:] == ["statistics", "info", "own"]
    assert "own/NAME" in listed


def test_a_message_is_logged_and_shown_once(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no" / "such" / "folder"):
        messages = Messages(folder / "log.txt")
        messages.log("actor 3 joins")
        assert (messages.take(), messages.take()) == ([Message("actor 3 joins")], [])
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d actor 3 joins", line)


def test_dropped_reports_are_logged_tenfold() -> None:
    told = {count: message for count in range(1, 1001) if (message := dropped_message("too_old", count, 7))}
    assert list(told) == [1, 10, 100, 1000]
    assert told[1] == "dropped a report for the reason too_old, of actor 7"
    assert told[100] == "dropped the 100th report for the reason too_old, of actor 7"


def test_a_learning_rate_that_ends_before_its_run() -> None:
    for config in (preset.config for preset in PRESETS.values()):
        # Also where more frames are requested than the preset has.
        for frames in (config.total_frames, 2 * config.total_frames):
            assert replace(config, total_frames=frames).annealing_frames >= frames
    early = replace(PRESETS["pong"].config, optimizer=OptimizerConfig(annealing_frames=1_000), total_frames=2_000)
    warning = annealing_warning(early)
    assert warning.startswith("--optimizer.annealing-frames 1,000 is before --total-frames 2,000: the learning rate is")
    for optimizer in (OptimizerConfig(schedule="constant", annealing_frames=1_000), OptimizerConfig()):
        assert annealing_warning(replace(PRESETS["pong"].config, optimizer=optimizer)) is None
