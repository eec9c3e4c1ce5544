"""Tuned settings per task: a preset is an instance of `RunConfig`, and every setting of it can be changed."""

from typing import NamedTuple

from launch.presets import atari, classic, tasks
from shared.config import RunConfig


class Preset(NamedTuple):
    """A named starting point. `description` is one line."""

    description: str
    config: RunConfig


PRESETS: dict[str, Preset] = {
    "pong": Preset("Pong to a mean return of 18; the default", atari.PONG),
    "pong-q": Preset("Pong to a mean return of 10 by n-step Q-learning", atari.PONG_Q),
    "breakout": Preset("Breakout, 40 M frames; training treats a lost life as terminal", atari.BREAKOUT),
    "atari": Preset("any game: --environment.id ALE/…-v5; 40 M frames, a lost life is terminal", atari.ATARI),
    "atari-sticky": Preset("any game by Machado et al. 2018: sticky actions, all 18 actions", atari.ATARI_STICKY),
    "impala-shallow": Preset("any game by the settings of IMPALA, shallow; 200 M frames", atari.IMPALA_SHALLOW),
    "cartpole": Preset("CartPole-v1 to a mean of 475 over 100 evaluation episodes", classic.CARTPOLE),
    "cartpole-q": Preset("the same by n-step Q-learning", classic.CARTPOLE_Q),
    "cartpole-tutorial": Preset(
        "CartPole-v0 to 195 as in the TensorFlow 2 actor-critic tutorial; one environment", classic.CARTPOLE_TUTORIAL
    ),
    "mountaincar-continuous": Preset(
        "MountainCarContinuous-v0 to a mean of 90; Gaussian policy, state-dependent noise",
        classic.MOUNTAINCAR_CONTINUOUS,
    ),
    "pendulum": Preset("Pendulum-v1 to a mean of -200; Gaussian policy", classic.PENDULUM),
    "acrobot": Preset("Acrobot-v1 to a mean of -100", tasks.ACROBOT),
    "lunarlander": Preset("LunarLander-v3 to a mean of 240; pip install 'tributary-rl[box2d]'", tasks.LUNARLANDER),
    "car-racing": Preset("CarRacing-v3 to a mean of 250, from images; [box2d] as well", tasks.CAR_RACING),
    "halfcheetah": Preset("HalfCheetah-v5 to a mean of 2,000; pip install 'tributary-rl[mujoco]'", tasks.HALFCHEETAH),
    "hopper": Preset("Hopper-v5 to a mean of 1,500; [mujoco] as well", tasks.HOPPER),
    "minigrid": Preset("MiniGrid-Empty-8x8-v0 to a mean of 0.9; pip install 'tributary-rl[minigrid]'", tasks.MINIGRID),
    "vectors": Preset("any environment that shows no images: --environment.id …", tasks.VECTORS),
    "images": Preset("any environment that shows images, but for Atari: --environment.id …", tasks.IMAGES),
}

DEFAULT_PRESET = "pong"
