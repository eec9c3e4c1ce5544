"""What the benches compute from what they measure, and one small run of each part."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from actors.environments import environment_spec
from launch.bench import components
from launch.bench.components import Components
from launch.bench.learner import sender_counts, summarise
from launch.bench.plain_work import make_works
from launch.bench.throughput import steady_state
from launch.bench.work import Work, seconds_per_agent_step
from launch.cli import main
from launch.presets import PRESETS
from shared.config import ActorConfig
from shared.errors import ConfigurationError
from shared.names import NETWORKS, NetworkEntry

ROOT = Path(__file__).parents[3]


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
        "ratio_deviation": 0.1,
    }


def test_a_steady_state_leaves_out_start_and_warm_up() -> None:
    """Actors report from second 6 on; 4 more are warm-up; seconds 10 to 14 count."""
    rows = [row(5.0, 0, 0), row(6.0, 10, 1), row(9.0, 500, 5, 999.0)]
    rows += [row(s, 1_000 * (s - 9), 10 * (s - 9), 240.0 + 10 * (s - 10)) for s in (10.0, 12.0, 14.0)]
    rows += [row(30.0, 99_999, 999, 999.0)]
    found = steady_state(rows, seconds=4.0)
    assert found["agent_steps_per_second"] == pytest.approx(1_000.0)
    assert found["updates_per_second"] == pytest.approx(10.0)
    assert found["learner_seconds_per_update"] == pytest.approx(0.002)
    assert found["policy_lag_max"] == 14
    # Each row tells of the interval before it: those that end at 12 and 14.
    assert found["stage_seconds_per_step"]["environment"] == pytest.approx(270e-6)


def test_rows_that_cover_too_little_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="too short for the actors"):
        steady_state([row(5.0, 0, 0), row(6.0, 10, 1)], seconds=4.0)
    with pytest.raises(ConfigurationError, match="too short for the actors"):
        steady_state([], seconds=4.0)


def test_rows_of_intervals_without_a_gradient_count_as_time_only() -> None:
    """With rollouts that take longer than a row, every second row has neither rates nor statistics."""
    rows = [row(s, 1_000 * (s - 5), s - 5, 240.0) for s in range(6, 16)]
    for empty in rows[1::2]:
        empty |= {"agent_steps_per_second": 0.0, "policy_lag_counts": {}, "stage_microseconds": {"environment": 0.0}}
        del empty["ratio_deviation"]
    found = steady_state(rows, seconds=4.0)
    assert found["stage_seconds_per_step"] == pytest.approx({"environment": 240e-6, "wait": 10e-6})
    assert found["drift"] == {"ratio_deviation": pytest.approx(0.1)}
    with pytest.raises(ConfigurationError, match="too short for the actors"):
        steady_state(rows[:1] + rows[1::2], seconds=9.0)


def test_the_bound_is_cores_over_the_sum_of_medians() -> None:
    before = Components([250e-6, 250e-6], [40e-6, 40e-6], [110e-6, 110e-6])
    after = Components([900e-6], [900e-6], [10e-6])
    assert (before + after).bound(2) == pytest.approx(5_000.0)


class ClockedCalls:
    """Calls that take so many seconds each, on a clock of their own."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds

    def __call__(self) -> None:
        self.now += self._seconds


@pytest.mark.parametrize(
    ("seconds", "expected", "ended"),
    [
        # The window opens in the third call; the two that end in it count, and the one that it closes in does not.
        (0.2, 0.1, 1.2),
        # None begins and ends within: one counts all the same.
        (5.0, 2.5, 15.0),
    ],
)
def test_only_calls_within_the_window_count(seconds: float, expected: float, ended: float) -> None:
    calls = ClockedCalls(seconds)
    assert seconds_per_agent_step(Work(calls, 2), 0.5, 1.1, lambda: calls.now) == pytest.approx(expected)
    assert calls.now == pytest.approx(ended)


