"""When a run stops and when it has reached its mark, by hand: no session, no learner, no Ray."""

import json
from dataclasses import replace

import numpy as np
import pytest

from launch.run.stopping import (
    ReturnTarget,
    StoppingRules,
    TrainingPoint,
    collapsed_episodes,
)
from shared.config import RunConfig


def at(episodes: int, mean: float | None, update: int | None = None) -> TrainingPoint:
    """A moment after so many episodes: one of ten agent steps in each update."""
    return TrainingPoint(update or episodes, episodes, 10 * episodes, 40 * episodes, episodes / 2, mean)


def test_a_crossing_is_confirmed_by_its_evaluation_and_not_before() -> None:
    mark = ReturnTarget(18.0, "training")
    assert not mark.crosses(at(150, 17.9), counts=True)
    assert not mark.crosses(at(160, 18.5), counts=False), "an environment is in its first episode"
    assert mark.crosses(at(170, 18.0), counts=True)
    assert not mark.crosses(at(180, 19.0), counts=True), "one question at a time"
    assert mark.first == at(170, 18.0)
    assert mark.confirmed is None
    assert mark.evaluated(18.0, at(170, 18.0), "sampled", episodes=190)
    assert mark.confirmed == mark.first == at(170, 18.0)._replace(evaluation_mean_return=18.0)
    assert not mark.crosses(at(400, 20.0), counts=True), "there is nothing more to ask"


def test_after_a_failed_evaluation_the_next_one_waits_for_100_new_episodes() -> None:
    mark = ReturnTarget(18.0, "training")
    assert mark.crosses(at(170, 18.2), counts=True)
    assert not mark.evaluated(14.92, at(170, 18.2), "sampled", episodes=200)
    assert mark.first == at(170, 18.2)._replace(evaluation_mean_return=14.92)
    assert not mark.crosses(at(299, 18.9), counts=True)
    assert mark.crosses(at(300, 18.4), counts=True)
    assert mark.evaluated(18.7, at(300, 18.4), "sampled", episodes=310)
    assert (mark.first.update, mark.confirmed.update) == (170, 300)
    assert mark.confirmed.evaluation_mean_return == 18.7


@pytest.mark.parametrize(("update", "policy"), [(171, "sampled"), (170, "greedy")])
def test_an_evaluation_of_other_weights_or_by_another_policy_confirms_nothing(update: int, policy: str) -> None:
    mark = ReturnTarget(18.0, "training")
    mark.crosses(at(170, 18.0), counts=True)
    assert not mark.evaluated(21.0, at(175, 18.0, update), policy, episodes=190)
    assert mark.evaluated(18.0, at(170, 18.0), "sampled", episodes=200)


def test_measured_by_evaluations_the_first_that_reaches_it_is_both() -> None:
    mark = ReturnTarget(475.0, "evaluation")
    assert not mark.crosses(at(200, 480.0), counts=True)
    assert not mark.evaluated(470.0, at(200, 480.0), "greedy", episodes=210)
    assert mark.first is None
    assert mark.evaluated(475.0, at(210, None), "greedy", episodes=220)
    assert mark.first == mark.confirmed == at(210, None)._replace(evaluation_mean_return=475.0)


def test_a_mark_goes_on_from_a_checkpoint() -> None:
    mark = ReturnTarget(18.0, "training")
    mark.crosses(at(170, 18.0), counts=True)
    asked = json.loads(json.dumps(mark.state()))
    mark.evaluated(10.0, at(170, 18.0), "sampled", episodes=200)
    failed = json.loads(json.dumps(mark.state()))

    exact = ReturnTarget(18.0, "training")
    exact.restore(asked, request_kept=True)
    assert not exact.crosses(at(171, 18.0), counts=True)
    assert exact.evaluated(18.0, at(170, 18.0), "sampled", episodes=180)
    # The evaluation is gone with its process: the next crossing is asked about.
    lost = ReturnTarget(18.0, "training")
    lost.restore(asked, request_kept=False)
    assert lost.first == at(170, 18.0)
    assert lost.crosses(at(171, 18.0), counts=True)
    waiting = ReturnTarget(18.0, "training")
    waiting.restore(failed, request_kept=False)
    assert not waiting.crosses(at(299, 18.0), counts=True)
    assert waiting.crosses(at(300, 18.0), counts=True)
    other = ReturnTarget(19.0, "training")
    other.restore(failed, request_kept=False)
    assert other.first is None


def test_collapsed_episodes_are_nearer_to_untrained_play_than_to_the_median() -> None:
    # The seed of Pong that crossed 18 and evaluated at 14.92: eight games lost outright, the median 19.
    returns = np.array([19.0] * 90 + [-21.0] * 6 + [-0.5, -0.8] + [5.0] * 2)
    assert collapsed_episodes(returns, -20.5) == 7, "midway is -0.75"
    assert collapsed_episodes(returns, None) is None
    assert collapsed_episodes(returns, 19.0) is None


def rules_after(config: RunConfig, frames: int, seconds: float, mark: ReturnTarget | None = None) -> str:
    rules = StoppingRules(config, mark)
    assert rules.stops(frames, seconds) is not rules.running
    return rules.status


def test_each_rule_stops_a_run_with_its_status(cartpole: RunConfig) -> None:
    config = replace(cartpole, total_frames=1_000, stop_after_seconds=60.0)
    reached = ReturnTarget(18.0, "evaluation")
    assert reached.evaluated(18.0, at(170, None), "sampled", episodes=180)
    assert rules_after(config, 999, 59.9, ReturnTarget(18.0, "evaluation")) == "running"
    assert rules_after(config, 999, 60.0) == "time_reached"
    assert rules_after(config, 1_000, 60.0) == "frames_reached"
    assert rules_after(config, 1_000, 60.0, reached) == "return_reached"


def test_an_interrupt_comes_before_every_limit_and_the_first_status_stays(cartpole: RunConfig) -> None:
    rules = StoppingRules(replace(cartpole, total_frames=1_000), None)
    rules.interrupt()
    assert rules.stops(1_000, 1.0)
    assert not rules.stops(2_000, 2.0), "it is stopping already"
    assert rules.status == "interrupted"


@pytest.mark.parametrize(("replays", "status"), [(None, "failed"), ("order.txt", "arrivals_replayed")])
def test_a_loop_that_ends_by_itself_is_a_failure_unless_it_repeats_a_run(
    cartpole: RunConfig, replays: str | None, status: str
) -> None:
    rules = StoppingRules(replace(cartpole, replay_arrivals=replays, executor="inline"), None)
    rules.loop_ended()
    assert rules.saved_last(failed=False, new_agent_steps=10) is None
    assert rules.status == status


@pytest.mark.parametrize(
    ("failed", "new_agent_steps", "status"), [(False, 5, "time_reached"), (False, 0, "failed"), (True, 5, "failed")]
)
def test_a_run_whose_time_is_up_failed_if_it_played_nothing_or_something_else_failed(
    cartpole: RunConfig, failed: bool, new_agent_steps: int, status: str
) -> None:
    rules = StoppingRules(replace(cartpole, stop_after_seconds=1.0), None)
    assert rules.stops(0, 1.0)
    said = rules.saved_last(failed=failed, new_agent_steps=new_agent_steps)
    assert (rules.status, said is not None) == (status, new_agent_steps == 0)
