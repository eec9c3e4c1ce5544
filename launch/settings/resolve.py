"""Requests to train, and their settings: a preset, a file or an earlier run with changes, for a number of actors."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from launch.output import quoted
from launch.presets import DEFAULT_PRESET, PRESETS, check_preset, is_atari, preset_for
from launch.run.folder import RunFolder
from launch.run.lookup import run_path
from launch.run.modules import check_imports, imports_permitted
from launch.settings.check import check_effects, check_rules
from launch.settings.files import (
    ConfigFile,
    by_full_name,
    errors_of,
    modules_of,
    option_name,
    read_config_file,
    with_settings,
)
from launch.settings.parse import OPTIONS, Operand, Settings
from shared.config import ActorConfig, EnvironmentConfig, RunConfig
from shared.config.checks import check_values
from shared.config.training import VECTORS
from shared.errors import alternatives, setting_error
from shared.registry import import_modules

# Ids have a version, a module or a namespace.
_ID = re.compile(r"-v\d+$|[:/]")
# The settings, beside the id, on which the observations of an environment depend.
_OF_OBSERVATIONS = ("options", "wrappers", "imports", "action_mask")
# A part of the name of a folder.
_NAME = re.compile(r"\w[\w.-]*")

# The settings that `divided_among` derives, and the source of each: an explicit value switches the source off.
_DERIVED_FROM = {
    "actor.environments": "actor.total_environments",
    "actor.epochs": "actor.epochs_of_many",
    "actor.minibatches": "learner.agent_steps_per_update",
    "learner.gradients_per_update": "learner.agent_steps_per_update",
}
# With fewer agent steps in a rollout a core has half of its rate, and the learner twice the messages (docs/scaling.md).
_MIN_AGENT_STEPS, _MIN_ENVIRONMENTS = 64, 2
# With this multiple of the preset's agent steps in flight the learner is full, and fewer epochs need fewer gradients.
# A little below 4, as a machine of 64 cores starts 63 actors.
_MANY = 3.75
# Consecutive steps of one environment are alike, which matters the more often they are used: LunarLander, with eight
# epochs, was learned sooner by updates from sixteen environments than from four (docs/studies/many_workers.md).
_MIN_ENVIRONMENTS_OF_AN_UPDATE = 4
_ENVIRONMENTS_OF_AN_UPDATE_PER_EPOCH = 2
# An update may differ from the wanted one by this share before a minibatch has fewer agent steps than these.
_MIN_MINIBATCH, _TOLERATED_MISFIT = 64, 0.2


@dataclass(frozen=True)
class PresetArguments:
    """The arguments of a command that takes `[PRESET] [SETTINGS]`: the origin of settings, and changes by full names.

    `preset` is the name of one, or the id of an environment. None: the one for the environment.
    """

    preset: Operand[str | None] = None
    settings: Settings = field(default_factory=dict)
    config: Path | None = None
    """File of settings: TOML or JSON with changes of a PRESET (tributary config prints one), or the config.json of a
    run. Typed settings take precedence."""
    trust_imports: bool = False
    """With --config: import the modules that the file names, as in tributary train."""

    def __post_init__(self) -> None:
        check_values(self)

    def request(self, **changed: Any) -> "TrainRequest":
        """The request of the line, with further settings."""
        return TrainRequest(self.preset, {**self.settings, **changed}, self.config)


@dataclass(frozen=True)
class TrainRequest(PresetArguments):
    """A user's request to train, on the command line or in Python."""

    run_dir: Path | None = None
    """Folder of the run. Default: runs/NAME-TIME."""
    name: str | None = None
    """Name of the run. Default: the preset's, or the environment's where the preset is for another one."""
    resume: str | None = None
    """Folder of a run to continue from its last checkpoint, latest, or the URL of a copy. Its settings are the
    defaults."""
    start_from: str | None = None
    """Run whose best weights a new run starts from: its folder, latest, zoo:NAME, or a URL. Its settings are the
    defaults where no PRESET is named. Optimizer, schedules and counts start anew."""
    trust_imports: bool = False
    """With --resume, --start-from or --config: import the modules that the settings of that run name, and run their
    code. A module that the same command names, by --environment.import for example, needs no such permission."""


