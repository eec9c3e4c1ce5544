"""The file of a sweep: settings as in a file for `train --config`, and a table `[sweep]` with the search."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from launch.checks import check_effects
from launch.output import nearest
from launch.presets import PRESETS, preset_for
from launch.presets.settings_files import chosen_in_toml, named, read_settings_file, set_of_one_run, with_settings
from launch.run.status import may_change
from shared.config import RunConfig
from shared.errors import ConfigurationError, one_line, setting_error

# Modules of the extra `tune`; Ray's own modules exist without it, and cannot be imported.
_TUNE_PACKAGES = ("pandas", "pyarrow", "tensorboardX")

Value = str | int | float | bool
Settings = dict[str, Value]
"""Settings of one trial by name, like optimizer.learning_rate."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers from `low` to `high`, both included, uniform or with a uniform logarithm; integers with `whole`."""

    low: int | float
    high: int | float
    log: bool = False
    whole: bool = False


Space = dict[str, list[Value] | Range]
"""The choices or the range of each setting that is searched."""


class Asha(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asynchronous successive halving (arXiv 1810.05934). The first rung is at `grace_frames`, each further one at
    `reduction_factor` times as many frames; the best 1/`reduction_factor` of the trials at a rung continue."""

    grace_frames: int
    reduction_factor: Annotated[int, msgspec.Meta(ge=2)] = 3


class Pbt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Population-based training (arXiv 1711.09846). Every `interval_frames` a trial in the lowest `quantile` of the
    scores continues from the checkpoint of one in the highest, with the `mutable` settings perturbed; None: all that
    are searched."""

    interval_frames: int
    mutable: tuple[str, ...] | None = None
    quantile: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.25


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[sweep]`."""

    space: dict[str, Any]
    search: Literal["grid", "random", "optuna"] | None = None
    trials: int | None = None
    maximise: Literal["training", "evaluation"] = "training"
    asha: Asha | None = None
    pbt: Pbt | None = None
    seed: int = 1


class Sweep(msgspec.Struct, frozen=True):
    """The checked content of a sweep's file. `base` has the settings that all trials share."""

    preset: str
    base: RunConfig
    plan: Plan
    space: Space
    trials: int

    @property
    def mutable(self) -> list[str]:
        """The settings that population-based training perturbs."""
        assert self.plan.pbt is not None
        names = self.plan.pbt.mutable
        return [name for name in self.space if names is None or name in names]


def check_tune(purpose: str, *others: str) -> None:
    """Check that Ray Tune is installed, and the packages `others`."""
    for package in (*_TUNE_PACKAGES, *others):
        if find_spec(package) is None:
            raise ConfigurationError(f"{purpose} needs {package}: pip install 'tributary-rl[tune]'")


def check_trials(base: RunConfig) -> None:
    """Refuse settings that several trials cannot share."""
    for name in set_of_one_run(base):
        raise setting_error(name, getattr(base, name), "is of one run, and a search has several")
    if not isinstance(base.actors, int):
        raise setting_error("actors", base.actors, "set a number, the cores that a trial takes")
    if base.address != "local":
        raise setting_error("address", base.address, "each trial is on one node: tributary sweep FILE --address")


def cores_of(config: RunConfig) -> int:
    """The cores that a trial reserves: those of its actors."""
    assert isinstance(config.actors, int)
    return 1 if config.executor == "inline" else config.actors


def read_sweep(path: Path) -> Sweep:
    """Read and check the file of a sweep."""
    settings = read_settings_file(path, "file")
    try:
        return _sweep(settings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: [sweep]: {one_line(error).replace('`', '')}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _sweep(settings: dict[str, Any]) -> Sweep:
    if "sweep" not in settings:
        raise ConfigurationError("has no table [sweep] with the search: see docs/sweeps.md")
    plan = _completed(msgspec.convert(settings.pop("sweep"), Plan))
    preset = settings.pop("preset", None)
    environment_id = named(settings).get("environment.id")
    if preset is None and environment_id is not None:
        preset = preset_for(str(environment_id))
    if preset not in PRESETS:
        raise ConfigurationError(f"preset {preset}: name one{nearest(str(preset), PRESETS)}; see tributary presets")
    # All trials play all their frames unless the file sets a return: trials that stop at one have equal scores.
    unstopped = replace(PRESETS[preset].config, stop_at_return=None, stop_measure="training")
    base = with_settings(unstopped, settings)
    check_trials(base)
    space = {name: _part_of_space(name, values, base) for name, values in _flat(plan.space, "")}
    check_effects(base, [*chosen_in_toml(settings, unstopped), *space], searched=space)
    lists = [part for part in space.values() if isinstance(part, list)]
    trials = math.prod(map(len, lists)) if plan.search == "grid" else plan.trials or 0
    _check(plan, base, space, trials)
    return Sweep(preset, base, plan, space, trials)


def _completed(plan: Plan) -> Plan:
    """The plan with the default search, and names of settings with underscores."""
    pbt = plan.pbt
    if pbt is not None and pbt.mutable is not None:
        mutable = tuple(name.replace("-", "_") for name in pbt.mutable)
        plan = msgspec.structs.replace(plan, pbt=msgspec.structs.replace(pbt, mutable=mutable))
    return msgspec.structs.replace(plan, search=plan.search or ("optuna" if pbt is None else "random"))


def _flat(space: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in space.items():
        name = prefix + key.replace("-", "_")
        if isinstance(value, Mapping) and "low" not in value and "high" not in value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _part_of_space(name: str, values: Any, base: RunConfig) -> list[Value] | Range:
    """Choices or a range; each choice and both ends must be valid values of the setting."""
    if isinstance(values, list) and values:
        for value in values:
            with_settings(base, {name: value})
        return values
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"[sweep.space] {name}: must be a list of choices, or {{ low = …, high = … }}")
    span = msgspec.convert(values, Range)
    for end in (span.low, span.high):
        with_settings(base, {name: end})
    if not span.low < span.high or not all(map(math.isfinite, (span.low, span.high))):
        raise ConfigurationError(f"[sweep.space] {name}: low {span.low} must be below high {span.high}")
    if span.log and span.low <= 0:
        raise ConfigurationError(f"[sweep.space] {name}: log = true needs a low above 0, and it is {span.low}")
    now = attrgetter(name)(base)
    whole = isinstance(now, int) or (now is None and isinstance(span.low, int) and isinstance(span.high, int))
    return msgspec.structs.replace(span, whole=whole)


def _check(plan: Plan, base: RunConfig, space: Space, trials: int) -> None:
    if not space:
        raise ConfigurationError("[sweep.space] names no setting to search")
    ranges = [name for name, part in space.items() if isinstance(part, Range)]
    if plan.search == "grid" and (ranges or plan.trials is not None):
        problem = (
            f"{ranges[0]} has a range: give it a list" if ranges else "trials follows from the lists: leave it out"
        )
        raise ConfigurationError(f'[sweep] search = "grid": {problem}')
    if plan.search != "grid" and trials < 1:
        raise ConfigurationError(f"[sweep] trials {plan.trials}: must be a number, 1 or more")
    if plan.maximise == "evaluation" and not base.evaluation.every_frames:
        raise ConfigurationError('[sweep] maximise = "evaluation" needs evaluation.every_frames above 0')
    for name, frames in (
        ("asha.grace_frames", None if plan.asha is None else plan.asha.grace_frames),
        ("pbt.interval_frames", None if plan.pbt is None else plan.pbt.interval_frames),
    ):
        if frames is not None and not 0 < frames < base.total_frames:
            raise ConfigurationError(
                f"[sweep] {name} {frames}: must be above 0 and below total_frames {base.total_frames}"
            )
    if plan.pbt is not None:
        _check_pbt(plan, plan.pbt, space, trials)


def _check_pbt(plan: Plan, pbt: Pbt, space: Space, trials: int) -> None:
    if plan.asha is not None:
        raise ConfigurationError("[sweep] asha and pbt: one of them decides which trials continue; leave one out")
    if plan.search == "optuna":
        raise ConfigurationError('[sweep] pbt: its trials start together: use search = "random" or "grid"')
    if trials < 2:
        raise ConfigurationError(f"[sweep] trials {trials}: pbt compares trials, and needs 2 or more")
    for name in pbt.mutable or ():
        if name not in space:
            raise ConfigurationError(f"[sweep] pbt.mutable {name}: is not in [sweep.space]{nearest(name, space)}")
    for name in space:
        if not may_change(name):
            raise ConfigurationError(
                f"[sweep.space] {name}: with pbt a trial continues from the checkpoint of another, which would not fit "
                f"this setting; leave it out"
            )
