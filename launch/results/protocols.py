"""By which rules a score is made: nothing about a score is comparable without them."""

from dataclasses import replace
from typing import Any, Literal

from actors.environments import EnvironmentSpec, adapter_of
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import setting_error
from shared.types import EvaluationPolicy

ProtocolName = Literal["training", "noop", "machado"]
PolicyName = Literal["as-trained", "sampled", "greedy"]


def by_protocol(config: EnvironmentConfig, protocol: ProtocolName) -> EnvironmentConfig:
    """The environment of a run under a protocol.

    `training`: as the run was trained. `noop`: up to 30 no-ops, no sticky actions, 30 minutes (the starts of Mnih et
    al. 2015, with the time limit of Hessel et al. 2018). `machado`: sticky actions of 0.25, no no-ops, no FIRE
    pressed for the agent, 5 minutes (Machado et al. 2018, section 5). Frame skip, stack and action set stay those
    that the network was trained with: Machado et al. ask for all 18 actions, which is a matter of training.

    Raises:
        ConfigurationError: the environment's library does not have the protocol.
    """
    if protocol == "training":
        return config
    changes = adapter_of(config).protocols.get(protocol)
    if changes is None:
        raise setting_error("protocol", protocol, f"is for Atari; {config.id} is evaluated by training's protocol")
    return replace(config, **changes)


def policy_of(config: RunConfig, policy: PolicyName) -> EvaluationPolicy:
    """How actions are chosen: as-trained, as the evaluations of the run's settings choose them."""
    return config.evaluation.policy if policy == "as-trained" else policy


def describe_protocol(config: EnvironmentConfig, protocol: ProtocolName, spec: EnvironmentSpec) -> dict[str, Any]:
    """Everything that a score depends on besides weights and seed."""
    shared = {"name": protocol, "returns": "unclipped, of whole episodes"}
    return shared | adapter_of(config).score_protocol(spec)


def protocol_line(description: dict[str, Any]) -> str:
    """One line for the screen."""
    if "max_noops" not in description:
        return f"protocol {description['name']}: returns unclipped, of whole episodes"
    d = description
    fire = "FIRE pressed on reset" if d["fire_on_reset"] else "no FIRE on reset"
    # Results of earlier versions do not have the frames.
    start = f"frames before the agent acts: {d['start_frames']}; " if "start_frames" in d else ""
    return (
        f"protocol {d['name']}: returns unclipped, of whole episodes; frame skip {d['frames_per_agent_step']}, the "
        f"last {d['max_pooled_frames']} max-pooled; sticky actions {d['sticky_action_probability']:g}; up to "
        f"{d['max_noops']} no-ops; {fire}; {start}lost lives end nothing; {d['action_set']} action set; "
        f"{d['max_episode_frames']:,} frames at most"
    )
