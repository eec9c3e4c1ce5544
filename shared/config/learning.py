"""How it learns: the loss, exploration, the optimizer, and how gradients become updates."""

from dataclasses import dataclass
from typing import Literal

from shared.config.checks import at_least, between, positive
from shared.errors import setting_error
from shared.registry import EXPLORERS, METHODS


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
    final_entropy_cost: float | None = None
    """actor_critic: what β comes to, in a straight line over the frames that the learning rate is annealed over. None:
    it stays."""
    clip_ratio: float = 0.2
    """actor_critic: ε. Where a rollout is differentiated more than once, the ratio of the probabilities of an action
    now and when it was taken counts from 1 - ε to 1 + ε (arXiv 1707.06347, eq. 7)."""
    standardise_advantages: bool = False
    """actor_critic: scale the advantages of a rollout to mean 0 and standard deviation 1, in the policy's term."""
    double_q: bool = False
    """q_learning: the online network chooses the action that the target network values."""
    error: Literal["squared", "huber"] = "squared"
    """q_learning, sarsa: squared, or linear beyond an error of 1."""
    target_network: bool = True
    """q_learning, sarsa: bootstrap from a target network, as in the paper. Off: from the weights that acted, as in PQN
    (arXiv 2407.04811)."""
    target_interval_agent_steps: int = 10_000
    """q_learning, sarsa: global agent steps between two copies of the weights into the target network (in the paper
    40,000 frames)."""

    def __post_init__(self) -> None:
        between("method.discount", self.discount, 0.0, 1.0)
        at_least("method.n_step", self.n_step, 1)
        between("method.return_lambda", self.return_lambda, 0.0, 1.0)
        at_least("method.value_cost", self.value_cost, 0.0)
        at_least("method.entropy_cost", self.entropy_cost, 0.0)
        at_least("method.final_entropy_cost", self.final_entropy_cost, 0.0)
        positive("method.clip_ratio", self.clip_ratio)
        at_least("method.target_interval_agent_steps", self.target_interval_agent_steps, 1)
        known = METHODS.get(self.name)
        if not self.target_network and known is not None and not known.target_network:
            raise setting_error("method.target_network", False, f"{self.name} has none; leave the setting out")
        if not self.target_network and self.double_q:
            raise setting_error(
                "method.double_q", True, "needs the target network; leave --method.no-target-network out"
            )

    @property
    def uses_target_network(self) -> bool:
        """Whether the learner keeps a copy of the weights, refreshed every `target_interval_agent_steps`."""
        return self.target_network and METHODS[self.name].target_network

    def check_known(self) -> None:
        """Refuse a name that no method has.

        Raises:
            ConfigurationError: it is one.
        """
        if self.name not in METHODS:
            raise setting_error("method.name", self.name, f"no such method; there are {', '.join(METHODS)}")


@dataclass(frozen=True)
class ExplorationConfig:
    """How actions depart from the greedy one. Categorical policies explore by being sampled, and need none of it."""

    name: str | None = None
    """A way to explore of the user's own, which a module of --environment.import has registered. None: the method's."""
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
        between("exploration.initial_epsilon", self.initial_epsilon, 0.0, 1.0)
        if not self.final_epsilons:
            raise setting_error("exploration.final_epsilons", "()", "must have at least one value")
        for epsilon in self.final_epsilons:
            between("exploration.final_epsilons", epsilon, 0.0, 1.0)
        chances = self.final_epsilon_probabilities
        if len(chances) != len(self.final_epsilons) or min(chances) < 0 or abs(sum(chances) - 1.0) > 1e-6:
            raise setting_error(
                "exploration.final_epsilon_probabilities",
                chances,
                f"must be one for each of the {len(self.final_epsilons)} final epsilons, and sum to 1",
            )
        at_least("exploration.annealing_frames", self.annealing_frames, 1)
        at_least("exploration.noise_persistence_agent_steps", self.noise_persistence_agent_steps, 1)
        between("exploration.initial_log_std", self.initial_log_std, -20.0, 2.0)

    def check_known(self) -> None:
        """Refuse a name that no explorer has.

        Raises:
            ConfigurationError: it is one.
        """
        if self.name is not None and self.name not in EXPLORERS:
            known = f"there are {', '.join(EXPLORERS)}" if EXPLORERS else "the imported modules register none"
            raise setting_error("exploration.name", self.name, f"no such explorer; {known}")


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
        positive("optimizer.learning_rate", self.learning_rate)
        at_least("optimizer.annealing_frames", self.annealing_frames, 1)
        positive("optimizer.exponential_rate", self.exponential_rate)
        at_least("optimizer.exponential_updates", self.exponential_updates, 1)
        for name in ("decay", "momentum", "beta_1", "beta_2"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise setting_error(f"optimizer.{name}", value, "must be at least 0 and less than 1")
        positive("optimizer.epsilon", self.epsilon)
        at_least("optimizer.initial_mean_square", self.initial_mean_square, 0.0)
        if self.bias_correction and self.initial_mean_square:
            raise setting_error(
                "optimizer.bias_correction", True, "corrects a mean square that starts at 0, not at another value"
            )
        if self.bias_correction and self.centred:
            raise setting_error("optimizer.bias_correction", True, "is not defined for centred RMSProp")
        positive("optimizer.max_gradient_norm", self.max_gradient_norm)


# Above the number of actors of any run.
_MAX_GRADIENTS_PER_UPDATE = 1_000_000


@dataclass(frozen=True)
class LearnerConfig:
    """How gradients become updates."""

    gradients_per_update: int = 1
    """K: gradients that are accumulated before they are applied. 1 applies each as it arrives."""
    accumulation: Literal["sum", "mean"] = "sum"
    """Whether the K gradients are summed or averaged; each counts alike, however many agent steps it is of."""
    max_policy_lag: int | None = None
    """Gradients computed with weights older than this many updates are dropped. None disables the limit."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where updates run. auto: a GPU when the cluster has one."""

    def __post_init__(self) -> None:
        at_least("learner.gradients_per_update", self.gradients_per_update, 1)
        if self.gradients_per_update > _MAX_GRADIENTS_PER_UPDATE:
            problem = f"must be at most {_MAX_GRADIENTS_PER_UPDATE:,}"
            raise setting_error("learner.gradients_per_update", self.gradients_per_update, problem)
        at_least("learner.max_policy_lag", self.max_policy_lag, 0)

    @property
    def may_use_gpu(self) -> bool:
        """Whether updates run on a GPU if there is one."""
        return self.device != "cpu"
