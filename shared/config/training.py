"""The training: how the agent learns, and the processes that train it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from shared.config.checks import For, Range, Registered
from shared.config.task import Options
from shared.registry import EXPLORERS, METHODS, OPTIMIZERS, SCHEDULES

_ACTOR_CRITIC = For("method.name", "actor_critic")
_Q_LEARNING = For("method.name", "q_learning", "sarsa")
_GAUSSIAN = For("environment.id", "continuous actions")
_RMSPROP = For("optimizer.name", "rmsprop")
_MAX_WARM_UP_AGENT_STEPS = 1024
# Below 1e-38 ε is 0 in float32: a weight without a gradient would become 0 / 0. A bias correction makes it smaller.
_MIN_EPSILON = 1e-30

VECTORS = 2
"""Vectors of environments that a GPU actor plays in turn: one is emulated while the network plays the other."""


@dataclass(frozen=True)
class MethodConfig:
    """The loss that actors differentiate."""

    name: Annotated[str, Registered("method", METHODS)] = "actor_critic"
    """actor_critic (A3C), q_learning, sarsa, or a method that a module of --environment.import has registered."""
    options: Options = field(default_factory=dict)
    """Options of a method of your own, as names and values; its class has their defaults."""
    discount: Annotated[float, Range(0, 1)] = 0.99
    """Discount factor γ."""
    n_step: Annotated[int | None, Range(1)] = None
    """Number of rewards in a return before it bootstraps, at most the unroll length. 1 gives one-step Q-learning or
    Sarsa. None: each return reaches to the end of the rollout, as in the paper."""
    return_lambda: Annotated[float, Range(0, 1)] = 1.0
    """λ of the returns. 1 gives the paper's n-step return."""
    reduction: Literal["sum", "mean"] = "mean"
    """Reduction of the loss over the agent steps of a rollout, and of the K gradients of an update. The paper sums; a
    mean suits many environments per actor. With K > 1 a step has slightly more weight in the mean of a rollout that has
    fewer steps because episodes ended in it."""
    value_cost: Annotated[float, Range(0), _ACTOR_CRITIC] = 0.5
    """actor_critic: weight of the squared error of the value."""
    entropy_cost: Annotated[float, Range(0), _ACTOR_CRITIC] = 0.01
    """actor_critic: weight β of the entropy bonus."""
    final_entropy_cost: Annotated[float | None, Range(0), _ACTOR_CRITIC] = None
    """actor_critic: final value of β, which changes linearly over the frames of the learning rate's annealing. None
    keeps β constant."""
    clip_ratio: Annotated[float, Range(above=0), _ACTOR_CRITIC] = 0.2
    """actor_critic: ε of the clipped ratio. In a rollout that is differentiated more than once, or at newer weights
    (--actor.fresh-gradients), the ratio of an action's probabilities, now and when it was taken, is clipped to [1 - ε,
    1 + ε] (arXiv 1707.06347, eq. 7)."""
    standardise_advantages: Annotated[bool, _ACTOR_CRITIC] = False
    """actor_critic: scale the advantages of a rollout to mean 0 and standard deviation 1 in the policy loss; with
    --actor.fresh-gradients the advantages of all actors in an exponential window of 1,024 agent steps, since their
    rollouts are small."""
    target_network: Annotated[bool, _Q_LEARNING] = True
    """q_learning, sarsa: bootstrap from a target network, as in the paper. Off: from the weights that acted, as in PQN
    (arXiv 2407.04811)."""
    target_interval_agent_steps: Annotated[int, Range(1), _Q_LEARNING, For("method.target_network", True)] = 10_000
    """q_learning, sarsa: global agent steps between two updates of the target network (40,000 frames in the paper)."""

    @property
    def uses_target_network(self) -> bool:
        """True if the learner keeps a copy of the weights, updated every `target_interval_agent_steps`."""
        return self.target_network and METHODS[self.name].target_network


