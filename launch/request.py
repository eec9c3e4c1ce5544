"""A request to train: completed to the settings of a run, and checked before any worker starts."""

import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from launch.checks import check_effects
from launch.output import nearest, quoted
from launch.presets import DEFAULT_PRESET, PRESETS, preset_for
from launch.presets.settings_files import (
    ConfigFile,
    chosen_in_toml,
    for_another_run,
    modules_of,
    read_config_file,
    with_settings,
)
from launch.run.folder import SEEDS_FILE, RunFolder, check_imports
from launch.run.status import LATEST, SeveralSeeds, read_seeds, run_path
from shared.config import OptionValue, RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.registry import import_modules

# Ids have a version, a module or a namespace.
_ID = re.compile(r"-v\d+$|[:/]")
# A part of the name of a folder.
_NAME = re.compile(r"\w[\w.-]*")

# The settings that `shared_by` changes, and the other one that decides on agent steps in flight.
_SHARED = (
    "actor.environments",
    "actor.unroll_length",
    "actor.minibatches",
    "actor.calls_in_flight",
    "learner.gradients_per_update",
    "learner.accumulation",
)
# A shorter rollout has little to bootstrap over, and costs a call of the learner for a few agent steps.
_LEAST_STEPS = 16
# A prototype of 64 actors learned Pong with 1 environment x 64 steps, and not with 4 x 16: one seed each.
_LONG_UNROLL = 64
# Consecutive steps of one environment are alike, which matters the more often they are used: LunarLander, with eight
# epochs, was learned sooner by updates from sixteen environments than from four (docs/studies/scaling.md).
_LEAST_ENVIRONMENTS_OF_AN_UPDATE = 4
_ENVIRONMENTS_OF_AN_UPDATE_PER_EPOCH = 2


@dataclass(frozen=True)
class TrainRequest:
    """What a user asks for, on the command line or in Python: where the settings come from, and their changes.

    Attributes:
        preset: name of a preset. None: the one for the environment.
        settings: changes of the settings that the rest gives, by full names.
        options: changes of single options of the environment, besides those in `settings`.
        config: a file of settings, TOML or a run's config.json.
        trust_imports: import the modules that the settings of an earlier run name.
    """

    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    config: Path | None = None
    run_dir: str | Path | None = None
    name: str | None = None
    resume: str | None = None
    start_from: str | None = None
    trust_imports: bool = False

    @property
    def environment_id(self) -> str | None:
        """The environment that its settings name."""
        found = self.settings.get("environment.id")
        return None if found is None else str(found)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that its settings name for their environment."""
        return modules_of(self.settings)

    def changed(self, config: RunConfig) -> RunConfig:
        """`config` with the changes of its settings."""
        changed = with_settings(config, self.settings)
        options = {**changed.environment.options, **self.options}
        return with_settings(changed, {"environment.options": options}) if self.options else changed


def train_request(word: str | None, settings: Mapping[str, Any], **more: Any) -> TrainRequest:
    """A request with further fields of it. `word` is the name of a preset, the id of an environment, or None."""
    if word is None or more.get("resume") is not None:
        return TrainRequest(word, settings, **more)
    if _ID.search(word):
        return TrainRequest(None, {"environment.id": word, **settings}, **more)
    if word not in PRESETS:
        raise ConfigurationError(f"unknown preset {word}{nearest(word, PRESETS)}; see tributary presets")
    return TrainRequest(word, settings, **more)


class ResolvedRun(NamedTuple):
    """A request with its settings resolved.

    Attributes:
        preset: the preset, or the name of the run, that the settings started from.
        several: the seeds in the folder `resume`, if there are several.
        preset_chosen: the environment decided on the preset, and not the user.
        chosen_in_file: names of the settings that a TOML file changes.
        typed_name: the name that the user gives to the run.
    """

    config: RunConfig
    preset: str
    resume: Path | None = None
    start_from: Path | None = None
    several: SeveralSeeds | None = None
    preset_chosen: bool = False
    chosen_in_file: Sequence[str] = ()
    typed_name: str | None = None

    @property
    def name(self) -> str:
        """The name of the run: the user's, else its preset's, or its environment's where that is another one."""
        if self.typed_name is not None:
            return self.typed_name
        environment, preset = self.config.environment, PRESETS.get(self.preset)
        if preset is None or preset.config.environment.id == environment.registered_id:
            return self.preset
        return environment.registered_id.rpartition("/")[2]


