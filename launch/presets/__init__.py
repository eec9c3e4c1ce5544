"""Tuned settings per task: a preset is a block of settings in a TOML file here, and every setting can be changed.

A block starts `from` another one, else from the defaults of `RunConfig`. A section that it has replaces the whole
section of the other one. "None" is no value, as in files for `--config`.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from launch.output import nearest
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError
from shared.registry import import_modules


class Preset(NamedTuple):
    """A named starting point. `description` is one line.

    `usual_agent_steps`: the usual agent steps to the preset's return; None if unknown.
    """

    description: str
    config: RunConfig
    usual_agent_steps: int | None = None


def _blocks(file: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))


_FILES = {
    "the default and its family: asynchronous PPO": _blocks("default_family.toml"),
    "methods as they were published; --environment.id for another game": _blocks("as_published.toml"),
    "tasks": _blocks("tasks.toml"),
}
_BLOCKS = {name: block for blocks in _FILES.values() for name, block in blocks.items()}
_SECTIONS = get_type_hints(RunConfig)


def _config(block: dict[str, Any]) -> RunConfig:
    changes = {name: value for name, value in block.items() if name not in ("from", "description", "usual_agent_steps")}
    for section, fields in changes.items():
        if isinstance(fields, dict):
            changes[section] = _SECTIONS[section](**{name: _value(value) for name, value in fields.items()})
    base = _config(_BLOCKS[block["from"]]) if "from" in block else RunConfig()
    return replace(base, **changes)


def _value(value: Any) -> Any:
    """A value of TOML, which has neither null nor tuples."""
    return None if value == "None" else tuple(value) if isinstance(value, list) else value


PRESET_GROUPS: dict[str, dict[str, Preset]] = {
    title: {
        name: Preset(block["description"], _config(block), block.get("usual_agent_steps"))
        for name, block in blocks.items()
    }
    for title, blocks in _FILES.items()
}
PRESETS: dict[str, Preset] = {name: preset for group in PRESET_GROUPS.values() for name, preset in group.items()}
_OF_THE_DEFAULT, AS_PUBLISHED, _OF_TASKS = PRESET_GROUPS.values()
DEFAULT_PRESET = "pong"

# The nearest preset of a method that another library has by this name.
_NEAREST = {
    "ppo": "pong is asynchronous PPO on Pong, atari on any game, vectors on any other task",
    "appo": "pong and atari are asynchronous PPO",
    "impala": "impala-shallow has IMPALA's settings, whose gradients have no lag; docs/examples/v_trace.py is V-trace",
    "dqn": "nstep-q and onestep-q are Q-learning without a replay memory",
    "pqn": "pong-q is PQN with several actors",
    "sarsa": "onestep-sarsa is the paper's",
    "q": "nstep-q and onestep-q are the paper's",
    "a3c-ff": "a3c has no memory, a3c-lstm has one",
    "reinforce": "a3c with --actor.unroll-length as long as an episode comes nearest",
}

# The same methods for environments without images, where a preset is for Atari.
_WITHOUT_IMAGES = {
    "a3c": "a3c-continuous",
    "a3c-lstm": "a3c-continuous with --network.recurrent lstm",
    **dict.fromkeys(("nstep-q", "onestep-q", "pong-q"), "cartpole-q"),
    "onestep-sarsa": "cartpole-q with --method.name sarsa",
}


def check_preset(name: str) -> None:
    """Refuse a name that no preset has, with advice on another one."""
    if name not in PRESETS:
        if (near := _NEAREST.get(name.lower())) is not None:
            advice = f": {near}; see tributary presets"
        else:
            advice = nearest(name, PRESETS)
            if not advice.endswith("?"):
                advice += "; an environment is named by its id, like ALE/Seaquest-v5"
        raise ConfigurationError(f"unknown preset {name}{advice}")


def usual_agent_steps(preset: str, config: RunConfig) -> int | None:
    """The agent steps after which a run of a preset usually reaches its return; None if `config` has another task."""
    if preset not in PRESETS:
        return None
    preset_config = PRESETS[preset].config
    same = config.stop_at_return == preset_config.stop_at_return and config.environment == preset_config.environment
    return PRESETS[preset].usual_agent_steps if same else None


def preset_for(environment_id: str, environment: EnvironmentConfig | None = None) -> str:
    """The preset of an environment; for an environment without one, `atari`, `images` or `vectors`.

    `environment`: further settings of it, on which its observations may depend.
    """
    # Not at the top: help and the list of presets do without Gymnasium, a tenth of a second.
    from actors.environments import atari_game, environment_spec

    config = replace(environment or EnvironmentConfig(), id=environment_id, frame_skip=1)
    import_modules(config.modules)
    presets = _OF_THE_DEFAULT | _OF_TASKS
    for name, preset in presets.items():
        if preset.config.environment.id == config.registered_id and name not in ("vectors", "images"):
            return name
    if (game := atari_game(environment_id)) is not None:
        same_game = (name for name, preset in presets.items() if atari_game(preset.config.environment.id) == game)
        return next(same_game, "atari")
    try:
        return "images" if environment_spec(config).images else "vectors"
    except ConfigurationError:
        # The environment may need options or wrappers that the user adds, or is not registered, which is refused later.
        return "vectors"


def advice_on_preset(preset: str, environment_id: str) -> str:
    """The end of a message about settings of this preset that do not fit the environment; empty if the preset fits."""
    intended = PRESETS[preset].config.environment.id
    if is_atari(intended) == is_atari(environment_id):
        return ""
    better = _WITHOUT_IMAGES.get(preset) or preset_for(environment_id)
    return f"; preset {preset} is made for {intended}: start from {better}"


def is_atari(environment_id: str) -> bool:
    from actors.environments import atari_game

    return atari_game(environment_id) is not None
