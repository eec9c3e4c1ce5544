"""Which settings an exact resume needs as they were: its actors play what they played again, action by action."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from shared.config import RunConfig
from shared.errors import setting_error

_OF_ROLLOUTS = ("actor.environments", "actor.unroll_length", "actor.epochs", "actor.minibatches")


def check_exact_resume(before: RunConfig, config: RunConfig, actors: int, state: Mapping[str, Any]) -> None:
    """Refuse actors that the saved ones cannot go on in. More of them may join.

    Args:
        before: the settings that the checkpoint was made with.
        config: those of the resume.
        actors: how many it makes.
        state: the plain values of the checkpoint.

    Raises:
        ConfigurationError: the resume is to be exact, and there are fewer actors, or their rollouts are others.
    """
    saved = state.get("executor")
    if not config.checkpoint.exact or saved is None:
        return
    advice = "leave it as it was, or give --checkpoint.no-exact"
    for setting in _OF_ROLLOUTS:
        was, now = attrgetter(setting)(before), attrgetter(setting)(config)
        if was != now:
            raise setting_error(setting, now, f"an exact resume goes on with {was}; {advice}")
    if actors < len(saved["actors"]):
        raise setting_error("actors", actors, f"an exact resume goes on with {len(saved['actors'])}; {advice}")
