"""bench throughput and bench scaling: the steady state, the bound, a busy machine, and points."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.bench.scaling import summarise, verdict
from launch.bench.throughput import steady_state
from launch.cli import main
from launch.presets import PRESETS
from shared.config import ActorConfig, RunConfig
from shared.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


CONFIG = replace(PRESETS["pong"].config, actor=ActorConfig(environments=32, unroll_length=20))
CONFIGS = {actors: replace(CONFIG, actors=actors) for actors in (1, 2)}


def row(seconds: float, agent_steps: int, updates: int, environment: float = 250.0) -> dict:
    return {
        "elapsed_seconds": seconds,
        "agent_steps": agent_steps,
        "updates": updates,
        "agent_steps_per_second": 1_000.0,
        "stage_microseconds": {"environment": environment, "wait": 10.0},
        "learner_milliseconds": 2.0,
        "policy_lag_mean": 1.0,
        "policy_lag_max": int(seconds),
        "policy_lag_counts": {"1": 10},
        "agent_steps_dropped": {},
    }


def rows(rate: float) -> list[dict]:
    """The rows of a run, whose warm-up is over at second 10."""
    return [row(6.0, 10, 1), *(row(s, int(rate * (s - 5)), int(s)) for s in (10.0, 12.0, 14.0, 16.0))]


def test_a_steady_state_leaves_out_start_and_warm_up() -> None:
    """Actors report from second 6 on; 4 more are warm-up; seconds 10 to 14 count."""
    rows = [row(5.0, 0, 0), row(6.0, 10, 1), row(9.0, 500, 5, 999.0)]
    rows += [row(s, 1_000 * (s - 9), 10 * (s - 9), 240.0 + 10 * (s - 10)) for s in (10.0, 12.0, 14.0)]
    rows += [row(30.0, 99_999, 999, 999.0)]
    found = steady_state(CONFIG, rows, seconds=4.0)
    assert found["agent_steps_per_second"] == pytest.approx(1_000.0)
    assert found["frames_per_second"] == pytest.approx(4_000.0)
    assert found["updates_per_second"] == pytest.approx(10.0)
    assert found["learner_seconds_per_update"] == pytest.approx(0.002)
    gradients = 1_000.0 / (32 * 20 / CONFIG.actor.gradients_per_rollout)
    assert found["learner_utilisation"] == pytest.approx(0.002 * gradients)
    assert (found["policy_lag_p95"], found["policy_lag_max"]) == (1, 14)
    # A row is of the interval before it: those that end at 12 and 14.
    assert found["stage_seconds_per_step"]["environment"] == pytest.approx(270e-6)


def test_rows_of_intervals_without_a_gradient_count_as_time_only() -> None:
    """With rollouts that take longer than a row, every second row has neither rates nor statistics."""
    rows = [row(s, 1_000 * (s - 5), s - 5, 240.0) for s in range(6, 16)]
    for empty in rows[1::2]:
        empty |= {"agent_steps_per_second": 0.0, "policy_lag_counts": {}, "stage_microseconds": {"environment": 0.0}}
    found = steady_state(CONFIG, rows, seconds=4.0)
    assert found["stage_seconds_per_step"] == pytest.approx({"environment": 240e-6, "wait": 10e-6})
    for too_little in ([], [row(5.0, 0, 0), row(6.0, 10, 1)], rows[:1] + rows[1::2]):
        with pytest.raises(ConfigurationError, match="too short for the actors"):
            steady_state(CONFIG, too_little, seconds=9.0)


def test_an_interrupt_ends_the_measurement_at_once() -> None:
    command = [sys.executable, "-m", "launch.cli", "bench", "throughput", "--actor.environments", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd=ROOT
    ) as bench:
        assert "and the learner" in bench.stdout.readline()
        # As a terminal does: to all processes of the group.
        os.killpg(bench.pid, signal.SIGINT)
        assert bench.wait(240) == 130
        assert bench.stderr.read() == ""


def test_the_figures_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.bench.throughput.WARM_UP_SECONDS", 0.5)
    file = tmp_path / "throughput.json"
    assert main(f"bench throughput cartpole --executor inline --actors 1 --seconds 2 --json {file}".split()) == 0
    found = json.loads(file.read_text())
    assert found["agent_steps_per_second"] > 0
    assert found["frames_per_second"] == found["agent_steps_per_second"]
    assert found["settings"]["actors"] == 1
    assert "agent steps/s" in capsys.readouterr().out


def test_a_busy_machine_is_marked(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    made = rows(1_000)
    monkeypatch.setattr("launch.bench.throughput.train_for", lambda *_: made)
    file = tmp_path / "throughput.json"
    for load, factor, reasons in ((0.0, 1, 0), (1_000.0, 1, 1), (1_000.0, 3, 2)):
        made[-1] = row(16.0, 9_000 + 2_000 * factor, 99)
        monkeypatch.setattr("launch.bench.throughput.load_average", lambda load=load: load)
        assert main(f"bench throughput cartpole --json {file}".split()) == 0
        found, out = json.loads(file.read_text()), " ".join(capsys.readouterr().out.split())
        assert len(found["busy"]) == reasons, found["busy"]
        assert ("busy machine: load average 1000.0 on" in out) == bool(reasons)


def measured(rate: float, utilisation: float = 0.1, wait: float = 5e-6) -> dict[str, Any]:
    stages = {"environment": 340e-6, "acting": 40e-6, "gradient": 60e-6, "synchronise": 1e-6, "wait": wait}
    return {
        "agent_steps_per_second": rate,
        "frames_per_second": 4 * rate,
        "gradients_per_second": rate / 640,
        "updates_per_second": rate / 640,
        "policy_lag_mean": 0.5,
        "policy_lag_p95": 1,
        "policy_lag_max": 2,
        "learner_utilisation": utilisation,
        "agent_steps_dropped": {"too_old": 1},
        "stage_seconds_per_step": stages,
    }


def test_speed_up_and_efficiency_are_of_medians_against_one_actor() -> None:
    made = {1: list(map(measured, (2_000, 2_500, 9_999))), 2: list(map(measured, (100, 4_500, 4_700)))}
    one, two = summarise(CONFIGS, made)
    assert one["agent_steps_per_second"] == 2_500
    assert (two["least"], two["most"]) == (100, 4_700)
    assert two["speed_up"] == pytest.approx(4_500 / 2_500)
    assert two["efficiency"] == pytest.approx(0.9)
    assert two["agent_steps_dropped"] == {"too_old": 3}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (measured(3_900), "2 actors have 1.95 times the throughput of 1: no saturation"),
        (measured(2_500, utilisation=0.95), "it was busy 95% of its own: the learner is the bottleneck"),
        (measured(2_500, wait=200e-6), "Actors waited for the learner 31% of their time"),
        (measured(2_500), "Most work of actors is environment, 76% of their time"),
    ],
)
def test_the_verdict_names_what_holds_back(second: dict[str, Any], words: str) -> None:
    points = summarise(CONFIGS, {1: [measured(2_000)], 2: [second]})
    assert words in verdict(points, CONFIG)
    assert verdict(points[:1], CONFIG) == "one number of actors shows no saturation"


@pytest.mark.parametrize("before", [0, 2])
def test_interrupts_keep_points(before: int, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    turns: list[tuple[int | str, int]] = []

    def train_for(config: RunConfig, _seconds: float) -> list[dict]:
        if len(turns) == before:
            raise KeyboardInterrupt
        turns.append((config.actors, config.actor.unroll_length))
        return rows(2_000.0 * int(config.actors))

    monkeypatch.setattr("launch.bench.scaling.train_for", train_for)
    monkeypatch.setattr("launch.bench.scaling.load_average", lambda: 1_000.0)
    file = tmp_path / "scaling.json"
    assert main(f"bench scaling pong --actors 2,1 --actor.unroll-length 16 --json {file}".split()) == 130
    out = capsys.readouterr().out
    if not before:
        assert "interrupted; nothing was measured" in out
        assert not file.exists()
        return
    assert turns == [(1, 16), (2, 16)]
    result = json.loads(file.read_text())
    assert [(row["actors"], row["repeats"]) for row in result["points"]] == [(1, 1), (2, 1)]
    assert result.keys() >= {"command", "hardware", "versions", "settings", "verdict", "preset"}
    assert "no saturation" in out
    assert (len(result["busy"]), "busy machine: load average 1000.0 on" in out) == (1, True)
