"""Checks of a user's settings before any worker starts: their effect, and that files, network and task go together."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from launch.output import quoted
from launch.run.folder import RunFolder, changed_versions, read_object
from launch.run.modules import changed_modules
from launch.settings.files import KINDS, option_name
from launch.tensorflow_setup import prepare_to_read_weights
from shared.config import RunConfig
from shared.config.checks import For, Rule, declared, first_refusal
from shared.config.task import options_of
from shared.config.training import VECTORS
from shared.errors import alternatives, raised_at, setting_error, typed_line
from shared.registry import EXPLORERS, METHODS, NETWORKS, OPTIMIZERS
from shared.schedules import linear_anneal, scheduled_value

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec


def check_effects(config: RunConfig, names: Iterable[str]) -> None:
    """Check that settings have an effect in this run, by the declarations beside them.

    Only for settings of the user: presets and earlier runs have values for all.
    """
    # Help, which imports this module, does without Gymnasium.
    from actors.environments import environment_spec

    spec = cache(lambda: environment_spec(config.environment))
    sections = sections_of_own_classes(config)
    for name in (name for name in names if name.rpartition(".")[0] not in sections):
        for needed in declared(RunConfig)[name][1]:
            if isinstance(needed, For) and not _has(config, needed, spec):
                raise needed.refused(name, attrgetter(name)(config), attrgetter(needed.setting)(config))


def check_schedule(name: str) -> None:
    """Check that a schedule of the learning rate gives factors over the whole of a run."""
    for percent in range(101):
        try:
            factor = scheduled_value(1.0, name, percent, 100)
        except Exception as error:
            problem = f"fails at a progress of {percent / 100}: {typed_line(error)}{raised_at(error)}"
            raise setting_error("optimizer.schedule", name, problem) from error
        if not (math.isfinite(factor) and factor >= 0.0):
            problem = f"gives {factor} at a progress of {percent / 100}; it must be a finite factor of 0 or more"
            raise setting_error("optimizer.schedule", name, problem)


def _has(config: RunConfig, needed: For, spec: Callable[[], "EnvironmentSpec"]) -> bool:
    if needed.setting == "environment.id":
        from actors.environments import AtariAdapter, adapter_of

        return {
            "images": spec().images,
            "continuous actions": spec().actions.continuous,
            "Atari": isinstance(adapter_of(config.environment), AtariAdapter),
        }[str(needed.values[0])]
    if attrgetter(needed.setting)(config) in needed.values:
        return True
    if needed.setting == "optimizer.schedule":
        # The entropy cost changes over the same frames.
        return config.optimizer.schedule != "constant" or config.method.final_entropy_cost is not None
    # Numbers beside images have an mlp of their own.
    parts = spec().parts if needed.setting == "network.name" else None
    return parts is not None and bool(parts.numbers)


def sections_of_own_classes(config: RunConfig) -> set[str]:
    """The sections that a registered class of the user may read as it likes."""
    method = METHODS.get(config.method.name)
    entries = {
        "method": method,
        "exploration": EXPLORERS.get(config.exploration.name or "") or method,
        "network": NETWORKS.get(config.network.name),
        "optimizer": OPTIMIZERS.get(config.optimizer.name),
    }
    return {section for section, entry in entries.items() if entry and entry.is_own}


# Bound of the memory for the rollouts of all actors together.
_MOST_ROLLOUT_BYTES = 4 * 2**30


def check_network(config: RunConfig, spec: "EnvironmentSpec") -> None:
    """Check, without importing TensorFlow, that network and method fit the environment's observations and actions."""
    config.check_names()
    for setting, name, table in (
        ("method.options", config.method.name, METHODS),
        ("network.options", config.network.name, NETWORKS),
        ("exploration.options", config.exploration.name, EXPLORERS),
    ):
        options_of(setting, name, table, attrgetter(setting)(config))
    check_schedule(config.optimizer.schedule)
    if (refusal := first_refusal(config, _rules_of_environment(config, spec))) is not None:
        raise refusal


