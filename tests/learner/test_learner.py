"""The learner and its account: admission, sums of a node, schedules, moments, the target network, and checkpoints."""

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from learners import make_learner, q_learner, report, restored

from learner.account import Account
from learner.learner import Learner
from shared.config import LearnerConfig, MethodConfig, OptimizerConfig, RunConfig
from shared.graph import ALIGNMENT
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.types import AggregatedReport, GradientReport


def test_every_refusal_has_its_name_and_is_accounted(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole, max_policy_lag=1)
    for sequence in (1, 2, 3):
        assert learner.submit(report(sequence, version=learner.version)).dropped is None
    before = learner.snapshot()
    refused = {
        "duplicate": report(3, version=3),
        "too_old": report(4, version=1),
        "unknown_version": report(5, version=4),
        "non_finite": report(6, version=3, gradient=np.full(5, np.nan, np.float32)),
    }
    for reason, bad in refused.items():
        assert learner.submit(bad).dropped == reason
    wrong = [
        report(7, version=3, layout_fingerprint="0" * 16),
        report(8, version=3, gradient=np.zeros(4, np.float32)),
        report(9, version=3, gradient=np.zeros(5, np.float64)),
    ]
    assert [learner.submit(bad).dropped for bad in wrong] == ["wrong_layout"] * 3
    assert learner.account.ledger.dropped == {**dict.fromkeys(refused, 10), "wrong_layout": 30}
    assert learner.account.ledger.sampled == 100
    assert learner.account.ledger.applied == 30
    assert learner.snapshot() is before
    assert learner.submit(report(10, version=2)).dropped is None
    assert learner.account.lag_counts == {0: 3, 1: 1}, "of those that were accepted"


@pytest.mark.parametrize("between", ["a refused report", "another gradient", "a checkpoint"])
def test_a_gradient_is_read_before_its_actor_writes_the_next_but_one(cartpole: RunConfig, between: str) -> None:
    learner, untouched = (make_learner(cartpole, gradients_per_update=3) for _ in range(2))
    reports = [report(sequence) for sequence in (1, 2, 3)]
    for one in reports:
        untouched.submit(one)
    memory = reports[0].gradient.copy()
    learner.submit(reports[0]._replace(gradient=memory))
    if between == "a refused report":
        learner.submit(reports[0])
    elif between == "a checkpoint":
        learner.state()
    else:
        learner.submit(reports.pop(1))
    memory[:] = np.nan
    for one in reports[1:]:
        learner.submit(one)
    assert learner.version == untouched.version == 1
    # A refused report moves the learning rate.
    np.testing.assert_allclose(learner.snapshot().parameters, untouched.snapshot().parameters, rtol=1e-6)


def test_the_account_of_non_finite_reports_survives_a_checkpoint(cartpole: RunConfig, tmp_path: Path) -> None:
    learner = make_learner(cartpole, gradients_per_update=2)
    nan = np.full(5, np.nan, np.float32)
    learner.submit(report(1, returns=(3.0, float("nan"), 5.0)))
    # Later gradients of a rollout have no agent steps of their own.
    learner.submit(report(2, gradient=nan, agent_steps=0, returns=(float("inf"),)))
    learner.submit(report(3, gradient=nan, agent_steps=0))
    learner.submit(report(3, gradient=nan, returns=(float("nan"),)))
    for one in (learner, restored(learner, make_learner(cartpole, gradients_per_update=2), tmp_path)):
        ledger = one.account.ledger
        assert ledger.gradients_dropped == {"non_finite": 2, "duplicate": 1}
        assert ledger.closed().gradients_dropped == {"non_finite": 2, "duplicate": 1, "unfinished_update": 1}
        assert ledger.dropped == {"non_finite": 10, "duplicate": 10}
        # The episodes of a duplicate were counted before.
        assert (one.account.episodes, one.account.non_finite_returns, one.account.mean_return) == (4, 2, 4.0)


def test_gradients_that_wait_for_a_kth_are_dropped_only_if_the_run_ends(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole, gradients_per_update=3)
    for sequence in range(1, 6):
        learner.submit(report(sequence))
    assert (learner.account.ledger.applied, learner.account.ledger.pending, learner.version) == (30, 20, 1)
    assert learner.account.ledger.closed().dropped == {"unfinished_update": 20}
    assert learner.account.ledger.dropped == {}
    assert learner.submit(report(6)).updated
    assert (learner.account.ledger.applied, learner.account.ledger.closed().dropped) == (60, {})


