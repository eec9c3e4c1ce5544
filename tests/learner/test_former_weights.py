"""Former weights: the ring of them, the learner that compares gradients with them, checkpoints, and the account."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learners import LAYOUT, checkpoints, report
from naive_learner import KINDS, RATE, SGD, START, Naive, P

from launch.run.metrics import Metrics
from learner.learner import Learner
from learner.staleness import VersionRing
from shared.config import CheckpointConfig, LearnerConfig, RunConfig
from shared.graph import as_array
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.types import EpisodeStats, GradientReport


def test_the_ring_keeps_the_newest_and_the_oldest_of_them_stands_in() -> None:
    ring, vectors = VersionRing(3), np.arange(10, dtype=np.float32).reshape(5, 2)
    for version, vector in enumerate(vectors):
        kept = ring.keep(version, vector)
        np.testing.assert_array_equal(kept, vector)
        assert not kept.flags.writeable
        assert np.shares_memory(kept, as_array(ring.at(version)))
    assert list(ring.state()) == ["2", "3", "4"]
    for version, expected in ((0, 2), (1, 2), (2, 2), (3, 3), (4, 4)):
        np.testing.assert_array_equal(ring.at(version).numpy(), vectors[expected])
    # The same version again takes its own place.
    ring.keep(4, vectors[0])
    assert list(ring.state()) == ["2", "3", "4"]
    np.testing.assert_array_equal(ring.at(4).numpy(), vectors[0])
    smaller = VersionRing(2)
    smaller.restore(ring.state())
    assert list(smaller.state()) == ["3", "4"]
    np.testing.assert_array_equal(smaller.at(3).numpy(), vectors[3])


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
    again = EpisodeStats(np.array([7.0]), np.array([3]), {"success": np.array([1.0])})
    refused = learner.submit(report(8, version=0)._replace(episodes=again))
    metrics.add(refused)
    assert (refused.dropped, refused.weight) == ("duplicate", 0.0)
    nothing = learner.submit(report(9, gradient=np.full(5, np.nan, np.float32)))
    assert (nothing.dropped, nothing.weight) == ("non_finite", 0.0)
    ledger = learner.account.ledger
    assert (ledger.applied, ledger.gradients_applied, dict(ledger.dropped)) == (
        80,
        8,
        {"duplicate": 10, "non_finite": 10},
    )
    seen = metrics.progress(3.0, 1, 0)
    assert seen.staleness_weight == pytest.approx(np.mean(weights), rel=1e-6)
    # The lag is that of accepted gradients, as in the summary; the learner's time was that of all nine.
    assert seen.policy_lag_counts == dict(learner.account.lag_counts) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert seen.gradients_per_second == pytest.approx(3.0)
    assert (seen.info, seen.episodes) == ({}, 0)


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


def test_of_a_run_that_is_taken_over_neither_half_an_update_nor_former_versions_come_along(
    cartpole: RunConfig,
) -> None:
    better, own = (learner_of(cartpole, "gap", gradients_per_update=3) for _ in range(2))
    for learner, gradients in ((better, 8), (own, 4)):
        for sequence in range(1, gradients + 1):
            learner.submit(numbered(sequence, 0))
    theirs = {name: variable.numpy() for name, variable in better.variables().items()}
    assert theirs["weights"] > 0.0
    own.take_over(theirs, better.state())
    for name, value in theirs.items():
        expected = np.zeros_like(value) if name in ("accumulated", "pending", "weights") else value
        np.testing.assert_array_equal(own.variables()[name].numpy(), expected, err_msg=name)
    # Its own version 1 has the weights that were taken over; nothing older is known.
    own.snapshot()
    assert set(own.state()["versions"]) == {"1"}
    assert own.submit(numbered(9, 0)).weight == 1.0


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
