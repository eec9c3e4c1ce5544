"""Rows, views and messages of a run, and the learning rate that reaches 0 before its end."""

import json
import re
import resource
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learners import make_learner, report

from launch.presets import PRESETS
from launch.run.events import Message, Progress
from launch.run.folder import RunFolder
from launch.run.metrics import Messages, Metrics, Timer, annealing_warning, append_line, drop_rows_after
from launch.run.tensorboard import scalars
from shared.config import OptimizerConfig, RunConfig
from shared.types import EpisodeStats, StageSeconds


class Played:
    """The metrics of a learner, by a clock that the test sets. `tracked` are the seconds of the rows for trackers."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.learner, self.messages = make_learner(config), Messages(folder / "log.txt")
        self.seconds, self.tracked = 0.0, list[float]()
        now = lambda: (self.seconds, 2, 0)  # noqa: E731
        track = lambda row: self.tracked.append(row.elapsed_seconds)  # noqa: E731
        self.metrics = Metrics(config, RunFolder(folder), self.learner, now, track, self.messages)

    def report(self, sequence: int = 1, **values: Any) -> None:
        self.metrics.add(self.learner.submit(report(sequence, **values)))

    def tick(self) -> None:
        for timer in self.metrics.timers:
            timer.tick(lambda: (self.seconds, self.learner.account.frames))


def test_an_interval_ends_by_seconds_or_by_frames() -> None:
    now, called = [100.0, 1_000], list[tuple[float, str]]()

    def save() -> None:
        called.append((now[0], "save"))
        # It takes three seconds.
        now[0] += 3.0

    begin = (100.0, 1_000)
    timers = (
        Timer(save, seconds=60.0, frames=500, since=begin),
        Timer(lambda: called.append((now[0], "row")), seconds=1e9, frames=700, since=begin),
        Timer(lambda: called.append((now[0], "view")), seconds=64.0, since=begin),
    )
    for seconds, frames in ((159.9, 1_399), (160.0, 1_400), (222.9, 1_499), (223.0, 1_499), (226.5, 1_500)):
        now[:] = seconds, frames
        for timer in timers:
            timer.tick(lambda: (now[0], now[1]))
    # 223 seconds are 60 after the first save, and 1,500 frames are a multiple. A timer without frames has its seconds.
    assert called == [(160.0, "save"), (163.0, "row"), (222.9, "view"), (223.0, "save"), (226.5, "save")]


def test_a_run_of_seconds_has_rows_by_its_frames_and_views_of_a_second(cartpole: RunConfig, tmp_path: Path) -> None:
    """100 reports in 6 seconds, first of 200 frames and then of 600."""
    run = Played(replace(cartpole, total_frames=40_000, log_every_seconds=10.0), tmp_path)
    views = dict[float, float]()
    for sequence in range(1, 101):
        run.seconds, before = run.seconds + 0.0625, run.metrics.latest
        run.report(sequence, agent_steps=200 if run.learner.account.frames < 10_000 else 600)
        if run.seconds == 2.25:
            run.metrics.add_evaluation({"mean_return": 1.0})
        run.tick()
        if run.metrics.latest is not before:
            views[run.metrics.latest.elapsed_seconds] = run.metrics.latest.frames_per_second
            assert run.metrics.latest.gradients_per_second > 0, "the view of a row's moment is the row"
    assert list(views) == [1.0, 2.0, 2.25, 3.0, 4.0, 5.0, 6.0], "the evaluation's row, too"
    # Trackers take longer for a row than the file.
    assert run.tracked == [1.0, 2.0, 2.25, 3.0, 4.0, 5.0, 6.0]
    assert (views[1.0], views[2.0], views[6.0]) == (3_200.0, 3_200.0, 9_600.0)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 100
    # From the evaluation on.
    assert [row["evaluation_return"] == 1.0 for row in rows] == [row["elapsed_seconds"] >= 2.25 for row in rows]
    assert max(b["frames"] - a["frames"] for a, b in pairwise(rows)) <= 600


def test_rates_hold_between_rollouts_and_fall_when_none_comes(cartpole: RunConfig, tmp_path: Path) -> None:
    """A rollout of 300 agent steps every 3 seconds, with two more gradients of it after the first; a row a second."""
    run = Played(replace(cartpole, log_every_seconds=1.0), tmp_path)

    def second(sequence: int | None = None) -> float:
        run.seconds += 0.5
        if sequence is not None:
            run.report(sequence, agent_steps=300 if sequence % 3 == 0 else 0)
        run.seconds += 0.5
        run.tick()
        return run.metrics.latest.agent_steps_per_second

    # The first rollout took 2.5 seconds.
    assert [second(sequence) for sequence in range(1, 13)] == [0.0] * 2 + [120.0] * 3 + [100.0] * 7
    run.metrics.drains = True
    assert [second() for _ in range(5)] == [100.0] * 5
    run.metrics.drains = False
    assert second() == pytest.approx(300 / 6.5)


@pytest.mark.parametrize(("empty", "rows"), [(False, 2), (True, 1)])
def test_an_end_right_after_a_row_writes_none(empty: bool, rows: int, cartpole: RunConfig, tmp_path: Path) -> None:
    """It would say that nothing was played in no time, and a terminal would keep that."""
    file = tmp_path / "metrics.jsonl"
    # A killed process left half a line. The first row of the resumed run follows the whole lines.
    file.write_text('{"frames": 0, "before": 1}\n{"frames": 2')
    run = Played(cartpole, tmp_path)
    run.seconds = 1.0
    run.metrics.write_row()
    if not empty:
        run.report()
    shown = run.metrics.latest
    run.metrics.write_last_row()
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert (written[0], len(written)) == ({"frames": 0, "before": 1}, 1 + rows)
    assert (run.metrics.latest is shown) == empty


def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    append_line(file, b"whole\n")
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, most))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            append_line(file, b"another\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    append_line(file, b"last\n")
    assert file.read_bytes() == b"whole\nlast\n"


def test_an_interval_of_later_gradients_has_no_passes(cartpole: RunConfig, tmp_path: Path) -> None:
    run, seconds = Played(cartpole, tmp_path), StageSeconds(0.1, 0.2, 0.3, 0.0, 0.0)
    run.report(1, samples=10, stage_seconds=seconds)
    run.report(2, samples=30, agent_steps=0, stage_seconds=seconds)
    row = run.metrics.progress()
    assert (row.passes, row.stage_microseconds["gradient"]) == (4.0, pytest.approx(6e4))
    run.metrics.write_row()
    assert run.metrics.progress().passes is None
    run.report(3, samples=40, agent_steps=0, stage_seconds=seconds)
    run.seconds = 1.0
    row = run.metrics.progress()
    assert (row.passes, row.stage_microseconds, row.gradients_per_second) == (None, {}, 1.0)
    assert "learning/passes" not in scalars(row)


def test_a_row_is_of_accepted_gradients_and_of_each_episode_once(cartpole: RunConfig, tmp_path: Path) -> None:
    run = Played(cartpole, tmp_path)
    run.report(1, returns=(3.0,), statistics={"entropy": 0.5})
    # A duplicate, and one of unknown weights, whose episode was played, too.
    run.report(1, returns=(3.0,), statistics={"entropy": 9.0})
    run.report(2, version=9, returns=(5.0,), statistics={"entropy": 9.0})
    row = run.metrics.progress()
    assert (row.policy_lag_counts, row.statistics) == ({0: 1}, {"entropy": 0.5})
    assert (row.interval_episodes, row.interval_mean_return) == (2, 4.0)
    assert row.agent_steps_in_flight == 2 * cartpole.actor.agent_steps_in_flight


def test_a_statistic_of_a_users_method_replaces_no_column(cartpole: RunConfig, tmp_path: Path) -> None:
    run = Played(cartpole, tmp_path)
    run.report(1, statistics={"frames": 9e9, "temperature": 0.5})
    run.metrics.write_row()
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["frames"], row["own/frames"], row["temperature"]) == (run.learner.account.frames, 9e9, 0.5)


def test_a_network_that_dies_without_learning_is_named_once(cartpole: RunConfig, tmp_path: Path) -> None:
    run, warned_at = Played(cartpole, tmp_path), list[int]()
    for sequence, explained in enumerate([0.0, 0.5, *[0.0] * 8], 1):
        run.report(sequence, statistics={"dead_units": 0.85, "explained_variance": explained})
        run.metrics.write_row()
        texts = [event.text for event in run.messages.take() if isinstance(event, Message)]
        warned_at += [sequence for text in texts if "85% of the hidden units are dead" in text]
    assert warned_at == [8]


def test_a_name_that_is_no_number_is_warned_of_once(cartpole: RunConfig, tmp_path: Path) -> None:
    """After 100 episodes, and at the end after any."""
    names = replace(cartpole.environment, log_info=("right", "wrong", "late"))
    run, logged = Played(replace(cartpole, environment=names), tmp_path), list[str]()
    for sequence, late in enumerate([np.nan, np.nan, 1.0], 1):
        info = {"right": np.array([np.nan] * 59 + [0.5]), "wrong": np.full(60, np.nan), "late": np.full(30, late)}
        run.report(sequence, episodes=EpisodeStats(np.ones(60), np.ones(60, int), info, np.zeros(60, int)))
        run.metrics.write_row()
        logged += [event.text for event in run.messages.take() if isinstance(event, Message)]
    assert [text.split(":")[1] for text in logged] == [" --environment.log-info wrong"]
    run = Played(replace(cartpole, environment=names), tmp_path)
    run.report(1, episodes=EpisodeStats(np.ones(1), np.ones(1, int), {"right": np.array([np.nan])}, np.zeros(1, int)))
    run.metrics.write_last_row()
    assert "log-info right: the info at the end of 1 episode has no number" in str(run.messages.take())


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


def test_a_full_disk_costs_no_rows_of_before(tmp_path: Path) -> None:
    """At a resume after a kill: the later ones stay, and readers pass over them."""
    file, rows = tmp_path / "metrics.jsonl", [b'{"frames": %d}\n' % frames for frames in (1, 2, 3)]
    file.write_bytes(b"".join(rows))
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, most))
    try:
        drop_rows_after(file, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert file.read_bytes() == b"".join(rows)
    drop_rows_after(file, 2)
    assert file.read_bytes() == b"".join(rows[:2])


def test_a_row_has_means_over_its_gradients_and_the_norms_of_its_updates(cartpole: RunConfig, tmp_path: Path) -> None:
    run = Played(cartpole, tmp_path)
    for sequence, entropy, norm in ((1, 0.5, 2.0), (2, 1.5, np.nan)):
        outcome = run.learner.submit(report(sequence, statistics={"entropy": entropy}))
        run.metrics.add(outcome._replace(seconds=0.003, updated=sequence == 1, gradient_norm=norm))
    row = run.metrics.progress()
    assert row.learner_milliseconds == pytest.approx(3.0)
    assert (row.statistics, row.gradient_norm) == ({"entropy": 1.0}, 2.0)
