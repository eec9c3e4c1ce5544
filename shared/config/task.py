"""The task: the environment, the network and the evaluation."""

import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

from shared.config.checks import For, Range, Registered
from shared.errors import setting_error
from shared.registry import NETWORKS, Entry, class_of

OptionValue = str | int | float | bool | None
Options = dict[str, OptionValue]

# Smaller arrays of bytes are maps, not images: MiniGrid's 7 x 7 fields of three numbers each.
SMALLEST_SIDE = 16
_ATARI = For("environment.id", "Atari")
_IMAGES = For("environment.id", "images")
_STACKED = For("environment.id", "images", wrapper="gymnasium.wrappers:FrameStackObservation,stack_size=4")
_LIMITED = For("environment.id", "Atari", wrapper="gymnasium.wrappers:TimeLimit,max_episode_steps=1000")
_MLP = For("network.name", "mlp")
STICKY = For("environment.id", "Atari", wrapper="gymnasium.wrappers:StickyAction,repeat_action_probability=0.25")
_TRUTH = {"true": True, "false": False}
_DECIMAL = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]\d+)?")


def read_option(text: str) -> OptionValue:
    """The value of a keyword argument as it is typed: a plain decimal is a number, true or false a truth value.

    Other texts stay as they are, such as 007, 12e4 (which may be a name), inf and None: `option_of_type` reads them
    where the type of the argument is known.
    """
    if _DECIMAL.fullmatch(text):
        with suppress(ValueError):
            return int(text)
        return float(text)
    return _TRUTH.get(text.lower(), text)


def option_of_type(value: OptionValue, types: Collection[str]) -> OptionValue:
    """A keyword argument in one of the types that it may have, by their names; none are known of an unknown argument.

    A text becomes a number where the types have numbers and no text; a number becomes text where they are text only.
    """
    scalars = {"int", "float", "bool", "str"} & set(types)
    if value is None or (value == "None" and ("None" in types or "str" not in scalars)):
        return None
    if not isinstance(value, str):
        return str(value) if scalars == {"str"} else value
    if "str" in scalars:
        return value
    if "bool" in scalars and value.lower() in _TRUTH:
        return _TRUTH[value.lower()]
    for name, read in (("int", int), ("float", float)):
        if name in scalars:
            with suppress(ValueError):
                return read(value)
    return value


def options_of(setting: str, name: str | None, table: Mapping[str, Entry], given: Options) -> Options:
    """The options of a registered class by name: its own defaults, the class attribute `options`, with those `given`.

    `setting` has these, and the class is that of `name` in `table`.

    Raises:
        ConfigurationError: the class takes no option of this name, or another type for it.
    """
    defaults: Options = {}
    # The project's own have settings instead, and are not imported to see that.
    if name is not None and table[name].is_own:
        defaults = getattr(class_of(table[name]), "options", {})
    options = dict(defaults)
    for option, value in given.items():
        if option not in defaults:
            takes = f"{name} takes {', '.join(defaults) or 'none'}" if name else "there is no class of your own"
            raise setting_error(setting, f"{option} {value}", f"there is no such option; {takes}")
        kind = type(defaults[option])
        option_value = option_of_type(value, {kind.__name__})
        option_value = float(option_value) if kind is float and type(option_value) is int else option_value
        if type(option_value) is not kind or (isinstance(option_value, float) and not math.isfinite(option_value)):
            raise setting_error(setting, f"{option} {value}", f"is not of the type of its default, {defaults[option]}")
        options[option] = option_value
    return options


