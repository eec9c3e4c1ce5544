"""The processes of a run: actors, checkpoints, supervision and trackers."""

from dataclasses import dataclass
from typing import Annotated

from shared.config.checks import Range, check_ranges
from shared.errors import setting_error


@dataclass(frozen=True)
class ActorConfig:
    """One actor: a process that steps its environments and computes gradients."""

    environments: Annotated[int, Range(1)] = 32
    """Number of environments that one actor steps as a batch."""
    unroll_length: Annotated[int, Range(1)] = 20
    """Steps of each environment between two gradients; t_max in the paper, where it is 5."""
    epochs: Annotated[int, Range(1)] = 1
    """E: number of passes over each rollout. Gradients after the first use the newest weights and a clipped ratio; see
    --method.clip-ratio."""
    minibatches: Annotated[int, Range(1)] = 1
    """M: number of random parts of a rollout, each of which gives one gradient. An actor reports E x M gradients per
    rollout. M divides the environments times the unroll length."""
    fresh_gradients: bool = False
    """An actor takes the newest weights between its rollout and the first gradient, whose clipped ratio corrects for
    the updates in between. For many actors."""
    steps_in_flight: Annotated[int | None, Range(1)] = None
    """Agent steps of the rollouts of all actors together at which learning is known to work. More actors than fit share
    them: smaller rollouts, as many agent steps an update as before, and fresh gradients. None, or an explicit
    --actor.environments, unroll-length, minibatches or --learner.gradients-per-update: no such change."""
    calls_in_flight: Annotated[int, Range(1, 2)] = 1
    """Number of gradient calls that are under way at one actor. 2 hides the learner's latency, and adds one version of
    policy lag."""
    cores: Annotated[float, Range(above=0)] = 1.0
    """CPU cores that Ray reserves for one actor."""

    def __post_init__(self) -> None:
        check_ranges("actor.", self)
        if self.environments * self.unroll_length % self.minibatches:
            raise setting_error(
                "actor.minibatches",
                self.minibatches,
                f"does not divide the {self.environments} x {self.unroll_length} steps of a rollout",
            )

    @property
    def gradients_per_rollout(self) -> int:
        """E x M: number of gradients that an actor reports per rollout."""
        return self.epochs * self.minibatches

    @property
    def agent_steps_in_flight(self) -> int:
        """Agent steps of the rollouts that are under way at one actor."""
        return self.environments * self.unroll_length * self.calls_in_flight

    @property
    def corrects(self) -> bool:
        """Whether gradients use other weights than those that acted, and so a ratio to the behaviour policy."""
        return self.fresh_gradients or self.gradients_per_rollout > 1


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoints from which a run can resume."""

    every_seconds: Annotated[float, Range(above=0)] = 120.0
    """Seconds between checkpoints. The first is saved at the start and the last at the end of a run."""
    every_frames: Annotated[int | None, Range(1)] = None
    """Frames between checkpoints, in addition to those by seconds: one at each multiple."""
    keep: Annotated[int, Range(1)] = 3
    """Number of newest checkpoints that are kept."""
    exact: bool = False
    """Inline executor: a resumed run equals an uninterrupted one to the bit. Stores every action, and replays all of
    them on resume."""

    def __post_init__(self) -> None:
        check_ranges("checkpoint.", self)


@dataclass(frozen=True)
class SupervisionConfig:
    """Reactions to the death or hang of an actor."""

    max_restarts: Annotated[int, Range(0)] = 10
    """Number of actors that may be replaced within ten minutes. One more ends the run after a checkpoint."""
    hang_seconds: Annotated[float, Range(above=0)] = 30.0
    """An actor counts as hung after 20 times its longest rollout so far, but never before this many seconds, nor before
    three times the duration of its first rollout."""
    start_seconds: Annotated[float, Range(above=0)] = 180.0
    """Seconds from the start of an actor to its first report, after which it counts as hung."""

    def __post_init__(self) -> None:
        check_ranges("supervision.", self)


@dataclass(frozen=True)
class TrackingConfig:
    """Where the trackers W&B and MLflow file a run.

    Its name there is that of its folder. The runs of --seeds or of a sweep are one group.
    """

    project: str = "tributary"
    """W&B project, and MLflow experiment."""
