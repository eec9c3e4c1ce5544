"""The asynchronous loop, driven by hand: its order of calls, and actors that fail, hang and join."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand_driven import make, part, report

from launch.loop.evaluation import EvaluationLost, EvaluationResult, EvaluationShares, GoesOn
from launch.loop.executor import ChildEvent, Failed, Joined, Replaced
from learner.learner import Outcome
from shared.config import EvaluationConfig, MethodConfig, RunConfig
from shared.errors import ConfigurationError, TrainingFailedError
from shared.types import (
    AggregatedReport,
    EpisodeStats,
    EvaluationPart,
    EvaluationShare,
    GradientReport,
    Heartbeat,
    StageSeconds,
)


def kinds(events: Iterator[Any], count: int) -> list[type]:
    return [type(next(events)) for _ in range(count)]


def begun(config: RunConfig, actors: int = 1, **settings: Any) -> Any:
    """As `make`, after the first report of actor 0."""
    executor, events, coordinator, learner = make(config, actors, **settings)
    executor.completions.append(report(0, 1, 0))
    assert kinds(events, 1) == [Outcome]
    return executor, events, coordinator, learner


def test_a_dead_actor_is_replaced_until_the_limit(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=2, max_restarts=1)
    executor.completions += [Failed(1, "gone"), Failed(2, "gone too")]
    assert next(events) == Failed(1, "gone")
    assert next(events) == Replaced(Failed(1, "gone"), 2)
    assert executor.tape[-3:] == ["remove 1", "add 2", "dispatch 2"]
    assert coordinator.pool.rollouts_lost == 1
    with pytest.raises(TrainingFailedError, match="gone too"):
        next(events)


def test_actors_that_never_report_end_the_run_however_slowly_they_die(cartpole: RunConfig) -> None:
    """As with an environment whose first rollout takes longer than --supervision.start-seconds."""
    executor, events, coordinator, _ = make(cartpole, actors=2, max_restarts=3, start_seconds=1_000.0)
    executor.completions += [1.0] * 5_000
    with pytest.raises(TrainingFailedError, match=r"3 actors died before any report.* --supervision.start-seconds"):
        list(events)
    assert coordinator.pool.actor_restarts == 2


@pytest.mark.parametrize("within", [False, True])
def test_an_actor_that_dies_while_the_run_stops_does_not_fail_it(cartpole: RunConfig, within: bool) -> None:
    executor, events, coordinator, _ = begun(cartpole, actors=2, max_restarts=0)
    failed = Failed(1, "gone")
    executor.completions += [ChildEvent(1, failed) if within else failed, report(0, 2, 1)]
    coordinator.stop()
    assert failed in list(events)


@pytest.mark.parametrize("within", [False, True])
def test_an_error_of_an_actor_stops_a_run_without_reports(within: bool, cartpole: RunConfig) -> None:
    failed = Failed(1, "its rollout raised: no such name", raised=True)
    executor, events, *_ = make(cartpole, actors=2)
    executor.completions.append(ChildEvent(1, failed) if within else failed)
    with pytest.raises(ConfigurationError, match="actor 1: its rollout raised: no such name"):
        next(events)
    # One that comes later is replaced like any other: the environment can be played, as others have shown.
    executor, events, *_ = begun(cartpole, actors=2)
    executor.completions.append(failed)
    assert kinds(events, 2) == [Failed, Replaced]


def test_deaths_long_ago_do_not_count_against_the_limit(cartpole: RunConfig) -> None:
    executor, events, *_ = begun(cartpole, 2, max_restarts=1, start_seconds=1e9)
    for actor_id in (0, 1):
        executor.clock.now += 601.0
        executor.completions.append(Failed(actor_id, "gone"))
        assert kinds(events, 2) == [Failed, Replaced]


def test_a_replacement_that_has_not_reported_is_replaced_after_half_a_minute(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=1)
    executor.completions += [Failed(0, "gone"), Failed(1, "gone, too"), 29.0, 1.0]
    assert kinds(events, 5) == [Failed, Replaced, Failed, type(None), type(None)]
    executor.completions += [report(2, 1, 0), Failed(2, "gone")]
    assert kinds(events, 4) == [Replaced, Outcome, Failed, Replaced], "one that has reported is replaced at once"
    assert (coordinator.pool.actor_restarts, coordinator.pool.rollouts_lost) == (3, 3)
    executor.completions += [report(3, 1, 0), ChildEvent(3, Failed(7, "gone")), Failed(3, "gone")]
    assert kinds(events, 4) == [Outcome, Failed, Failed, Replaced], "also after a death behind it"


def test_a_run_that_stops_waits_for_no_replacement(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = begun(cartpole, actors=2, max_restarts=9)
    executor.completions += [Failed(1, "gone"), Failed(2, "gone, too"), report(0, 2, 1)]
    assert kinds(events, 3) == [Failed, Replaced, Failed]
    coordinator.stop()
    assert [type(event) for event in events] == [Outcome]


def working(sequence: int, seconds: float, actor_id: int = 0) -> GradientReport:
    """A report of a call in which the actor worked for `seconds`, and waited."""
    stages = StageSeconds(seconds / 2, seconds / 4, seconds / 4, 1e4, 1e4)
    return report(actor_id, sequence, 0)._replace(stage_seconds=stages)


EVALUATION = EvaluationConfig(episodes=80, environments=20)
# A rollout of 1,000 seconds, and 200 of one second after it.
PAUSED = [working(1, 1.0), *(working(sequence, 1_000.0 if sequence == 2 else 1.0) for sequence in range(2, 203))]
SUM = [working(sequence, 8.0, actor_id) for sequence, actor_id in [(1, 7), (2, 7), (3, 8), (4, 7)]]


@pytest.mark.parametrize(
    ("calls", "limit", "reason"),
    [
        ([], 180, "no report for 181 s, and none before: the actor hangs; if calls take this long, raise"),
        # Another actor's reports do not count.
        ([25.0, report(1, 1, 0), 25.0, report(1, 2, 0)], 130, "and none before"),
        ([59.0, working(1, 1.0), 2.0, working(2, 1.0)], 40, "its longest rollout took 2.0 s: the actor hangs"),
        ([report(0, 1, 0)], 30, "raise --supervision.hang-seconds"),
        # A process starts for 20 s, then plays for 40.
        ([60.0, working(1, 40.0)], 120, "took 40.0 s"),
        # A call that only differentiates teaches nothing about the next one.
        ([60.0, working(1, 40.0), 0.1, working(2, 0.1), 45.0, working(3, 45.0)], 900, "took 45.0 s"),
        # A rollout of 50 s in a call of its own, and its first gradient.
        ([working(1, 1.0), Heartbeat(0), 0.1, working(2, 50.0)], 1_000, "took 50.0 s"),
        # A long pause lengthens the limit for 200 rollouts.
        (PAUSED[:-1], 20_000, "took 1000.0 s"),
        (PAUSED, 30, "took 1.0 s"),
        # For an evaluation an actor makes environments, as at its start.
        (["evaluation", report(0, 1, 0)], 180, "raise --supervision.start-seconds"),
        # A sum takes as long as its busiest actor: three times 24 s.
        ([AggregatedReport(0, np.zeros(2, np.float32), tuple(SUM))], 72, "took 24.0 s"),
        ([report(0, 1, 0), *[29.0, Heartbeat(0, new_steps_follow=False)] * 3], 30, "took 0.0 s"),
        # An actor starts behind an aggregator.
        ([report(0, 1, 0), ChildEvent(0, Failed(7, "gone"))], 180, "and none before"),
    ],
)
def test_an_actor_hangs_after_its_limit_and_is_replaced(
    calls: list, limit: int, reason: str, cartpole: RunConfig
) -> None:
    """`calls` are completions and the seconds between them; then comes none."""
    executor, events, coordinator, _ = make(cartpole, 2, hang_seconds=30.0, start_seconds=180.0)
    if "evaluation" in calls:
        assert coordinator.evaluate("sampled", EVALUATION)
    executor.completions += [*(call for call in calls if call != "evaluation"), *[1.0] * 20_100]
    executor.completed_unseen, silent_since = {1}, 0.0
    while not (isinstance(event := next(events), Failed) and event.actor_id == 0):
        silent_since = silent_since if event is None else executor.clock.now
    assert limit < executor.clock.now - silent_since <= limit + 1.1
    assert reason in event.reason
    assert Replaced(event, 2) in (next(events), next(events))


def test_a_pause_of_all_processes_is_no_reason_to_end_actors(cartpole: RunConfig) -> None:
    """A suspended job, whose clock goes on: actors had as little time as the learner."""
    executor, events, *_ = begun(cartpole, actors=2, hang_seconds=30.0, start_seconds=100.0)
    executor.completions += [1_000.0, *[1.0] * 30]
    assert kinds(events, 31) == [type(None)] * 31
    executor.completions += [1.0] * 3
    assert next(filter(None, events)).reason.startswith("no report for 3")


def test_an_actor_that_hangs_on_a_silent_node_is_no_death(cartpole: RunConfig) -> None:
    """Ray's server notices a node without power after the supervisor does."""
    executor, events, *_ = begun(cartpole, actors=1, hang_seconds=30.0, max_restarts=0)
    executor.lost_nodes, executor.wanted = {0}, 0
    executor.completions += [1.0] * 33
    found = [event for event in (next(events) for _ in range(33)) if event is not None]
    assert found == [Failed(0, "its node does not respond", node_lost=True)]


