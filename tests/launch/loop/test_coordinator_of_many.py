"""Ids that stand for several actors, whose gradients are added on their way, in a loop driven by hand."""

import pytest
from hand_driven import Clock, make, report

from launch.loop.executor import ChildEvent, Drained, Failed, Heartbeat, Replaced
from launch.loop.worker_pool import TrainingStoppedError
from learner.learner import Outcome
from shared.config import RunConfig


def test_what_goes_with_several_actors_under_one_id_is_counted_rollout_by_rollout(cartpole: RunConfig) -> None:
    executor, _, coordinator = make(cartpole, actors=2)
    executor.completions += [Failed(1, "gone")]
    events = coordinator.run()
    # And the call that starts it: as a node has more rollouts under way than calls.
    executor.under_way[1] = 6
    assert next(events) == Failed(1, "gone")
    assert coordinator.rollouts_lost == 7


def test_one_lost_among_several_under_one_id_is_counted_and_the_others_go_on(cartpole: RunConfig) -> None:
    executor, _, coordinator = make(cartpole, actors=2, calls=2, max_restarts=1)
    lost, replaced = Failed(1_000_001, "gone"), Replaced(Failed(1_000_001, "gone"), 1_000_009)
    executor.completions += [ChildEvent(1, lost, 1), ChildEvent(1, replaced)]
    events = coordinator.run()
    assert [next(events), next(events)] == [lost, replaced]
    assert executor.actor_ids == [0, 1]
    assert executor.tape[-2:] == ["dispatch 1", "dispatch 1"]
    assert (coordinator.rollouts_lost, coordinator.actor_restarts) == (1, 1)
    # The limit is that of the run, wherever its actors are.
    executor.completions += [ChildEvent(0, Failed(7, "gone too"))]
    with pytest.raises(TrainingStoppedError, match="the last, actor 7: gone too"):
        next(events)


def test_several_under_one_id_are_asked_again_as_long_as_they_are_at_work_and_the_run_goes_on(
    cartpole: RunConfig,
) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, 1, clock=clock, hang_seconds=5.0, start_seconds=60.0)
    executor.completions += [report(0, 1, 0)]
    events = coordinator.run()
    assert isinstance(next(events), Outcome)
    for _ in range(3):
        clock.now += 4.0
        executor.completions.append(Heartbeat(0, expects_sum=False))
        assert next(events) is None
        assert executor.tape[-1] == "dispatch 0"
    # Nothing at all for six seconds.
    clock.now += 6.0
    executor.completions.append(None)
    hung = next(event for event in events if event is not None)
    assert isinstance(hung, Failed)
    assert "no report for 6 s" in hung.reason


@pytest.mark.parametrize("draining", [False, True])
def test_a_sum_under_way_is_waited_for_at_the_end_unless_nobody_is_at_work_on_it(
    cartpole: RunConfig, draining: bool
) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, 1, clock=clock)
    executor.completions += [report(0, 1, 0)]
    events = coordinator.run()
    assert isinstance(next(events), Outcome)
    if draining:
        executor.going, executor.wanted = [0], 0
        clock.now += 2.0
        executor.completions.append(None)
        assert next(events) is None
    else:
        coordinator.stop()
    executor.tape.clear()
    for _ in range(2):
        executor.completions.append(Heartbeat(0, expects_sum=True))
        assert next(events) is None
    assert executor.tape == ["dispatch 0", "dispatch 0"]
    executor.completions.append(Heartbeat(0, expects_sum=False))
    if draining:
        assert next(events) == Drained(0)
        assert executor.tape[2:] == ["remove 0"]
    else:
        assert list(events) == [None]
        assert executor.tape[2:] == []


def test_a_process_that_starts_among_several_may_take_as_long_as_any(cartpole: RunConfig) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, 1, clock=clock, hang_seconds=5.0, start_seconds=60.0)
    executor.completions += [report(0, 1, 0), ChildEvent(0, Failed(7, "gone")), None, report(0, 2, 1)]
    events = coordinator.run()
    next(events)
    next(events)
    clock.now = 59.0
    assert next(events) is None
    assert isinstance(next(events), Outcome)