@dataclass(frozen=True)
class ExplorationConfig:
    """The exploration of actors. Categorical policies explore by sampling, and use none of these settings."""

    name: Annotated[str | None, Registered("explorer", EXPLORERS)] = None
    """Explorer that a module of --environment.import has registered. None: the method's own."""
    options: Options = field(default_factory=dict)
    """Options of a registered explorer, as names and values; its class has their defaults."""
    final_epsilons: Annotated[tuple[float, ...], Range(0, 1), _Q_LEARNING] = (0.1, 0.01, 0.5)
    """ε-greedy methods: final values of ε. Each environment draws one and keeps it: of three values with probabilities
    0.4, 0.3 and 0.3 as in the paper, of any other number of values with equal probabilities."""
    annealing_frames: Annotated[int, Range(1), _Q_LEARNING] = 4_000_000
    """ε-greedy methods: global frames over which ε falls linearly from 1 to its final value."""
    noise: Annotated[Literal["independent", "spherical", "state_dependent"], _GAUSSIAN] = "independent"
    """Noise of Gaussian policies. independent: drawn at each step, with a free σ for each dimension of an action.
    spherical: the same, with one σ² = log(1 + exp x) for all dimensions, where x is one more output of the policy, as
    in the paper. state_dependent: a linear function of the last hidden layer, kept for several steps (arXiv
    2005.05719)."""
    noise_persistence_agent_steps: Annotated[int, Range(1), _GAUSSIAN, For("exploration.noise", "state_dependent")] = 16
    """State-dependent noise: mean number of agent steps for which an environment keeps its function."""
    initial_log_std: Annotated[
        float, Range(-20, 2), _GAUSSIAN, For("exploration.noise", "independent", "state_dependent")
    ] = 0.0
    """Gaussian policies: initial log σ, in units of half the range of an action; state_dependent: of the weight of each
    unit of the last hidden layer, whose norm times it is the σ of an action."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer: RMSProp in the A3C form (the default), Adam or SGD."""

    name: Annotated[str, Registered("optimizer", OPTIMIZERS)] = "rmsprop"
    """rmsprop: g ← αg + (1-α)Δθ², θ ← θ - ηΔθ/√(g + ε). adam. sgd. Or an optimizer that a module of
    --environment.import has registered."""
    learning_rate: Annotated[float, Range(above=0)] = 7e-4
    """Initial learning rate η."""
    schedule: Annotated[str, Registered("schedule", SCHEDULES)] = "linear"
    """Schedule of the learning rate by global frames: linear or cosine, to 0; constant; or a schedule that a module of
    --environment.import has registered."""
    annealing_frames: Annotated[int | None, Range(1), For("optimizer.schedule", "linear", "cosine")] = None
    """linear, cosine, registered: global frames at which the progress is 1. None: the total frames of the run."""
    decay: Annotated[float, Range(0, below=1), _RMSPROP] = 0.99
    """rmsprop: α."""
    epsilon: Annotated[float, Range(_MIN_EPSILON), For("optimizer.name", "rmsprop", "adam")] = 0.1
    """rmsprop: ε, inside the root. adam: ε̂, outside the root."""
    bias_correction: Annotated[bool, _RMSPROP] = False
    """rmsprop: divide g, which starts at 0, by 1 - α^t. Without the correction the first updates are up to 1/√(1-α)
    times too large."""
    max_gradient_norm: Annotated[float | None, Range(above=0)] = 40.0
    """Global norm to which a gradient is clipped before the update. None disables clipping."""


@dataclass(frozen=True)
class LearnerConfig:
    """The learner: accumulation of gradients into updates."""

    gradients_per_update: Annotated[int, Range(1, 1_000_000)] = 1
    """K: number of gradients that one update accumulates. 1 applies each gradient on arrival. An update takes their sum
    or mean, as --method.reduction; each has the same weight, however many agent steps it has."""
    max_policy_lag: Annotated[int | None, Range(0)] = None
    """Drop gradients of weights that are older than this number of updates. None disables the limit."""
    agent_steps_per_update: Annotated[int | None, Range(1)] = None
    """Agent steps of an update, from which the minibatches of an actor and K follow for any number of actors. None, or
    an explicit --actor.minibatches or --learner.gradients-per-update: as these say."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of updates. auto: the CPU."""