def test_actors_may_be_asked_for_within_seconds(cartpole: RunConfig) -> None:
    """A gap between two checks of more than that is no pause."""
    executor, events, *_ = begun(cartpole, actors=1, hang_seconds=1.0)
    executor.completions += [1.1] * 30
    assert next(filter(None, events)).reason.startswith("no report for ")


def test_an_actor_whose_report_was_not_taken_yet_does_not_hang(cartpole: RunConfig) -> None:
    executor, events, *_ = make(cartpole, 1, start_seconds=10.0)
    executor.completed_unseen = {0}
    executor.completions += [None, None, report(0, 1, 0)]
    assert next(events) is None, "it was asked for a rollout now, at 0 s"
    executor.clock.now = 1_000.0
    assert next(events) is None
    assert isinstance(next(events), Outcome)


def test_too_many_gradients_that_are_not_finite_stop_the_run(cartpole: RunConfig) -> None:
    executor, events, _, learner = make(cartpole, actors=1)
    bad = np.full(2, np.nan, np.float32)
    executor.completions += [report(0, 1, 0)._replace(gradient=bad), report(0, 2, 0)]
    executor.completions += [report(0, n, 0)._replace(gradient=bad) for n in range(3, 24)]
    assert [next(events).dropped for _ in range(23)] == ["non_finite", None, *["non_finite"] * 21]
    with pytest.raises(TrainingFailedError, match="21 rollouts in a row were not finite"):
        next(events)
    assert learner.is_finite()


