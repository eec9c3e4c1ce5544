"""The arithmetic of `tributary plan`, and a plan of this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.bench.plan import Costs, advice, predict, saturation_actors
from launch.cli import main
from launch.machine import ACTOR_BYTES
from launch.presets import PRESETS
from shared.config import ActorConfig, LearnerConfig, RunConfig

# 1 ms per agent step alone and 1.5 ms on busy cores. A gradient of the configuration below is of 100.
COSTS = Costs(
    {"environment": 6e-4, "acting": 1e-4, "gradient": 3e-4},
    {"environment": 9e-4, "acting": 2e-4, "gradient": 4e-4},
    {"shared_memory": 0.05, "objects": 0.06, "sums": 0.01, "shared_memory_sums": 0.02, "aggregator": 0.03},
    1_000_000,
)


def config(count: int = 1, calls: int = 1, **changes: object) -> RunConfig:
    actor = ActorConfig(environments=10, unroll_length=20, epochs=2, calls_in_flight=calls)
    learner = LearnerConfig(gradients_per_update=count)
    return replace(PRESETS["pong"].config, actor=actor, learner=learner, **changes)


def test_actors_of_one_machine_share_its_cores_with_the_learner() -> None:
    one = predict(config(), COSTS, 1, 1, 2)
    assert one["gradients_per_second"] == pytest.approx(1 / (0.1 + 0.05))
    assert one["agent_steps_per_second"] == pytest.approx(100 / 0.15)
    assert one["frames_per_second"] == pytest.approx(400 / 0.15)
    assert one["minutes_to_40m_frames"] == pytest.approx(40e6 / (400 / 0.15) / 60)
    assert (one["memory_gib"], one["policy_lag"]) == (pytest.approx(ACTOR_BYTES / 2**30), 0.0)
    assert one["held_back_by"] == "actors"
    four = predict(config(), COSTS, 4, 1, 2)
    assert (four["gradients_per_second"], four["held_back_by"]) == (pytest.approx(2 / (0.15 + 0.05)), "cores")


def test_actors_of_several_machines_are_held_back_by_the_learner() -> None:
    many = predict(config(), COSTS, 64, 32, 2)
    assert (many["gradients_per_second"], many["held_back_by"]) == (pytest.approx(1 / 0.06), "learner")
    assert many["learner_utilisation"] == pytest.approx(1.0)
    assert saturation_actors(config(), COSTS, 2, 2) == pytest.approx((0.15 + 0.06) / 0.06)


def test_a_second_call_hides_the_transfer_and_adds_lag_and_a_fresh_gradient_has_less() -> None:
    found = predict(config(5, calls=2), COSTS._replace(learner={"shared_memory": 0.01}), 3, 1, 8)
    # Two of seven further cores are busy.
    assert found["gradients_per_second"] == pytest.approx(3 / (0.1 + 0.05 * 2 / 7))
    assert found["policy_lag"] == pytest.approx((3 * 2 - 1) / 5)
    plain = config(4)
    fresh = replace(plain, actor=replace(plain.actor, fresh_gradients=True))
    # It is old by its own part of a rollout.
    assert predict(fresh, COSTS, 9, 1, 8)["policy_lag"] == pytest.approx(0.3 * 8 / 4)


def test_advice_names_the_number_of_actors_and_what_to_set_for_more() -> None:
    result = {
        "node_cores": 2,
        "saturation_actors": {"one_machine": 1.4, "several_machines": 80.0},
        "curve": [predict(config(), COSTS, 2, 1, 2), predict(config(), COSTS, 128, 64, 2)],
    }
    one, several, more, _ = advice(config(), result)
    assert "--actors 2" in one
    assert "the learner is full at 1" in one
    assert "full at about 80 actors" in several
    assert "--learner.gradients-per-update" in more
    assert len(advice(config(), result | {"curve": result["curve"][:1]})) == 3, "nothing to change"


def test_nodes_with_enough_actors_send_sums() -> None:
    """8 actors on 2 nodes, sums of 4: 8 / 4 + 2 (1 - 1 / 4) - 1 updates of lag."""
    found = predict(config(4), COSTS, 8, 2, 5)
    assert found["policy_lag"] == pytest.approx(2.5)
    # Three of four further cores are busy: 0.1 + 0.05 * 3 / 4 s an actor's gradient, 0.01 the learner's.
    assert found["gradients_per_second"] == pytest.approx(8 / (0.1375 + 0.01))
    assert predict(config(11), COSTS, 8, 2, 5)["policy_lag"] == pytest.approx(7 / 11), "no part of 11 fits"


def test_smaller_nodes_send_parts_of_an_update() -> None:
    """8 actors of two epochs on 2 nodes, sums of 8 for K = 16: (8 + 2 (8 - 1) - 8) / 16 updates of lag."""
    found = predict(config(16), COSTS, 8, 2, 5)
    assert found["policy_lag"] == pytest.approx(14 / 16)
    # A sum of 16 was measured with 0.01 s a gradient, and one of 8 costs as much.
    assert (found["gradients_per_second"], found["held_back_by"]) == (pytest.approx(1 / 0.02), "learner")


def test_one_machine_of_many_cores_adds_its_gradients_too() -> None:
    found = predict(config(4), COSTS, 32, 1, 64)
    assert (found["gradients_per_second"], found["held_back_by"]) == (pytest.approx(1 / 0.03), "nodes")
    assert found["learner_utilisation"] == pytest.approx(0.02 / 0.03)
    assert predict(config(4), COSTS, 32, 1, 8)["held_back_by"] == "learner", "eight at work do not need it"
    # 0.15 + 0.02 s a gradient with all cores busy, and the process that adds takes one each 0.03 s.
    assert saturation_actors(config(4), COSTS, 1, 64) == pytest.approx(0.17 / 0.03)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plan_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A method with a target network, and a normalised observation: neither reaches the sender of gradients."""
    file = tmp_path / "plan.json"
    changes = "--method.name q_learning --learner.gradients-per-update 2 --actors 3"
    assert main(["plan", "cartpole", *changes.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    learner = found["learner_seconds_per_gradient"]
    assert learner.keys() == {"shared_memory", "objects", "sums", "shared_memory_sums", "aggregator"}
    assert min(learner.values()) > 0.0
    assert found["step_seconds_alone"] == pytest.approx(sum(found["stage_seconds_alone"].values()))
    assert found["settings"]["learner.gradients_per_update"] == 2
    assert {1, 3, 1024} <= {row["actors"] for row in found["curve"]}
    output = capsys.readouterr().out
    for line in found["advice"]:
        assert line in output
