"""One run: all its settings, and the checks that need more than one part of them."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shared.config.checks import at_least, between, positive
from shared.config.learning import ExplorationConfig, LearnerConfig, MethodConfig, OptimizerConfig
from shared.config.processes import ActorConfig, CheckpointConfig, SupervisionConfig, TrackingConfig, TransferConfig
from shared.config.task import EnvironmentConfig, EvaluationConfig, NetworkConfig
from shared.errors import setting_error


@dataclass(frozen=True)
class RunConfig:
    """Train with an asynchronous n-step method."""

    actors: int | str = "auto"
    """Actor processes: a number, auto, or MIN:MAX. auto: one per core, less one where there are four or more; on a
    cluster as many as it has room for, now and when nodes join or leave. MIN:MAX: the same within these bounds."""
    total_frames: int = 40_000_000
    """Global frames (agent steps x frame skip) after which training stops."""
    stop_at_return: float | None = None
    """Stop when the mean unclipped return, of what --stop-measure says, reaches this."""
    stop_measure: Literal["training", "evaluation"] = "training"
    """training: of the last 100 training episodes, and then of an evaluation of the weights of that moment too;
    evaluation: of one of the regular evaluations. The one that confirms training plays --evaluation.episodes, with
    sampled actions. The 100 count once every environment has ended an episode; after a failed evaluation the next one
    waits for 100 new episodes."""
    stop_after_seconds: float | None = None
    """Stop after this many seconds of training, those before a resume included."""
    seed: int = 1
    """Seed of weights, environments and actions."""
    executor: Literal["ray", "inline"] = "ray"
    """ray: actors as processes. inline: all in one process, one after another, deterministic for a seed."""
    lockstep: bool = False
    """Take reports in the order in which they were asked for: a run of processes is then reproducible, and slower."""
    record_arrivals: str | None = None
    """File to write the order to in which reports arrive, and actors fail and join. Not with --resume."""
    replay_arrivals: str | None = None
    """With --executor inline: file of such an order. Takes reports in it, and so repeats that run with the same
    settings to the bit, until the order ends, however long it takes. Not with --resume."""
    address: str = "local"
    """Ray cluster to join: local starts one for this run, auto finds a running one, or HOST:PORT."""
    aggregation: Literal["auto", "node", "none"] = "auto"
    """node: sum the K gradients of an update on their node and send one message to the learner. none: send each
    gradient by itself. auto: node on a cluster where every node has K actors or more."""
    log_every_seconds: float = 10.0
    """Seconds between rows of metrics.jsonl and TensorBoard points."""
    storage: str | None = None
    """URL to keep a copy of the run folder at, like s3://bucket/run: a run can be resumed from it when its machine is
    lost."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Trackers to write to besides: wandb, mlflow. Each is an extra to install."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_method_and_network(self)
        _check_replay(self)
        _check_aggregation(self)
        _check_executor(self)
        _check_stopping(self)

    @property
    def actor_range(self) -> tuple[int, int | None]:
        """The fewest and the most actors; None: as many as there is room for.

        Raises:
            ConfigurationError: `actors` is neither a number, nor auto, nor MIN:MAX.
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
        """Frames at which a linear learning rate reaches 0, and the weight of the entropy its final value."""
        return self.optimizer.annealing_frames or self.total_frames

    @property
    def frames_per_agent_step(self) -> int:
        """Frames that one agent step takes."""
        return self.environment.frame_skip


def _check_lengths(config: RunConfig) -> None:
    least, most = config.actor_range
    at_least("actors", least, 1)
    if most is not None and most < least:
        raise setting_error("actors", config.actors, "must have its bounds in order")
    at_least("total_frames", config.total_frames, 1)
    if config.stop_at_return is not None and not math.isfinite(config.stop_at_return):
        raise setting_error("stop_at_return", config.stop_at_return, "must be a finite number")
    positive("stop_after_seconds", config.stop_after_seconds)
    between("seed", config.seed, 0, 2**31 - 1)
    positive("log_every_seconds", config.log_every_seconds)


def _check_method_and_network(config: RunConfig) -> None:
    method, network, unroll_length = config.method, config.network, config.actor.unroll_length
    if not config.environment.modules:
        # One that is imported may have methods, networks and explorers of its own.
        method.check_known()
        network.check_known()
        config.exploration.check_known()
    if method.n_step is not None and method.n_step > unroll_length:
        raise setting_error("method.n_step", method.n_step, f"is more than --actor.unroll-length {unroll_length}")
    actor = config.actor
    if network.recurrent != "none" and actor.environments % actor.minibatches:
        raise setting_error(
            "actor.minibatches",
            actor.minibatches,
            f"does not divide --actor.environments {actor.environments}: with a memory minibatches are of environments",
        )


def _check_replay(config: RunConfig) -> None:
    if config.replay_arrivals is not None and config.executor != "inline":
        raise setting_error("replay_arrivals", config.replay_arrivals, "needs --executor inline")
    if config.replay_arrivals is not None and config.transfer.precision != "float32":
        raise setting_error(
            "transfer.precision",
            config.transfer.precision,
            "rounds between processes; one process does not, and cannot repeat such a run (--replay-arrivals)",
        )


def _check_aggregation(config: RunConfig) -> None:
    how = config.aggregation
    if how != "node":
        return
    if config.learner.gradients_per_update < 2:
        raise setting_error(
            "aggregation", how, "needs --learner.gradients-per-update of 2 or more: there is nothing to add"
        )
    if config.learner.max_policy_lag is not None:
        raise setting_error(
            "aggregation", how, "a gradient that is too old could not be taken out of a sum; leave "
            "--learner.max-policy-lag out",
        )  # fmt: skip
    # The learner sees sums, not single reports: their order can be neither fixed nor recorded.
    if config.executor == "inline" or config.lockstep or config.record_arrivals is not None:
        raise setting_error("aggregation", how, "is for --executor ray, without --lockstep and --record-arrivals")


def _check_executor(config: RunConfig) -> None:
    if config.checkpoint.exact and config.environment.normalise_rewards:
        raise setting_error("checkpoint.exact", True, "does not keep what rewards are divided by; leave "
            "--environment.normalise-rewards out")  # fmt: skip
    if config.checkpoint.exact and config.executor != "inline":
        raise setting_error("checkpoint.exact", True, "is for --executor inline: processes have no fixed order")
    if config.executor == "inline" and config.learner.device == "gpu":
        raise setting_error("learner.device", "gpu", "the inline executor runs on the CPU")
    if config.executor == "inline" and config.evaluation.video:
        raise setting_error("evaluation.video", True, "is made in the evaluator's process; use --executor ray")


def _check_stopping(config: RunConfig) -> None:
    by_evaluation = config.stop_measure == "evaluation" and config.stop_at_return is not None
    if by_evaluation and not config.evaluation.every_frames:
        raise setting_error(
            "stop_measure", config.stop_measure, "needs evaluations: set --evaluation.every-frames above 0"
        )


def flat_settings(config: RunConfig) -> dict[str, str | int | float | bool]:
    """All settings by their names on the command line; what is no number, text or choice is text."""
    return dict(_flat(asdict(config), ""))


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str | int | float | bool) else str(value)
