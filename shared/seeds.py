"""Seeds of episodes that are played apart from training: hashed from the run's, with a tag for what they are for."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Purpose = Literal["training_evaluation", "training_video", "evaluation", "recording"]

SEEDS_ARE = (
    "numpy.random.SeedSequence([seed, *purpose.encode()]).generate_state(1 + environments) // 2: the first of the "
    "actions, then one of each environment"
)
"""How `episode_seeds` makes them, in the words that a manifest or a result keeps."""


class EpisodeSeeds(NamedTuple):
    """A seed of the sampled actions, and one of each environment int64 [B]; all of them in [0, 2^31)."""

    actions: int
    environments: npt.NDArray[np.int64]


def episode_seeds(run_seed: int, purpose: Purpose, environments: int) -> EpisodeSeeds:
    """The seeds of `environments` environments for a purpose.

    Sums like seed + constant + i are not used: runs with near seeds would share most of their environments, and what
    evaluates a run would replay the starts by which its weights were chosen. The actors of a run have such sums, and
    keep them: exact checkpoints replay their episodes.
    """
    hashed = np.random.SeedSequence([run_seed, *purpose.encode()]).generate_state(1 + environments)
    # Libraries take signed 32-bit integers, and some of them a negative one for none.
    seeds = (hashed // 2).astype(np.int64)
    return EpisodeSeeds(int(seeds[0]), seeds[1:])