def _rules_of_environment(config: RunConfig, spec: "EnvironmentSpec") -> Iterator[Rule]:
    name, network, method = config.environment.id, NETWORKS[config.network.name], METHODS[config.method.name]
    wanted = alternatives(name for name, entry in NETWORKS.items() if entry.images == spec.images)
    yield "network.name", spec.images != network.images, f"{name} gives {_observations(spec)}; use {wanted}"
    kind = "continuous actions" if spec.actions.continuous else "several actions at once"
    able = " or ".join(name for name, entry in METHODS.items() if entry.continuous_actions)
    unable = bool(spec.actions.shape) and not method.continuous_actions
    yield "method.name", unable, f"{name} has {kind}; use {able}"
    masks = f"method {config.method.name} supports no masks: its class names no action_head"
    yield "environment.action_mask", spec.masked and not method.masks, masks
    scaling = config.network.observation_scaling
    # Numbers beside images have an mlp of their own.
    mlp = config.network.name == "mlp" or (spec.parts is not None and bool(spec.parts.numbers))
    images = "; images have --network.centre-observations" if spec.images else ""
    problem = f"is for mlp, and {config.network.name} is none{images}"
    yield "network.observation_scaling", scaling != "none" and not mlp, problem
    unbounded = _unbounded(spec) if scaling == "bounds" else []
    problem = f"{name} has no finite bounds in observation {unbounded}; use running"
    yield "network.observation_scaling", bool(unbounded), problem
    sizes = ", ".join(f"{height} x {width}" for height, width, *_ in spec.image_shapes)
    small = any(min(shape[:2]) < network.least_side for shape in spec.image_shapes)
    problem = f"must be at least {network.least_side} for {config.network.name}, and its images are {sizes}"
    yield "environment.screen_size", small, problem
    steps = (config.actor.total_environments or config.actor.environments) * (config.actor.unroll_length + 1)
    size = steps * math.prod(spec.row_shape) * np.dtype(spec.observation_dtype).itemsize
    way = "--environment.screen-size 84" if spec.images else "an environment with smaller observations"
    problem = f"{steps:,} observations of a rollout would take {size / 2**30:.1f} GiB; use {way}"
    yield "environment.id", size > _MOST_ROLLOUT_BYTES, problem


def _unbounded(spec: "EnvironmentSpec") -> list[int]:
    """The indices of observations without finite bounds."""
    from actors.environments.spaces import is_bound

    assert spec.observation_bounds is not None
    low, high = np.array(spec.observation_bounds)
    return np.flatnonzero(~(is_bound(low) & is_bound(high) & (low < high))).tolist()


def on_device(
    config: RunConfig, spec: "EnvironmentSpec", gpus: float, *, by_node: bool = False, resume: bool = False
) -> tuple[RunConfig, str | None]:
    """The settings with the device of the actors, which `auto` leaves open, and a line on the choice.

    Args:
        gpus: number of GPUs that Ray or this machine has.
        by_node: nodes with and without a GPU may join: `auto` stays where actors can be on either.
        resume: the environments of an actor stay as they are, which a new run may still divide among its actors.

    Raises:
        ConfigurationError: a GPU is requested, and there is none, or the mechanism does not carry the settings.
    """
    device = config.actor.device
    if device == "cpu":
        return config, None
    refused, shortage = first_refusal(config, _rules_of_gpu_actors(config, resume=resume)), ""
    if gpus - (config.learner.device == "gpu") < 1:
        shortage = "the learner takes the only GPU" if gpus >= 1 else "there is no GPU"
    if device == "gpu":
        if refused is not None:
            raise refused
        if shortage:
            raise setting_error("actor.device", device, f"{shortage}; use cpu, or auto to take one if there is one")
        return config, None
    unsuited = "" if spec.images else f"--network.name {config.network.name} is not convolutional"
    against = (shortage if not by_node else "") or (str(refused) if refused is not None else unsuited)
    if by_node and not against:
        return config, "device:       actors on the GPUs of each node that has some, else on its CPUs"
    why = against or "the network is convolutional, and there is one"
    choice: Literal["cpu", "gpu"] = "cpu" if against else "gpu"
    line = f"device:       actors on the {choice.upper()}: {why}"
    return replace(config, actor=replace(config.actor, device=choice)), line


def _rules_of_gpu_actors(config: RunConfig, *, resume: bool) -> Iterator[Rule]:
    actor, not_carried = config.actor, "which is not carried with --actor.device gpu"
    yield "network.recurrent", config.network.recurrent != "none", f"has a memory, {not_carried}"
    sarsa, state_dependent = config.method.name == "sarsa", config.exploration.noise == "state_dependent"
    yield "method.name", sarsa, f"bootstraps from an action of the next rollout, {not_carried}"
    yield "exploration.noise", state_dependent, f"is kept for the environments of one vector, {not_carried}"
    odd = (resume or actor.total_environments is None) and actor.environments % VECTORS > 0
    yield "actor.environments", odd, "must be even with --actor.device gpu, whose actors play two vectors in turn"