def complete(request: TrainRequest) -> ResolvedRun:
    """Resolve the settings of a run: those of an earlier run, or of a preset and a file, then the user's changes."""
    if request.name is not None and not _NAME.fullmatch(request.name):
        raise setting_error("name", quoted(request.name), "must be letters, digits, and .-_ between them")
    if request.name is not None and request.run_dir is not None:
        raise setting_error("name", request.name, f"--run-dir {request.run_dir} names the folder; leave one out")
    base = base_settings(request)
    config = request.changed(base.config)
    # What is typed takes precedence over the file.
    for chosen in (request.settings, base.chosen_in_file):
        by_hand = [name for name in _SHARED if name in chosen]
        if "actor.fresh_gradients" in chosen and not config.actor.fresh_gradients:
            by_hand.append("actor.fresh_gradients")
        steps = config.actor.steps_in_flight if "actor.steps_in_flight" in chosen else None
        if by_hand and steps is not None:
            option = f"--{by_hand[0].replace('_', '-')}"
            problem = f"chooses {option} by the number of actors; leave one out"
            raise setting_error("actor.steps_in_flight", steps, problem)
        if by_hand:
            config = replace(config, actor=replace(config.actor, steps_in_flight=None))
        if by_hand or steps is not None:
            break
    check_effects(config, [*request.settings, *(("environment.options",) if request.options else ())])
    try:
        check_effects(config, base.chosen_in_file)
    except ConfigurationError as error:
        raise ConfigurationError(f"{request.config}: {error}") from error
    return base._replace(config=config, typed_name=request.name)