def evaluating(
    config: RunConfig, actors: int = 2, goes_on: GoesOn | None = None, evaluation: EvaluationConfig = EVALUATION
):
    """As `make`, in an evaluation of update 1 of which each actor has a call, after a report."""
    executor, events, coordinator, learner = begun(config, actors)
    assert coordinator.evaluate("sampled", evaluation, goes_on)
    executor.tape.clear()
    executor.completions += [report(0, 2, 1), *(report(actor_id, 1, 0) for actor_id in range(1, actors))]
    assert kinds(events, actors) == [Outcome] * actors
    return executor, events, coordinator, learner


def test_actors_play_an_evaluation_in_shares_and_nothing_of_it_is_counted(cartpole: RunConfig) -> None:
    executor, events, coordinator, learner = evaluating(cartpole)
    assert not coordinator.evaluate("greedy", EVALUATION), "one at a time"
    # Rollouts that were under way when it was requested are taken in first.
    assert executor.tape == ["publish 2", "evaluate 0", "publish 3", "evaluate 1"]
    assert [executor.shares[actor_id][2:5] for actor_id in (0, 1)] == [(0, 10, 4), (10, 10, 4)]
    sampled = learner.account.ledger.sampled
    for order in range(4):
        executor.completions += [part(executor, actor_id, *[float(order)] * 10, order=order) for actor_id in (1, 0)]
    seen = [next(events) for _ in range(9)]
    assert [type(event) for event in seen] == [EvaluationPart] * 8 + [EvaluationResult]
    assert executor.tape[-2:] == ["dispatch 1", "dispatch 0"], "each goes on with its training"
    result = seen[-1]
    assert (result.snapshot.version, result.policy, result.agent_steps) == (1, "sampled", 8 * 100)
    np.testing.assert_array_equal(result.episodes.returns, np.repeat(np.arange(4.0), 20))
    np.testing.assert_array_equal(result.games, [100 * w + e for w in range(4) for e in range(20)])
    assert learner.account.ledger.sampled == sampled
    assert not coordinator.evaluates


