"""bench scaling --rehearse: recorded calls, processes that repeat them, and the figures of a rehearsal."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.bench.rehearsal import REHEARSED_ACTOR_BYTES, check_memory, full
from launch.bench.rehearsed_process import CALLS, GRADIENT, RecordedCall, rehearsed_process
from launch.bench.scaling import AGENT_STEPS_TO_TARGET, rehearsal_figures
from launch.cli import main
from launch.machine import LEARNER_BYTES
from launch.on_ray.transport import Call
from launch.presets import PRESETS
from launch.settings.resolve import divided_among
from shared.config import RunConfig
from shared.errors import ConfigurationError
from shared.types import EpisodeStats, GradientReport, Heartbeat, StageSeconds, WeightSnapshot

ROOT = Path(__file__).parents[3]
NO_EPISODES = EpisodeStats(np.empty(0), np.empty(0, np.int64))
REPORT = GradientReport(9, 9, 9, "layout", np.empty(0, np.float32), 8, 8, NO_EPISODES, StageSeconds(0.1, wait=1e9), {})
CYCLE = [
    RecordedCall(Heartbeat(9), 0.02),
    RecordedCall(REPORT, 0.01),
    RecordedCall(REPORT._replace(agent_steps=0), 0.01),
]


def weights(version: int) -> Call:
    return Call(WeightSnapshot(version, np.zeros(3, np.float32)), None, None)


def test_a_rehearsed_process_repeats_the_recorded_calls_at_the_weights_that_it_gets(tmp_path: Path) -> None:
    np.save(tmp_path / GRADIENT, np.float32([1, 2, 3]))
    (tmp_path / CALLS).write_bytes(pickle.dumps([[CYCLE]]))
    process = rehearsed_process(tmp_path)(RunConfig(), None, 5)  # type: ignore[arg-type]
    results: list[Any] = [process.handle(weights(version)) for version in range(6)]
    assert [type(result) for result in results] == [Heartbeat, GradientReport, GradientReport] * 2
    reports = [result for result in results if isinstance(result, GradientReport)]
    assert {result.actor_id for result in results} == {5}
    assert [(report.sequence, report.version) for report in reports] == [(1, 1), (2, 2), (3, 4), (4, 5)]
    assert [report.agent_steps for report in reports] == [8, 0, 8, 0]
    assert all(report.gradient.tolist() == [1, 2, 3] for report in reports)
    assert reports[0].stage_seconds.environment == 0.1
    # The wait is its own, not that of the recording.
    assert reports[0].stage_seconds.wait < 1e9
    assert (tmp_path / "5").is_file()
    vector = np.zeros(3, np.float32)
    for expected in ([1, 2, 3], [1, 2, 3], [0, 0, 0]):
        # Once into each of two vectors: a real actor writes on a core of its own.
        process._write_once(vector, reports[0].gradient)
        assert vector.tolist() == expected
        vector[:] = 0


def test_a_rehearsed_process_imports_no_tensorflow() -> None:
    code = "import launch.bench.rehearsed_process, sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_memory_of_sleeping_processes_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.bench.rehearsal.machine_bytes", lambda: LEARNER_BYTES + 3 * REHEARSED_ACTOR_BYTES)
    check_memory(3)
    with pytest.raises(ConfigurationError, match="room for 3 rehearsed actors"):
        check_memory(4)


LOADS = {"machine_share": 0.8, "learner_cores": 0.6, "learner_delay": 0.0, "wait_share": 0.01}


@pytest.mark.parametrize(
    ("loads", "part"),
    [
        ({"machine_share": 0.97, "learner_cores": 1.0, "wait_share": 0.5}, "machine"),
        ({"learner_delay": 0.3, "wait_share": 0.5}, "machine"),
        ({"learner_delay": 0.05, "wait_share": 0.5, "learner_cores": 0.95}, "learner"),
        ({"learner_delay": 0.05, "wait_share": 0.3}, "wait"),
        ({}, "actors"),
    ],
)
def test_the_full_part_of_a_rehearsal(loads: dict[str, float], part: str) -> None:
    assert full(LOADS | loads) == part


def test_seconds_to_the_target_are_for_forms_whose_agent_steps_were_measured() -> None:
    pong, targets = PRESETS["pong"].config, {(1024, 4): 500_000}
    point = LOADS | {"agent_steps_per_second": 1e3}
    reused = replace(pong, actor=replace(pong.actor, epochs=8))
    # Also with more agent steps in flight, and with more epochs.
    for config, actors, seconds in ((pong, 16, 500.0), (pong, 999, None), (reused, 16, None)):
        found = rehearsal_figures(divided_among(config, actors), point | {"actors": actors}, targets)
        assert found["seconds_to_target"] == seconds


def test_a_rehearsal_of_three_actors(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    """Recorded on the cores of this machine, and trained with a real learner and processes that sleep."""
    monkeypatch.setattr("launch.bench.rehearsal._RECORDED_SECONDS", 0.5)
    form, file = divided_among(PRESETS["cartpole"].config, 3).actor, tmp_path / "rehearsal.json"
    targets = {(3 * form.agent_steps_in_flight, form.epochs): 10_000}
    monkeypatch.setitem(AGENT_STEPS_TO_TARGET, "cartpole", targets)
    line = f"bench scaling cartpole --actors 3 --rehearse --repeats 1 --seconds 3 --json {file}"
    assert main(line.split()) == 0
    result = json.loads(file.read_text())
    (point,) = result["points"]
    assert result["rehearsed"] is True
    assert point["actors"] == 3
    assert point["gradients_per_second"] > 0
    assert (point["environments"], point["minibatches"]) == (form.environments, form.minibatches)
    steps = form.environments * form.unroll_length / (form.epochs * form.minibatches)
    assert point["agent_steps_per_second"] == pytest.approx(point["gradients_per_second"] * steps)
    assert point["seconds_to_target"] == pytest.approx(10_000 / point["agent_steps_per_second"])
    assert point["learner_cores"] > 0
    assert point["learner_delay"] >= 0
    assert point["learner_bytes_per_second"] > 0
    assert "actors sleep" in capsys.readouterr().out


def test_only_actors_on_cpus_are_rehearsed() -> None:
    assert main(["bench", "scaling", "pong", "--actors", "2", "--rehearse", "--actor.device", "gpu"]) == 2
