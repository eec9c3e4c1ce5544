"""The settings of a run: one tree of frozen dataclasses, validated when built.

Each docstring below a field is its help text on the command line. Presets (`launch/presets`) are instances of
`RunConfig`; a run folder holds the resolved instance as `config.json`.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shared.errors import setting_error
from shared.methods.names import METHODS
from shared.wire import WirePrecision

OptionValue = str | int | float | bool


def _at_least(setting: str, value: float | None, minimum: float) -> None:
    if value is not None and not (math.isfinite(value) and value >= minimum):
        raise setting_error(setting, value, f"must be at least {minimum:g}")


def _positive(setting: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise setting_error(setting, value, "must be greater than 0")


def _between(setting: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise setting_error(setting, value, f"must be between {low:g} and {high:g}")


@dataclass(frozen=True)
class EnvironmentConfig:
    """What the agent plays, and the protocol it is played by."""

    id: str = "ALE/Pong-v5"
    """Gymnasium id. ALE ids are stepped by ale-py's C++ vector environment under the settings below."""
    frame_skip: int = 4
    """Atari: frames that each action is repeated for; the last two are max-pooled. Other environments: 1."""
    frame_stack: int = 4
    """Atari: observations stacked into what the network sees."""
    screen_size: int = 84
    """Atari: side of the square greyscale observation, in pixels."""
    sticky_action_probability: float = 0.0
    """Atari: probability that a frame repeats the previous action (0.25 in Machado et al. 2018)."""
    max_noops: int = 30
    """Atari: each episode starts with a number of no-ops drawn uniformly below this. Where FIRE is pressed on reset it
    takes the place of one: 30 gives 1 to 29 frames before the agent acts, 1 twice as likely as each other."""
    fire_on_reset: bool = True
    """Atari: press FIRE after a reset in games that wait for it."""
    terminal_on_life_loss: bool = False
    """Atari: training treats a lost life as terminal. The episode, and its return, go on."""
    full_action_space: bool = False
    """Atari: all 18 actions instead of the game's minimal set."""
    max_episode_frames: int = 108_000
    """Atari: frames after which an episode is truncated (108,000 are 30 minutes)."""
    clip_rewards: bool = True
    """Training sees rewards clipped to [-1, 1]. Returns are always reported unclipped."""
    reward_scale: float = 1.0
    """Training sees rewards times this, before they are clipped. Returns are always reported unscaled."""
    options: dict[str, OptionValue] = field(default_factory=dict)
    """Other environments: keyword arguments of `gymnasium.make`, each a name and a value: a number, True or False where
    it looks so, else text."""

    def __post_init__(self) -> None:
        _at_least("environment.frame_skip", self.frame_skip, 1)
        _at_least("environment.frame_stack", self.frame_stack, 1)
        _at_least("environment.screen_size", self.screen_size, 1)
        _between("environment.sticky_action_probability", self.sticky_action_probability, 0.0, 1.0)
        _at_least("environment.max_noops", self.max_noops, 0)
        _at_least("environment.max_episode_frames", self.max_episode_frames, 1)
        _positive("environment.reward_scale", self.reward_scale)


@dataclass(frozen=True)
class NetworkConfig:
    """The function from observations to what the method's heads give: policy and value, or action values."""

    name: Literal["a3c_cnn", "nature_cnn", "mlp"] = "a3c_cnn"
    """a3c_cnn: 16@8x8/4, 32@4x4/2, 256 units; nature_cnn: 32@8x8/4, 64@4x4/2, 64@3x3/1, 512 units; mlp."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """mlp: units of each hidden layer. Each head has a trunk of its own: one for the policy, one for the value."""
    activation: Literal["tanh", "relu"] = "tanh"
    """mlp: of the hidden layers."""
    observation_scaling: Literal["none", "bounds", "running"] = "none"
    """mlp: none; bounds: to mean 0 and deviation 1 of a uniform draw from the space's bounds; running: to mean 0 and
    deviation 1 of all that training has seen."""
    centre_observations: bool = True
    """Images: subtract the mean observation of random play, measured once before training."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers. Parameters, heads, loss and optimizer are float32 always."""

    def __post_init__(self) -> None:
        if not self.hidden_sizes:
            raise setting_error("network.hidden_sizes", "()", "must have at least one layer")
        for units in self.hidden_sizes:
            _at_least("network.hidden_sizes", units, 1)