def read_wrapper(text: str) -> tuple[str, str, dict[str, OptionValue]]:
    """Parse module:Name,argument=value,… into module, name and keyword arguments.

    Raises:
        ConfigurationError: the text has another form.
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
    """The environment, and the protocol of play."""

    id: str = "ALE/Pong-v5"
    """Gymnasium id, or module:id for an id that the module registers. Games with an ALE id are stepped by ale-py's C++
    vector environment."""
    imports: tuple[str, ...] = ()
    """Modules to import in every process before the environment is made, such as the one that registers it. The option
    is --environment.import. Modules that a run folder names need --trust-imports."""
    frame_skip: Annotated[int, Range(1)] = 4
    """Number of frames for which each action is repeated. Atari: the last two frames are max-pooled. 1 where another
    environment takes the place of an Atari preset's game, unless it is given."""
    frame_stack: Annotated[int, Range(1), _STACKED] = 4
    """Images: number of newest images that one observation stacks."""
    screen_size: Annotated[int | None, Range(SMALLEST_SIDE), _IMAGES] = 84
    """Images: side in pixels of the square to which images are resized. None keeps their size; not on Atari."""
    greyscale: Annotated[bool, _IMAGES] = True
    """Images: convert to greyscale. Always on for Atari."""
    sticky_action_probability: Annotated[float, Range(0, 1), STICKY] = 0.0
    """Atari: probability that a frame repeats the previous action (0.25 in Machado et al. 2018)."""
    max_noops: Annotated[int, Range(0), _ATARI] = 30
    """Atari: exclusive bound of the uniform number of no-ops that start an episode. FIRE on reset replaces one no-op:
    with 30 an episode starts with 1 to 29 frames, 1 twice as likely as each other number."""
    fire_on_reset: Annotated[bool, _ATARI] = True
    """Atari: press FIRE after a reset in games whose actions have it."""
    terminal_on_life_loss: Annotated[bool, _ATARI] = False
    """Atari: training treats a lost life as terminal. The episode and its return go on."""
    full_action_space: Annotated[bool, _ATARI] = False
    """Atari: all 18 actions instead of the game's minimal set."""
    max_episode_frames: Annotated[int, Range(1), _LIMITED] = 108_000
    """Atari: number of frames after which an episode is truncated (108,000 are 30 minutes)."""
    clip_rewards: bool = True
    """Clip the rewards of training to [-1, 1]. Reported returns are never clipped."""
    reward_scale: Annotated[float, Range(above=0)] = 1.0
    """Factor of the rewards of training, applied before they are clipped. Reported returns are never scaled."""
    normalise_rewards: bool = False
    """Divide the rewards of training by the standard deviation of the discounted return over all training so far
    (before the first report, over the actor's own), and clip them to [-10, 10], or with clip_rewards to [-1, 1]
    (Engstrom et al. 2020, arXiv 2005.12729, section 2)."""
    log_info: tuple[str, ...] = ()
    """Keys of numbers in an environment's info, such as success or episode.r. Metrics, trackers and evaluations report
    the mean of their values at the end of episodes."""
    options: Options = field(default_factory=dict)
    """Other environments: keyword arguments of `gymnasium.make` as names and values, added to a preset's. A value is
    converted to the type of the argument's annotation or default; without either, 5, 0.5, 1e-3, True and None are read
    as numbers, truth values and no value, the rest as text."""
    wrappers: tuple[str, ...] = ()
    """Other environments: wrappers of each copy, innermost first, with their keyword arguments, like
    gymnasium.wrappers:TimeAwareObservation or my_module:MyWrapper,scale=0.5."""
    action_mask: str | None = None
    """Other environments: key of a Dict observation, which is then no part of the network's input, or else of info. Its
    value has for each action whether it is allowed, for several choices one after the other. Other actions are never
    chosen."""
    vectorization: Literal["sync", "async", "native"] = "sync"
    """Other environments: how an actor steps its copies. sync: one after another. async: each in a process of its own,
    for slow environments. native: all at once, by the vector environment that it is registered with."""

    def __post_init__(self) -> None:
        # JSON has no infinity and no NaN: their text is read again where the argument is a float.
        infinite = {name: str(v) for name, v in self.options.items() if isinstance(v, float) and not math.isfinite(v)}
        object.__setattr__(self, "options", {**self.options, **infinite})
        for name in self.modules:
            if not all(part.isidentifier() for part in name.split(".")):
                raise setting_error("environment.import", name, "is no module's name, as my_package.environments is")
        for wrapper in self.wrappers:
            read_wrapper(wrapper)

    @property
    def registered_id(self) -> str:
        return self.id.rpartition(":")[2]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to import before the environment is made, including the modules of its id and its wrappers."""
        module, colon, _ = self.id.rpartition(":")
        return (*self.imports, *([module] if colon else []), *(read_wrapper(wrapper)[0] for wrapper in self.wrappers))


@dataclass(frozen=True)
class NetworkConfig:
    """The network from observations to the heads of the method: policy and value, or action values."""

    name: Annotated[str, Registered("network", NETWORKS)] = "a3c_cnn"
    """a3c_cnn, nature_cnn, impala_resnet (images), mlp (vectors), or a network that a module of --environment.import
    has registered. a3c_cnn: 16@8x8/4, 32@4x4/2, 256 units. nature_cnn: 32@8x8/4, 64@4x4/2, 64@3x3/1, 512 units.
    impala_resnet: three stages of 16, 32 and 32 filters, each a 3x3 convolution, max-pooling by 2 and two residual
    blocks; 256 units. For images beside numbers, each image has this network as its trunk and the numbers have an
    mlp."""
    hidden_sizes: Annotated[tuple[int, ...], Range(1), _MLP] = (64, 64)
    """mlp: units of each hidden layer. Each head has its own trunk."""
    activation: Annotated[Literal["tanh", "relu"], _MLP] = "tanh"
    """mlp: activation of the hidden layers."""
    layer_norm: bool = False
    """LayerNorm (arXiv 1607.06450) before each activation, over all units of a layer, positions and channels together,
    with a gain and a bias per unit."""
    observation_scaling: Literal["none", "bounds", "running"] = "none"
    """mlp: scaling of observations to mean 0 and standard deviation 1. bounds: of a uniform draw from the space's
    bounds. running: of all observations of training so far."""
    recurrent: Literal["none", "lstm"] = "none"
    """lstm: an LSTM of 256 units between the last hidden layer and the heads, as in the paper's A3C LSTM. The heads of
    mlp then share one trunk. Minibatches consist of whole environments: --actor.environments must be a multiple of
    --actor.minibatches."""
    options: Options = field(default_factory=dict)
    """Options of a network of your own, as names and values; its class has their defaults."""
    centre_observations: Annotated[bool, _IMAGES] = True
    """Images: subtract the mean observation of random play, measured once before training."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations during training: whole episodes with fixed weights."""

    every_frames: Annotated[int, Range(0)] = 0
    """Frames between two evaluations. 0 disables evaluations during training."""
    episodes: Annotated[int, Range(1)] = 100
    """Number of episodes of one evaluation. Their returns are not clipped."""
    environments: Annotated[int, Range(1)] = 20
    """Number of environments that play the episodes side by side, over all actors."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """sampled: actions drawn from the policy; for Q methods with the smallest final ε. greedy: the most probable
    action, the mean of a Gaussian, or the action of highest value."""

    @property
    def environments_in_use(self) -> int:
        return min(self.environments, self.episodes)

    @property
    def episodes_by_environment(self) -> list[int]:
        """The number of episodes of each environment in use."""
        each, more = divmod(self.episodes, self.environments_in_use)
        return [each + (environment < more) for environment in range(self.environments_in_use)]