def _with_id(request: TrainRequest) -> TrainRequest:
    word = request.preset
    if word is None or request.resume is not None:
        return request
    if _ID.search(word):
        typed = request.settings.get("environment.id", word)
        if typed != word:
            raise setting_error("environment.id", typed, f"{word} is an environment, too; leave one out")
        return replace(request, preset=None, settings={**request.settings, "environment.id": word})
    check_preset(word)
    return request


class ResolvedRun(NamedTuple):
    """A request with its settings resolved, for any number of actors. `divided_among` follows when a run begins.

    Attributes:
        preset: the preset, or the name of the run, that the settings started from.
        preset_chosen: the preset follows from the environment, not from the user.
        chosen_in_file: names of the settings that a file changes, except to their defaults.
        typed_name: the name that the user gives to the run.
    """

    config: RunConfig
    preset: str
    resume: Path | None = None
    start_from: Path | None = None
    preset_chosen: bool = False
    chosen_in_file: Collection[str] = ()
    typed_name: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `launch.train.train` that say how a run begins."""
        return {"preset": self.preset, "resume": self.resume is not None, "start_from": self.start_from}

    @property
    def name(self) -> str:
        """The name of the run: the user's, else its preset's, or its environment's where that is another one."""
        if self.typed_name is not None:
            return self.typed_name
        environment, preset = self.config.environment, PRESETS.get(self.preset)
        if preset is None or preset.config.environment.id == environment.registered_id:
            return self.preset
        return environment.registered_id.rpartition("/")[2]


def resolve_request(request: TrainRequest) -> ResolvedRun:
    """Resolve the settings of a run: those of an earlier run, or of a preset and a file, then the user's changes."""
    request = _with_id(request)
    if request.name is not None and not _NAME.fullmatch(request.name):
        raise setting_error("name", quoted(request.name), "must be letters, digits, and .-_ between them")
    if request.name is not None and request.run_dir is not None:
        raise setting_error("name", request.name, f"--run-dir {request.run_dir} names the folder; leave one out")
    with imports_permitted(*modules_of(request.settings)):
        base = _of_new_run(request) if request.resume is None else _of_resumed_run(request)
    config = changed_by_hand(base.config, request.settings)
    of_many = request.settings.get("actor.epochs_of_many")
    if of_many is not None and config.actor.total_environments is None:
        raise setting_error("actor.epochs_of_many", of_many, "is for --actor.total-environments; leave it out")
    if base.resume is not None:
        _check_resumed(base.config, config)
    if base.start_from is not None and base.start_from.is_dir():
        # The run that trains reads its settings, in another process.
        with imports_permitted(*config.environment.modules):
            RunFolder(base.start_from).read_config("start_from")
    check_effects(config, request.settings)
    with errors_of(request.config):
        check_effects(config, base.chosen_in_file)
    check_rules(config)
    return base._replace(config=config, typed_name=request.name)


