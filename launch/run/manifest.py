"""How the numbers of a run come about, as its folder's manifest.json says it."""

from typing import Any, get_args

from actors.environments import EnvironmentSpec, adapter_of
from launch.output import provenance
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
        **adapter_of(environment).training_protocol(),
    }
    if spec.images:
        protocol["mean_of_random_play_subtracted"] = config.network.centre_observations
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
