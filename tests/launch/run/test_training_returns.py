"""What training episodes say of the policy, by hand: no session, no learner, no Ray."""

import json

from launch.run.stopping import TrainingReturns


def reported(returns: TrainingReturns, *reports: tuple[int, int]) -> None:
    """Reports of actors by their ids: how many environments of each have ended no episode yet."""
    for actor_id, unfinished in reports:
        returns.add(actor_id, [], unfinished)


def count(returns: TrainingReturns, episodes: int, actors: int) -> bool:
    returns.update(episodes, actors)
    return returns.last_count


def gone_on(returns: TrainingReturns, *, exact: bool) -> TrainingReturns:
    restored = TrainingReturns()
    restored.restore(json.loads(json.dumps(returns.state(exact=exact))), exact=exact)
    return restored


def test_the_last_100_count_once_every_environment_of_every_actor_has_ended_an_episode() -> None:
    returns = TrainingReturns()
    reported(returns, (0, 0))
    assert not count(returns, 100, actors=2), "one actor has not reported"
    reported(returns, (1, 3))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 1))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 0))
    assert not count(returns, 99, actors=2)
    assert count(returns, 100, actors=2)


def test_a_replaced_actor_starts_anew_and_a_dead_one_is_forgotten() -> None:
    returns = TrainingReturns()
    # Actor 2 replaces actor 1, which never finished.
    reported(returns, (0, 0), (1, 5), (0, 0), (2, 4))
    assert not count(returns, 100, actors=2)
    reported(returns, (2, 0))
    assert count(returns, 100, actors=2)
    # Its place is gone for good.
    assert count(returns, 100, actors=1)
    assert not count(returns, 100, actors=0)


def test_the_last_100_go_on_from_an_exact_checkpoint() -> None:
    returns = TrainingReturns()
    reported(returns, (3, 0), (4, 2))
    restored = gone_on(returns, exact=True)
    assert not count(restored, 100, actors=2)
    reported(restored, (4, 0))
    assert count(restored, 100, actors=2)
    # Where the actors are others, each of them has to be heard.
    restored = gone_on(returns, exact=False)
    reported(restored, (4, 0))
    assert not count(restored, 100, actors=2)


def test_untrained_play_is_that_of_the_first_100_episodes() -> None:
    returns = TrainingReturns()
    returns.add(0, [1.0] * 60, 0)
    assert returns.untrained is None
    restored = gone_on(returns, exact=False)
    restored.add(0, [3.0] * 60, 0)
    restored.add(0, [1000.0], 0)
    assert restored.untrained == (60 * 1.0 + 40 * 3.0) / 100
    old = TrainingReturns()
    old.restore({}, exact=False)
    old.add(0, [1.0] * 100, 0)
    assert old.untrained is None, "a checkpoint of an older version did not keep them"