def _observations(spec: "EnvironmentSpec") -> str:
    if spec.parts is None:
        return f"observations of shape {spec.observation_shape}"
    images = ", ".join(f"{image.name} {image.shape}" for image in spec.parts.images)
    return f"images, {images}, and {spec.parts.vector_size} numbers beside them"


# Settings that a resume may not change: weights, slots, moments, counts and returns would mean something else with
# others. All of the environment and of the network are among them, but for three.
_FIXED = {
    "method.name", "method.discount", "method.reduction", "method.target_network", "exploration.name",
    "exploration.noise", "exploration.initial_log_std", "optimizer.name", "optimizer.decay", "optimizer.epsilon",
    "optimizer.bias_correction",
}  # fmt: skip
_NOT_FIXED = {"environment.imports", "environment.log_info", "environment.vectorization"}


def may_change(setting: str) -> bool:
    """True if a resume may change a setting, by its full name."""
    of_the_task = setting.startswith(("environment.", "network."))
    return setting in _NOT_FIXED if of_the_task else setting not in _FIXED


def check_changes(config: RunConfig, before: RunConfig, run: Path) -> None:
    """Check that a resume changes only settings that it may change."""
    for setting, (was, now) in changes_of_resume(config, before).items():
        if not may_change(setting):
            problem = f"the run has {was}, and its weights, moments and counts depend on that; leave it as it was, or"
            raise setting_error(setting, now, f"{problem} start a new run: --start-from {quoted(run)}")


def check_checkpoint(config: RunConfig, spec: "EnvironmentSpec", folder: RunFolder) -> None:
    """Check that the newest checkpoint is of a run with these settings, apart from changeable ones."""
    check_changes(config, folder.read_settings(), folder.path)
    prepare_to_read_weights(config)
    from actors.policy import Policy
    from learner.checkpoint import read_checkpoint

    read_checkpoint(folder.checkpoints, Policy(config, spec).layout)


def changes_of_resume(config: RunConfig, before: RunConfig) -> dict[str, tuple[object, object]]:
    """The settings that differ, by their full names, with the old value and the new one."""
    names = (name for name in KINDS if attrgetter(name)(before) != attrgetter(name)(config))
    return {name: (attrgetter(name)(before), attrgetter(name)(config)) for name in names}


def resume_lines(config: RunConfig, folder: RunFolder) -> list[str]:
    """Changes by a resume: a line for each setting, scheduled value, version and module that becomes another."""
    from learner.checkpoint import read_state

    before = folder.read_settings()
    frames = read_state(folder.checkpoints)["ledger"]["sampled"] * config.frames_per_agent_step
    lines = [
        f"changed:      {option_name(name)} {was} → {now}"
        for name, (was, now) in changes_of_resume(config, before).items()
    ]
    then, now = _scheduled_values(before, frames), _scheduled_values(config, frames)
    lines += [
        f"changed:      {name} is {now[name]:.3g} now, where it was {then[name]:.3g} (after {frames:,} frames)"
        for name in now
        if now[name] != then[name]
    ]
    had, has = agent_steps_per_update(before), agent_steps_per_update(config)
    if had != has:
        summed = ", and its losses are summed: the gradient grows with it" if config.method.reduction == "sum" else ""
        lines.append(f"changed:      an update has {has:,} agent steps now, where it had {had:,}{summed}")
    began_with = read_object(folder.manifest).get("modules", {})
    changed = [*changed_versions(folder), *changed_modules(config.environment, began_with)]
    lines += [f"changed:      {line}" for line in changed]
    return lines


def agent_steps_per_update(config: RunConfig) -> int:
    """Agent steps in the K gradients of an update, of settings that `divided_among` returns."""
    actor = config.actor
    return actor.environments * actor.unroll_length * config.learner.gradients_per_update // actor.minibatches


def _scheduled_values(config: RunConfig, frames: int) -> dict[str, float]:
    """The scheduled values of training after these frames, by name."""
    optimizer, method, exploration, over = config.optimizer, config.method, config.exploration, config.annealing_frames
    final_cost = method.entropy_cost if method.final_entropy_cost is None else method.final_entropy_cost
    return {
        "the learning rate": scheduled_value(optimizer.learning_rate, optimizer.schedule, frames, over),
        "the entropy cost": linear_anneal(method.entropy_cost, final_cost, frames, over),
        "the smallest ε": linear_anneal(1.0, min(exploration.final_epsilons), frames, exploration.annealing_frames),
    }
