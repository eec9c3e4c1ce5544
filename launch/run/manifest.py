"""How the numbers of a run come about, as its folder's manifest.json says it."""

from typing import Any, get_args

from actors.environments import EnvironmentSpec
from launch.output.provenance import provenance
from shared.config import RunConfig
from shared.seeds import SEEDS_ARE, Purpose


def manifest(config: RunConfig, spec: EnvironmentSpec, preset: str, thread_plan: str) -> dict[str, Any]:
    """What manifest.json holds: versions, hardware, seeds, and the environment's protocol.

    Args:
        config: of the run.
        spec: of its environment.
        preset: the name that the run's settings started from.
        thread_plan: how many threads each process has, in words.
    """
    environment = config.environment
    protocol: dict[str, Any] = {
        "id": environment.id,
        "actions": list(spec.action_set),
        "observation_shape": list(spec.observation_shape),
        "observation_dtype": spec.observation_dtype,
        "autoreset": "next_step",
        "rewards_clipped_for_training": environment.clip_rewards,
        "returns_clipped": False,
        "frame_skip": environment.frame_skip,
    }
    if spec.is_atari:
        protocol |= {
            "frame_stack": environment.frame_stack,
            "screen_size": environment.screen_size,
            "greyscale": True,
            "mean_of_random_play_subtracted": config.network.centre_observations,
            "max_pool_frames": min(2, environment.frame_skip),
            "sticky_action_probability": environment.sticky_action_probability,
            "max_noops": environment.max_noops,
            "fire_on_reset": environment.fire_on_reset,
            "terminal_on_life_loss": environment.terminal_on_life_loss,
            "full_action_space": environment.full_action_space,
            "max_episode_frames": environment.max_episode_frames,
        }
    else:
        protocol["options"] = environment.options
    return {
        **provenance(),
        "preset": preset,
        "threads": thread_plan,
        "seeds": {
            "run": config.seed,
            "actor_blocks": "actor i seeds its environments from seed * 1000003 + i * environments on",
            "other_episodes": f"purposes {', '.join(get_args(Purpose))}: {SEEDS_ARE}",
        },
        "environment_protocol": protocol,
    }
