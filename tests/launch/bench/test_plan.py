"""The plan's arithmetic, and one small plan of this machine."""

import json
from pathlib import Path

import pytest

from launch.bench.plan import Costs, PlanArguments, cluster_costs, predict, predict_here
from launch.cli import main
from launch.machine import ACTOR_BYTES

LEARNER = {
    "objects": {"float32": 4e-3},
    "sums": {"float32": 5e-4},
    "parameters": 1_000_000,
}


def test_actors_are_independent_until_the_learner_is_full() -> None:
    arguments = PlanArguments(envs=10, unroll=10, actors_per_node=4)
    costs = Costs(0.2, 0.05)
    few = predict(arguments, "float32", costs, 2, 4)
    assert few["gradients_per_second"] == pytest.approx(2 / 0.25)
    assert few["agent_steps_per_second"] == pytest.approx(800.0)
    assert few["frames_per_second"] == pytest.approx(3_200.0)
    assert (few["policy_lag"], few["learner_utilisation"], few["held_back_by"]) == (1.0, pytest.approx(0.4), "actors")
    many = predict(arguments, "float32", costs, 9, 4)
    assert (many["gradients_per_second"], many["held_back_by"]) == (pytest.approx(20.0), "learner")
    assert (many["nodes"], many["memory_gib"]) == (3, pytest.approx(9 * ACTOR_BYTES / 2**30))
    assert costs.saturation_actors(1) == pytest.approx(5.0)
    assert predict(arguments, "float32", costs._replace(link=0.1), 9, 4)["held_back_by"] == "network"


def test_a_second_call_hides_the_transfer_and_adds_lag() -> None:
    arguments = PlanArguments(calls_in_flight=2, gradients_per_update=5)
    found = predict(arguments, "float32", Costs(0.1, 0.02, 0.03), 3, 4)
    assert (found["gradients_per_second"], found["policy_lag"]) == (pytest.approx(30.0), pytest.approx(1.0))


def test_sums_share_one_transfer_and_wait_for_the_whole_sum() -> None:
    """8 actors on 2 nodes, sums of 4: 8 / 4 + 2 (1 - 1 / 4) - 1 updates of lag."""
    arguments = PlanArguments(gradients_per_update=4, gigabits=8.0, envs=10, unroll=10, actors_per_node=4)
    costs = cluster_costs(arguments, 1e-3, LEARNER)
    assert costs["float32"] == pytest.approx(Costs(0.1, 4e-3, 4e-3))
    assert costs["float32, added by node"] == pytest.approx(Costs(0.1, 5e-4, 1e-3))
    assert predict(arguments, "float32, added by node", costs["float32"], 8, 4)["policy_lag"] == pytest.approx(2.5)
    assert cluster_costs(PlanArguments(), 1e-3, LEARNER).keys() == {"float32"}


def test_actors_here_share_the_cores_with_the_learner() -> None:
    """An agent step takes 1 ms alone, 1.5 ms on two busy cores. A gradient is of 100, and the learner takes 50 ms."""
    arguments = PlanArguments(envs=10, unroll=10)
    assert predict_here(arguments, 1e-3, 1.5e-3, 0.05, 1, 2) == pytest.approx(1 / 0.15)
    assert predict_here(arguments, 1e-3, 1.5e-3, 0.05, 4, 2) == pytest.approx(2 / 0.2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("--check 1,0", "--check 1,0: must be numbers like 1,2,4"),
        ("--gigabits 0", "--gigabits 0.0: must be greater than 0"),
        ("--cluster-actors 0", "must be numbers of at least 1"),
        ("--output plan.txt", ".png or .svg"),
        ("--environment CartPole-v1", "name an ALE game"),
    ],
)
def test_mistakes_are_refused(settings: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", *settings.split()]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plan_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    settings = f"--gradients-per-update 2 --envs 4 --check 1 --seconds 3 --cluster-actors 1 64 --json {file}"
    assert main(["plan", *settings.split(), "--output", str(picture)]) == 0
    found = json.loads(file.read_text())
    (check,) = found["checks"]
    assert check["error"] == pytest.approx(check["predicted"] / check["measured"] - 1)
    learner = found["learner_seconds_per_gradient"]
    assert learner["parameters"] == 677_943
    assert 0.0 < learner["sums"]["float32"] < learner["objects"]["float32"]
    assert [row["actors"] for row in found["curves"]["float32, added by node"]] == [1, 64]
    assert picture.read_text().endswith("</svg>\n")
    assert "is full at" in capsys.readouterr().out
