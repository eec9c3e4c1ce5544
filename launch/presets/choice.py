"""Which preset to start from, for an environment that is named without one."""

import gymnasium

from actors.environments import atari_game
from launch.presets import PRESETS
from shared.errors import setting_error

_ANY_GAME = "atari"
_NEAREST = "cartpole where its actions are a choice, pendulum where they are a vector"


def preset_for(environment_id: str) -> str | None:
    """The preset of this environment; of any game, where it is an Atari game without one of its own.

    None for an id that is not registered: what is wrong with it is said when the environment is made.

    Raises:
        ConfigurationError: none is for it.
    """
    for name, preset in PRESETS.items():
        if preset.config.environment.id == environment_id:
            return name
    try:
        game = atari_game(environment_id)
    except gymnasium.error.Error:
        return None
    if game is None:
        raise setting_error(
            "environment.id",
            environment_id,
            f"no preset is for it; start from {_NEAREST}, without the return that its own task stops at: "
            f"tributary train cartpole --environment.id {environment_id} --stop-at-return None",
        )
    own = (name for name, preset in PRESETS.items() if atari_game(preset.config.environment.id) == game)
    return next(own, _ANY_GAME)


def advice_on_preset(preset: str, environment_id: str) -> str:
    """What to add to a mistake in settings that began with this preset; empty where it fits the environment."""
    try:
        game = atari_game(environment_id)
    except gymnasium.error.Error:
        return ""
    its_own = PRESETS[preset].config.environment.id
    if (atari_game(its_own) is None) == (game is None):
        return ""
    fitting = next((n for n, p in PRESETS.items() if p.config.environment.id == environment_id), None)
    fitting = fitting or (_NEAREST if game is None else _ANY_GAME)
    return f"; preset {preset} is made for {its_own}: start from {fitting}"