@dataclass(frozen=True)
class MethodConfig:
    """The loss that actors differentiate."""

    name: str = "actor_critic"
    """actor_critic (A3C); q_learning; sarsa."""
    discount: float = 0.99
    """γ."""
    n_step: int | None = None
    """Rewards in a target before it bootstraps, at most the unroll length; 1 makes one-step Q or Sarsa. None: each
    target reaches to the end of the rollout, as in the paper."""
    return_lambda: float = 1.0
    """λ of the returns; 1 is the paper's n-step return."""
    reduction: Literal["sum", "mean"] = "mean"
    """Over the agent steps of a rollout. The paper sums; a mean suits many environments per actor. With K > 1 means of
    rollouts are added: a step counts a little more in a rollout that has fewer, because episodes ended in it."""
    value_cost: float = 0.5
    """actor_critic: weight of the squared error of the value."""
    entropy_cost: float = 0.01
    """actor_critic: weight β of the entropy bonus."""
    standardise_advantages: bool = False
    """actor_critic: scale the advantages of a rollout to mean 0 and standard deviation 1, in the policy's term."""
    double_q: bool = False
    """q_learning: the online network chooses the action that the target network values."""
    error: Literal["squared", "huber"] = "squared"
    """q_learning, sarsa: squared, or linear beyond an error of 1."""
    target_interval_agent_steps: int = 10_000
    """q_learning, sarsa: global agent steps between two copies of the weights into the target network (in the paper
    40,000 frames)."""

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise setting_error("method.name", self.name, f"no such method; there are {', '.join(METHODS)}")
        _between("method.discount", self.discount, 0.0, 1.0)
        _at_least("method.n_step", self.n_step, 1)
        _between("method.return_lambda", self.return_lambda, 0.0, 1.0)
        _at_least("method.value_cost", self.value_cost, 0.0)
        _at_least("method.entropy_cost", self.entropy_cost, 0.0)
        _at_least("method.target_interval_agent_steps", self.target_interval_agent_steps, 1)


@dataclass(frozen=True)
class ExplorationConfig:
    """How actions depart from the greedy one. Categorical policies explore by being sampled, and need none of it."""

    initial_epsilon: float = 1.0
    """ε-greedy methods: probability of a random action at frame 0."""
    final_epsilons: tuple[float, ...] = (0.1, 0.01, 0.5)
    """ε-greedy methods: what ε is annealed to. Each environment draws one of these, and keeps it."""
    final_epsilon_probabilities: tuple[float, ...] = (0.4, 0.3, 0.3)
    """ε-greedy methods: with which probability each is drawn."""
    annealing_frames: int = 4_000_000
    """ε-greedy methods: global frames over which ε falls linearly."""
    noise: Literal["independent", "state_dependent"] = "independent"
    """Gaussian policies: independent at each step, or a linear function of the last hidden layer that is kept for
    several steps (arXiv 2005.05719)."""
    noise_persistence_agent_steps: int = 16
    """State-dependent noise: agent steps for which an environment keeps its function, on average."""
    initial_log_std: float = 0.0
    """Gaussian policies: log σ at the start, in units of half the range of an action."""

    def __post_init__(self) -> None:
        _between("exploration.initial_epsilon", self.initial_epsilon, 0.0, 1.0)
        if not self.final_epsilons:
            raise setting_error("exploration.final_epsilons", "()", "must have at least one value")
        for epsilon in self.final_epsilons:
            _between("exploration.final_epsilons", epsilon, 0.0, 1.0)
        chances = self.final_epsilon_probabilities
        if len(chances) != len(self.final_epsilons) or min(chances) < 0 or abs(sum(chances) - 1.0) > 1e-6:
            raise setting_error(
                "exploration.final_epsilon_probabilities",
                chances,
                f"must be one for each of the {len(self.final_epsilons)} final epsilons, and sum to 1",
            )
        _at_least("exploration.annealing_frames", self.annealing_frames, 1)
        _at_least("exploration.noise_persistence_agent_steps", self.noise_persistence_agent_steps, 1)
        _between("exploration.initial_log_std", self.initial_log_std, -20.0, 2.0)


