"""What `tributary bench lag` crosses: its cells, the settings of each, and the orders of arrival that they share."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from launch.bench.arrival_model import ArrivalModel, arrivals, policy_lags, write_arrivals
from launch.loop.arrivals import Arrivals
from learner.lag_control import rate_factor
from shared.config import ActorConfig, RunConfig

Correction = Literal["none", "inverse", "gap", "delay_compensated", "clipped"]
CORRECTIONS: tuple[Correction, ...] = get_args(Correction)
# What they do to a gradient that meets the weights that it was computed with is nothing.
_OF_LAG = ("inverse", "gap", "delay_compensated")


class Cell(NamedTuple):
    """One run of a study. `rate` multiplies the learning rate."""

    actors: int
    gradients_per_update: int
    correction: Correction
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """For the screen."""
        return (
            f"{self.actors} actors, K = {self.gradients_per_update}, {self.correction}, rate × {self.rate:g}, seed "
            f"{self.seed}"
        )


def crossed(
    actors: Sequence[int],
    gradients_per_update: Sequence[int],
    corrections: Sequence[Correction],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Cell]:
    """All cells, seed by seed, so that what is there of a study that was stopped is balanced.

    One actor has no lag: what corrects lag would give the run of `none` again, to the bit, and is left out there.
    """
    return [
        Cell(n, k, correction, rate, seed)
        for seed, n, k, correction, rate in itertools.product(seeds, actors, gradients_per_update, corrections, rates)
        if n > 1 or correction not in _OF_LAG or "none" not in corrections
    ]


def reuse(config: RunConfig, correction: Correction) -> ActorConfig:
    """How often a rollout is differentiated: once; with `clipped` as often as the settings say, and twice at least."""
    if correction != "clipped":
        return replace(config.actor, epochs=1, minibatches=1)
    return config.actor if config.actor.gradients_per_rollout > 1 else replace(config.actor, epochs=2)


def order_file(folder: Path, model: ArrivalModel, config: RunConfig, cell: Cell) -> Path:
    """The file with the order in which the actors of a cell report; written if it is not there.

    It depends on the number of actors, the seed, and how often rollouts are differentiated: cells that differ in
    nothing else have the same arrivals. It is long enough for every agent step of the run.
    """
    actor = reuse(config, cell.correction)
    reused = "" if actor.gradients_per_rollout == 1 else f"-{actor.epochs}x{actor.minibatches}"
    file = folder / f"actors-{cell.actors}-seed-{cell.seed}{reused}.txt"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        order = arrivals(
            model,
            cell.actors,
            _most_gradients(config, actor, cell.actors),
            cell.seed,
            epochs=actor.epochs,
            minibatches=actor.minibatches,
        )
        write_arrivals(file, cell.actors, order)
    return file


def _most_gradients(config: RunConfig, actor: ActorConfig, actors: int) -> int:
    """Reports after which the frames of a run have been played, whatever is played.

    An environment only resets in every second step at most: half of the steps, but for one, are agent steps.
    """
    agent_steps = -(-config.total_frames // config.frames_per_agent_step)
    least = actor.environments * (actor.unroll_length / 2.0)
    return actor.gradients_per_rollout * (int(agent_steps / least) + actors + 2)


def settings_but_order(config: RunConfig, cell: Cell) -> RunConfig:
    """The settings of a cell's run, but for the order of arrivals and what follows from it.

    K gradients are averaged, and the learning rate follows K by the settings' rule.

    Raises:
        ConfigurationError: the settings are none that this correction, or such a K, can be had with.
    """
    learner = config.learner
    factor = rate_factor(cell.gradients_per_update, learner.tuned_gradients_per_update, learner.learning_rate_scaling)
    return replace(
        config,
        actors=cell.actors,
        seed=cell.seed,
        executor="inline",
        actor=reuse(config, cell.correction),
        optimizer=replace(config.optimizer, learning_rate=config.optimizer.learning_rate * cell.rate * factor),
        learner=replace(
            learner,
            gradients_per_update=cell.gradients_per_update,
            accumulation="mean",
            staleness="none" if cell.correction == "clipped" else cell.correction,
        ),
    )


def settings(config: RunConfig, cell: Cell, order: Path) -> RunConfig:
    """The settings of a cell's run. Where former weights are kept, they are as many as the oldest gradient needs."""
    whole = settings_but_order(config, cell)
    ids = np.array([arrival.actor_id for arrival in Arrivals(str(order)).all], np.int32)
    oldest = int(policy_lags(ids, cell.gradients_per_update).max())
    return replace(whole, replay_arrivals=str(order), learner=replace(whole.learner, staleness_versions=oldest + 1))
