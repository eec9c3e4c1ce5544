"""The preset for an environment, where the user names none."""

import gymnasium

from actors.environments import atari_game, environment_spec
from launch.presets import PRESETS
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError
from shared.registry import import_modules

_ANY_GAME, _ANY_VECTORS, _ANY_IMAGES = "atari", "vectors", "images"


def preset_for(environment_id: str) -> str | None:
    """The preset of an environment, or the general one for games, for images or for vectors.

    None for an id that is not registered, which is refused when the environment is made.

    Raises:
        ConfigurationError: the module that the id names cannot be imported.
    """
    typed = EnvironmentConfig(id=environment_id, frame_skip=1)
    import_modules(typed.modules)
    name = typed.registered_id
    own = next((preset for preset, (_, config) in PRESETS.items() if config.environment.id == name), None)
    if own is not None and own not in (_ANY_VECTORS, _ANY_IMAGES):
        return own
    try:
        game = atari_game(environment_id)
    except gymnasium.error.Error:
        return None
    if game is not None:
        of_game = (preset for preset, (_, config) in PRESETS.items() if _game(config.environment.id) == game)
        return next(of_game, _ANY_GAME)
    try:
        shows_images = environment_spec(typed).images
    except ConfigurationError:
        # It may need options or wrappers, and is made with them later.
        shows_images = False
    return _ANY_IMAGES if shows_images else _ANY_VECTORS


def advice_on_preset(preset: str, environment_id: str) -> str:
    """The end of an error message where a preset does not fit the environment; empty where it does."""
    its_own = PRESETS[preset].config.environment.id
    try:
        if (_game(its_own) is None) == (_game(environment_id) is None):
            return ""
    except gymnasium.error.Error:
        return ""
    return f"; preset {preset} is made for {its_own}: start from {preset_for(environment_id)}"


def _game(environment_id: str) -> str | None:
    """The ROM of an Atari game; None for other environments, and for those that a preset imports a module for."""
    own = (config.environment for _, config in PRESETS.values() if config.environment.id == environment_id)
    return None if any(environment.imports for environment in own) else atari_game(environment_id)