@dataclass(frozen=True)
class OptimizerConfig:
    """What an update does with a gradient: RMSProp in the A3C form (the default), Adam or SGD."""

    name: Literal["rmsprop", "adam", "sgd"] = "rmsprop"
    """rmsprop: g ← αg + (1-α)Δθ², θ ← θ - ηΔθ/√(g + ε); adam; sgd."""
    learning_rate: float = 7e-4
    """η at the start."""
    schedule: Literal["linear", "constant", "exponential"] = "linear"
    """linear: annealed to 0 by global frames; exponential: by updates."""
    annealing_frames: int | None = None
    """linear: global frames at which the rate reaches 0. Default: the total frames of the run."""
    exponential_rate: float = 0.96
    """exponential: factor of the learning rate in --optimizer.exponential-updates updates."""
    exponential_updates: int = 10_000
    """exponential: see --optimizer.exponential-rate."""
    exponential_staircase: bool = False
    """exponential: the rate changes only when these updates are complete."""
    decay: float = 0.99
    """rmsprop: α."""
    centred: bool = False
    """rmsprop: divide by √(g - m² + ε), with m the running mean of Δθ (Graves 2013)."""
    epsilon: float = 0.1
    """rmsprop: ε, inside the root. adam: ε̂, outside it."""
    momentum: float = 0.0
    """rmsprop, sgd: μ in m ← μm + step; 0 in the paper's RMSProp. Its momentum SGD averages, m ← αm + (1-α)Δθ: the same
    at (1-μ) times the learning rate."""
    initial_mean_square: float = 0.0
    """rmsprop: g before the first update: 0 as in the paper, or 1 as in TensorFlow 1, which warms the rate up."""
    bias_correction: bool = False
    """rmsprop: divide g by 1 - α^t, so that the first updates are not 1/√(1-α) times too large (g starts at 0)."""
    beta_1: float = 0.9
    """adam: decay of the mean."""
    beta_2: float = 0.999
    """adam: decay of the mean square."""
    max_gradient_norm: float | None = 40.0
    """Global norm that a gradient is clipped to before the update. None: not clipped."""

    def __post_init__(self) -> None:
        _positive("optimizer.learning_rate", self.learning_rate)
        _at_least("optimizer.annealing_frames", self.annealing_frames, 1)
        _positive("optimizer.exponential_rate", self.exponential_rate)
        _at_least("optimizer.exponential_updates", self.exponential_updates, 1)
        for name in ("decay", "momentum", "beta_1", "beta_2"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise setting_error(f"optimizer.{name}", value, "must be at least 0 and less than 1")
        _positive("optimizer.epsilon", self.epsilon)
        _at_least("optimizer.initial_mean_square", self.initial_mean_square, 0.0)
        if self.bias_correction and self.initial_mean_square:
            raise setting_error(
                "optimizer.bias_correction", True, "corrects a mean square that starts at 0, not at another value"
            )
        if self.bias_correction and self.centred:
            raise setting_error("optimizer.bias_correction", True, "is not defined for centred RMSProp")
        _positive("optimizer.max_gradient_norm", self.max_gradient_norm)


@dataclass(frozen=True)
class LearnerConfig:
    """How gradients become updates."""

    gradients_per_update: int = 1
    """K: gradients that are accumulated before they are applied. 1 applies each as it arrives."""
    accumulation: Literal["sum", "mean"] = "sum"
    """Whether the K gradients are summed or averaged; each counts alike, however many agent steps it is of."""
    max_policy_lag: int | None = None
    """Gradients computed with weights older than this many updates are dropped. None: none is too old."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where updates run. auto: a GPU when the cluster has one."""

    def __post_init__(self) -> None:
        _at_least("learner.gradients_per_update", self.gradients_per_update, 1)
        _at_least("learner.max_policy_lag", self.max_policy_lag, 0)


@dataclass(frozen=True)
class ActorConfig:
    """One actor: a process that steps its environments and computes gradients."""

    environments: int = 32
    """Environments that one actor steps as a batch."""
    unroll_length: int = 20
    """Steps of each environment between two gradients, t_max in the paper (where it is 5)."""
    calls_in_flight: int = 1
    """Rollouts asked of one actor at a time. 2 hides the learner's latency, and adds a version of lag."""
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
        _at_least("actor.environments", self.environments, 1)
        _at_least("actor.unroll_length", self.unroll_length, 1)
        _between("actor.calls_in_flight", self.calls_in_flight, 1, 2)
        _positive("actor.cores", self.cores)
        _positive("actor.gpus", self.gpus)
        _at_least("actor.environment_threads", self.environment_threads, 1)
        _at_least("actor.tensorflow_threads", self.tensorflow_threads, 1)


@dataclass(frozen=True)
class EvaluationConfig:
    """Whole episodes with fixed weights, while training goes on."""

    every_frames: int = 0
    """Frames between two evaluations. 0: none during training."""
    episodes: int = 100
    """Episodes of one evaluation, their returns unclipped."""
    environments: int = 20
    """Environments that play them side by side."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """sampled: as the policy says, for Q methods with the smallest final ε. greedy: its most probable action, its
    mean, or the action of highest value."""

    video: bool = False
    """Film one more episode at each evaluation, for TensorBoard and the run folder."""

    def __post_init__(self) -> None:
        _at_least("evaluation.every_frames", self.every_frames, 0)
        _at_least("evaluation.episodes", self.episodes, 1)
        _at_least("evaluation.environments", self.environments, 1)


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept so that a run can go on."""

    every_seconds: float = 120.0
    """Seconds between checkpoints. One is saved at the start and one at the end."""
    every_updates: int | None = None
    """Updates between checkpoints. None: by seconds only."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    exact: bool = False
    """Inline executor: a resumed run is equal to the bit to one that was never stopped. Keeps every action, and plays
    all of them again on resume."""

    def __post_init__(self) -> None:
        _positive("checkpoint.every_seconds", self.every_seconds)
        _at_least("checkpoint.every_updates", self.every_updates, 1)
        _at_least("checkpoint.keep", self.keep, 1)


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
    """… and at least so many seconds."""
    start_seconds: float = 180.0
    """Seconds that an actor may take from its start to its first report."""
    max_non_finite: int = 20
    """Gradients in a row that may be not finite before the run saves and stops."""
    max_learner_restarts: int = 3
    """Times that the learner may die and go on from the last checkpoint."""

    def __post_init__(self) -> None:
        _at_least("supervision.max_restarts", self.max_restarts, 0)
        _positive("supervision.restart_window_seconds", self.restart_window_seconds)
        _at_least("supervision.backoff_seconds", self.backoff_seconds, 0)
        _at_least("supervision.hang_factor", self.hang_factor, 1)
        _positive("supervision.hang_seconds", self.hang_seconds)
        _positive("supervision.start_seconds", self.start_seconds)
        _at_least("supervision.max_non_finite", self.max_non_finite, 1)
        _at_least("supervision.max_learner_restarts", self.max_learner_restarts, 0)


@dataclass(frozen=True)
class TransferConfig:
    """How gradients and weights travel between processes."""

    shared_memory: bool = True
    """Between processes of one machine through shared memory. Off: through Ray's object store, as between machines."""
    precision: WirePrecision = "float32"
    """bfloat16 rounds weights and gradients on their way, and halves the bytes. Off by default."""


@dataclass(frozen=True)
class RunConfig:
    """Train with an asynchronous n-step method."""

    actors: int | str = "auto"
    """Actor processes: a number, auto, or MIN:MAX. auto: one per core, less one where there are four or more; on a
    cluster as many as it has room for, now and when nodes join or leave. MIN:MAX: the same within these bounds."""
    total_frames: int = 40_000_000
    """Global frames (agent steps x frame skip) after which training stops."""
    stop_at_return: float | None = None
    """Stop when the mean unclipped return of the last 100 training episodes reaches this, and an evaluation of the
    weights of that moment too: --evaluation.episodes, with sampled actions. The 100 count once every environment has
    ended an episode; after a failed evaluation the next one waits for 100 new episodes."""
    stop_measure: Literal["training", "evaluation"] = "training"
    """training: see --stop-at-return. evaluation: stop when one of the regular evaluations reaches it."""
    stop_after_seconds: float | None = None
    """Stop after this many seconds of training, those before a resume included."""
    seed: int = 1
    """Seed of weights, environments and actions."""
    executor: Literal["ray", "inline"] = "ray"
    """ray: actors as processes. inline: all in one process, one after another, deterministic for a seed."""
    lockstep: bool = False
    """Take reports in the order in which they were asked for: a run of processes is then reproducible, and slower."""
    record_arrivals: str | None = None
    """File to write the order to in which reports arrive. Not with --resume."""
    replay_arrivals: str | None = None
    """With --executor inline: file of such an order. Takes reports in it, and so repeats that run with the same
    settings to the bit, until the order ends. Not with --resume."""
    address: str = "local"
    """Ray cluster to join: local starts one for this run, auto finds a running one, or HOST:PORT."""
    aggregation: Literal["auto", "node", "none"] = "auto"
    """node: actors of a node add the K gradients of an update there, and one message goes to the learner; none: each
    gradient travels by itself; auto: by node where that pays, on a cluster whose nodes have K actors or more each."""
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

    def __post_init__(self) -> None:
        least, most = self.actor_range
        _at_least("actors", least, 1)
        if most is not None and most < least:
            raise setting_error("actors", self.actors, "must have its bounds in order")
        _at_least("total_frames", self.total_frames, 1)
        if self.stop_at_return is not None and not math.isfinite(self.stop_at_return):
            raise setting_error("stop_at_return", self.stop_at_return, "must be a finite number")
        _positive("stop_after_seconds", self.stop_after_seconds)
        _between("seed", self.seed, 0, 2**31 - 1)
        _positive("log_every_seconds", self.log_every_seconds)
        if self.method.n_step is not None and self.method.n_step > self.actor.unroll_length:
            raise setting_error(
                "method.n_step", self.method.n_step, f"is more than --actor.unroll-length {self.actor.unroll_length}"
            )
        if self.network.observation_scaling != "none" and self.network.name != "mlp":
            raise setting_error(
                "network.observation_scaling",
                self.network.observation_scaling,
                f"is for mlp; {self.network.name} has --network.centre-observations",
            )
        if self.replay_arrivals is not None and self.executor != "inline":
            raise setting_error("replay_arrivals", self.replay_arrivals, "needs --executor inline")
        if self.aggregation == "node":
            if self.learner.gradients_per_update < 2:
                raise setting_error(
                    "aggregation", "node", "needs --learner.gradients-per-update of 2 or more: there is nothing to add"
                )
            if self.learner.max_policy_lag is not None:
                raise setting_error(
                    "aggregation", "node", "a gradient that is too old could not be taken out of a sum; leave "
                    "--learner.max-policy-lag out",
                )  # fmt: skip
            if self.executor == "inline" or self.lockstep or self.record_arrivals is not None:
                raise setting_error(
                    "aggregation", "node", "is for --executor ray, without --lockstep and --record-arrivals"
                )
        if self.checkpoint.exact and self.executor != "inline":
            raise setting_error("checkpoint.exact", "True", "is for --executor inline: processes have no fixed order")
        if self.executor == "inline" and self.learner.device == "gpu":
            raise setting_error("learner.device", "gpu", "the inline executor runs on the CPU")
        if self.executor == "inline" and self.evaluation.video:
            raise setting_error("evaluation.video", True, "is made in the evaluator's process; use --executor ray")
        if self.stop_measure == "evaluation" and self.stop_at_return is not None and not self.evaluation.every_frames:
            raise setting_error(
                "stop_measure", self.stop_measure, "needs evaluations: set --evaluation.every-frames above 0"
            )

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
        """Frames at which a linear learning rate reaches 0."""
        return self.optimizer.annealing_frames or self.total_frames

    @property
    def frames_per_agent_step(self) -> int:
        """Frames that one agent step takes."""
        return self.environment.frame_skip


def flat_settings(config: RunConfig) -> dict[str, str | int | float | bool]:
    """All settings by their names on the command line; what is no number, text or choice is text."""
    return dict(_flat(asdict(config), ""))


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str | int | float | bool) else str(value)
