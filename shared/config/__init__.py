"""The settings of a run: one tree of frozen dataclasses, validated when built.

Each docstring below a field is its help text on the command line. Presets (`launch/presets`) become instances of
`RunConfig`; a run folder holds the resolved instance as `config.json`. A new setting belongs to its part, the task or
the training; a check of both parts to this file.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from shared.config.checks import Range, Rule, check_ranges, first_refusal
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
from shared.errors import setting_error
from shared.registry import EXPLORERS, METHODS, NETWORKS, OPTIMIZERS, SCHEDULES

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
    """Number of actor processes, auto, or MIN:MAX. auto: one per core, minus one on four or more cores; on a cluster,
    as many as fit, also when nodes join or leave. MIN:MAX: auto within these bounds."""
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
    address: str = "local"
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
        check_ranges(self)
        if not self.environment.modules:
            # An imported module may register methods, networks, explorers and schedules.
            self.check_names()
        if (refusal := first_refusal(self, _combinations(self))) is not None:
            raise refusal

    @property
    def actor_range(self) -> tuple[int, int | None]:
        """The minimum and maximum number of actors; a maximum of None means as many as fit.

        Raises:
            ConfigurationError: `actors` is not a number, auto, or MIN:MAX.
        """
        if isinstance(self.actors, int):
            return self.actors, self.actors
        if self.actors == "auto":
            return 1, None
        least, _, most = self.actors.partition(":")
        if not (least.isdecimal() and most.isdecimal()):
            raise setting_error("actors", self.actors, "must be a number, auto, or MIN:MAX like 2:16")
        return int(least), int(most)

    @property
    def annealing_frames(self) -> int:
        """Frames at which a linear learning rate reaches 0 and the entropy cost its final value."""
        return self.optimizer.annealing_frames or self.total_frames

    @property
    def frames_per_agent_step(self) -> int:
        return self.environment.frame_skip

    def check_names(self) -> None:
        """Check that the method, the network, the explorer, the optimizer and the schedule are registered.

        Raises:
            ConfigurationError: one is not.
        """
        for setting, name, kind, table in (
            ("network.name", self.network.name, "network", NETWORKS),
            ("method.name", self.method.name, "method", METHODS),
            ("exploration.name", self.exploration.name, "explorer", EXPLORERS),
            ("optimizer.name", self.optimizer.name, "optimizer", OPTIMIZERS),
            ("optimizer.schedule", self.optimizer.schedule, "schedule", SCHEDULES),
        ):
            if name is not None and name not in table:
                remedy = f"there are {', '.join(table)}" if table else "the imported modules register none"
                raise setting_error(setting, name, f"no such {kind}; {remedy}")


def _combinations(config: RunConfig) -> Iterator[Rule]:
    actor, inline, sums = config.actor, config.executor == "inline", config.aggregation == "node"
    least, most = config.actor_range
    yield "actors", least < 1, "must be at least 1"
    yield "actors", most is not None and most < least, "must have its bounds in order"
    yield (
        "actor.minibatches", actor.environments * actor.unroll_length % actor.minibatches > 0,
        f"does not divide the {actor.environments} x {actor.unroll_length} steps of a rollout",
    )  # fmt: skip
    yield (
        "actor.minibatches", config.network.recurrent != "none" and actor.environments % actor.minibatches > 0,
        f"does not divide --actor.environments {actor.environments}: with a memory minibatches are of environments",
    )  # fmt: skip
    yield (
        "method.n_step", (config.method.n_step or 1) > actor.unroll_length,
        f"is more than --actor.unroll-length {actor.unroll_length}",
    )  # fmt: skip
    yield (
        "aggregation", sums and config.learner.max_policy_lag is not None,
        "a gradient that is too old could not be taken out of a sum; leave --learner.max-policy-lag out",
    )  # fmt: skip
    yield "aggregation", sums and inline, "is for --executor ray"
    yield "learner.device", inline and config.learner.device == "gpu", "inline updates are on the device of the actors"
    evaluated = config.stop_measure == "evaluation" and config.stop_at_return is not None
    yield (
        "stop_measure", evaluated and not config.evaluation.every_frames,
        "needs evaluations: set --evaluation.every-frames above 0",
    )  # fmt: skip


def flat_settings(config: RunConfig) -> dict[str, str | int | float | bool]:
    """All settings by name. Values that are not numbers or text are converted to text."""
    return dict(_flat(asdict(config), ""))


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str | int | float | bool) else str(value)