def shared_by(config: RunConfig, actors: int) -> RunConfig:
    """The settings with which `actors` actors learn as a few do.

    What learning depends on is the number of agent steps under way at once, not the number of updates between a
    gradient's weights and those that it meets (docs/scaling.md). So `actor.steps_in_flight` is divided among the
    actors: few environments and long unrolls, since many environments with short unrolls learned least at the same
    number. An update keeps its agent steps, and with them the learning rate stays right: fewer minibatches, then the
    mean of several gradients. It is from at least four environments, and two for each epoch, where the rollout can be
    divided into as many minibatches.
    """
    actor, learner = config.actor, config.learner
    steps = actor.environments * actor.unroll_length
    ordered = config.record_arrivals is not None or config.replay_arrivals is not None
    if actor.steps_in_flight is None or actors * steps <= actor.steps_in_flight or ordered:
        return config
    environments, unroll_length = _rollout_within(actor.steps_in_flight // actors, config)
    rollout = environments * unroll_length
    per_update = steps * learner.gradients_per_update // actor.minibatches
    environments_wanted = max(_LEAST_ENVIRONMENTS_OF_AN_UPDATE, _ENVIRONMENTS_OF_AN_UPDATE_PER_EPOCH * actor.epochs)
    together = min(environments_wanted, actor.environments * learner.gradients_per_update)
    wanted = max(1, -(-together // environments)) * rollout
    # With a memory a minibatch is drawn from environments.
    drawable = environments if config.network.recurrent != "none" else rollout
    possible = [m for m in range(1, actor.minibatches + 1) if drawable % m == 0]
    minibatches = next((m for m in possible if m * per_update >= wanted), possible[-1])
    gradients = max(1, minibatches * per_update // rollout)
    return replace(
        config,
        actor=replace(
            actor,
            environments=environments,
            unroll_length=unroll_length,
            minibatches=minibatches,
            fresh_gradients=True,
        ),
        learner=replace(
            learner, gradients_per_update=gradients, accumulation="sum" if config.method.reduction == "sum" else "mean"
        ),
    )


def _rollout_within(steps: int, config: RunConfig) -> tuple[int, int]:
    """Environments and unroll length of the largest rollout of at most `steps` agent steps, the longer one of equals.

    The environments divide the preset's and the unroll length is halved, so that an update is of whole gradients.
    """
    actor = config.actor
    longest, least = max(actor.unroll_length, _LONG_UNROLL), max(_LEAST_STEPS, config.method.n_step or 1)
    unroll_lengths = [longest >> halvings for halvings in range(longest.bit_length()) if longest >> halvings >= least]
    rollouts = [
        (environments, unroll_length)
        for environments in range(1, actor.environments + 1)
        for unroll_length in unroll_lengths
        if actor.environments % environments == 0 and environments * unroll_length <= steps
    ]
    return max(rollouts, key=lambda rollout: (math.prod(rollout), rollout[1]), default=(1, unroll_lengths[-1]))


def sharing_line(config: RunConfig, shared: RunConfig, actors: int) -> str:
    """What `shared_by(config, actors)` changed, as a line for the terminal; empty if it changed nothing."""
    if shared == config:
        return ""
    actor, count = shared.actor, shared.learner.gradients_per_update
    rollout, in_flight = f"{actor.environments} x {actor.unroll_length}", actors * actor.agent_steps_in_flight
    parts = f" in {actor.minibatches} parts" if actor.minibatches > 1 else ""
    update = f"the {shared.learner.accumulation} of {count} gradients" if count > 1 else "one gradient"
    return (
        f"rollouts:     {actors:,} actors share {in_flight:,} agent steps in flight: each {rollout}"
        f"{parts}, an update {update} (--actor.steps-in-flight None: as set)"
    )


def base_settings(request: TrainRequest) -> ResolvedRun:
    """The same as `complete` before the user's changes."""
    if request.resume is not None:
        return _of_resumed_run(request)
    file = None if request.config is None else read_config_file(request.config)
    start_from = None if request.start_from is None else run_path(request.start_from)
    from_preset = request.preset is not None or (file is not None and file.preset is not None)
    if start_from is not None and not from_preset:
        other = RunFolder(start_from)
        config = other.read_config("start_from", trust_imports=request.trust_imports, named_modules=request.modules)
        config = for_another_run(config)
        resolved = ResolvedRun(config, other.outputs.name, start_from=start_from)
    else:
        chosen = not from_preset and start_from is None
        preset, config = _of_preset(request, file)
        resolved = ResolvedRun(config, preset, start_from=start_from, preset_chosen=chosen)
    if file is None:
        return resolved
    changed = file.over(config)
    chosen_in_file = [] if file.whole else chosen_in_toml(file.settings, config)
    return resolved._replace(config=changed, chosen_in_file=chosen_in_file)


def _of_resumed_run(request: TrainRequest) -> ResolvedRun:
    assert request.resume is not None
    excluded = {name: getattr(request, name) for name in ("preset", "config", "run_dir", "name", "start_from")}
    for name, value in excluded.items():
        if value is not None:
            problem = f"--resume {request.resume} has its settings and its folder; leave it out"
            raise setting_error(name, value, problem)
    path = run_path(request.resume)
    if request.resume == LATEST and (path.parent / SEEDS_FILE).is_file():
        # The newest run is one of several seeds, which all go on.
        path = path.parent
    folder = RunFolder(path)
    folder.check_goes_on()
    trust, modules = request.trust_imports, request.modules
    several = read_seeds(folder.path, trust_imports=trust, named_modules=modules)
    if several is not None:
        start_from = None if several.start_from is None else Path(several.start_from)
        return ResolvedRun(several.config, several.preset, folder.path, start_from, several)
    config = folder.read_config(trust_imports=trust, named_modules=modules)
    return ResolvedRun(config, DEFAULT_PRESET, folder.path)


def _of_preset(request: TrainRequest, file: ConfigFile | None) -> tuple[str, RunConfig]:
    """The name of a preset, and the settings that the changes of a file start from.

    The modules that request and file name are imported: they may register what a preset is looked up by.
    """
    import_modules(request.modules)
    if file is not None and file.whole:
        config = file.over(RunConfig())
        if not request.trust_imports:
            check_imports(config.environment, request.modules, "config", str(file.path))
        return request.preset or file.preset or DEFAULT_PRESET, config
    if file is not None:
        import_modules(modules_of(file.settings))
    preset = request.preset or (file and file.preset)
    preset = preset or preset_of_environment(request.environment_id or (file and file.settings.get("environment.id")))
    return preset, PRESETS[preset].config


def preset_of_environment(environment_id: object) -> str:
    """The preset for an environment, or the default."""
    fitting = None if environment_id is None else preset_for(str(environment_id))
    return fitting or DEFAULT_PRESET


def on_the_same_cluster(config: RunConfig, named: Collection[str]) -> RunConfig:
    """The settings of a run that a task of Ray starts: on the same cluster, unless `named` has `address`."""
    ray = sys.modules.get("ray")
    if config.address != "local" or "address" in named or ray is None or not ray.is_initialized():
        return config
    context = ray.get_runtime_context()
    return config if context.worker.mode != ray.WORKER_MODE else replace(config, address=context.gcs_address)