@dataclass(frozen=True)
class ActorConfig:
    """One actor: a process that steps its environments and computes gradients."""

    environments: Annotated[int, Range(1)] = 32
    """Number of environments that one actor steps as a batch. Follows from --actor.total-environments if that is
    set."""
    unroll_length: Annotated[int, Range(1)] = 20
    """Steps of each environment between two gradients; t_max in the paper, where it is 5."""
    total_environments: Annotated[int | None, Range(1)] = None
    """Number of environments of all actors together. Each actor has the nearest whole share of them, but at least two,
    or one if the unroll length is 64 or more: many actors play more environments. None, or an explicit
    --actor.environments: every actor has --actor.environments."""
    epochs: Annotated[int, Range(1)] = 1
    """E: number of passes over each rollout. Gradients after the first use the newest weights and a clipped ratio; see
    --method.clip-ratio."""
    epochs_of_many: Annotated[int | None, Range(1)] = None
    """E of a new run whose actors have about four times the agent steps in flight of --actor.total-environments, or
    more. None, or an explicit --actor.epochs: as that says."""
    minibatches: Annotated[int, Range(1)] = 1
    """M: number of random parts of a rollout, each of which gives one gradient. An actor reports E x M gradients per
    rollout. M divides the environments times the unroll length."""
    fresh_gradients: bool = False
    """Compute every gradient at the newest weights, not at the weights that played the rollout. The clipped ratio
    corrects for the updates in between; with M = 1 returns are computed anew for each gradient. Before its first
    rollout an actor plays a random number of agent steps, at most 1,024, which are not counted."""
    device: Literal["cpu", "gpu", "auto"] = "cpu"
    """Device of networks and gradients of actors. gpu: two actors a GPU, each with two vectors of environments that
    alternate: one is emulated while the network plays the other. auto: gpu where there is one and the network is
    convolutional. See docs/gpu.md."""

    @property
    def gradients_per_rollout(self) -> int:
        """E x M: number of gradients that an actor reports per rollout."""
        return self.epochs * self.minibatches

    @property
    def agent_steps_in_flight(self) -> int:
        """Agent steps of the rollout that is under way at one actor."""
        return self.environments * self.unroll_length

    @property
    def max_warm_up_rollouts(self) -> int:
        """Rollouts that an actor with fresh gradients plays at most before its first one, in no gradient and no count.

        These rollouts have at most 1,024 agent steps.
        """
        return _MAX_WARM_UP_AGENT_STEPS // self.agent_steps_in_flight if self.fresh_gradients else 0

    def crowding(self, actors: int) -> str | None:
        """A warning if this number of actors has more environments than the actors share."""
        total = self.total_environments
        if total is None or actors * self.environments <= total:
            return None
        return (
            f"{actors:,} actors have {actors * self.environments:,} environments in place of {total:,}, and "
            f"{actors * self.agent_steps_in_flight:,} agent steps in flight: learning may take more agent steps"
        )

    @property
    def needs_behaviour(self) -> bool:
        """True if gradients use other weights than acting did, and need the values and probabilities of acting."""
        return self.fresh_gradients or self.gradients_per_rollout > 1


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoints from which a run can resume."""

    every_seconds: Annotated[float, Range(above=0)] = 120.0
    """Seconds between checkpoints. Others are saved at the start and the end of a run, and after evaluations."""
    every_frames: Annotated[int | None, Range(1)] = None
    """Frames between checkpoints, in addition to checkpoints by seconds."""
    keep: Annotated[int, Range(1)] = 3
    """Number of newest checkpoints that are kept."""


@dataclass(frozen=True)
class SupervisionConfig:
    """Reactions to the death or hang of a process."""

    max_restarts: Annotated[int, Range(0)] = 10
    """Number of actors that may be replaced within ten minutes, or before any has reported. One more ends the run after
    a checkpoint."""
    hang_seconds: Annotated[float, Range(above=0)] = 30.0
    """An actor counts as hung after 20 times the longest of its last 200 rollouts, but never before this many seconds,
    nor before three times the duration of its first rollout."""
    start_seconds: Annotated[float, Range(above=0)] = 180.0
    """An actor that has not reported yet counts as hung after this many seconds without the end of a call, its start
    included. The same time applies in an evaluation, for which an actor makes environments."""
