"""The settings of a run: one tree of frozen dataclasses, validated when built.

Each docstring below a field is its help text on the command line. Presets (`launch/presets`) become instances of
`RunConfig`; a run folder holds the resolved instance as `config.json`. A new setting belongs to its part, the task or
the training. Annotations check one setting; launch/settings/check.py has the rules of several.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Literal

from shared.config.checks import For, Range, check_values, declared
from shared.config.task import EnvironmentConfig, EvaluationConfig, NetworkConfig, OptionValue
from shared.config.training import (
    ActorConfig,
    CheckpointConfig,
    ExplorationConfig,
    LearnerConfig,
    MethodConfig,
    OptimizerConfig,
    SupervisionConfig,
)

__all__ = [
    "ActorConfig",
    "CheckpointConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "ExplorationConfig",
    "LearnerConfig",
    "MethodConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "OptionValue",
    "RunConfig",
    "SupervisionConfig",
    "flat_settings",
]


@dataclass(frozen=True)
class RunConfig:
    """Train with an asynchronous n-step method."""

    actors: int | str = "auto"
    """Number of actor processes, auto, or MIN:MAX. auto: one per core, minus one on four or more cores; inline: one;
    on a cluster, as many as fit, also when nodes join or leave. MIN:MAX: auto within these bounds."""
    total_frames: Annotated[int, Range(1)] = 40_000_000
    """Global frames (agent steps x frame skip) after which training stops."""
    stop_at_return: Annotated[float | None, Range()] = None
    """Mean unclipped return at which training stops; see --stop-measure."""
    stop_measure: Literal["training", "evaluation"] = "training"
    """training: the mean return of the last 100 training episodes, as many of each environment, or an estimate from the
    latest rewards, confirmed by an evaluation of the current weights with at most --evaluation.episodes and sampled
    actions. evaluation: the mean return of a regular evaluation."""
    stop_after_seconds: Annotated[float | None, Range(above=0)] = None
    """Seconds of training after which it stops, from the first rollout, including those before a resume."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 1
    """Seed of weights, environments and actions, and of Python's and NumPy's global generators in each actor."""
    executor: Literal["ray", "inline"] = "ray"
    """ray: each actor is a process. inline: all actors run in one process, in turn; deterministic for a seed."""
    address: Annotated[str, For("executor", "ray")] = "local"
    """Ray cluster. local starts one for this run; auto finds a running one; or HOST:PORT."""
    aggregation: Literal["auto", "node", "none"] = "auto"
    """node: sum gradients on their node and send one message to the learner. A sum has K gradients, or the largest
    divisor of K not above the number that the node's actors give at a time. none: send each gradient by itself. auto:
    node on a cluster, and on one machine with 16 actors or more at work, unless --learner.max-policy-lag needs single
    gradients."""
    log_every_seconds: Annotated[float, Range(above=0)] = 10.0
    """Seconds between rows of metrics.jsonl and TensorBoard points. A 200th of --total-frames ends an interval, too, so
    that short runs have curves."""
    storage: str | None = None
    """URL of a copy of the run folder, like s3://bucket/run, from which the run can resume when its machine is lost."""
    trackers: tuple[Literal["wandb"], ...] = ()
    """Trackers that copy TensorBoard's points: wandb, which is an extra to install. WANDB_PROJECT names the project;
    default: tributary."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)

    def __post_init__(self) -> None:
        # An imported module may register more names.
        check_values(self, names=not self.environment.modules)

    @property
    def actor_range(self) -> tuple[int, int | None]:
        """The minimum and maximum number of actors; a maximum of None means as many as fit."""
        if isinstance(self.actors, int):
            return self.actors, self.actors
        if self.actors == "auto":
            return 1, None
        least, _, most = self.actors.partition(":")
        return int(least), int(most)

    @property
    def annealing_frames(self) -> int:
        """Frames at which a linear learning rate reaches 0 and the entropy cost its final value."""
        return self.optimizer.annealing_frames or self.total_frames

    @property
    def frames_per_agent_step(self) -> int:
        return self.environment.frame_skip


def flat_settings(config: RunConfig) -> dict[str, str | int | float | bool]:
    """All settings by name. Values that are not numbers or text are converted to text."""
    values = ((name, attrgetter(name)(config)) for name in declared(RunConfig))
    return {name: value if isinstance(value, str | int | float | bool) else str(value) for name, value in values}
