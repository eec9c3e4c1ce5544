"""Gradients that a node has added, as the learner takes them: to the bit, and each judged by itself."""

import numpy as np
import pytest
from learners import make_learner, report

from shared.config import RunConfig
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
