"""A learner in slices makes what a learner in one piece makes, to the bit, and so does its checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learners import checkpoints
from sliced import LAYOUT, SIZE, START, contents, gradient, numbered, sliced_learner, small_blocks

from learner.learner import Learner
from shared.blocks import block_count, block_size, slice_bounds
from shared.config import LearnerConfig, MethodConfig, OptimizerConfig, RunConfig
from shared.errors import ConfigurationError
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE

RMSPROP = OptimizerConfig(learning_rate=0.01, epsilon=1e-3, max_gradient_norm=2.5)
OPTIMIZERS = {
    "rmsprop": RMSPROP,
    "centred": replace(RMSPROP, centred=True, momentum=0.9, max_gradient_norm=None),
    "corrected": replace(RMSPROP, bias_correction=True),
    "adam": OptimizerConfig(name="adam", learning_rate=0.01, epsilon=1e-5, max_gradient_norm=0.5),
    "sgd": OptimizerConfig(name="sgd", learning_rate=0.01, momentum=0.5, max_gradient_norm=2.5),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def submit(learner: Learner, first: int, last: int) -> list[tuple]:
    """Reports of these numbers, at some lag, one of them not finite; the outcomes, without their times."""
    outcomes = []
    for sequence in range(first, last):
        bad = gradient(sequence)
        if sequence % 7 == 3:
            # In one slice only: it must not be in the others.
            bad[5] = np.inf
        lag = min(sequence % 4, learner.version)
        outcome = learner.submit(numbered(sequence, learner.version - lag, gradient=bad))
        outcomes.append(outcome._replace(report=None, seconds=0.0))
        if outcome.updated:
            outcomes.append((learner.snapshot().version, learner.parameters().tobytes()))
    return [repr(outcome) for outcome in outcomes]


@pytest.mark.parametrize(
    ("optimizer", "learner"),
    [
        ("rmsprop", {}),
        ("centred", {"gradients_per_update": 3}),
        ("corrected", {"gradients_per_update": 3, "accumulation": "mean", "staleness": "inverse"}),
        ("adam", {"staleness": "inverse"}),
        ("sgd", {"target_policy_lag": 0.7, "accumulation": "mean", "staleness": "inverse"}),
    ],
)
def test_any_number_of_slices_makes_the_same_to_the_bit(
    cartpole: RunConfig, optimizer: str, learner: dict[str, Any]
) -> None:
    config = replace(cartpole, optimizer=OPTIMIZERS[optimizer])
    one, *others = [sliced_learner(config, shards=shards, **learner) for shards in (1, 2, 4)]
    expected = submit(one, 1, 25)
    assert "non_finite" in str(expected)
    for other in others:
        assert submit(other, 1, 25) == expected
        assert contents(other) == contents(one)


def q_learner(config: RunConfig, shards: int) -> Learner:
    method = MethodConfig(name="q_learning", target_interval_agent_steps=25)
    return sliced_learner(replace(config, method=method, optimizer=RMSPROP), shards=shards, gradients_per_update=2)


def weighing(config: RunConfig, shards: int) -> Learner:
    learner: dict[str, Any] = {"gradients_per_update": 4, "staleness": "inverse"}
    return sliced_learner(replace(config, optimizer=RMSPROP), shards=shards, **learner)


MAKERS = pytest.mark.parametrize("make", [q_learner, weighing])


@MAKERS
def test_a_checkpoint_of_any_number_of_slices_goes_on_with_any_other(
    cartpole: RunConfig, tmp_path: Path, make: Callable[[RunConfig, int], Learner]
) -> None:
    """In the middle of an update, with a target network, or with gradients that have weights."""
    whole = make(cartpole, 1)
    submit(whole, 1, 9)
    assert whole.account.ledger.pending
    before = contents(whole)
    submit(whole, 9, 20)
    assert bool(whole.target_updates) is (make is q_learner)
    for saved, resumed in ((2, 1), (1, 4), (4, 2)):
        first, second = make(cartpole, saved), make(cartpole, resumed)
        submit(first, 1, 9)
        assert contents(first) == before
        folder = tmp_path / f"{saved}-{resumed}"
        checkpoints(first, folder).save(first.version)
        checkpoints(second, folder).restore()
        second.scatter()
        assert contents(second) == before
        submit(second, 9, 20)
        assert contents(second) == contents(whole)
        for of in (Learner.snapshot, *([Learner.target_snapshot] if make is q_learner else [])):
            np.testing.assert_array_equal(of(second).parameters, of(whole).parameters)


@MAKERS
def test_gradients_that_wait_are_forgotten_in_every_slice(
    cartpole: RunConfig, make: Callable[[RunConfig, int], Learner]
) -> None:
    whole, cut = (make(cartpole, shards) for shards in (1, 3))
    better = make(cartpole, 2)
    submit(better, 30, 40)
    better.gather()
    theirs = {name: variable.numpy() for name, variable in better.variables().items()}
    for learner in (whole, cut):
        submit(learner, 1, 9)
        assert learner.account.ledger.pending
        # As in a checkpoint, of which nothing must come back.
        contents(learner)
        learner.take_over(theirs, better.state())
        assert learner.account.ledger.pending == 0
        submit(learner, 9, 20)
    assert contents(cut) == contents(whole)


def test_moments_are_written_into_whatever_slices_they_are_in(cartpole: RunConfig) -> None:
    layout = ParameterLayout(("w", RUNNING_MEAN, RUNNING_VARIANCE), ((40,), (20,), (20,)))
    seen = []
    for shards in (1, 2, 4):
        config = replace(cartpole, optimizer=RMSPROP, learner=LearnerConfig(shards=shards))
        learner = Learner(config, layout, np.ones(80, np.float32))
        for sequence in range(1, 5):
            rows = np.random.default_rng(sequence).normal(5.0, 2.0, (30, 20))
            changes = {"layout_fingerprint": layout.fingerprint, "observation_moments": Moments.of(rows)}
            pushed = np.concatenate([gradient(sequence)[:40], np.zeros(40, np.float32)])
            learner.submit(numbered(sequence, learner.version, gradient=pushed, **changes))
            seen.append((shards, learner.snapshot().parameters.tobytes()))
    assert len({shards for shards, _ in seen}) == 3
    assert len({values for _, values in seen}) == 4


def test_slices_are_whole_blocks_of_about_equal_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slice_bounds(SIZE, 1) == [(0, SIZE)]
    assert slice_bounds(SIZE, 4) == [(0, 16), (16, 48), (48, 64), (64, SIZE)]
    with pytest.raises(ConfigurationError, match=r"--learner.shards 7: .* make 6 blocks.* use 6 or fewer"):
        slice_bounds(SIZE, 7)
    monkeypatch.undo()
    for size in (1, 1000, 4_610, 677_943, 1_687_719, 30_000_000):
        block = block_size(size)
        assert block % 16 == 0, "kernels that go by groups of elements would see other groups in a slice"
        assert (block_count(size) - 1) * block < size <= block_count(size) * block
        for shards in (1, 2, 3, 4, 8):
            if shards > block_count(size):
                continue
            bounds = slice_bounds(size, shards)
            assert bounds[0][0] == 0
            assert bounds[-1][1] == size
            assert all(begin % block == 0 and begin < end for begin, end in bounds)
            longest = max(end - begin for begin, end in bounds)
            assert longest <= size / shards + block
    # Those of the two networks of the papers are equal to within a twentieth.
    for size in (677_943, 1_687_719):
        for shards in (2, 4, 8):
            assert max(end - begin for begin, end in slice_bounds(size, shards)) < 1.05 * size / shards


def test_snapshots_are_whole_and_fresh(cartpole: RunConfig) -> None:
    learner = sliced_learner(cartpole, shards=2)
    first = learner.snapshot()
    assert first.pieces == ()
    with pytest.raises(ValueError, match="read-only"):
        first.parameters[0] = 2.0
    learner.submit(numbered(1))
    np.testing.assert_array_equal(first.parameters, START)
    assert not np.array_equal(learner.snapshot().parameters, START)
    assert learner.layout == LAYOUT


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shards": 0}, "--learner.shards 0: must be at least 1"),
        ({"shards": 2, "staleness": "gap"}, "--learner.staleness gap: .* leave --learner.shards out"),
        ({"shards": 2, "staleness": "delay_compensated"}, "--learner.staleness delay_compensated: "),
        ({"shards": 2, "device": "gpu"}, "--learner.device gpu: slices are updated on CPUs"),
    ],
)
def test_what_slices_cannot_do_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as raised:
        LearnerConfig(**settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("how", ["node"])
def test_sums_of_gradients_are_refused(cartpole: RunConfig, how: str) -> None:
    learner = LearnerConfig(shards=2, gradients_per_update=4)
    with pytest.raises(ConfigurationError, match=f"--aggregation {how}: .* leave --learner.shards out"):
        replace(cartpole, learner=learner, aggregation=how, address="auto", executor="ray")
