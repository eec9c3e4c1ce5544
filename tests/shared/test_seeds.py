"""Seeds of episodes apart from training's: none is shared between purposes, near runs, or with the actors."""

import itertools
from typing import get_args

from shared.seeds import Purpose, episode_seeds


def test_no_two_purposes_and_no_two_near_seeds_share_an_environment() -> None:
    purposes = get_args(Purpose)
    assert len(purposes) >= 4
    drawn = {
        (seed, purpose): set(episode_seeds(seed, purpose, 100).environments.tolist())
        for seed, purpose in itertools.product(range(6), purposes)
    }
    everything = set().union(*drawn.values())
    assert all(len(seeds) == 100 for seeds in drawn.values())
    assert len(everything) == 100 * len(drawn)
    actors = {seed * 1_000_003 + i for seed in range(6) for i in range(1_000)}
    assert not everything & actors


def test_seeds_are_the_same_everywhere_and_fit_every_library() -> None:
    """NumPy promises the stream of a SeedSequence: recorded evaluations can be repeated by another version."""
    assert episode_seeds(1, "evaluation", 3).environments.tolist() == [400_184_416, 954_322_406, 971_372_209]
    seeds = episode_seeds(2**31 - 1, "recording", 50)
    assert 0 <= seeds.environments.min() <= seeds.environments.max() < 2**31
    assert 0 <= seeds.actions < 2**31


def test_more_environments_begin_with_the_seeds_of_fewer() -> None:
    few, many = (episode_seeds(3, "evaluation", count) for count in (4, 9))
    assert few.actions == many.actions
    assert few.environments.tolist() == many.environments.tolist()[:4]
