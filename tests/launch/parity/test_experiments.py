"""Small runs of the experiments of `tributary parity`, and faults that each must see."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from launch.parity import accumulation, behaviour, fused_step, learning_speed, prediction, returns, rmsprop, slots
from launch.parity.finding import Finding
from shared.config import ActorConfig, RunConfig


def test_ulps_are_counted_between_neighbours_and_across_zero() -> None:
    one = np.float32(1.0)
    above = np.nextafter(one, np.float32(2.0))
    tiny = np.nextafter(np.float32(0.0), one)
    assert returns.ulp_per_entry(np.array([one]), np.array([above])) == 1
    assert returns.ulp_per_entry(np.array([-tiny]), np.array([tiny])) == 2
    assert returns.ulp_at_scale(np.array([one, tiny]), np.array([above, tiny])) == pytest.approx(1.0)
    far = np.array([1.0, 1e-10], np.float32)
    assert returns.ulp_at_scale(far, np.array([1.0, -1e-10], np.float32)) < 0.01
    assert returns.ulp_per_entry(far, np.array([1.0, -1e-10], np.float32)) > 1_000_000


def test_discounted_returns_in_written_out_arithmetic() -> None:
    r1 = 2.0 + 0.99 * 3.0
    np.testing.assert_allclose(returns.discounted_returns(tf.constant([1.0, 2.0, 3.0])), [1 + 0.99 * r1, r1, 3.0])
    np.testing.assert_array_equal(returns.standardised(tf.fill([4], 7.0)), np.zeros(4))


@pytest.mark.parametrize("most", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_returns_hold(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_LENGTHS", (1, 2, 10, most))
    assert returns.run(seeds=1).holds


def test_a_return_that_differs_in_the_graph_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = returns.discounted_returns

    def differs(rewards: tf.Tensor) -> tf.Tensor:
        return plain(rewards) * (1.0 if tf.executing_eagerly() else 1.000001)

    monkeypatch.setattr(returns, "discounted_returns", differs)
    monkeypatch.setattr(returns, "_LENGTHS", (1, 100))
    rows = returns.run(seeds=1).rows
    assert rows[0].verdict == "fails"


def test_slots_are_compared_in_both_directions() -> None:
    """|a - b| = 1e-4: within 1e-4 of b = 1.0001, and not within 1e-4 of a = 1 by float64's last digits."""
    first, second = {"m": np.array([1.0])}, {"m": np.array([1.0 + 1.00005e-4])}
    found = slots.compare(first, second)
    assert found.unequal["rtol 0.0001, atol 0, forth"] == 0
    assert found.unequal["rtol 0.0001, atol 0, back"] == 1
    assert found.names == ["m"]
    assert found.largest_relative == pytest.approx(1e-4, rel=1e-3)


def test_noise_beside_a_large_entry_differs_for_allclose_and_not_relative_to_the_slot() -> None:
    found = slots.compare({"m": np.array([1.0, 1e-9])}, {"m": np.array([1.0, 2e-9])})
    assert found.unequal["rtol 1e-05, atol 1e-08, forth"] == 0
    assert found.unequal["rtol 0.0001, atol 0, forth"] == 1
    assert found.largest_relative == pytest.approx(1e-9)
    assert found.entry_share == pytest.approx(2e-9)


def test_slots_hold_and_are_equal_to_the_bit_without_the_remapper() -> None:
    finding = slots.run(seeds=1)
    assert finding.holds
    assert finding.figures["without_remapper"][0]["largest_relative"] == 0.0
    assert finding.figures["one_ulp"][0]["largest_relative"] > 0.0


def test_ours_is_right_in_every_trace() -> None:
    finding = fused_step.run(traces=3)
    assert finding.holds
    assert finding.figures["wrong"]["ours"] == {"RMSProp": 0}


def test_a_gradient_of_weights_that_were_updated_already_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the first layer's gradient is taken after the last layer was changed."""
    right = fused_step._gradients

    def of_changed_weights(model, x, y) -> list[tf.Tensor]:
        last = right(model, x, y)
        kernel = model.trainable_variables[-2]
        before = kernel.numpy()
        kernel.assign_sub(0.01 * tf.sign(last[-2]))
        first = right(model, x, y)
        kernel.assign(before)
        return [*first[:2], *last[2:]]

    problem = fused_step._problem()
    expected = fused_step._by_numpy(problem)
    monkeypatch.setattr(fused_step, "_gradients", of_changed_weights)
    assert fused_step.is_wrong(fused_step._by_numpy(problem), expected, problem.weights)


def test_eager_and_graph_start_alike(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(cartpole, actor=ActorConfig(environments=32, unroll_length=8))
    monkeypatch.setattr(learning_speed, "PRESETS", {"cartpole": SimpleNamespace(config=config)})
    monkeypatch.setattr(learning_speed, "_ROLLOUTS", 3)
    finding = learning_speed.run(seeds=1, threshold=15.0)
    assert finding.holds
    trained = finding.figures["trainings"]
    assert trained["eager"][0]["reached"]
    assert trained["graph"][0]["reached"]
    assert not tf.config.functions_run_eagerly()


def test_accumulated_gradients_are_those_of_the_batch() -> None:
    assert accumulation.run(repeats=1).holds
    assert accumulation.relative_difference(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5


def test_an_accumulator_that_forgets_a_part_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    push = accumulation.GradientAccumulator.push
    pushed = []

    def forgets_the_first(self, gradient, rate):
        pushed.append(gradient)
        return push(self, 0 * gradient if len(pushed) == 1 else gradient, rate)

    monkeypatch.setattr(accumulation.GradientAccumulator, "push", forgets_the_first)
    assert not accumulation.run(repeats=1).holds


def test_all_ways_to_predict_agree() -> None:
    finding = prediction.run(observations=320, batch_sizes=(32, 320), repeats=1)
    assert finding.holds
    assert set(finding.figures["wall_and_cpu_seconds"]["32"]) == {"eager", "graph", "predict_on_batch"}


def test_the_density_that_acted_is_in_the_loss_and_later_ones_are_others() -> None:
    finding = behaviour.run()
    assert finding.holds
    low, high = finding.figures["100"]["ratio_percentiles"]
    assert low < 0.99
    assert high > 1.01


def test_first_steps_of_each_rmsprop() -> None:
    """Gradient 2, rate 1: 2/√(0.9 + 0.4), 2/√0.4, 2/√0.04, 2/√(0.04 + 0.1), and 1 with bias correction."""
    steps = {name: rmsprop.first_step(form) for name, form in rmsprop.FORMS.items()}
    expected = {"TensorFlow 1": 1.7541, "Keras": 3.1623, "PyTorch": 10.0, "A3C paper": 5.3452}
    for name, step in expected.items():
        assert steps[name] == pytest.approx(step, rel=1e-4)
    assert steps["with bias correction"] == pytest.approx(1.0, rel=1e-4)


def test_a_finding_holds_only_if_no_required_row_fails() -> None:
    from launch.parity.finding import reported, required

    holds, fails = required("a", "1", "1", True), required("b", "2", "1", False)
    assert Finding("?", (holds, reported("c", "3")), "", {}).holds
    assert not Finding("?", (holds, fails), "", {}).holds
