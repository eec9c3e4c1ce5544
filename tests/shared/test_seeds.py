"""Seeds: none is shared between purposes, actors, nodes and near runs."""

import itertools
from typing import get_args

import numpy as np

from shared.seeds import Purpose, actor_seeds, episode_seeds


def test_no_two_purposes_and_no_two_near_seeds_share_an_environment() -> None:
    purposes = get_args(Purpose)
    assert len(purposes) == 3
    drawn = {
        (seed, purpose): set(episode_seeds(seed, purpose, 100).environments.tolist())
        for seed, purpose in itertools.product(range(6), purposes)
    }
    everything = set().union(*drawn.values())
    assert all(len(seeds) == 100 for seeds in drawn.values())
    assert len(everything) == 100 * len(drawn)
    actors = [actor_seeds(seed, i, 32).environments for seed in range(6) for i in range(30)]
    assert not everything & set(np.concatenate(actors).tolist())


def test_actors_share_no_seed_across_runs_and_nodes() -> None:
    """Nodes that sum their gradients number their actors from multiples of 1,000,000 on."""
    runs, ids = (*range(4), 33, 65), [node * 1_000_000 + i for node in range(4) for i in range(8)]
    drawn = [(run, i, *actor_seeds(run, i, 32)) for run in runs for i in ids]
    environments = {seed for *_, seeds in drawn for seed in seeds.tolist()}
    assert len(environments) == 32 * len(drawn)
    assert len({actions for _, _, actions, _ in drawn}) == len(drawn)
    assert all(0 <= seed < 2**31 for seed in environments)


def test_seeds_are_the_same_everywhere_and_fit_every_library() -> None:
    """NumPy promises the stream of a SeedSequence: recorded evaluations can be repeated by another version."""
    assert episode_seeds(1, "evaluation", 3).environments.tolist() == [400_184_416, 954_322_406, 971_372_209]
    seeds = episode_seeds(2**31 - 1, "recording", 50)
    assert 0 <= seeds.environments.min() <= seeds.environments.max() < 2**31
    assert 0 <= seeds.actions < 2**31


def test_shares_have_the_environments_of_the_whole_and_draw_actions_of_their_own() -> None:
    whole, few = episode_seeds(3, "evaluation", 9), episode_seeds(3, "evaluation", 4)
    assert (few.actions, few.environments.tolist()) == (whole.actions, whole.environments.tolist()[:4])
    shares = [episode_seeds(3, "evaluation", 9, first, 3) for first in (0, 3, 6)]
    assert np.concatenate([share.environments for share in shares]).tolist() == whole.environments.tolist()
    assert len({share.actions for share in shares}) == 3
    assert shares[0].actions == whole.actions


def test_each_version_of_the_weights_has_other_games_in_training() -> None:
    plain, third, fourth = (episode_seeds(3, "training_evaluation", 9, version=version) for version in (None, 3, 4))
    assert len({*plain.environments, *third.environments, *fourth.environments}) == 27
    assert plain.actions == third.actions == fourth.actions
    share = episode_seeds(3, "training_evaluation", 9, 3, 3, version=3)
    assert share.environments.tolist() == third.environments[3:6].tolist()
