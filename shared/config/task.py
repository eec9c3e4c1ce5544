"""What the agent plays, the network it plays with, and how it is evaluated."""

from dataclasses import dataclass, field
from typing import Literal

from shared.config.checks import at_least, between, positive
from shared.errors import setting_error

OptionValue = str | int | float | bool


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
        at_least("environment.frame_skip", self.frame_skip, 1)
        at_least("environment.frame_stack", self.frame_stack, 1)
        at_least("environment.screen_size", self.screen_size, 1)
        between("environment.sticky_action_probability", self.sticky_action_probability, 0.0, 1.0)
        at_least("environment.max_noops", self.max_noops, 0)
        at_least("environment.max_episode_frames", self.max_episode_frames, 1)
        positive("environment.reward_scale", self.reward_scale)


@dataclass(frozen=True)
class NetworkConfig:
    """The function from observations to what the method's heads give: policy and value, or action values."""

    name: Literal["a3c_cnn", "nature_cnn", "mlp"] = "a3c_cnn"
    """a3c_cnn: 16@8x8/4, 32@4x4/2, 256 units; nature_cnn: 32@8x8/4, 64@4x4/2, 64@3x3/1, 512 units; mlp."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """mlp: units of each hidden layer. Each head has a trunk of its own: one for the policy, one for the value."""
    activation: Literal["tanh", "relu"] = "tanh"
    """mlp: of the hidden layers."""
    layer_norm: bool = False
    """Normalise what goes into each activation over all units of a layer, positions and channels together, then scale
    and shift each unit by two weights of its own (LayerNorm, arXiv 1607.06450)."""
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
            at_least("network.hidden_sizes", units, 1)


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
        at_least("evaluation.every_frames", self.every_frames, 0)
        at_least("evaluation.episodes", self.episodes, 1)
        at_least("evaluation.environments", self.environments, 1)
