"""Checks of settings before any worker starts: without effect, together, on a resume; and the actors' device."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from launch.output import quoted
from launch.run.folder import RunFolder, changed_modules, changed_versions
from launch.settings.files import KINDS, option_name
from launch.tensorflow_setup import prepare_to_read_weights
from shared.config import RunConfig
from shared.config.checks import For, check_values, declared
from shared.config.task import options_of
from shared.config.training import VECTORS
from shared.errors import ConfigurationError, alternatives, setting_error
from shared.registry import EXPLORERS, METHODS, NETWORKS, OPTIMIZERS, class_of
from shared.schedules import scheduled_value

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
    return needed.setting == "network.name" and _has_mlp(config, spec())


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


# Numbers that saturate the units of an mlp, as those that `running` clips to.
_LARGE = 10.0
# Bound of the memory for the rollouts of all actors together.
_MAX_ROLLOUT_BYTES = 4 * 2**30

Rule = tuple[str, bool, str]
"""A setting, whether the rule refuses its value, and the remedy."""


def _refusal(config: RunConfig, rules: Iterable[Rule]) -> ConfigurationError | None:
    for setting, refuses, problem in rules:
        if refuses:
            return setting_error(setting, attrgetter(setting)(config), problem)
    return None


def check_rules(config: RunConfig, spec: "EnvironmentSpec | None" = None) -> None:
    """Check the rules of several settings, and with a `spec` those of the environment's observations and actions."""
    of_environment = () if spec is None else _rules_of_environment(config, spec)
    if (refusal := _refusal(config, chain(_rules_of_settings(config), of_environment))) is not None:
        raise refusal


def check_network(config: RunConfig, spec: "EnvironmentSpec") -> None:
    """Check, without importing TensorFlow, that network and method fit the environment's observations and actions."""
    check_values(config)
    for setting, name, table in (
        ("method.options", config.method.name, METHODS),
        ("network.options", config.network.name, NETWORKS),
        ("exploration.options", config.exploration.name, EXPLORERS),
    ):
        options_of(setting, name, table, attrgetter(setting)(config))
    check_rules(config, spec)


def notes_on(config: RunConfig, spec: "EnvironmentSpec") -> Iterator[str]:
    """What the run makes of observations, where a user may expect something else."""
    yield from spec.notes
    if spec.left_out:
        yield f"left out of observations, as it is text: {', '.join(spec.left_out)}"
    if spec.parts is not None and config.network.observation_scaling == "none" and _has_mlp(config, spec):
        largest = np.abs(np.array(spec.observation_bounds)).max(axis=0)
        names = [name for name, size in spec.parts.numbers for _ in range(size)]
        if large := dict.fromkeys(name for name, bound in zip(names, largest, strict=True) if bound > _LARGE):
            yield f"{', '.join(large)}: not scaled; for numbers above {_LARGE:g} --network.observation-scaling running"


# ---- The table of rules: each is a setting, whether its value is refused, and the remedy


def _rules_of_settings(config: RunConfig) -> Iterator[Rule]:
    actor, inline, sums = config.actor, config.executor == "inline", config.aggregation == "node"
    malformed = isinstance(config.actors, str) and re.fullmatch(r"auto|\d+:\d+", config.actors) is None
    yield "actors", malformed, "must be a number, auto, or MIN:MAX like 2:16"
    least, most = config.actor_range
    yield "actors", least < 1, "must be at least 1"
    yield "actors", most is not None and most < least, "must have its bounds in order"
    problem = f"does not divide the {actor.environments} x {actor.unroll_length} steps of a rollout"
    yield "actor.minibatches", actor.environments * actor.unroll_length % actor.minibatches > 0, problem
    unequal = config.network.recurrent != "none" and actor.environments % actor.minibatches > 0
    whole = f"does not divide --actor.environments {actor.environments}: with a memory minibatches are of environments"
    yield "actor.minibatches", unequal, whole
    longer = (config.method.n_step or 1) > actor.unroll_length
    yield "method.n_step", longer, f"is more than --actor.unroll-length {actor.unroll_length}; lower it to that"
    problem = "a gradient that is too old could not be taken out of a sum; leave --learner.max-policy-lag out"
    yield "aggregation", sums and config.learner.max_policy_lag is not None, problem
    yield "aggregation", sums and inline, "is for --executor ray; leave it out with inline"
    yield (
        "learner.device",
        inline and config.learner.device == "gpu",
        "inline updates are on the device of the actors; set --actor.device",
    )
    unevaluated = config.stop_at_return is not None and not config.evaluation.every_frames
    problem = "needs evaluations: set --evaluation.every-frames above 0"
    yield "stop_measure", config.stop_measure == "evaluation" and unevaluated, problem


