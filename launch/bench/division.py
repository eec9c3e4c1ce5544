"""Many actors as one run or as several, and what so many agent steps a second cost: from predictions of one learner."""

import math
from collections.abc import Callable
from typing import NamedTuple

from launch.bench.queueing import Prediction
from launch.on_ray.placement import LARGE_NODE_CORES

# As many actors as one run is asked about, where agent steps are bought.
_MOST_ACTORS = 4096
_SECONDS_PER_HOUR = 3600.0
# Actors that wait for no more of their time than this make a run small enough.
_WAITS = 0.05


class Division(NamedTuple):
    """So many runs of so many actors each. `prediction` is of one of them, and rates are of all together."""

    runs: int
    prediction: Prediction
    agent_steps_per_second: float


class Bill(NamedTuple):
    """What a number of agent steps a second takes, by so many runs that divide it.

    `cores`: of actors and learners, and those that nodes keep free. Prices are in whatever a core-hour is paid in.
    """

    runs: int
    prediction: Prediction
    agent_steps_per_second: float
    cores: int
    per_hour: float
    per_10_million_agent_steps: float


def divisions(
    predict: Callable[[int], Prediction], actors: int, actors_per_node: int, agent_steps_per_gradient: float
) -> list[Division]:
    """1, 4, 16 … runs of an equal number of actors each, down to runs of a machine.

    Args:
        predict: what a run of so many actors does.
        actors: of all runs together.
        actors_per_node: of a machine.
        agent_steps_per_gradient: T × B, or less where rollouts are reused.
    """
    found = []
    runs = 1
    while runs == 1 or actors // runs >= actors_per_node:
        one = predict(actors // runs)
        found.append(Division(runs, one, runs * one.gradients_per_second * agent_steps_per_gradient))
        runs *= 4
    return found


def cores_of(actors: int, actors_per_node: int) -> int:
    """The cores of a run: its actors', and one that each node keeps free, on one of which the learner is.

    Small nodes keep none, but for that of the learner.
    """
    nodes = math.ceil(actors / actors_per_node)
    return actors + (nodes if actors_per_node + 1 >= LARGE_NODE_CORES else 1)


def bills(
    predict: Callable[[int], Prediction],
    agent_steps_per_second: float,
    agent_steps_per_gradient: float,
    actors_per_node: int,
    core_hour: float,
) -> list[Bill]:
    """What it costs to have so many agent steps a second, by 1, 2, 4 … runs, from the fewest that can.

    Up to runs so small that hardly any actor waits: more of them would need no fewer actors.

    Args:
        predict: what a run of so many actors does.
        agent_steps_per_second: of all runs together.
        agent_steps_per_gradient: T × B, or less where rollouts are reused.
        actors_per_node: of a machine.
        core_hour: price of a core for an hour.
    """

    def rate(count: int) -> float:
        return predict(count).gradients_per_second * agent_steps_per_gradient

    found: list[Bill] = []
    runs, waiting = 1, 1.0
    while waiting > _WAITS:
        each = agent_steps_per_second / runs
        if rate(_MOST_ACTORS) >= each:
            # The fewest that are enough. Not by bisection: with a node more, groups may be fewer, and slower in all. No
            # actor makes more than one that is alone.
            least = max(1, int(each / rate(1)))
            actors = next(count for count in range(least, _MOST_ACTORS + 1) if rate(count) >= each)
            waiting = 1.0 - rate(actors) / (actors * rate(1))
            cores = runs * cores_of(actors, actors_per_node)
            per_hour = cores * core_hour
            bought = runs * rate(actors)
            price = per_hour / (bought * _SECONDS_PER_HOUR) * 1e7
            found.append(Bill(runs, predict(actors), bought, cores, per_hour, price))
        runs *= 2
    return found
