"""The order of arrivals: the queue of `plan` played event by event, the lag that it makes, and files that repeat it."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launch.bench.arrival_model import ArrivalModel, arrivals, policy_lags, write_arrivals
from launch.bench.queueing import Costs, policy_lag, predict
from launch.loop.arrivals import Arrivals
from shared.errors import ConfigurationError

MODEL = ArrivalModel()


def counted_lags(actor_ids: list[int], gradients_per_update: int) -> list[int]:
    """As a learner counts them, one arrival after the other."""
    acts_with, version, pending, lags = dict.fromkeys(actor_ids, 0), 0, 0, []
    for actor in actor_ids:
        lags.append(version - acts_with[actor])
        pending += 1
        if pending == gradients_per_update:
            version, pending = version + 1, 0
        acts_with[actor] = version
    return lags


@pytest.mark.parametrize("count", [1, 3, 8])
def test_lags_are_those_that_a_learner_counts(count: int) -> None:
    ids = arrivals(replace(MODEL, stragglers=0.25), 8, 500, seed=3).actor_ids
    assert policy_lags(ids, count).tolist() == counted_lags(ids.tolist(), count)


@pytest.mark.parametrize(("actors", "count"), [(1, 1), (8, 1), (64, 8), (256, 1), (1024, 32)])
def test_the_mean_lag_is_that_of_the_plan(actors: int, count: int) -> None:
    ids = arrivals(MODEL, actors, 30 * actors, seed=1).actor_ids
    # The first calls are all of version 0.
    settled = policy_lags(ids, count)[2 * actors :]
    assert settled.mean() == pytest.approx(policy_lag(actors, count, 1, None), rel=0.03, abs=1e-9)


@pytest.mark.parametrize(("actors", "within"), [(1, 0.02), (8, 0.02), (32, 0.1), (256, 0.01), (1024, 0.01)])
def test_the_rate_is_that_of_the_plan(actors: int, within: float) -> None:
    """Near saturation the plan's service times, which are exponential, make longer queues than times that are alike."""
    seconds = arrivals(MODEL, actors, 20 * actors + 2_000, seed=1).seconds
    half = len(seconds) // 2
    rate = half / (seconds[-1] - seconds[-1 - half])
    predicted = predict(Costs(MODEL.rollout_seconds, MODEL.learner_seconds), actors).gradients_per_second
    assert rate == pytest.approx(predicted, rel=within)


def test_where_the_learner_is_full_actors_take_turns() -> None:
    """What each waits for the learner is more than times differ by, and so all gradients are about equally old."""
    few, many = (policy_lags(arrivals(MODEL, n, 30 * n, seed=1).actor_ids, 1)[2 * n :] / (n - 1) for n in (16, 1024))
    assert few.std() > 0.25
    assert many.std() < 0.05


def test_where_some_are_to_be_slow_one_is_at_least() -> None:
    orders = [arrivals(replace(MODEL, stragglers=share), 3, 200, seed=1).actor_ids for share in (0.0, 0.125)]
    reports = [np.bincount(ids, minlength=3) for ids in orders]
    assert reports[1][2] < reports[0][2] / 2


def test_stragglers_report_less_and_later() -> None:
    model = replace(MODEL, stragglers=0.125)
    ids = arrivals(model, 16, 4_000, seed=1).actor_ids
    counts = np.bincount(ids, minlength=16)
    # Two of sixteen, with a rollout of 5 where others have 1, and the same waits.
    assert counts[14:].mean() == pytest.approx(counts[:14].mean() / 5, rel=0.1)
    lags = policy_lags(ids, 1)
    assert lags[ids >= 14].mean() > 4 * lags[ids < 14].mean()
    assert lags.mean() == pytest.approx(15, rel=0.03), "the mean is N - 1 however fast each is"


def test_calls_that_only_differentiate_are_short() -> None:
    model = replace(MODEL, gradient_share=0.2, rollout_seconds=1.0)
    assert model.call_seconds() == [1.0]
    assert model.call_seconds(2, 1) == pytest.approx([1.0, 0.2])
    assert model.call_seconds(2, 4) == pytest.approx([0.85, *[0.05] * 7])
    plain, reused = (arrivals(replace(model, spread=0.0), 1, 100, seed=1, epochs=epochs) for epochs in (1, 2))
    assert plain.seconds[-1] == pytest.approx(100 * (1.0 + model.learner_seconds))
    assert reused.seconds[-1] == pytest.approx(50 * 1.2 + 100 * model.learner_seconds)


def test_an_order_follows_from_its_recipe(tmp_path: Path) -> None:
    short, long = (arrivals(MODEL, 8, count, seed=2) for count in (100, 300))
    assert (short.actor_ids == long.actor_ids[:100]).all()
    assert (arrivals(MODEL, 8, 300, seed=3).actor_ids != long.actor_ids).any()
    write_arrivals(tmp_path / "order.txt", 8, short)
    read = Arrivals(str(tmp_path / "order.txt"))
    assert read.actor_ids == list(range(8))
    assert [arrival.actor_id for arrival in read.all] == short.actor_ids.tolist()
    # NumPy's streams, and so a committed recipe, are to stay what they are.
    assert hashlib.sha256(short.actor_ids.tobytes()).hexdigest()[:16] == "39655dce3caeb1c6"


@pytest.mark.parametrize(
    "values", [{"rollout_seconds": 0.0}, {"learner_seconds": -1.0}, {"spread": -0.1}, {"stragglers": 1.5}]
)
def test_a_model_that_cannot_be_is_refused(values: dict[str, float]) -> None:
    (name,) = values
    with pytest.raises(ConfigurationError, match=f"--model.{name.replace('_', '-')}"):
        replace(MODEL, **values)