def test_an_evaluation_is_looked_at_wave_by_wave_and_only_whole_waves_count(cartpole: RunConfig) -> None:
    looks: list[list[float]] = []

    def goes_on(returns: np.ndarray) -> bool:
        looks.append(returns.tolist())
        return len(looks) < 2

    executor, events, _, _ = evaluating(cartpole, 2, goes_on, EvaluationConfig(episodes=40, environments=10))
    # No look before 20 episodes: two waves of 10 are played at first. Actor 0 runs ahead.
    assert {share.episodes for share in executor.shares.values()} == {2}
    for order in range(3):
        executor.completions.append(part(executor, 0, *[1.0 + order] * 5, order=order))
    executor.completions += [part(executor, 1, *[9.0] * 5, order=order) for order in (0, 1)]
    assert kinds(events, 4) == [EvaluationPart] * 4
    assert (looks, executor.tape[-3:]) == ([], ["dispatch 0", "dispatch 0", "evaluate 1"])
    assert kinds(events, 1) == [EvaluationPart]
    assert looks == [[1.0] * 5 + [9.0] * 5 + [2.0] * 5 + [9.0] * 5]
    executor.completions.append(part(executor, 1, *[5.0] * 5, order=2))
    *_, result = next(events), next(events)
    np.testing.assert_array_equal(result.episodes.returns, [*looks[0], *[3.0] * 5, *[5.0] * 5])
    assert looks[1:] == [result.episodes.returns.tolist()]


