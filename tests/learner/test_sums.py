"""Gradients that a node has added, as the learner takes them: to the bit, and each judged by itself."""

from dataclasses import replace

import numpy as np
import pytest
from learners import make_learner, report

from shared.config import MethodConfig, OptimizerConfig, RunConfig
from shared.types import AggregatedReport, GradientReport


def aggregated(reports: list[GradientReport], finite: tuple[bool, ...] | None = None) -> AggregatedReport:
    finite = finite or (True,) * len(reports)
    total = None
    for one, counts in zip(reports, finite, strict=True):
        if counts:
            total = one.gradient.copy() if total is None else total + one.gradient
    empty = np.empty(0, np.float32)
    bare = tuple(one._replace(gradient=empty) for one in reports)
    return AggregatedReport(100, np.zeros(5, np.float32) if total is None else total, bare, finite)


@pytest.mark.parametrize("accumulation", ["sum", "mean"])
def test_a_sum_made_on_a_node_is_to_the_bit_what_the_learner_makes_itself(
    cartpole: RunConfig, accumulation: str
) -> None:
    generator = np.random.default_rng(0)
    one_by_one, by_node = (make_learner(cartpole, gradients_per_update=4, accumulation=accumulation) for _ in range(2))
    for update in range(20):
        order = generator.permutation(4)
        reports = [
            report(update + 1, update, int(actor), gradient=generator.normal(size=5).astype(np.float32))
            for actor in order
        ]
        single = [one_by_one.submit(r) for r in reports]
        together = by_node.submit_sum(aggregated(reports))
        assert [o.updated for o in together] == [o.updated for o in single] == [False, False, False, True]
        assert [o.policy_lag for o in together] == [o.policy_lag for o in single]
        np.testing.assert_array_equal(by_node.snapshot().parameters, one_by_one.snapshot().parameters)
    assert by_node.account.ledger == one_by_one.account.ledger
    assert by_node.account.lag_counts == one_by_one.account.lag_counts


def test_each_gradient_of_a_sum_is_judged_by_itself(cartpole: RunConfig) -> None:
    learner = make_learner(cartpole, gradients_per_update=2)
    bad = np.full(5, np.nan, np.float32)
    reports = [report(1, actor_id=1), report(1, actor_id=2, gradient=bad), report(1, actor_id=3)]
    outcomes = learner.submit_sum(aggregated(reports, (True, False, True)))
    assert [o.dropped for o in outcomes] == [None, "non_finite", None]
    assert outcomes[-1].updated
    assert learner.account.ledger.applied == 20
    # The same reports again are duplicates, and a sum cannot be taken apart.
    again = [report(1, actor_id=1), report(2, actor_id=3)]
    assert [o.dropped for o in learner.submit_sum(aggregated(again))] == ["duplicate", "duplicate"]
    assert learner.account.ledger.sampled == 50
    learner.account.ledger.check()


def test_the_mean_is_of_all_gradients_where_some_waited_when_a_sum_came(cartpole: RunConfig) -> None:
    """As after a resume of a run whose gradients came one by one by one that adds them on nodes."""
    sgd = OptimizerConfig(name="sgd", learning_rate=0.1, schedule="constant", max_gradient_norm=None)
    learner = make_learner(replace(cartpole, optimizer=sgd), gradients_per_update=4, accumulation="mean")
    before = learner.snapshot().parameters
    ones = np.ones(5, np.float32)
    for actor_id in range(3):
        learner.submit(report(1, actor_id=actor_id, gradient=4 * ones))
    learner.submit_sum(aggregated([report(2, actor_id=actor_id, gradient=ones) for actor_id in range(4)]))
    assert (learner.version, learner.account.ledger.gradients_applied) == (1, 7)
    np.testing.assert_allclose(before - learner.snapshot().parameters, 0.1 * (3 * 4 + 4) / 7, rtol=1e-5)


def test_the_target_is_copied_before_a_sum_where_its_reports_crossed_the_interval(cartpole: RunConfig) -> None:
    """Reports of 10 agent steps, and an interval of 25: the third crosses it, before the update of the fourth."""
    config = replace(cartpole, method=MethodConfig(name="q_learning", target_interval_agent_steps=25))
    learner = make_learner(config, gradients_per_update=4)
    start = learner.snapshot().parameters.copy()
    learner.submit_sum(aggregated([report(1, actor_id=actor_id) for actor_id in range(4)]))
    assert learner.target_updates == 1
    target = learner.target_snapshot()
    assert target is not None
    np.testing.assert_array_equal(target.parameters, start)
    assert not np.array_equal(learner.snapshot().parameters, start)