def test_each_component_is_measured_alone_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an interrupt, which a terminal sends to all processes, reaches none that measures."""
    monkeypatch.setattr(components, "_SECONDS", 0.02)
    wait_until_ready, interrupted = components._Process.wait_until_ready, []

    def interrupt(process: components._Process) -> None:
        os.kill(process.pid, signal.SIGINT)
        interrupted.append(process.pid)
        wait_until_ready(process)

    monkeypatch.setattr(components._Process, "wait_until_ready", interrupt)
    config = replace(PRESETS["pong"].config, actor=ActorConfig(environments=2, unroll_length=3))
    found = components.measure_components(config, environment_spec(config.environment), (1, 2))
    assert set(found) == {1, 2}
    for part in (*found[1], *found[2]):
        assert len(part) > 1
        assert min(part) > 0.0
    assert not multiprocessing.active_children()
    assert len(set(interrupted)) == 2


def test_the_gradient_of_an_agent_step_is_that_of_all_epochs() -> None:
    actor = ActorConfig(environments=2, unroll_length=3, epochs=4, minibatches=3)
    config = replace(PRESETS["pong"].config, actor=actor)
    gradient = make_works(config, environment_spec(config.environment))["gradient"]
    assert gradient.agent_steps == 2
    assert len(gradient.call()) == 4


def test_a_process_that_dies_is_said_in_one_line(capfd: pytest.CaptureFixture) -> None:
    config = PRESETS["cartpole"].config
    # The plain networks are for images.
    with pytest.raises(ConfigurationError, match="a process that does them has died"):
        components.measure_components(config, environment_spec(config.environment), (1,))
    assert "KeyError" in capfd.readouterr().err


def test_an_interrupt_ends_the_measurement_at_once() -> None:
    command = [sys.executable, "-m", "launch.cli", "bench", "throughput", "--actor.environments", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd=ROOT
    ) as bench:
        assert "alone" in bench.stdout.readline()
        # As a terminal does: to all processes of the group.
        os.killpg(bench.pid, signal.SIGINT)
        assert bench.wait(60) == 130
        assert bench.stderr.read() == ""


def test_senders_double_up_to_the_most() -> None:
    assert [sender_counts(n) for n in (1, 2, 3, 8, 15)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 15]]


def test_the_ceiling_is_that_of_the_cheapest_gradient() -> None:
    rows = {
        1: {"gradients_per_second": 100.0, "bytes_per_second": 1.0, "cpu_seconds_per_gradient": 0.005},
        2: {"gradients_per_second": 150.0, "bytes_per_second": 2.0, "cpu_seconds_per_gradient": 0.004},
    }
    found = summarise(rows, agent_steps=640)
    assert found["gradients_per_second"] == 150.0
    assert found["ceiling_gradients_per_second"] == pytest.approx(250.0)
    assert found["ceiling_agent_steps_per_second"] == pytest.approx(160_000.0)


def test_a_learner_takes_ready_made_gradients_through_ray(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "learner.json"
    settings = "--gradients-per-update 2 --transfer.precision bfloat16"
    assert main(["bench", "learner", "--actors", "1", "--seconds", "0.5", *settings.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["senders"]["1"]["parameters"] == 677_943
    assert found["senders"]["1"]["gradients_per_second"] > 0
    assert found["agent_steps_per_gradient"] == 640
    assert (found["gradients_per_update"], found["network"]) == (2, "a3c_cnn")
    assert found["transfer"]["precision"] == "bfloat16"
    assert "gradients/s" in capsys.readouterr().out


def test_a_network_of_the_users_own_has_nothing_to_be_held_against(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "own", NetworkEntry("somewhere", "Own", images=True))
    assert main(["bench", "throughput", "--network.name", "own"]) == 2
    assert "--network.name own: has no plain form to be held against; use a3c_cnn, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("bench thruput", "unknown bench thruput, did you mean throughput?"),
        ("bench throughput --seconds 0", "must be greater than 0"),
        ("bench throughput --actor.environments 0", "must be at least 1"),
        ("bench throughput pnog", "unknown preset pnog, did you mean pong?"),
        ("bench throughput --network.name mlp", "use a3c_cnn, nature_cnn or impala_resnet"),
        ("bench throughput cartpole", "name an ALE game"),
        ("bench throughput --json no-such-folder/x.json", "in a folder that exists"),
        ("bench learner --gradients-per-update 0", "must be at least 1"),
        ("bench learner --seconds -1", "must be greater than 0"),
    ],
)
def test_mistakes(command: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert problem in err
