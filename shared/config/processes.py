"""The processes of a run: actors, what travels between them, what is kept, and what happens when one fails."""

from dataclasses import dataclass
from typing import Literal

from shared.config.checks import at_least, between, positive
from shared.errors import setting_error
from shared.wire import WirePrecision


@dataclass(frozen=True)
class ActorConfig:
    """One actor: a process that steps its environments and computes gradients."""

    environments: int = 32
    """Environments that one actor steps as a batch."""
    unroll_length: int = 20
    """Steps of each environment between two gradients, t_max in the paper (where it is 5)."""
    epochs: int = 1
    """E: times that each rollout is differentiated. After the first, at the newest weights, by a clipped ratio; see
    --method.clip-ratio."""
    minibatches: int = 1
    """M: parts, of agent steps drawn at random, that a rollout is differentiated in. An actor reports E x M gradients
    of each rollout. M divides the environments times the unroll length."""
    calls_in_flight: int = 1
    """Calls asked of one actor at a time, one for each gradient. 2 hides the learner's latency, and adds a version of
    lag."""
    cores: float = 1.0
    """CPU cores that Ray reserves for one actor."""
    device: Literal["auto", "cpu", "gpu"] = "cpu"
    """Where acting and gradients run. auto: on GPUs where the learner leaves any."""
    gpus: float = 0.25
    """On GPUs: the share of one that an actor takes."""
    environment_threads: int = 1
    """Threads of ale-py's vector environment in one actor."""
    tensorflow_threads: int = 1
    """Threads of TensorFlow in one actor."""

    def __post_init__(self) -> None:
        at_least("actor.environments", self.environments, 1)
        at_least("actor.unroll_length", self.unroll_length, 1)
        at_least("actor.epochs", self.epochs, 1)
        at_least("actor.minibatches", self.minibatches, 1)
        if self.environments * self.unroll_length % self.minibatches:
            raise setting_error(
                "actor.minibatches",
                self.minibatches,
                f"does not divide the {self.environments} x {self.unroll_length} steps of a rollout",
            )
        between("actor.calls_in_flight", self.calls_in_flight, 1, 2)
        positive("actor.cores", self.cores)
        positive("actor.gpus", self.gpus)
        at_least("actor.environment_threads", self.environment_threads, 1)
        at_least("actor.tensorflow_threads", self.tensorflow_threads, 1)

    @property
    def gradients_per_rollout(self) -> int:
        """E x M: gradients that an actor reports of each rollout."""
        return self.epochs * self.minibatches


@dataclass(frozen=True)
class TransferConfig:
    """How gradients and weights travel between processes."""

    shared_memory: bool = True
    """Between processes of one machine through shared memory and pipes. Off: through Ray, as between machines."""
    precision: WirePrecision = "float32"
    """bfloat16 rounds weights and gradients on their way, and halves the bytes. Off by default."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept so that a run can go on."""

    every_seconds: float = 120.0
    """Seconds between checkpoints. One is saved at the start and one at the end."""
    every_updates: int | None = None
    """Updates between checkpoints, besides those by seconds."""
    every_frames: int | None = None
    """Frames between checkpoints, besides those by seconds: one when the frames reach each multiple."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    exact: bool = False
    """Inline executor: a resumed run is equal to the bit to one that was never stopped. Keeps every action, and plays
    all of them again on resume."""

    def __post_init__(self) -> None:
        positive("checkpoint.every_seconds", self.every_seconds)
        at_least("checkpoint.every_updates", self.every_updates, 1)
        at_least("checkpoint.every_frames", self.every_frames, 1)
        at_least("checkpoint.keep", self.keep, 1)


@dataclass(frozen=True)
class SupervisionConfig:
    """What happens when a process dies or hangs, or numbers go bad."""

    max_restarts: int = 10
    """Actors that may be replaced within --supervision.restart-window-seconds before the run saves and stops."""
    restart_window_seconds: float = 600.0
    """Seconds over which replaced actors are counted."""
    backoff_seconds: float = 1.0
    """Wait before an actor is replaced that died before its first report; doubles each time, up to a minute."""
    hang_factor: float = 20.0
    """An actor hangs when one rollout takes so many times the longest that it has taken so far …"""
    hang_seconds: float = 30.0
    """… and at least so many seconds, and three times as long as it worked on its first one."""
    start_seconds: float = 180.0
    """Seconds that an actor may take from its start to its first report."""
    max_non_finite: int = 20
    """Gradients in a row that may be not finite before the run saves and stops."""
    max_learner_restarts: int = 3
    """Times that the learner may die and go on from the last checkpoint."""

    def __post_init__(self) -> None:
        at_least("supervision.max_restarts", self.max_restarts, 0)
        positive("supervision.restart_window_seconds", self.restart_window_seconds)
        at_least("supervision.backoff_seconds", self.backoff_seconds, 0)
        at_least("supervision.hang_factor", self.hang_factor, 1)
        positive("supervision.hang_seconds", self.hang_seconds)
        positive("supervision.start_seconds", self.start_seconds)
        at_least("supervision.max_non_finite", self.max_non_finite, 1)
        at_least("supervision.max_learner_restarts", self.max_learner_restarts, 0)


@dataclass(frozen=True)
class TrackingConfig:
    """What a run is called in the trackers W&B and MLflow."""

    project: str = "tributary"
    """W&B: project. MLflow: experiment."""
    group: str | None = None
    """W&B: group. MLflow: the tag group. Default: of the runs of --seeds or of a sweep, the folder that they are in."""
    name: str | None = None
    """Name of the run there. Default: that of its folder."""
