"""By which rules a score is made: nothing about a score is comparable without them."""

from dataclasses import replace
from typing import Any, Literal

from shared.config import EnvironmentConfig
from shared.errors import setting_error

ProtocolName = Literal["training", "noop", "machado"]


def by_protocol(config: EnvironmentConfig, protocol: ProtocolName, *, is_atari: bool) -> EnvironmentConfig:
    """The environment of a run under a protocol.

    `training`: as the run was trained. `noop`: up to 30 no-ops, no sticky actions, 30 minutes (the starts of Mnih et
    al. 2015, with the time limit of Hessel et al. 2018). `machado`: sticky actions of 0.25, no no-ops, no FIRE
    pressed for the agent, 5 minutes (Machado et al. 2018, section 5). Frame skip, stack and action set stay those
    that the network was trained with: Machado et al. ask for all 18 actions, which is a matter of training.

    Raises:
        ConfigurationError: a protocol for Atari, and another environment.
    """
    if protocol == "training":
        return config
    if not is_atari:
        raise setting_error("protocol", protocol, f"is for Atari; {config.id} is evaluated by training's protocol")
    if protocol == "noop":
        # Drawn uniformly below the bound.
        return replace(config, max_noops=31, sticky_action_probability=0.0, max_episode_frames=108_000)
    return replace(config, max_noops=0, sticky_action_probability=0.25, fire_on_reset=False, max_episode_frames=18_000)


def describe_protocol(
    config: EnvironmentConfig, protocol: ProtocolName, *, is_atari: bool, action_set: tuple[str, ...]
) -> dict[str, Any]:
    """Everything that a score depends on besides weights and seed. `action_set` are the names of the actions."""
    shared: dict[str, Any] = {"name": protocol, "returns": "unclipped, of whole episodes"}
    if not is_atari:
        return shared | {"frames_per_agent_step": 1, "options": config.options}
    return shared | {
        "frames_per_agent_step": config.frame_skip,
        "max_pooled_frames": min(2, config.frame_skip),
        "sticky_action_probability": config.sticky_action_probability,
        "max_noops": max(config.max_noops - 1, 0),
        "fire_on_reset": config.fire_on_reset,
        "start_frames": _start_frames(config, has_fire="FIRE" in action_set),
        "life_loss_ends_episode": False,
        "action_set": "full" if config.full_action_space else "minimal",
        "max_episode_frames": config.max_episode_frames,
        "frame_stack": config.frame_stack,
        "screen_size": config.screen_size,
    }


def _start_frames(config: EnvironmentConfig, *, has_fire: bool) -> str:
    """How many frames pass before the agent acts, as ale-py draws them.

    It draws uniformly below the bound. FIRE takes the place of a no-op, and is pressed where none was drawn, too: 0
    and 1 both make one frame.
    """
    most = max(config.max_noops - 1, 0)
    if not (config.fire_on_reset and has_fire):
        return f"0 to {most}" if most else "0"
    return f"1 to {most}, 1 twice as likely" if most > 1 else "1"


def protocol_line(description: dict[str, Any]) -> str:
    """One line for the screen."""
    if "max_noops" not in description:
        return f"protocol {description['name']}: returns unclipped, of whole episodes"
    d = description
    fire = "FIRE pressed on reset" if d["fire_on_reset"] else "no FIRE on reset"
    # Results of earlier versions do not have the frames.
    start = f"{d['start_frames']} frames before the agent acts; " if "start_frames" in d else ""
    return (
        f"protocol {d['name']}: returns unclipped, of whole episodes; frame skip {d['frames_per_agent_step']}, the "
        f"last {d['max_pooled_frames']} max-pooled; sticky actions {d['sticky_action_probability']:g}; up to "
        f"{d['max_noops']} no-ops; {fire}; {start}lost lives end nothing; {d['action_set']} action set; "
        f"{d['max_episode_frames']:,} frames at most"
    )
