"""Where the time went, in numbers worked out by hand."""

from typing import Any

import pytest

from launch.results.report import held_back, time_spent
from shared.config import ActorConfig, RunConfig


def row(seconds: float, rate: float, stages: dict[str, float], learner: float, **others: Any) -> dict[str, Any]:
    return {
        "elapsed_seconds": seconds,
        "agent_steps": 1000,
        "agent_steps_per_second": rate,
        "stage_microseconds": stages,
        "learner_milliseconds": learner,
        "gradients_per_second": 20.0,
        "agent_steps_dropped": {},
        "actor_restarts": 0,
        **others,
    }


def test_stages_are_weighted_by_agent_steps_and_the_learner_by_time() -> None:
    rows = [
        row(10.0, 100.0, {"environment": 60.0, "wait": 40.0}, 5.0),
        row(20.0, 300.0, {"environment": 100.0, "wait": 0.0}, 15.0),
        row(21.0, 1000.0, {"environment": 100.0, "wait": 0.0}, 0.0),
    ]
    spent = time_spent(rows)
    assert spent.microseconds["environment"] == pytest.approx((1000 * 60 + 3000 * 100 + 1000 * 100) / 5000)
    assert spent.shares["wait"] == pytest.approx(1000 * 40 / 5000 / 100)
    # 20 gradients a second, of 5 ms in the first 10 s and of 15 ms in the next.
    assert spent.learner_busy == pytest.approx((1.0 + 3.0) / 21)


def test_how_busy_the_learner_was_is_known_of_older_rows_by_their_updates() -> None:
    old = [row(seconds, 100.0, {}, 5.0, updates_per_second=2.0, gradients_per_update=8) for seconds in (60.0, 120.0)]
    for values in old:
        del values["gradients_per_second"]
    assert time_spent(old).learner_busy == pytest.approx(5e-3 * 16)
    del old[0]["updates_per_second"]
    assert time_spent(old[:1]).learner_busy is None


DROPS = {"agent_steps_dropped": {"too_old": 20}, "actor_restarts": 1}


@pytest.mark.parametrize(
    ("stages", "learner", "others", "said"),
    [
        (
            {"environment": 80.0, "gradient": 20.0},
            5.0,
            {},
            [
                "80 % of their time stepping the environments",
                "0 % of their time; it was busy 10 % of its own: it held nobody",
            ],
        ),
        ({"gradient": 60.0, "wait": 40.0}, 45.0, {}, ["60 % of their time computing", "further actors would wait"]),
        (
            {"gradient": 20.0, "wait": 80.0},
            5.0,
            {},
            ["80 % of their time; it was busy 10 % of its own: the way", "20 % of their time computing"],
        ),
        (
            {"gradient": 100.0},
            5.0,
            DROPS,
            ["computing gradients", "held nobody", "2.0 % of the agent steps taught nothing", "1 actor was replaced"],
        ),
        ({}, 0.0, {}, []),
    ],
)
def test_what_held_a_run_back(stages: dict[str, float], learner: float, others: Any, said: list[str]) -> None:
    rows = [row(10.0, 100.0, stages, learner, **others)]
    lines = held_back(time_spent(rows), rows, RunConfig())
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert words in line


def test_waits_are_hidden_by_a_second_call_unless_there_is_one() -> None:
    rows = [row(10.0, 100.0, {"gradient": 60.0, "wait": 40.0}, 5.0)]
    for calls in (1, 2):
        text = " ".join(held_back(time_spent(rows), rows, RunConfig(actor=ActorConfig(calls_in_flight=calls))))
        assert ("--actor.calls-in-flight 2" in text) == (calls == 1)
