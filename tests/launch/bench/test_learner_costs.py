"""What predictions are made of: measured from another node than the learner's, and without its idle time."""

from typing import Any

import pytest

from launch.bench import learner_costs as module
from launch.bench.learner_costs import idle_cost, learner_costs, slices_costs
from launch.on_ray.tree import Aggregation
from shared.config import RunConfig


def test_costs_are_those_of_one_actor_on_another_node_without_the_idle_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def measure(
        config: RunConfig, _spec: object, aggregation: Aggregation, nodes: int, pace: float, _seconds: float
    ) -> dict[str, Any]:
        precision, shards = config.transfer.precision, config.learner.shards
        assert (config.address, config.actors, config.transfer.shared_memory) == ("auto", 1, False)
        assert config.aggregation == aggregation.level
        made.append((precision, aggregation.level, aggregation.node_gradients, shards, nodes, pace))
        return {
            "gradients_per_second": 50.0,
            "cpu_seconds_per_gradient": {"none": 5e-3, "node": 1e-3}[aggregation.level],
            "process_cpu_seconds_per_gradient": {"SliceProcess": 8e-3},
            "parameters": 7,
        }

    monkeypatch.setattr(module, "measure_on_nodes", measure)
    monkeypatch.setattr(module, "measure_head", lambda *_: 2e-3)
    costs = learner_costs("a3c_cnn", 4, 2, ("float32", "bfloat16"), 0.01, 0.5)
    # A hundredth of a core, over 50 gradients a second.
    assert costs["objects"] == pytest.approx({"float32": 4.8e-3, "bfloat16": 4.8e-3})
    assert costs["sums"] == pytest.approx({"float32": 0.8e-3, "bfloat16": 0.8e-3})
    assert costs["heads"] == {"float32": 2e-3, "bfloat16": 2e-3}
    assert costs["parameters"] == 7
    of_slices = slices_costs("a3c_cnn", 1, 2, ("float32",), 0.01, 0.25)
    assert of_slices["learner"] == pytest.approx({"float32": 4.8e-3})
    assert of_slices["slice"] == pytest.approx({"float32": 4e-3})
    ways = [(precision, level, 4, 1, 1, 0.5) for precision in ("float32", "bfloat16") for level in ("none", "node")]
    assert made == [*ways, ("float32", "none", 1, 2, 1, 0.25)]


def test_a_gradient_by_itself_has_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"gradients_per_second": 50.0, "cpu_seconds_per_gradient": 5e-3, "parameters": 7}
    monkeypatch.setattr(module, "measure_on_nodes", lambda *_: measured)
    assert learner_costs("a3c_cnn", 1, 1, ("float32",), 0.0) == {"objects": {"float32": 5e-3}, "parameters": 7}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_gradients_have_a_cost_each_way() -> None:
    costs = learner_costs("a3c_cnn", 4, 2, ("float32",), 0.0)
    assert costs["parameters"] == 677_943
    assert 0.0 < costs["sums"]["float32"] < costs["objects"]["float32"]
    assert costs["heads"]["float32"] > 0.0
    of_slices = slices_costs("a3c_cnn", 1, 2, ("float32",), 0.0)
    assert min(of_slices["learner"]["float32"], of_slices["slice"]["float32"]) > 0.0


@pytest.mark.slow
def test_a_learner_to_which_nothing_comes_takes_little_of_its_core() -> None:
    assert 0.0 < idle_cost("a3c_cnn") < 0.5
