"""What the agent plays, the network it plays with, and how it is evaluated."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from shared.config.checks import at_least, between, positive
from shared.errors import setting_error
from shared.registry import NETWORKS

OptionValue = str | int | float | bool


_TRUTH = {"true": True, "false": False}


def read_option(text: str) -> OptionValue:
    """What a keyword argument is that was typed: a number or a truth value where it looks like one, else text."""
    # Python reads 8_8 as 88; here it is a name.
    for read in (int, float) if "_" not in text else ():
        with suppress(ValueError):
            return read(text)
    return _TRUTH.get(text.lower(), text)


def read_wrapper(text: str) -> tuple[str, str, dict[str, OptionValue]]:
    """Module, name and keyword arguments of a wrapper that is written as module:Name,argument=value,…

    Raises:
        ConfigurationError: it is not.
    """
    path, *arguments = text.split(",")
    module, _, name = path.partition(":")
    pairs = [argument.partition("=") for argument in arguments]
    names = [*module.split("."), name, *(argument for argument, _, _ in pairs)]
    if not all(map(str.isidentifier, names)) or not all(equals for _, equals, _ in pairs):
        raise setting_error("environment.wrappers", text, "is not of the form module:Wrapper,argument=value")
    return module, name, {argument: read_option(value) for argument, _, value in pairs}


@dataclass(frozen=True)
class EnvironmentConfig:
    """What the agent plays, and the protocol it is played by."""

    id: str = "ALE/Pong-v5"
    """Gymnasium id, or module:id, where the module registers it. ALE ids are stepped by ale-py's C++ vector environment
    under the settings below."""
    imports: tuple[str, ...] = ()
    """Modules to import, here and in every worker on every node, before the environment is made: what registers it.
    Also typed --environment.import. The modules that a run folder names
    are imported with --trust-imports only."""
    frame_skip: int = 4
    """Frames that each action is repeated for; on Atari the last two are max-pooled."""
    frame_stack: int = 4
    """Images: how many of the last are stacked into what the network sees."""
    screen_size: int | None = 84
    """Images: side of the square that they are resized to, in pixels. None: as they are. Not on Atari."""
    greyscale: bool = True
    """Images: in grey. Atari always is."""
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
    normalise_rewards: bool = False
    """Training sees rewards divided by the standard deviation of the discounted return, over all that was played so
    far, and clipped to [-10, 10] (Engstrom et al. 2020, arXiv 2005.12729, section 2)."""
    log_info: tuple[str, ...] = ()
    """Names of numbers in an environment's info, like success: rows, trackers and evaluations have the mean over
    episodes of what stands there when one ends."""
    options: dict[str, OptionValue] = field(default_factory=dict)
    """Other environments: keyword arguments of `gymnasium.make`, each a name and a value: a number, True or False where
    it looks so, else text."""
    wrappers: tuple[str, ...] = ()
    """Other environments: wrappers around each copy, from the inside out, each with its keyword arguments, like
    gymnasium.wrappers:TimeAwareObservation or my_module:MyWrapper,scale=0.5."""
    vectorization: Literal["sync", "async", "gymnasium"] = "sync"
    """Other environments: sync: an actor steps its copies one after another. async: each in a process of its own, for
    those that are slow. gymnasium: in the vector form that the environment has registered, if its autoreset is
    NEXT_STEP."""

    def __post_init__(self) -> None:
        for name in self.modules:
            if not all(part.isidentifier() for part in name.split(".")):
                raise setting_error("environment.import", name, "is no module's name, as my_package.environments is")
        for wrapper in self.wrappers:
            read_wrapper(wrapper)
        at_least("environment.frame_skip", self.frame_skip, 1)
        at_least("environment.frame_stack", self.frame_stack, 1)
        # Smaller arrays of bytes count as maps.
        at_least("environment.screen_size", self.screen_size, 16)
        between("environment.sticky_action_probability", self.sticky_action_probability, 0.0, 1.0)
        at_least("environment.max_noops", self.max_noops, 0)
        at_least("environment.max_episode_frames", self.max_episode_frames, 1)
        positive("environment.reward_scale", self.reward_scale)

    @property
    def registered_id(self) -> str:
        """The id by which it is registered: without a module before it."""
        return self.id.rpartition(":")[2]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to import before it is made: that of its id, and of each wrapper, as well."""
        module, colon, _ = self.id.rpartition(":")
        return (*self.imports, *([module] if colon else []), *(read_wrapper(wrapper)[0] for wrapper in self.wrappers))


@dataclass(frozen=True)
class NetworkConfig:
    """The function from observations to what the method's heads give: policy and value, or action values."""

    name: str = "a3c_cnn"
    """a3c_cnn: 16@8x8/4, 32@4x4/2, 256 units; nature_cnn: 32@8x8/4, 64@4x4/2, 64@3x3/1, 512 units; impala_resnet: three
    stages of 16, 32 and 32 filters, each 3x3, max-pooled by 2, and two residual blocks; 256 units; mlp. Where images
    are seen beside numbers each image has such a network as its trunk, and the numbers have an mlp as theirs."""
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
    recurrent: Literal["none", "lstm"] = "none"
    """lstm: a memory between the last hidden layer and the heads, as in the paper's A3C LSTM. The heads of mlp then
    share one trunk. Minibatches are of whole environments: --actor.environments must be a multiple of
    --actor.minibatches."""
    recurrent_units: int = 256
    """lstm: its units."""
    centre_observations: bool = True
    """Images: subtract the mean observation of random play, measured once before training."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers. Parameters, heads, loss and optimizer are float32 always."""

    def __post_init__(self) -> None:
        if not self.hidden_sizes:
            raise setting_error("network.hidden_sizes", "()", "must have at least one layer")
        for units in self.hidden_sizes:
            at_least("network.hidden_sizes", units, 1)
        at_least("network.recurrent_units", self.recurrent_units, 1)

    def check_known(self) -> None:
        """Refuse a name that no network has.

        Raises:
            ConfigurationError: it is one.
        """
        if self.name not in NETWORKS:
            raise setting_error("network.name", self.name, f"no such network; there are {', '.join(NETWORKS)}")


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
    """Film one more episode at each evaluation, for the run folder and the trackers."""

    def __post_init__(self) -> None:
        at_least("evaluation.every_frames", self.every_frames, 0)
        at_least("evaluation.episodes", self.episodes, 1)
        at_least("evaluation.environments", self.environments, 1)
