"""Tuned settings per task: a preset is an instance of `RunConfig`, and every setting of it can be changed."""

from typing import NamedTuple

from launch.presets import atari, others
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError
from shared.registry import import_modules


class Preset(NamedTuple):
    """A named starting point. `description` is one line."""

    description: str
    config: RunConfig


DEFAULT_PRESET = "pong"
PRESETS: dict[str, Preset] = {
    "pong": Preset("Pong to a mean return of 18; the default", atari.PONG),
    "pong-q": Preset("Pong to a mean return of 10 by n-step Q-learning", atari.PONG_Q),
    "breakout": Preset("Breakout, 40 M frames; training treats a lost life as terminal", atari.BREAKOUT),
    "atari": Preset("any game: --environment.id ALE/…-v5; 40 M frames, a lost life is terminal", atari.ATARI),
    "atari-sticky": Preset("any game by Machado et al. 2018: sticky actions, all 18 actions", atari.ATARI_STICKY),
    "impala-shallow": Preset("any game by the settings of IMPALA, shallow; 200 M frames", atari.IMPALA_SHALLOW),
    "cartpole": Preset("CartPole-v1 to a mean of 475 over 100 evaluation episodes", others.CARTPOLE),
    "cartpole-q": Preset("the same by n-step Q-learning", others.CARTPOLE_Q),
    "cartpole-tutorial": Preset(
        "CartPole-v0 to 195 as in the TensorFlow 2 actor-critic tutorial; one environment", others.CARTPOLE_TUTORIAL
    ),
    "mountaincar-continuous": Preset(
        "MountainCarContinuous-v0 to a mean of 90; Gaussian policy, state-dependent noise",
        others.MOUNTAINCAR_CONTINUOUS,
    ),
    "pendulum": Preset("Pendulum-v1 to a mean of -200; Gaussian policy", others.PENDULUM),
    "acrobot": Preset("Acrobot-v1 to a mean of -100", others.ACROBOT),
    "lunarlander": Preset("LunarLander-v3 to a mean of 240; pip install 'tributary-rl[box2d]'", others.LUNARLANDER),
    "car-racing": Preset("CarRacing-v3 to a mean of 250, from images; [box2d] as well", others.CAR_RACING),
    "halfcheetah": Preset("HalfCheetah-v5 to a mean of 2,000; pip install 'tributary-rl[mujoco]'", others.HALFCHEETAH),
    "hopper": Preset("Hopper-v5 to a mean of 1,500; [mujoco] as well", others.HOPPER),
    "minigrid": Preset("MiniGrid-Empty-8x8-v0 to a mean of 0.9; pip install 'tributary-rl[minigrid]'", others.MINIGRID),
    "vectors": Preset("any environment that shows no images: --environment.id …", others.VECTORS),
    "images": Preset("any environment that shows images, but for Atari: --environment.id …", others.IMAGES),
}


def preset_for(environment_id: str) -> str | None:
    """The preset of an environment; for an environment without one, `atari`, `images` or `vectors`.

    None for an id that is not registered, which is an error when the environment is made.
    """
    # Not at the top: help and the list of presets do without Gymnasium, a tenth of a second.
    from actors.environments import environment_spec

    config = EnvironmentConfig(id=environment_id, frame_skip=1)
    import_modules(config.modules)
    for name, preset in PRESETS.items():
        if preset.config.environment.id == config.registered_id and name not in ("vectors", "images"):
            return name
    try:
        game = _game(environment_id)
    except LookupError:
        return None
    if game is not None:
        same_game = (name for name, preset in PRESETS.items() if _game(preset.config.environment.id) == game)
        return next(same_game, "atari")
    try:
        return "images" if environment_spec(config).images else "vectors"
    except ConfigurationError:
        # The environment may need options or wrappers that the user adds.
        return "vectors"


def advice_on_preset(preset: str, environment_id: str) -> str:
    """The end of a message about settings of this preset that do not fit the environment; empty if the preset fits."""
    intended = PRESETS[preset].config.environment.id
    try:
        if (_game(intended) is None) == (_game(environment_id) is None):
            return ""
    except LookupError:
        return ""
    return f"; preset {preset} is made for {intended}: start from {preset_for(environment_id)}"


def _game(environment_id: str) -> str | None:
    """The ROM of an Atari game; None for another environment. Raises LookupError for an id that is not registered."""
    import gymnasium

    from actors.environments import atari_game

    # Environments of presets with `imports` may not be registered yet.
    own = (config.environment for _, config in PRESETS.values() if config.environment.id == environment_id)
    if any(environment.imports for environment in own):
        return None
    try:
        return atari_game(environment_id)
    except gymnasium.error.Error as error:
        raise LookupError(environment_id) from error