SCALED = ParameterLayout(("w", RUNNING_MEAN, RUNNING_VARIANCE), ((2,), (3,), (3,)))


def scaled_learner(config: RunConfig) -> Learner:
    return Learner(config, SCALED, np.array([1, 1, 0, 0, 0, 1, 1, 1], np.float32))


def test_moments_of_accepted_reports_are_merged_into_the_weights(cartpole: RunConfig, tmp_path: Path) -> None:
    learner, rows = scaled_learner(cartpole), np.random.default_rng(0).normal(5.0, [1.0, 2.0, 3.0], (60, 3))
    own = {"layout_fingerprint": SCALED.fingerprint, "gradient": np.zeros(8, np.float32)}
    np.testing.assert_array_equal(learner.snapshot().parameters, [1, 1, 0, 0, 0, 1, 1, 1], "before the first report")
    for sequence, part in enumerate((rows[:10], rows[10:40], rows[40:]), start=1):
        learner.submit(report(sequence, version=learner.version, observation_moments=Moments.of(part), **own))
    refused = report(4, version=9, layout_fingerprint=SCALED.fingerprint, observation_moments=Moments.of(rows + 1e6))
    assert learner.submit(refused).dropped == "wrong_layout"
    parameters = learner.snapshot().parameters
    np.testing.assert_allclose(parameters[2:5], rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(parameters[5:], rows.var(axis=0), rtol=1e-6)
    other = restored(learner, scaled_learner(cartpole), tmp_path)
    np.testing.assert_array_equal(other.snapshot().parameters, parameters)
    assert other.state() == learner.state()
    # Only the first gradient of a rollout has moments.
    assert learner.submit(report(5, version=3, **own)).updated
    np.testing.assert_array_equal(learner.snapshot().parameters, parameters)
    # The variance of finite numbers may exceed float32.
    wide = Moments(2, np.zeros(3), np.full(3, 1e76))
    assert learner.submit(report(6, version=4, observation_moments=wide, **own)).updated
    assert learner.is_finite()
    assert not Learner(cartpole, SCALED, np.array([1, np.nan, 0, 0, 0, 1, 1, 1], np.float32)).is_finite()


def test_moments_among_the_first_weights_go_on(cartpole: RunConfig) -> None:
    first = np.array([1, 1, 5, 6, 7, 4, 4, 9], np.float32)
    learner = Learner(cartpole, SCALED, first, observed=30)
    np.testing.assert_array_equal(learner.snapshot().parameters, first)
    own = {"layout_fingerprint": SCALED.fingerprint, "gradient": np.zeros(8, np.float32)}
    learner.submit(report(observation_moments=Moments.of(np.full((10, 3), 9.0)), **own))
    mean, variance = np.split(learner.snapshot().parameters[2:], 2)
    np.testing.assert_allclose(mean, [6.0, 6.75, 7.5])
    # The 30 have squares of 25 + 4, 36 + 4 and 49 + 9 in the mean.
    np.testing.assert_allclose(variance, (30 * np.array([29, 40, 58]) + 10 * 81) / 40 - mean**2)


def test_a_version_has_the_same_moments_after_a_resume(cartpole: RunConfig, tmp_path: Path) -> None:
    config = replace(cartpole, learner=LearnerConfig(gradients_per_update=2))
    learner = scaled_learner(config)
    own = {"layout_fingerprint": SCALED.fingerprint, "gradient": np.zeros(8, np.float32)}
    for sequence in (1, 2, 3):
        moments = Moments.of(np.full((10, 3), sequence))
        updated = learner.submit(report(sequence, observation_moments=moments, **own)).updated
        # Published before the third report.
        published = learner.snapshot()
    assert not updated
    again = restored(learner, scaled_learner(config), tmp_path).snapshot()
    np.testing.assert_array_equal(again.parameters, published.parameters)
    assert (again.version, again.frames) == (published.version, published.frames)


def test_weights_come_with_the_moments_of_the_last_advantages(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole)
    assert learner.snapshot().advantage_moments == (0.0, 0.0, 0.0)
    for sequence in (1, 2):
        learner.submit(report(sequence, version=learner.version, advantage_moments=(256.0, 64.0, 512.0)))
    refused = report(3, version=9, advantage_moments=(256.0, 1e6, 1e6))
    assert learner.submit(refused).dropped == "unknown_version"
    refused = report(4, version=learner.version, advantage_moments=(256.0, math.nan, math.nan), non_finite="gradient")
    assert learner.submit(refused).dropped == "non_finite"
    # The second ones push out a quarter of the last 1,024 agent steps.
    assert learner.snapshot().advantage_moments == (0.75 * 256 + 256, 0.75 * 64 + 64, 0.75 * 512 + 512)


def test_the_reward_factor_is_of_all_accepted_returns(cartpole: RunConfig) -> None:
    learner, returns = make_learner(cartpole), np.random.default_rng(0).normal(7.0, 4.0, (60, 1))
    assert learner.snapshot().reward_factor is None
    for sequence, part in enumerate((returns[:10], returns[10:]), start=1):
        learner.submit(report(sequence, version=learner.version, return_moments=Moments.of(part)))
    assert learner.submit(report(3, version=9, return_moments=Moments.of(returns + 1e6))).dropped == "unknown_version"
    assert learner.snapshot().reward_factor == pytest.approx(1.0 / returns.std(), rel=1e-6)
    equal = make_learner(cartpole)
    equal.submit(report(1, return_moments=Moments(2, np.zeros(1), np.full(1, 1e-30))))
    assert equal.snapshot().reward_factor == pytest.approx(1e4), "almost no variance"


def test_a_resumed_learner_knows_duplicates_and_actors(cartpole: RunConfig, tmp_path: Path) -> None:
    learner = make_learner(cartpole)
    learner.submit(report(6))
    other = restored(learner, make_learner(cartpole), tmp_path)
    assert other.submit(report(6)).dropped == "duplicate"
    # Actors between the two have died before their first reports.
    other.submit(report(1, actor_id=7))
    assert other.next_actor_id == 8


@pytest.mark.parametrize(
    ("optimizer", "k"),
    [
        (OptimizerConfig(name="rmsprop", schedule="linear", annealing_frames=10_000, max_gradient_norm=0.5), 1),
        (OptimizerConfig(name="adam", bias_correction=True), 3),
        (OptimizerConfig(name="sgd"), 3),
    ],
)
def test_n_updates_twice_equal_2n(optimizer: OptimizerConfig, k: int, cartpole: RunConfig, tmp_path: Path) -> None:
    """A learner goes on from a checkpoint to the bit: weights, slots, target, moments, schedules and the account.

    Saved in the middle of an update where one takes three gradients.
    """
    config = replace(cartpole, optimizer=optimizer)
    random = np.random.default_rng(0)
    tape = [
        report(
            number // 2 + 1,
            actor_id=number % 2,
            returns=(float(random.normal()),) * (number % 2),
            gradient=random.normal(size=5).astype(np.float32),
            return_moments=Moments.of(random.normal(size=(4, 1))),
            advantage_moments=(10.0, 1.0, float(random.random())),
        )
        for number in range(40)
    ]

    def play(learner: Learner, reports: list[GradientReport]) -> Learner:
        for one in reports:
            assert learner.submit(one._replace(version=learner.version)).dropped is None
        return learner

    def new() -> Learner:
        return q_learner(config, gradients_per_update=k)

    whole = play(new(), tape)
    first = play(new(), tape[:20])
    assert first.snapshot().frames == 200
    half = restored(first, new(), tmp_path)
    assert half.account.ledger.gradients_pending == 20 % k
    play(half, tape[20:])
    assert half.state() == whole.state()
    for name, variable in whole.variables().items():
        np.testing.assert_array_equal(half.variables()[name].numpy(), variable.numpy(), err_msg=name)
    (_, parameters, *others), (_, expected, *expected_others) = half.snapshot(), whole.snapshot()
    np.testing.assert_array_equal(parameters, expected)
    assert others == expected_others


def test_a_snapshot_does_not_change_and_is_read_in_place(cartpole: RunConfig) -> None:
    learner = q_learner(cartpole)
    for parameters in (learner.snapshot().parameters, learner.target_snapshot().parameters):
        assert not parameters.flags.writeable
        assert parameters.ctypes.data % ALIGNMENT == 0
    parameters = learner.snapshot().parameters
    before = parameters.copy()
    learner.submit(report(1))
    assert not np.array_equal(learner.snapshot().parameters, before)
    np.testing.assert_array_equal(parameters, before)


def aggregated(reports: list[GradientReport]) -> AggregatedReport:
    total = None
    for one in reports:
        if not one.non_finite:
            total = one.gradient.copy() if total is None else total + one.gradient
    empty = np.empty(0, np.float32)
    bare = tuple(one._replace(gradient=empty) for one in reports)
    return AggregatedReport(100, np.zeros(5, np.float32) if total is None else total, bare)


def test_each_gradient_of_a_sum_is_judged_by_itself(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole, gradients_per_update=2)
    bad = np.full(5, np.nan, np.float32)
    not_finite = report(1, actor_id=2, gradient=bad, non_finite="gradient")
    reports = [report(1, actor_id=1), not_finite, report(1, actor_id=3)]
    began = time.perf_counter()
    outcomes = learner.submit_sum(aggregated(reports))
    assert 0.0 < sum(outcome.seconds for outcome in outcomes) <= time.perf_counter() - began
    assert [o.dropped for o in outcomes] == [None, "non_finite", None]
    assert outcomes[-1].updated
    assert learner.account.ledger.applied == 20
    # The same reports again are duplicates, and a sum cannot be taken apart.
    again = [report(1, actor_id=1), report(2, actor_id=3)]
    assert [o.dropped for o in learner.submit_sum(aggregated(again))] == ["duplicate", "duplicate"]
    assert learner.account.ledger.sampled == 50
    learner.account.ledger.check()


HUGE = np.full(5, 6e18, np.float32)


@pytest.mark.parametrize("on_a_node", [False, True])
def test_finite_gradients_whose_sum_is_not_are_dropped_counted_and_named(cartpole: RunConfig, on_a_node: bool) -> None:
    learner = make_learner(replace(cartpole, method=MethodConfig(reduction="sum")), gradients_per_update=4)
    before = learner.snapshot().parameters
    reports = [report(1, actor_id=actor_id, gradient=HUGE) for actor_id in range(4)]
    outcomes = learner.submit_sum(aggregated(reports)) if on_a_node else [learner.submit(r) for r in reports]
    assert outcomes[-1].dropped == "non_finite"
    assert outcomes[-1].report.non_finite == "sum of 4 gradients"
    assert not any(outcome.updated for outcome in outcomes)
    ledger = learner.account.ledger
    assert (ledger.gradients_dropped, ledger.dropped) == ({"non_finite": 4}, {"non_finite": 40})
    assert (ledger.pending, ledger.gradients_pending, ledger.updates) == (0, 0, 0)
    np.testing.assert_array_equal(learner.snapshot().parameters, before)
    # The next four make an update as if nothing had been.
    fine = [report(2, actor_id=actor_id) for actor_id in range(4)]
    again = learner.submit_sum(aggregated(fine)) if on_a_node else [learner.submit(r) for r in fine]
    assert again[-1].updated
    assert np.isfinite(learner.snapshot().parameters).all()


@pytest.mark.parametrize(
    ("single", "sums", "gradients"),
    [
        # As after a resume of a run whose gradients came one by one by one that adds them on nodes.
        ([4.0, 4.0, 4.0], [[1.0] * 4], 7),
        # Sums of fewer gradients than K complete an update together.
        ([], [[1.0] * 2, [5.0] * 2], 4),
    ],
)
def test_the_mean_is_of_all_gradients(single: list, sums: list, gradients: int, cartpole: RunConfig) -> None:
    sgd = OptimizerConfig(name="sgd", learning_rate=0.1, schedule="constant", max_gradient_norm=None)
    learner = make_learner(replace(cartpole, optimizer=sgd), gradients_per_update=4)
    before = learner.snapshot().parameters

    def reports(sequence: int, values: list[float]) -> list[GradientReport]:
        return [report(sequence, actor_id=i, gradient=np.full(5, v, np.float32)) for i, v in enumerate(values)]

    for one in reports(1, single):
        assert not learner.submit(one).updated
    outcomes = [
        learner.submit_sum(aggregated(reports(sequence, values)))[-1] for sequence, values in enumerate(sums, 2)
    ]
    assert [outcome.updated for outcome in outcomes] == [False] * (len(sums) - 1) + [True]
    assert (learner.version, learner.account.ledger.gradients_applied) == (1, gradients)
    mean = (sum(single) + sum(map(sum, sums))) / gradients
    np.testing.assert_allclose(before - learner.snapshot().parameters, 0.1 * mean, rtol=1e-5)


def test_a_sum_has_the_target_and_the_rate_of_its_last_report(cartpole: RunConfig) -> None:
    """Reports of 10 agent steps, and an interval of 25: the third crosses it, before the update of the fourth."""
    learner, plain = (q_learner(cartpole, gradients_per_update=4) for _ in range(2))
    start = learner.snapshot().parameters.copy()
    reports = [report(1, actor_id=actor_id) for actor_id in range(4)]
    rates = [plain.submit(one).learning_rate for one in reports]
    assert rates[0] > learner.submit_sum(aggregated(reports))[-1].learning_rate == rates[-1]
    assert learner.target_updates == 1
    target = learner.target_snapshot()
    np.testing.assert_array_equal(target.parameters, start)
    assert not np.array_equal(learner.snapshot().parameters, start)


def test_the_target_is_copied_when_agent_steps_cross_a_multiple(cartpole: RunConfig) -> None:
    """10 agent steps a report, interval 25: at 30, 50 and 80, of the weights after it, also where it is dropped."""
    learner = q_learner(cartpole)
    first = learner.target_snapshot()
    seen = []
    for sequence in range(1, 9):
        dropped = learner.submit(report(sequence, version=99 if sequence == 5 else learner.version)).dropped
        assert dropped == ("unknown_version" if sequence == 5 else None)
        seen.append(learner.target_snapshot().version)
        if sequence in (3, 5, 8):
            np.testing.assert_array_equal(learner.target_snapshot().parameters, learner.snapshot().parameters)
    assert seen == [0, 0, 1, 1, 2, 2, 2, 3]
    np.testing.assert_array_equal(first.parameters, np.ones(5, np.float32))


def test_without_a_target_network_there_is_no_copy(cartpole: RunConfig) -> None:
    method = MethodConfig(name="q_learning", target_network=False, target_interval_agent_steps=25)
    for learner in (make_learner(replace(cartpole, method=method)), make_learner(cartpole)):
        for sequence in range(1, 9):
            learner.submit(report(sequence, version=learner.version))
        assert (learner.target_snapshot(), learner.target_updates) == (None, 0)
        assert "target_parameters" not in learner.variables()


def test_returns_are_those_of_the_last_100_episodes(cartpole: RunConfig) -> None:
    account = Account(cartpole)
    assert account.mean_return is None
    account.record(report(returns=tuple(range(60))), None, 0)
    account.record(report(returns=tuple(range(60, 120))), None, 0)
    resumed = Account(cartpole)
    resumed.restore(account.state())
    for one in (account, resumed):
        assert (one.mean_return, one.episodes) == (np.mean(range(20, 120)), 120)
        one.record(report(returns=(120,)), None, 0)
        assert one.mean_return == np.mean(range(21, 121))
    too_large = Account(cartpole)
    too_large.record(report(returns=(1.5e308, 1.5e308)), None, 0)
    assert too_large.mean_return is None


def test_schedules_follow_frames_and_not_agent_steps(cartpole: RunConfig) -> None:
    """10 agent steps of four frames in each report, and 1,000 frames of annealing."""
    environment = replace(cartpole.environment, frame_skip=4)
    optimizer = replace(cartpole.optimizer, learning_rate=1.0, annealing_frames=1_000)
    learner = make_learner(replace(cartpole, environment=environment, optimizer=optimizer), gradients_per_update=3)
    rates = [learner.submit(report(sequence)).learning_rate for sequence in (1, 2)]
    assert rates == pytest.approx([1.0, 0.96])
    assert learner.snapshot().frames == 80
