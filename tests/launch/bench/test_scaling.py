"""What bench scaling makes of its measurements, what an interrupt leaves, and one real measurement."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.bench import scaling as module
from launch.bench.plan import Costs
from launch.bench.scaling import measure_throughput, summarise
from launch.bench.throughput import endless
from launch.cli import main
from launch.presets import PRESETS
from shared.config import ActorConfig, RunConfig

COSTS = Costs({"environment": 4e-4}, {"environment": 5e-4}, {"shared_memory": 1e-3, "objects": 2e-3}, 1_000)
CONFIG = replace(PRESETS["pong"].config, actor=ActorConfig(environments=32, unroll_length=20))
CONFIGS = {actors: replace(CONFIG, actors=actors) for actors in (1, 2)}


@pytest.fixture(autouse=True)
def _on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)


def measured(actors: int, rate: float, utilisation: float = 0.1, wait: float = 5e-6, **more: Any) -> dict[str, Any]:
    return {
        "agent_steps_per_second": rate,
        "frames_per_second": 4 * rate,
        "updates_per_second": rate / 640,
        "policy_lag_mean": 0.5,
        "policy_lag_p95": 1,
        "policy_lag_max": 2,
        "learner_utilisation": utilisation,
        "agent_steps_dropped": {"too_old": 1},
        "stage_seconds_per_step": {
            "environment": 240e-6 * actors**0.5,
            "acting": 40e-6,
            "gradient": 60e-6,
            "synchronise": 1e-6,
            "wait": wait,
        },
        **more,
    }


def summary(made: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    return summarise(CONFIGS, made, {CONFIG.actor: COSTS})


def test_speed_up_and_efficiency_are_of_medians_against_one_actor_and_the_plan() -> None:
    made = {
        1: [measured(1, rate) for rate in (2_000, 2_500, 9_999)],
        2: [measured(2, rate) for rate in (100, 4_500, 4_700)],
    }
    one, two = summary(made)["points"]
    assert one["agent_steps_per_second"] == 2_500
    assert one["predicted_agent_steps_per_second"] == pytest.approx(640 / (640 * 4e-4 + 1e-3))
    assert one["prediction_error"] == pytest.approx(one["predicted_agent_steps_per_second"] / 2_500 - 1)
    assert (two["least"], two["most"]) == (100, 4_700)
    assert two["speed_up"] == pytest.approx(4_500 / 2_500)
    assert two["efficiency"] == pytest.approx(0.9)
    assert two["agent_steps_dropped"] == {"too_old": 3}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (measured(2, 3_900), "no saturation"),
        (measured(2, 2_500, utilisation=0.95), "limited by the learner, which is busy 95%"),
        (measured(2, 2_500, wait=200e-6), "wait 31% of their time"),
        (measured(2, 2_500), "limited by the cores; environment takes 339 µs"),
    ],
)
def test_the_verdict_names_what_holds_back(second: dict[str, Any], words: str) -> None:
    assert words in summary({1: [measured(1, 2_000)], 2: [second]})["verdict"]


def test_points_take_turns_and_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    turns: list[tuple[int | str, int]] = []

    def measure(config: RunConfig, _seconds: float) -> dict[str, Any]:
        turns.append((config.actors, config.actor.unroll_length))
        if len(turns) == 3:
            raise KeyboardInterrupt
        return measured(int(config.actors), 2_000.0 * int(config.actors))

    monkeypatch.setattr(module, "measure_throughput", measure)
    monkeypatch.setattr(module, "measure_costs", lambda *_: COSTS)
    file = tmp_path / "scaling.json"
    command = f"bench scaling pong --actors 2,1 --actor.unroll-length 16 --json {file}"
    assert main(command.split()) == 130
    assert turns == [(1, 16), (2, 16), (1, 16)]
    result = json.loads(file.read_text())
    assert [(row["actors"], row["repeats"]) for row in result["points"]] == [(1, 1), (2, 1)]
    assert result.keys() >= {"command", "hardware", "versions", "settings", "verdict", "preset"}
    assert "no saturation" in capsys.readouterr().out


@pytest.mark.slow
def test_one_real_point() -> None:
    actor = ActorConfig(environments=4, unroll_length=5, epochs=2, minibatches=2)
    row = measure_throughput(endless(replace(CONFIG, actors=1, actor=actor)), 5.0)
    assert row["agent_steps_per_second"] > 0
    assert 0 < row["learner_utilisation"] < 1
