"""Old gradients: each weight and correction against its equation in NumPy, the ring of former weights, the account."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.run.metrics import Metrics
from learner.accumulator import GradientAccumulator
from learner.checkpoint import Checkpoints
from learner.learner import Learner
from learner.staleness import VersionRing, adaptive_compensation, compensated, gap_weight, inverse_weight
from shared.config import CheckpointConfig, LearnerConfig, OptimizerConfig, RunConfig
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.types import GradientReport
from tests.learner.test_learner import LAYOUT, report

P, RATE, RHO, EPSILON, CLIP = 5, 0.02, 0.9, 1e-3, 2.5
START = np.linspace(-1.0, 1.0, P)
RMSPROP = OptimizerConfig(learning_rate=RATE, decay=RHO, epsilon=EPSILON, max_gradient_norm=CLIP)
SGD = OptimizerConfig(name="sgd", learning_rate=RATE, max_gradient_norm=CLIP)
KINDS: dict[str, dict[str, Any]] = {
    "inverse": {"staleness": "inverse"},
    "gap": {"staleness": "gap"},
    "adaptive": {"staleness": "delay_compensated", "compensation": 0.7, "compensation_decay": 0.8},
    "constant": {"staleness": "delay_compensated", "compensation": 0.7, "compensation_decay": None},
}
# Without numbers whose square is no normal float32.
_FINITE = st.one_of(st.just(0.0), st.floats(1e-6, 100.0), st.floats(-100.0, -1e-6))
_VECTOR = st.lists(_FINITE, min_size=P, max_size=P).map(lambda values: np.array(values, np.float32))


@settings(deadline=None)
@given(lag=st.integers(0, 10_000), gap=st.floats(0, 1e6), step=st.floats(1e-6, 1e6))
def test_weights_are_one_over_the_lag_or_over_the_gap_in_average_updates(lag: int, gap: float, step: float) -> None:
    assert float(inverse_weight(tf.constant(float(lag)))) == pytest.approx(1 / max(1, lag), rel=1e-6)
    weight = float(gap_weight(tf.constant(gap, tf.float32), tf.constant(step, tf.float32)))
    assert weight == pytest.approx(1 / (1 + gap / step), rel=1e-5)
    assert float(gap_weight(tf.constant(0.0), tf.constant(0.0))) == 1.0


@settings(deadline=None)
@given(gradient=_VECTOR, moved=_VECTOR, mean_square=_VECTOR, strength=st.floats(1e-3, 10.0))
def test_the_correction_is_that_of_the_paper(
    gradient: np.ndarray, moved: np.ndarray, mean_square: np.ndarray, strength: float
) -> None:
    wide = gradient.astype(np.float64)
    adaptive = strength / np.sqrt(np.abs(mean_square).astype(np.float64) + 1e-7)
    found = adaptive_compensation(strength, tf.abs(mean_square)).numpy()
    np.testing.assert_allclose(found, adaptive, rtol=1e-5)
    for factor in (strength, adaptive):
        expected = wide + factor * wide * wide * moved
        seen = compensated(gradient, tf.constant(factor, tf.float32), moved).numpy()
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-5 * (1 + np.abs(expected).max()))


class Naive:
    """The learner in NumPy: gradients one by one, in float64, with RMSProp or SGD."""

    def __init__(self, kind: str, k: int, accumulation: str, optimizer: OptimizerConfig) -> None:
        self.kind, self.k, self.accumulation, self.optimizer = kind, k, accumulation, optimizer
        self.theta, self.versions = START.copy(), [START.copy()]
        self.g = np.zeros(P)
        self.pending: list[np.ndarray] = []
        self.weights: list[float] = []
        self.mean_square = np.zeros(P)
        self.step_squares: list[float] = []

    def push(self, gradient: np.ndarray, lag: int, rate: float) -> float:
        moved = self.theta - self.versions[-1 - lag]
        weight = 1.0
        if self.kind == "inverse":
            weight = 1.0 / max(1, lag)
        elif self.kind == "gap" and self.step_squares:
            # The mean of a decay of 0.999, corrected for its start at 0.
            ages = 0.999 ** np.arange(len(self.step_squares))[::-1]
            average = RATE * np.sqrt((ages * self.step_squares).sum() / ages.sum())
            weight = 1.0 / (1.0 + np.linalg.norm(moved) / average)
        elif self.kind == "adaptive":
            self.mean_square = 0.8 * self.mean_square + 0.2 * gradient**2
            gradient = gradient + 0.7 / np.sqrt(self.mean_square + 1e-7) * gradient**2 * moved
        elif self.kind == "constant":
            gradient = gradient + 0.7 * gradient**2 * moved
        self.pending.append(weight * gradient)
        self.weights.append(weight)
        if len(self.pending) == self.k:
            self.update(rate)
        return weight

    def update(self, rate: float) -> None:
        gradient = sum(self.pending) / sum(self.weights) * (self.k if self.accumulation == "sum" else 1)
        gradient *= min(1.0, CLIP / np.linalg.norm(gradient))
        step = rate * np.mean(self.weights) * gradient
        if self.optimizer.name == "rmsprop":
            self.g = RHO * self.g + (1 - RHO) * gradient**2
            step /= np.sqrt(self.g + EPSILON)
        self.theta = self.theta - step
        self.versions.append(self.theta.copy())
        if rate:
            self.step_squares.append(float(step @ step) / rate**2)
        self.pending, self.weights = [], []


@cache
def accumulator(
    kind: str, k: int, accumulation: str, optimizer: OptimizerConfig
) -> tuple[GradientAccumulator, dict[str, np.ndarray]]:
    """One for all examples of a case, so that its graph is traced once, and how its variables were."""
    learner = LearnerConfig(gradients_per_update=k, accumulation=accumulation, **KINDS[kind])
    made = GradientAccumulator(START.astype(np.float32), learner, optimizer)
    return made, {name: variable.numpy() for name, variable in made.variables.items()}


def compare(made: GradientAccumulator, naive: Naive, lags: Sequence[int], rates: Sequence[float], seed: int) -> None:
    """Push gradients of these lags, as far as there are so many versions, into both."""
    random, ring = np.random.default_rng(seed), VersionRing(100)
    version = 0
    for wanted, rate in zip(lags, rates, strict=True):
        ring.keep(version, made.parameters.numpy())
        lag = min(wanted, version)
        gradient = random.normal(size=P).astype(np.float32) * np.float32(10.0 ** random.integers(-2, 2))
        former = None if naive.kind == "inverse" else ring.tensor_at(version - lag)
        result = made.push(gradient, rate, lag=lag, former=former)
        assert result.weight == pytest.approx(naive.push(gradient.astype(np.float64), lag, rate), rel=1e-3)
        version += result.applied
        np.testing.assert_allclose(made.parameters.numpy(), naive.theta, rtol=1e-3, atol=1e-4)
    assert version == len(naive.versions) - 1 == len(lags) // naive.k


@pytest.mark.parametrize(
    ("k", "accumulation", "optimizer"), [(1, "sum", RMSPROP), (3, "mean", RMSPROP), (2, "sum", SGD)]
)
@pytest.mark.parametrize("kind", KINDS)
@given(
    pushes=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([RATE, RATE / 2, 0.0])), min_size=8, max_size=24),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_every_kind_updates_as_its_equations_say(
    kind: str, k: int, accumulation: str, optimizer: OptimizerConfig, pushes: list[tuple[int, float]], seed: int
) -> None:
    made, initial = accumulator(kind, k, accumulation, optimizer)
    for name, variable in made.variables.items():
        variable.assign(initial[name])
    lags, rates = zip(*pushes, strict=True)
    compare(made, Naive(kind, k, accumulation, optimizer), lags, rates, seed)
    assert made.push_graph.traces == 1


def test_gradients_of_the_newest_weights_count_as_without_weights_to_the_bit() -> None:
    results = []
    for kind in ("none", "inverse", "gap"):
        learner = LearnerConfig(gradients_per_update=3, accumulation="mean", staleness=kind)
        made = GradientAccumulator(START.astype(np.float32), learner, RMSPROP)
        random = np.random.default_rng(0)
        for _ in range(9):
            former = tf.identity(made.parameters) if kind == "gap" else None
            made.push(random.normal(size=P).astype(np.float32), RATE, former=former)
        results.append(made.parameters.numpy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    assert not np.array_equal(results[0], START.astype(np.float32))


def test_with_an_optimizer_that_takes_out_scale_a_constant_weight_still_shortens_steps() -> None:
    """Four updates of lag 4: a quarter of the step, where a quarter of the gradient would make the same step."""
    moved = []
    for staleness in ("none", "inverse"):
        optimizer = OptimizerConfig(epsilon=1e-12, max_gradient_norm=None)
        made = GradientAccumulator(START.astype(np.float32), LearnerConfig(staleness=staleness), optimizer)
        for _ in range(4):
            made.push(np.ones(P, np.float32), RATE, lag=4)
        moved.append(START - made.parameters.numpy())
    np.testing.assert_allclose(moved[1], moved[0] / 4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["gap", "adaptive"])
def test_a_non_finite_gradient_changes_nothing_that_is_remembered(kind: str) -> None:
    made, _ = accumulator(kind, 3, "mean", RMSPROP)
    made.push(np.ones(P, np.float32), RATE, former=tf.zeros(P))
    before = {name: variable.numpy().tobytes() for name, variable in made.variables.items()}
    assert not made.push(np.array([1, 2, np.nan, 4, 5], np.float32), RATE, former=tf.zeros(P)).finite
    assert {name: variable.numpy().tobytes() for name, variable in made.variables.items()} == before


def test_the_ring_keeps_the_newest_and_the_oldest_of_them_stands_in() -> None:
    ring, vectors = VersionRing(3), np.arange(10, dtype=np.float32).reshape(5, 2)
    for version, vector in enumerate(vectors):
        kept = ring.keep(version, vector)
        np.testing.assert_array_equal(kept, vector)
        assert not kept.flags.writeable
        assert kept is ring.at(version)
    assert ring.versions == [2, 3, 4]
    for version, expected in ((0, 2), (1, 2), (2, 2), (3, 3), (4, 4)):
        np.testing.assert_array_equal(ring.at(version), vectors[expected])
        np.testing.assert_array_equal(ring.tensor_at(version).numpy(), vectors[expected])
    # The same version again takes its own place.
    ring.keep(4, vectors[0])
    assert ring.versions == [2, 3, 4]
    np.testing.assert_array_equal(ring.at(4), vectors[0])
    smaller = VersionRing(2)
    smaller.restore(ring.state())
    assert smaller.versions == [3, 4]
    np.testing.assert_array_equal(smaller.at(3), vectors[3])


def learner_of(config: RunConfig, kind: str, *, exact: bool = True, **changes: Any) -> Learner:
    learner, checkpoint = LearnerConfig(**{**KINDS[kind], **changes}), CheckpointConfig(exact=exact)
    config = replace(config, learner=learner, optimizer=SGD, executor="inline", checkpoint=checkpoint)
    return Learner(config, LAYOUT, START.astype(np.float32))


def numbered(sequence: int, version: int) -> GradientReport:
    """A report whose gradient depends on its number."""
    return report(sequence, version, gradient=np.random.default_rng(sequence).normal(size=P).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_compares_a_gradient_with_the_weights_of_its_version(cartpole: RunConfig, kind: str) -> None:
    learner = learner_of(replace(cartpole, total_frames=10**9), kind, staleness_versions=3)
    naive = Naive(kind, 1, "sum", SGD)
    for sequence, wanted in enumerate((0, 1, 0, 2, 1, 3, 5, 0, 2, 7), start=1):
        lag = min(wanted, learner.version)
        outcome = learner.submit(numbered(sequence, learner.version - lag))
        # Of older ones than three the oldest kept stands in; the lag is what it is.
        seen = lag if kind == "inverse" else min(lag, 2)
        weight = naive.push(np.random.default_rng(sequence).normal(size=P), seen, RATE)
        assert (outcome.policy_lag, outcome.updated) == (lag, True)
        assert outcome.weight == pytest.approx(weight, rel=1e-3)
        np.testing.assert_allclose(learner.snapshot().parameters, naive.theta, rtol=1e-3, atol=1e-4)


def test_agent_steps_are_counted_once_whatever_a_gradient_weighs(cartpole: RunConfig) -> None:
    learner = learner_of(cartpole, "inverse", gradients_per_update=2)
    metrics = Metrics(learner)
    weights = []
    for sequence in range(1, 9):
        metrics.add(learner.submit(report(sequence, version=0)))
        weights.append(1 / max(1, (sequence - 1) // 2))
    refused = learner.submit(report(8, version=0))
    metrics.add(refused)
    assert (refused.dropped, refused.weight) == ("duplicate", 0.0)
    ledger = learner.account.ledger
    assert (ledger.applied, ledger.gradients_applied, dict(ledger.dropped)) == (80, 8, {"duplicate": 10})
    assert metrics.progress(1.0, 1, 0).staleness_weight == pytest.approx(np.mean(weights), rel=1e-6)


def checkpoints(learner: Learner, folder: Path) -> Checkpoints:
    return Checkpoints(folder, 2, learner.variables(), learner.state, learner.restore_state)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exact_checkpoint_goes_on_to_the_bit_with_gradients_from_before_it(
    cartpole: RunConfig, kind: str, tmp_path: Path
) -> None:
    learner, resumed = (learner_of(cartpole, kind, gradients_per_update=2, staleness_versions=4) for _ in range(2))
    for sequence in range(1, 14):
        learner.submit(numbered(sequence, max(0, learner.version - sequence % 4)))
    assert learner.account.ledger.pending
    checkpoints(learner, tmp_path).save(learner.version)
    checkpoints(resumed, tmp_path).restore()
    for sequence in range(14, 30):
        version = learner.version - sequence % 6
        outcomes = [each.submit(numbered(sequence, version)) for each in (learner, resumed)]
        assert outcomes[0].weight == outcomes[1].weight
    for name, variable in learner.variables().items():
        np.testing.assert_array_equal(resumed.variables()[name].numpy(), variable.numpy(), err_msg=name)
    assert resumed.state() == learner.state()


def test_only_an_exact_checkpoint_has_former_weights(cartpole: RunConfig) -> None:
    exact, other = (learner_of(cartpole, "gap", exact=exact) for exact in (True, False))
    for learner in (exact, other):
        learner.submit(report(1))
        learner.submit(report(2, version=0))
    assert set(exact.state()["versions"]) == {"0", "1"}
    assert "versions" not in other.state()
    assert other.submit(report(3, version=0)).weight < 0.5
    # The weights of the checkpoint are then the only ones that are known, and actors start anew with them.
    resumed = learner_of(cartpole, "gap", exact=False)
    resumed.restore_state(exact.state())
    assert resumed.submit(report(3, version=0)).weight == 1.0


def test_running_moments_are_no_part_of_the_gap(cartpole: RunConfig) -> None:
    layout = ParameterLayout(("w", RUNNING_MEAN, RUNNING_VARIANCE), ((2,), (3,), (3,)))
    config = replace(cartpole, learner=LearnerConfig(staleness="gap"), optimizer=SGD)
    learner = Learner(config, layout, np.array([1, 1, 0, 0, 0, 1, 1, 1], np.float32))

    def submit(sequence: int, version: int, scale: float) -> float:
        gradient = np.array([scale, 0, 0, 0, 0, 0, 0, 0], np.float32)
        moments = Moments.of(np.random.default_rng(sequence).normal(1e3, 10.0, (20, 3)))
        changes = {"layout_fingerprint": layout.fingerprint, "observation_moments": moments}
        outcome = learner.submit(report(sequence, version, gradient=gradient, **changes))
        learner.snapshot()
        return outcome.weight

    submit(1, 0, 1.0)
    # One average update away, though the moments have gone from 0 to 1,000 since.
    assert submit(2, 0, 1.0) == pytest.approx(0.5, rel=1e-3)
