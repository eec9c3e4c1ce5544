"""Nodes that come, drain and die, in a loop driven by hand."""

from hand_driven import Clock, make, report

from launch.loop.executor import Drained, Failed, Joined, Replaced
from learner.learner import Outcome
from shared.config import RunConfig


def test_an_actor_joins_where_there_is_room_and_counts_as_no_restart(cartpole: RunConfig) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, actors=1, clock=clock)
    executor.completions += [report(0, 1, 0), report(0, 2, 1)]
    events = coordinator.run()
    assert isinstance(next(events), Outcome)
    executor.wanted, clock.now = 2, 5.0
    assert next(events) == Joined(1)
    assert executor.tape[-2:] == ["add 1", "dispatch 1"]
    assert coordinator.actor_restarts == 0


def test_an_actor_whose_place_goes_makes_its_last_report(cartpole: RunConfig) -> None:
    clock = Clock()
    executor, learner, coordinator = make(cartpole, actors=2, calls=2, clock=clock)
    executor.wanted, executor.going = 1, [1]
    executor.completions += [report(0, 1, 0), report(1, 1, 0), report(0, 2, 1), report(1, 2, 1)]
    events = coordinator.run()
    clock.now = 5.0
    seen = [next(events) for _ in range(5)]
    assert seen[-1] == Drained(1)
    assert executor.actor_ids == [0]
    # Asked for nothing after the notice, and its last two reports are in.
    assert executor.tape.count("dispatch 1") == 2
    assert learner.account.ledger.sampled == 4
    assert coordinator.rollouts_lost == 0


def test_actors_lost_with_their_node_are_no_restarts_and_the_run_waits_for_others(cartpole: RunConfig) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, actors=2, clock=clock, max_restarts=0)
    executor.wanted = 0
    executor.completions += [Failed(0, "its node died", node_lost=True), Failed(1, "its node died", node_lost=True)]
    executor.completions += [None, None]
    events = coordinator.run()
    assert [next(events) for _ in range(4)][2:] == [None, None]
    assert coordinator.rollouts_lost == 2
    executor.wanted, clock.now = 1, 9.0
    assert next(events) == Joined(2)
    executor.completions += [report(2, 1, 0)]
    assert isinstance(next(events), Outcome)
    assert coordinator.actor_restarts == 0


def test_a_replacement_waits_for_a_place(cartpole: RunConfig) -> None:
    clock = Clock()
    executor, _, coordinator = make(cartpole, actors=2, clock=clock)
    executor.places, executor.wanted = 1, 2
    executor.completions += [Failed(0, "it raised"), None, None]
    events = coordinator.run()
    assert isinstance(next(events), Failed)
    clock.now = 5.0
    assert next(events) is None
    executor.places, clock.now = 2, 10.0
    assert next(events) == Replaced(Failed(0, "it raised"), 2)