def test_an_evaluation_is_given_up_when_an_actor_dies_with_its_share(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = evaluating(cartpole, 3, evaluation=EvaluationConfig(episodes=40, environments=2))
    executor.completions += [Failed(0, "it has no share"), Failed(2, "gone"), part(executor, 1)]
    assert kinds(events, 2) == [Failed, Replaced]
    assert kinds(events, 4) == [Failed, EvaluationLost, Replaced, EvaluationPart]
    assert executor.tape[-1] == "dispatch 1"
    assert coordinator.evaluate("sampled", EVALUATION)


def test_a_node_that_loses_an_actor_gives_up_the_evaluation(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = evaluating(cartpole)
    # Without a share in this evaluation, and with one.
    executor.completions += [ChildEvent(0, Failed(1_000_001, "gone"), 1, number) for number in (None, 0, 1)]
    assert kinds(events, 4) == [Failed, Failed, Failed, EvaluationLost]
    assert not coordinator.evaluates


def test_a_node_plays_its_share_though_its_sum_is_incomplete(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = evaluating(cartpole)
    executor.aggregates = True
    for alone in (False, True):
        executor.completions.append(Heartbeat(0, new_steps_follow=True))
        assert kinds(events, 1) == [Heartbeat]
        assert executor.tape[-1] == "evaluate 0"
        assert executor.shares[0].alone == alone, "the run stops"
        coordinator.stop()


def test_a_part_of_an_evaluation_that_was_given_up_is_in_no_other(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = evaluating(cartpole, evaluation=EvaluationConfig(episodes=20, environments=2))
    late = part(executor, 1, 99.0)
    assert coordinator.give_up_evaluation() is not None
    assert coordinator.evaluate("sampled", EvaluationConfig(episodes=2, environments=2))
    executor.completions += [part(executor, 0), late]
    assert kinds(events, 2) == [EvaluationPart] * 2
    executor.completions += [part(executor, actor_id, 1.0) for actor_id in (0, 1)]
    *_, result = (next(events) for _ in range(3))
    np.testing.assert_array_equal(result.episodes.returns, [1.0, 1.0])


def test_shares_of_nodes_are_as_large_as_their_numbers_of_actors() -> None:
    whole = EvaluationShare(1, "greedy", 0, 20, 4)
    shares = EvaluationShares(EVALUATION, whole, {0: 1, 1: 8, 2: 1})
    assert [shares.share(actor_id)[2:4] for actor_id in (0, 1, 2)] == [(0, 2), (2, 16), (18, 2)]
    # Of three episodes the second environment plays one.
    uneven = EvaluationShares(EvaluationConfig(episodes=3, environments=2), whole._replace(size=2), {0: 1, 1: 1})
    for environment in (0, 1):
        one = np.array([environment])
        uneven.count(EvaluationPart(environment, 1, EpisodeStats.joined([]), one, 0 * one, one, 10))
    assert uneven.share(0) is not None
    assert uneven.share(1) is None
    # More actors than environments: some train on.
    shares = EvaluationShares(EVALUATION, whole, dict.fromkeys(range(64), 1))
    sizes = [share.size for share in map(shares.share, range(64)) if share]
    assert sizes == [1] * 20


def test_a_run_that_stops_plays_its_evaluation_to_the_end_and_an_interrupted_one_does_not(cartpole: RunConfig) -> None:
    waves: list[int] = []
    executor, events, coordinator, _ = evaluating(cartpole, goes_on=lambda returns: waves.append(len(returns)) is None)
    coordinator.stop()
    executor.completions.append(part(executor, 0, *[1.0] * 10))
    assert kinds(events, 1) == [EvaluationPart]
    assert executor.calls_in_flight == 1, "actor 0 has played its share of this wave"
    executor.completions.append(part(executor, 1, *[1.0] * 10))
    assert kinds(events, 1) == [EvaluationPart]
    assert (waves, sorted(executor.tape[-2:])) == ([20], ["evaluate 0", "evaluate 1"])
    given_up = coordinator.give_up_evaluation()
    assert given_up == EvaluationLost("the run was interrupted", 2 * 10 * 10)
    assert coordinator.give_up_evaluation() is None
    executor.completions += [part(executor, actor_id) for actor_id in (0, 1)]
    assert [type(event) for event in events] == [EvaluationPart] * 2
    assert executor.calls_in_flight == 0


def test_a_played_rollout_is_completed_before_an_evaluation(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = begun(cartpole)
    executor.completions += [Heartbeat(0, new_steps_follow=True), report(0, 2, 1)]
    assert coordinator.evaluate("sampled", EVALUATION)
    assert isinstance(next(events), Heartbeat)
    assert executor.tape[-1] == "dispatch 0"
    assert isinstance(next(events), Outcome)
    assert executor.tape[-1] == "evaluate 0"


@pytest.mark.parametrize(
    ("episodes", "trained", "played"),
    [(10, 1, [500_000] * 3), (100, 1, [1_350_000] * 3), (10, 1_600_000, [800_000] * 3)],
)
def test_an_evaluation_whose_episodes_do_not_end_is_given_up(
    episodes: int, trained: int, played: list[int], cartpole: RunConfig
) -> None:
    executor, events, coordinator, _ = make(cartpole, 1)
    executor.completions += [report(0, 1, 0)._replace(agent_steps=trained), report(0, 2, 1)]
    next(events)
    assert coordinator.evaluate("sampled", EvaluationConfig(episodes=episodes))
    next(events)
    executor.completions += [part(executor, 0)._replace(agent_steps=count) for count in played]
    assert kinds(events, len(played)) == [EvaluationPart] * len(played)
    assert next(events).endless
    assert not coordinator.evaluates
    assert executor.tape[-1] == "dispatch 0"


def test_an_actor_joins_in_a_free_slot_and_counts_as_no_restart(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = begun(cartpole)
    executor.completions.append(report(0, 2, 1))
    executor.wanted, executor.clock.now = 2, 5.0
    assert next(events) == Joined(1)
    assert executor.tape[-2:] == ["add 1", "dispatch 1"]
    assert coordinator.pool.actor_restarts == 0


def test_actors_lost_with_their_node_are_no_restarts_and_the_run_waits_for_others(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=2, max_restarts=0)
    executor.wanted = 0
    executor.completions += [Failed(0, "its node died", node_lost=True), Failed(1, "its node died", node_lost=True)]
    executor.completions += [None, None]
    assert [next(events) for _ in range(4)][2:] == [None, None]
    assert coordinator.pool.rollouts_lost == 2
    executor.wanted, executor.clock.now = 1, 9.0
    assert next(events) == Joined(2)
    executor.completions += [report(2, 1, 0)]
    assert isinstance(next(events), Outcome)
    assert coordinator.pool.actor_restarts == 0


def test_a_replacement_waits_for_a_free_slot(cartpole: RunConfig) -> None:
    executor, events, *_ = make(cartpole, actors=2)
    executor.places, executor.wanted = 1, 2
    executor.completions += [Failed(0, "it raised"), None]
    assert isinstance(next(events), Failed)
    executor.clock.now = 5.0
    assert next(events) is None
    executor.places, executor.clock.now = 2, 10.0
    assert next(events) == Replaced(Failed(0, "it raised"), 2)
    # A slot that is gone with its node is nobody's: the next one is for an actor that joins.
    executor.places = executor.wanted = 1
    executor.completions += [Failed(1, "it raised"), None]
    assert kinds(events, 2) == [Failed, type(None)]
    executor.places = executor.wanted = 2
    executor.clock.now = 15.0
    assert next(events) == Joined(3)


def test_an_actor_lost_behind_an_aggregator_is_counted_and_the_others_go_on(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=2, max_restarts=1)
    lost, replaced = Failed(1_000_001, "gone"), Replaced(Failed(1_000_001, "gone"), 1_000_009)
    executor.completions += [ChildEvent(1, lost, 1), ChildEvent(1, replaced)]
    assert [next(events), next(events)] == [lost, replaced]
    assert executor.actor_ids == [0, 1]
    assert executor.tape[-2:] == ["dispatch 1", "dispatch 1"]
    assert (coordinator.pool.rollouts_lost, coordinator.pool.actor_restarts) == (1, 1)
    # The limit is that of the run, wherever its actors are. A lost node is no fault of its actors.
    executor.completions += [ChildEvent(0, Failed(8, "its node is gone", node_lost=True))]
    assert kinds(events, 1) == [Failed]
    executor.completions += [ChildEvent(0, Failed(7, "gone too"))]
    with pytest.raises(TrainingFailedError, match="the last: actor 7: gone too"):
        next(events)


def test_an_end_waits_for_a_sum_that_actors_are_working_on(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = begun(cartpole)
    coordinator.stop()
    executor.tape.clear()
    for _ in range(2):
        executor.completions.append(Heartbeat(0, new_steps_follow=True))
        assert next(events) == Heartbeat(0, new_steps_follow=True)
    # Also after a change among them.
    executor.completions.append(ChildEvent(0, Joined(1_000_002)))
    assert next(events) == Joined(1_000_002)
    assert executor.tape == ["dispatch 0"] * 3
    last = Heartbeat(0, new_steps_follow=False)
    executor.completions.append(last)
    assert list(events) == [last]
    assert executor.tape[3:] == []


def test_an_end_waits_for_no_sum_of_a_node_whose_actors_die_again_and_again(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=1, max_restarts=1)
    executor.completions += [report(0, 1, 0), Heartbeat(0, new_steps_follow=True)]
    assert kinds(events, 2) == [Outcome, Heartbeat]
    coordinator.stop()
    # However slowly.
    for actor_id in (1, 2, 3):
        executor.completions += [900.0, ChildEvent(0, Failed(actor_id, "gone"))]
    assert [type(event) for event in events] == [type(None), Failed] * 2
    assert len(executor.completions) == 2


def test_the_rollouts_under_way_of_a_run_that_fails_are_lost(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=3, max_restarts=0)
    executor.completions += [Failed(0, "gone")]
    with pytest.raises(TrainingFailedError):
        next(events)
    assert coordinator.pool.rollouts_lost == 3


def test_the_actor_that_reported_leaves_at_once_with_the_newest_weights(cartpole: RunConfig) -> None:
    executor, events, _, learner = make(cartpole, actors=3)
    executor.completions += [report(2, 1, 0), report(2, 2, 1), report(0, 1, 0)]
    outcomes = [next(events) for _ in range(3)]
    assert executor.tape == [
        *("publish 0", "dispatch 0", "dispatch 1", "dispatch 2"),
        *("publish 1", "dispatch 2", "publish 2", "dispatch 2", "publish 3", "dispatch 0"),
    ]
    assert [outcome.policy_lag for outcome in outcomes] == [0, 0, 2]
    assert learner.version == 3


def test_a_target_network_is_published_when_it_has_changed(cartpole: RunConfig) -> None:
    method = MethodConfig(name="q_learning", target_interval_agent_steps=2)
    executor, events, *_ = make(replace(cartpole, method=method), actors=1)
    executor.completions += [report(0, sequence, 0) for sequence in (1, 2, 3)]
    assert kinds(events, 3) == [Outcome] * 3
    start = ["publish 0", "publish target 0", "dispatch 0", "publish 1", "dispatch 0"]
    assert executor.tape == [*start, "publish 2", "publish target 1", "dispatch 0", "publish 3", "dispatch 0"]


def test_after_stop_new_steps_of_a_rollout_are_taken_in(cartpole: RunConfig) -> None:
    executor, events, coordinator, learner = make(cartpole, actors=1)
    executor.completions += [report(0, sequence, 0)._replace(new_steps_follow=sequence < 3) for sequence in (1, 2, 3)]
    next(events)
    coordinator.stop()
    assert [type(event) for event in events] == [Outcome] * 2
    assert learner.account.ledger.sampled == 3


@pytest.mark.parametrize("lost", [0, 2])
def test_after_stop_what_is_in_flight_is_taken_in_and_nothing_is_sent(cartpole: RunConfig, lost: int) -> None:
    executor, events, coordinator, learner = begun(cartpole, actors=2)
    executor.completions += [report(1, 1, 0), report(0, 2, 1)]
    coordinator.stop()
    sent = len(executor.tape)
    # Actor 1 may stand for three, of which two play on after the call has ended.
    executor.under_way[1] += lost
    assert [type(event) for event in events] == [Outcome] * 2
    assert not [line for line in executor.tape[sent:] if line.startswith("dispatch")]
    assert learner.account.ledger.sampled == 3
    assert coordinator.pool.rollouts_lost == lost
