"""How many gradients a second one learner takes from N actors: a closed queue with one server."""

from typing import NamedTuple


class Prediction(NamedTuple):
    """Rates of N actors together. `held_back_by` is what limits them: actors, learner or network."""

    actors: int
    gradients_per_second: float
    policy_lag: float
    learner_utilisation: float
    held_back_by: str


class Costs(NamedTuple):
    """Seconds, and bytes per second.

    `actor` is one gradient with its share of a rollout, `learner` what the learner's process spends on one gradient,
    and `network` what a gradient and the weights for it take on the learner's link, whichever direction takes longer.
    """

    actor: float
    learner: float
    network: float = 0.0


def predict(costs: Costs, actors: int, gradients_per_update: int = 1, calls_in_flight: int = 1) -> Prediction:
    """Throughput by mean value analysis of the machine-repairman model (Reiser and Lavenberg 1980).

    Actors compute for `costs.actor`, and then queue at the slower of learner and link. With two calls in flight an
    actor computes while its other call is under way: what it waits is hidden, up to its own time.
    """
    service = max(costs.learner, costs.network)
    queue = rate = 0.0
    for n in range(1, actors + 1):
        response = service * (1.0 + queue)
        waited = response if calls_in_flight == 1 else max(0.0, response - costs.actor)
        rate = n / (costs.actor + waited)
        rate = min(rate, 1.0 / service) if service else rate
        queue = rate * response
    saturated = service > 0 and rate * service > 0.9
    held_back = "actors" if not saturated else ("learner" if costs.learner >= costs.network else "network")
    # Between the snapshot and the report of an actor every other call reports once.
    lag = (actors * calls_in_flight - 1) / gradients_per_update
    return Prediction(actors, rate, lag, rate * costs.learner, held_back)


def saturation(costs: Costs) -> float:
    """Actors at which the queue would be full if nothing varied: (Z + S) / S."""
    service = max(costs.learner, costs.network)
    return (costs.actor + service) / service
