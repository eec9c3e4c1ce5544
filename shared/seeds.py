"""Seeds of the environments and of the sampled actions, hashed from the seed of the run.

Sums like seed + constant + i are not used: runs with near seeds would share most of their environments, and an
evaluation would replay the starts by which the weights were chosen.
"""

import random
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Purpose = Literal["training_evaluation", "evaluation", "recording"]

EPISODE_SEED_RULE = (
    "numpy.random.SeedSequence([seed, *purpose.encode()]).generate_state(1 + environments) // 2: the first of the "
    "actions, then one of each environment"
)
"""The rule of `episode_seeds`, for a manifest or a result."""
ACTOR_SEED_RULE = EPISODE_SEED_RULE.replace("*purpose.encode()", "actor id")
"""The rule of `actor_seeds`, for a manifest."""


class EpisodeSeeds(NamedTuple):
    """The seed of the sampled actions, and those of the environments int64 [B]; all in [0, 2^31)."""

    actions: int
    environments: npt.NDArray[np.int64]


def episode_seeds(
    run_seed: int,
    purpose: Purpose,
    environments: int,
    first: int = 0,
    count: int | None = None,
    version: int | None = None,
) -> EpisodeSeeds:
    """Seeds of episodes outside training. Each purpose has its own.

    `first` or `count` select a share of the environments, whose actions have a stream of their own. `version` gives the
    environments other seeds for each version of the weights.
    """
    entropy = [run_seed, *purpose.encode()]
    actions = _hashed(entropy if first == 0 else [*entropy, first], 0).actions
    starts = _hashed(entropy if version is None else [*entropy, version], environments).environments
    return EpisodeSeeds(actions, starts[first : None if count is None else first + count])


def actor_seeds(run_seed: int, actor_id: int, environments: int) -> EpisodeSeeds:
    """Seeds of one actor: independent of those of other actors, nodes and runs."""
    return _hashed([run_seed, actor_id], environments)


def seed_global_generators(seed: int) -> None:
    """Seed the generators of this process that environments may draw from: Python's and NumPy's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _hashed(entropy: list[int], environments: int) -> EpisodeSeeds:
    hashed = np.random.SeedSequence(entropy).generate_state(1 + environments)
    # Libraries take signed 32-bit integers, and some of them a negative one for none.
    seeds = (hashed // 2).astype(np.int64)
    return EpisodeSeeds(int(seeds[0]), seeds[1:])