def changed_by_hand(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with settings that a user chose, by full names or nested, and without those that they make pointless.

    Options of the environment, and of a class of the user, are added to the present ones.
    """
    changes = _with_frame_skip(config, by_full_name(settings))
    for name in OPTIONS:
        if isinstance(options := changes.get(name), Mapping):
            changes[name] = {**attrgetter(name)(config), **options}
    return _without_derivation(with_settings(config, changes), changes)


def _with_frame_skip(config: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """The settings `changes`, with a frame skip of 1 where they replace an Atari game by another environment.

    Atari's frame skip would make another task of it.
    """
    if "environment.id" not in changes or "environment.frame_skip" in changes:
        return changes
    replaces = is_atari(config.environment.id) and not is_atari(str(changes["environment.id"]))
    return {**changes, "environment.frame_skip": 1} if replaces else changes


def _check_resumed(before: RunConfig, now: RunConfig) -> None:
    """Refuse changes that only the start of a new run reads."""
    for source in dict.fromkeys(_DERIVED_FROM.values()):
        value = attrgetter(source)(now)
        if value is not None and value != attrgetter(source)(before):
            derived = [option_name(name) for name, other in _DERIVED_FROM.items() if other == source]
            problem = f"is divided when a run begins, and a resumed run keeps its shares; set {alternatives(derived)}"
            raise setting_error(source, value, problem)


def _without_derivation(config: RunConfig, names: Collection[str]) -> RunConfig:
    """`config`, in which each derived setting among `names` keeps its value."""
    for name, source in _DERIVED_FROM.items():
        value = attrgetter(source)(config)
        if name not in names or value is None:
            continue
        if source in names:
            raise setting_error(source, value, f"decides on {option_name(name)}; leave one out")
        config = with_settings(config, {source: None})
    return config


def divided_among(config: RunConfig, actors: int) -> RunConfig:
    """The settings of a new run with `actors` actors: the form of least predicted time to the target (docs/scaling.md).

    Time is the agent steps needed, which grow slowly with those in flight, over the rate. The rule:

    1. The actors divide `actor.total_environments`, each the nearest whole share. A rollout has at least 64 agent
       steps, of two environments where one has fewer: with more actors than that, more agent steps are in flight.
    2. With about four times the preset's agent steps in flight, the epochs are `actor.epochs_of_many`.
    3. An update keeps its `learner.agent_steps_per_update`: it is a minibatch of a large rollout, or the mean of the
       gradients of several small ones, with data of at least four environments and of two for each epoch.

    This is the only place where the number of actors changes a setting. A resumed run keeps its settings.
    """
    actor, learner = config.actor, config.learner
    total, per_update = actor.total_environments, learner.agent_steps_per_update
    if total is not None:
        # A GPU actor plays two vectors in turn, which are equally long.
        unit = 1 if actor.device == "cpu" else VECTORS
        least = min(_MIN_ENVIRONMENTS, -(-_MIN_AGENT_STEPS // actor.unroll_length))
        environments = max(unit * round(total / actors / unit), unit * -(-least // unit))
        many = actors * environments >= _MANY * total
        actor = replace(
            actor,
            environments=environments,
            epochs=(actor.epochs_of_many if many else None) or actor.epochs,
            minibatches=actor.minibatches if per_update is None else 1,
        )
    if per_update is not None:
        minibatches, gradients = _update_of(per_update, actor, together=config.network.recurrent != "none")
        actor = replace(actor, minibatches=minibatches)
        learner = replace(learner, gradients_per_update=gradients)
    config = replace(config, actor=actor, learner=learner)
    check_rules(config)
    return config


def _update_of(agent_steps: int, actor: ActorConfig, *, together: bool) -> tuple[int, int]:
    """Minibatches M of an actor, and gradients K of an update, for an update of about `agent_steps`.

    `together`: the times of an environment stay in one minibatch, as a network with a memory needs.
    """
    rollout = actor.environments * actor.unroll_length
    index_count = actor.environments if together else rollout
    wanted = max(_MIN_ENVIRONMENTS_OF_AN_UPDATE, _ENVIRONMENTS_OF_AN_UPDATE_PER_EPOCH * actor.epochs)
    wanted = min(wanted, actor.total_environments or actor.environments)
    least_gradients = -(-wanted // actor.environments)

    def misfit(minibatches: int) -> tuple[float, int]:
        gradients = agent_steps * minibatches / rollout
        shortage = max(0.0, least_gradients - gradients)
        small = _TOLERATED_MISFIT if rollout < _MIN_MINIBATCH * minibatches else 0.0
        difference = abs(max(1, round(gradients)) / gradients - 1.0)
        return (shortage + small + (difference if difference > _TOLERATED_MISFIT else 0.0), minibatches)

    minibatches = min((m for m in range(1, index_count + 1) if index_count % m == 0), key=misfit)
    return minibatches, max(1, round(agent_steps * minibatches / rollout))


def rollouts_line(config: RunConfig, actors: int) -> str:
    """The form of a run with `actors` actors, and which weights make its returns (docs/methods.md)."""
    actor, count = config.actor, config.learner.gradients_per_update
    rollout, in_flight = f"{actor.environments} x {actor.unroll_length}", actors * actor.agent_steps_in_flight
    gradients = f", the {config.method.reduction} of {count} gradients" if count > 1 else ""
    reuse = f", each step in {actor.epochs}" if actor.epochs > 1 else ""
    if actor.fresh_gradients:
        reuse += f"; returns by {'the newest' if actor.minibatches == 1 else 'acting'} weights"
    return (
        f"rollouts:     {actors:,} x {rollout}: {in_flight:,} agent steps in flight; an update has "
        f"{actor.agent_steps_in_flight * count // actor.minibatches:,}{gradients}{reuse}"
    )


def _of_new_run(request: TrainRequest) -> ResolvedRun:
    file = None if request.config is None else read_config_file(request.config)
    start_from = None if request.start_from is None else run_path(request.start_from)
    preset, choice = request.preset or (file.preset if file else None), None
    if start_from is not None and preset is None:
        other = RunFolder(start_from)
        preset, config = other.outputs.name, replace(other.read_config("start_from"), storage=None)
    elif file is not None and file.whole:
        if request.preset is not None:
            problem = f"has all settings of a run, and those of the preset {request.preset}, too; leave one out"
            raise setting_error("config", file.path, problem)
        with errors_of(file.path):
            config = with_settings(RunConfig(), file.settings)
        check_imports(config.environment, "config", str(file.path))
    else:
        settings = {**(file.settings if file else {}), **request.settings}
        # They may register the id that a preset is looked up by.
        import_modules(modules_of(settings))
        if preset is None and "environment.id" in settings:
            environment = _of_observations(file, request.settings)
            preset = choice = preset_for(str(settings["environment.id"]), environment)
        config = PRESETS[preset or DEFAULT_PRESET].config
    run = ResolvedRun(config, preset or DEFAULT_PRESET, start_from=start_from, preset_chosen=choice is not None)
    if file is None or file.whole:
        return run
    # A file of `tributary config` has the derived setting and its source: then the derived one is not a choice.
    alone = [name for name, source in _DERIVED_FROM.items() if name in file.settings and source not in file.settings]
    read = dict(file.settings)
    if "environment.id" in request.settings:
        # Not the file's environment decides on the frame skip, nor the preset's own, which `tributary config` writes.
        read["environment.id"] = request.settings["environment.id"]
        if read.get("environment.frame_skip") == config.environment.frame_skip:
            del read["environment.frame_skip"]
    with errors_of(file.path):
        changed = with_settings(config, _with_frame_skip(config, read))
        values = {name: attrgetter(name) for name in read}
        edited = [name for name, of in values.items() if of(changed) != of(config)]
        # A file of `tributary config` for another preset has defaults without an effect here.
        choices = [name for name in edited if values[name](changed) != values[name](RunConfig())]
        # In a file of its own preset a difference is an edit, also one to a default.
        kept = edited if preset == file.preset else choices
        return run._replace(config=_without_derivation(changed, [*kept, *alone]), chosen_in_file=choices)


def _of_observations(file: ConfigFile | None, typed: Mapping[str, Any]) -> EnvironmentConfig:
    """The settings of an environment on which its observations depend, from a file and the line, but for its id."""
    config, names = RunConfig(), [f"environment.{name}" for name in _OF_OBSERVATIONS]
    if file is not None:
        with errors_of(file.path):
            config = with_settings(config, {name: file.settings[name] for name in names if name in file.settings})
    return changed_by_hand(config, {name: typed[name] for name in names if name in typed}).environment


def _of_resumed_run(request: TrainRequest) -> ResolvedRun:
    assert request.resume is not None
    excluded = {name: getattr(request, name) for name in ("preset", "config", "run_dir", "name", "start_from")}
    for name, value in excluded.items():
        if value is not None:
            problem = f"the run of --resume {request.resume} keeps its settings and its folder; leave this out"
            raise setting_error(name, value, problem)
    folder = RunFolder(run_path(request.resume))
    if folder.ships:
        advice = f"start a new run from them: --start-from {quoted(folder.name)}"
        raise setting_error("resume", folder.name, f"has weights only, and is never written to; {advice}")
    return ResolvedRun(folder.read_config(), DEFAULT_PRESET, folder.path)