def _rules_of_environment(config: RunConfig, spec: "EnvironmentSpec") -> Iterator[Rule]:
    name, network, method = config.environment.id, NETWORKS[config.network.name], METHODS[config.method.name]
    factors = [scheduled_value(1.0, config.optimizer.schedule, percent, 100) for percent in range(101)]
    wrong = not all(math.isfinite(factor) and factor >= 0.0 for factor in factors)
    yield "optimizer.schedule", wrong, "must give a finite factor of 0 or more at each progress from 0 to 1"
    wanted = alternatives(name for name, entry in NETWORKS.items() if entry.images == spec.images)
    yield "network.name", spec.images != network.images, f"{name} gives {_observations(spec)}; use {wanted}"
    kind = "continuous actions" if spec.actions.continuous else "several actions at once"
    able = " or ".join(name for name, entry in METHODS.items() if entry.continuous_actions)
    unable = bool(spec.actions.shape) and not method.continuous_actions
    yield "method.name", unable, f"{name} has {kind}; use {able}"
    masks = f"method {config.method.name} supports no masks: its class names no action_head"
    yield "environment.action_mask", spec.masked and not method.masks, masks
    scaling = config.network.observation_scaling
    images = "; images have --network.centre-observations" if spec.images else ""
    problem = f"is for --network.name mlp, and the network is {config.network.name}{images}"
    yield "network.observation_scaling", scaling != "none" and not _has_mlp(config, spec), problem
    unbounded = _unbounded(spec) if scaling == "bounds" else []
    problem = f"{name} has no finite bounds in observation {unbounded}; use running"
    yield "network.observation_scaling", bool(unbounded), problem
    sizes = ", ".join(f"{height} x {width}" for height, width, *_ in spec.image_shapes)
    small = any(min(shape[:2]) < network.min_side for shape in spec.image_shapes)
    problem = f"must be at least {network.min_side} for {config.network.name}, and the images are {sizes}"
    yield "environment.screen_size", small, problem
    steps = (config.actor.total_environments or config.actor.environments) * (config.actor.unroll_length + 1)
    size = steps * math.prod(spec.row_shape) * np.dtype(spec.observation_dtype).itemsize
    way = "--environment.screen-size 84" if spec.images else "an environment with smaller observations"
    problem = f"{steps:,} observations of a rollout would take {size / 2**30:.1f} GiB; use {way}"
    yield "environment.id", size > _MAX_ROLLOUT_BYTES, problem


def _rules_of_gpu_actors(config: RunConfig, *, resume: bool) -> Iterator[Rule]:
    actor, does_not_run = config.actor, "which GPU actors do not support; use --actor.device cpu"
    yield "network.recurrent", config.network.recurrent != "none", f"has a memory, {does_not_run}"
    method, state_dependent = METHODS[config.method.name], config.exploration.noise == "state_dependent"
    # Importing a class of the project imports TensorFlow, a class of the user's is imported.
    sarsa = class_of(method).needs_next_actions if method.is_own else config.method.name == "sarsa"
    yield "method.name", sarsa, f"bootstraps from an action of the next rollout, {does_not_run}"
    yield "exploration.noise", state_dependent, f"is kept for the environments of one vector, {does_not_run}"
    odd = (resume or actor.total_environments is None) and actor.environments % VECTORS > 0
    yield "actor.environments", odd, "must be even with --actor.device gpu, whose actors play two vectors in turn"


def _has_mlp(config: RunConfig, spec: "EnvironmentSpec") -> bool:
    # Numbers beside images have an mlp of their own.
    own = spec.parts is not None and bool(spec.parts.numbers) and not NETWORKS[config.network.name].whole
    return config.network.name == "mlp" or own


def _unbounded(spec: "EnvironmentSpec") -> list[int]:
    """The indices of observations without finite bounds."""
    from actors.environments.spaces import is_bound

    assert spec.observation_bounds is not None
    low, high = np.array(spec.observation_bounds)
    return np.flatnonzero(~(is_bound(low) & is_bound(high) & (low < high))).tolist()


def on_device(
    config: RunConfig, spec: "EnvironmentSpec", gpus: float, *, resume: bool = False
) -> tuple[RunConfig, str | None]:
    """The settings with the device of the actors, which `auto` leaves open, and a line on the choice.

    Args:
        gpus: number of GPUs that Ray or this machine has.
        resume: the environments of an actor stay as they are, which a new run may still divide among its actors.

    Raises:
        ConfigurationError: a GPU is requested, and there is none, or GPU actors do not support these settings.
    """
    device = config.actor.device
    if device == "cpu":
        return config, None
    refused = _refusal(config, _rules_of_gpu_actors(config, resume=resume))
    free = gpus - (config.learner.device == "gpu") >= 1
    if device == "gpu":
        if refused is not None:
            raise refused
        if not free:
            raise setting_error("actor.device", device, "there is no GPU for actors; use cpu")
        return config, None
    choice: Literal["cpu", "gpu"] = "gpu" if refused is None and spec.images and free else "cpu"
    return replace(config, actor=replace(config.actor, device=choice)), f"device:       actors on the {choice.upper()}"


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
    of_the_task = setting.startswith(("environment.", "network."))
    return setting in _NOT_FIXED if of_the_task else setting not in _FIXED


def check_changes(config: RunConfig, before: RunConfig, run: Path) -> None:
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
    """Changes by a resume: a line for each setting, version and module that becomes another."""
    changes = changes_of_resume(config, folder.read_settings())
    changed = [
        *(f"{option_name(name)} {was} → {now}" for name, (was, now) in changes.items()),
        *changed_versions(folder),
        *changed_modules(folder, config.environment),
    ]
    return [f"changed:      {line}" for line in changed]
