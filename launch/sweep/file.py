"""The file of a sweep: settings as `train --config` takes them, and a table `[sweep]` that says what to search."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from launch.output import nearest
from launch.presets import PRESETS
from launch.presets.choice import preset_for
from launch.presets.written import named, set_of_one_run, with_settings
from launch.run.status import may_change
from shared.config import RunConfig
from shared.errors import ConfigurationError, one_line

Value = str | int | float | bool
# A setting by its name, like optimizer.learning_rate, and its value: those of one trial.
Settings = dict[str, Value]


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers from `low` to `high`, both included, drawn evenly, or evenly in their logarithm; whole ones where the
    setting is a whole number."""

    low: int | float
    high: int | float
    log: bool = False
    whole: bool = False


# Each setting that is searched, with its choices or its range.
Space = dict[str, list[Value] | Range]


class Asha(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asynchronous successive halving (arXiv 1810.05934): of the trials that come to a rung, the best one in
    `reduction_factor` goes on. The first rung is at `grace_frames`, each next one at that factor times as many."""

    grace_frames: int
    reduction_factor: int = 3


class Pbt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Population-based training (arXiv 1711.09846): at each multiple of `interval_frames`, a trial whose score is in
    the lowest `quantile` goes on with the weights and the settings of one in the highest. Of these it perturbs those
    that are `mutable`: all that are searched, unless some are named. The others stay its own."""

    interval_frames: int
    mutable: tuple[str, ...] | None = None
    quantile: float = 0.25


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
    """What a sweep's file says, checked. `base` are the settings that all trials share; `space` has for each setting
    that is searched its choices or its range."""

    preset: str
    base: RunConfig
    plan: Plan
    space: Space
    trials: int

    @property
    def cores(self) -> float:
        """What a trial reserves; see `cores_of`."""
        return cores_of(self.base)

    @property
    def mutable(self) -> list[str]:
        """The settings that population-based training perturbs."""
        assert self.plan.pbt is not None
        named = self.plan.pbt.mutable
        return [name for name in self.space if named is None or name in named]

    def config(self, settings: Settings) -> RunConfig:
        """The settings of a trial.

        Raises:
            ConfigurationError: they cannot be together.
        """
        return with_settings(self.base, settings)


def cores_of(config: RunConfig) -> float:
    """What a trial reserves: the cores of its actors, whose number is settled."""
    assert isinstance(config.actors, int)
    return 1.0 if config.executor == "inline" else config.actors * config.actor.cores


def read_sweep(path: Path) -> Sweep:
    """Read and check the file of a sweep.

    Raises:
        ConfigurationError: it cannot be read, or has something that cannot be; the message begins with the file.
    """
    try:
        settings = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no TOML: {one_line(error)}") from error
    try:
        return _sweep(settings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: [sweep]: {one_line(error).replace('`', '')}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _sweep(settings: dict[str, Any]) -> Sweep:
    if "sweep" not in settings:
        raise ConfigurationError("has no table [sweep], which says what to search: see docs/sweeps.md")
    plan = _completed(msgspec.convert(settings.pop("sweep"), Plan))
    preset = settings.pop("preset", None)
    environment_id = named(settings).get("environment.id")
    if preset is None and environment_id is not None:
        preset = preset_for(str(environment_id))
    if preset not in PRESETS:
        raise ConfigurationError(f"preset {preset}: name one{nearest(str(preset), PRESETS)}; see tributary presets")
    # All trials play all their frames, unless the file says otherwise: their returns would not tell them apart.
    unstopped = replace(PRESETS[preset].config, stop_at_return=None, stop_measure="training")
    if plan.pbt is not None:
        # The weights that others go on with are those of the moment when they are compared.
        unstopped = replace(unstopped, checkpoint=replace(unstopped.checkpoint, every_frames=plan.pbt.interval_frames))
    base = with_settings(unstopped, settings)
    for name in set_of_one_run(base):
        raise ConfigurationError(f"{name} is of one run, and a sweep has several")
    if not isinstance(base.actors, int):
        raise ConfigurationError(f"actors {base.actors}: set a number, which is how many cores a trial takes")
    if base.address != "local":
        raise ConfigurationError("address is for the sweep: tributary sweep FILE --address; each trial is on one node")
    space = {name: _part_of_space(name, values, base) for name, values in _flat(plan.space, "")}
    _check(plan, base, space)
    return Sweep(preset, base, plan, space, _trials(plan, space))


def _completed(plan: Plan) -> Plan:
    """With the search that is taken where none is named, and the names of settings spelt as elsewhere."""
    pbt = plan.pbt
    if pbt is not None and pbt.mutable is not None:
        mutable = tuple(name.replace("-", "_") for name in pbt.mutable)
        plan = msgspec.structs.replace(plan, pbt=msgspec.structs.replace(pbt, mutable=mutable))
    return msgspec.structs.replace(plan, search=plan.search or ("optuna" if pbt is None else "random"))


def _flat(space: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Each setting that is searched, by its whole name."""
    for key, value in space.items():
        name = prefix + key.replace("-", "_")
        if isinstance(value, Mapping) and "low" not in value and "high" not in value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _part_of_space(name: str, values: Any, base: RunConfig) -> list[Value] | Range:
    """Choices or a range, each end of which is a value that the setting can have."""
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


def _check(plan: Plan, base: RunConfig, space: Space) -> None:
    if not space:
        raise ConfigurationError("[sweep.space] names no setting to search")
    ranges = [name for name, part in space.items() if isinstance(part, Range)]
    if plan.search == "grid" and (ranges or plan.trials is not None):
        problem = (
            f"{ranges[0]} has a range: give it a list" if ranges else "trials follows from the lists: leave it out"
        )
        raise ConfigurationError(f'[sweep] search = "grid": {problem}')
    if plan.search != "grid" and (plan.trials is None or plan.trials < 1):
        raise ConfigurationError(f"[sweep] trials {plan.trials}: say how many, 1 or more")
    if plan.maximise == "evaluation" and not base.evaluation.every_frames:
        raise ConfigurationError('[sweep] maximise = "evaluation" needs evaluation.every_frames above 0')
    _check_asha(plan.asha, base)
    if plan.pbt is not None:
        _check_pbt(plan, plan.pbt, base, space)


def _check_asha(asha: Asha | None, base: RunConfig) -> None:
    if asha is not None and not 0 < asha.grace_frames < base.total_frames:
        raise ConfigurationError(
            f"[sweep] asha.grace_frames {asha.grace_frames}: must be above 0 and below total_frames {base.total_frames}"
        )
    if asha is not None and asha.reduction_factor < 2:
        raise ConfigurationError(f"[sweep] asha.reduction_factor {asha.reduction_factor}: must be at least 2")


def _check_pbt(plan: Plan, pbt: Pbt, base: RunConfig, space: Space) -> None:
    if plan.asha is not None:
        raise ConfigurationError("[sweep] asha and pbt: one of them decides which trials go on; leave the other out")
    if plan.search == "optuna":
        raise ConfigurationError('[sweep] pbt: its trials start together: use search = "random" or "grid"')
    if _trials(plan, space) < 2:
        raise ConfigurationError(f"[sweep] trials {_trials(plan, space)}: pbt compares trials, and needs 2 or more")
    if not 0 < pbt.interval_frames < base.total_frames:
        raise ConfigurationError(
            f"[sweep] pbt.interval_frames {pbt.interval_frames}: must be above 0 and below total_frames "
            f"{base.total_frames}"
        )
    if not 0.0 < pbt.quantile <= 0.5:
        raise ConfigurationError(f"[sweep] pbt.quantile {pbt.quantile}: must be above 0 and at most 0.5")
    for name in pbt.mutable or ():
        if name not in space:
            raise ConfigurationError(f"[sweep] pbt.mutable {name}: is not in [sweep.space]{nearest(name, space)}")
    for name in space:
        if not may_change(name):
            raise ConfigurationError(
                f"[sweep.space] {name}: with pbt a trial goes on with the weights of another one, and these would not "
                f"fit it; leave it out"
            )
    if base.checkpoint.exact:
        raise ConfigurationError(
            "checkpoint.exact true: with pbt a trial changes its settings on the way; leave it out"
        )


def _trials(plan: Plan, space: Space) -> int:
    lists = [part for part in space.values() if isinstance(part, list)]
    return math.prod(map(len, lists)) if plan.search == "grid" else plan.trials or 0
