"""The division of a machine's cores among actors, TensorFlow's pools, environment threads and the learner."""

from dataclasses import dataclass

from launch.output import machine_bytes, usable_cores
from shared.config import RunConfig
from shared.errors import setting_error

# Measured for an actor process with 32 Atari environments, rounded up.
ACTOR_BYTES = 950 * 2**20


@dataclass(frozen=True)
class ThreadBudget:
    """Threads of each process. An actor has one: TensorFlow and its environments take turns."""

    cores: int
    actors: int
    learner_threads: int

    @property
    def oversubscribed(self) -> bool:
        """Whether the actors alone need more cores than the machine has."""
        return self.actors > self.cores

    def describe(self) -> str:
        """The budget in one line."""
        return (
            f"{self.actors} actor{'s' * (self.actors > 1)} x 1 + learner {self.learner_threads} threads on "
            f"{self.cores} cores"
        )

    def warning(self) -> str | None:
        """Advice for an oversubscribed machine; None for others."""
        if not self.oversubscribed:
            return None
        return (
            f"{self.actors} actors share {self.cores} cores: more actors will not be faster; "
            f"--actors auto would start {automatic_actors(self.cores)}"
        )


def automatic_actors(cores: int) -> int:
    """One actor per core. From four cores on, the learner is busy enough to need a core of its own."""
    return max(1, cores - 1 if cores >= 4 else cores)


def thread_budget(config: RunConfig) -> ThreadBudget:
    """The actors and threads of a run on this machine alone, which may be oversubscribed.

    Raises:
        ConfigurationError: the actors do not fit into its memory.
    """
    cores, places = usable_cores(), machine_bytes() // ACTOR_BYTES
    least, most = config.actor_range
    actors = min(automatic_actors(cores), max(places, 1))
    if config.executor == "inline" and config.actors == "auto":
        actors = 1
    actors = max(least, actors if most is None else min(most, actors))
    if isinstance(config.actors, int):
        actors = config.actors
    if actors > places:
        raise setting_error(
            "actors",
            actors,
            f"there is room for {places} actors of about {ACTOR_BYTES >> 20} MiB each in the "
            f"{machine_bytes() >> 30} GiB of this machine",
        )
    return budget_for(config, actors, cores)


def budget_for(config: RunConfig, actors: int, cores: int) -> ThreadBudget:
    """The threads of `actors` actors on `cores` cores."""
    return ThreadBudget(
        cores=cores,
        actors=actors,
        # The fused update is bound by memory; a second thread helps only where a core is free for it.
        learner_threads=2 if cores > actors and config.executor == "ray" else 1,
    )
