"""The folder of a run: its files, lock, settings, weights and manifest. Nothing in it is executed.

config.json              resolved settings              checkpoints/          see `learner.checkpoint`
manifest.json            origin of its numbers          best.npz              the best weights, see `BestWeights`
metrics.jsonl, log.txt   rows and messages              first.npz             weights of another run that it began with
summary.json             written at the end             observation_mean.npy  which the network subtracts
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np

from launch import zoo
from launch.files import make_folder, write_json
from launch.output import quoted
from launch.provenance import provenance, revision, versions
from launch.run.lock import LOCK_FILE, holder_of, lock_folder
from launch.run.modules import check_imports, imported_digests, module_digests, trust_environment
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.seeds import ACTOR_SEED_RULE, EPISODE_SEED_RULE, Purpose

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec


# Longer than any row.
_TAIL_BYTES = 65_536


class RunFolder:
    """The folder of one run. The folder of an agent that ships is read like any other, and never written to."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.settings_file = self.path / "config.json"
        self.manifest = self.path / "manifest.json"
        self.summary = self.path / "summary.json"
        self.metrics = self.path / "metrics.jsonl"
        self.log = self.path / "log.txt"
        self.checkpoints = self.path / "checkpoints"
        self.best_weights = self.path / "best.npz"
        self.first_weights = self.path / "first.npz"
        self.observation_mean = self.path / "observation_mean.npy"
        self.ships = zoo.agent_name(self.path) is not None
        # Commands write their files there, for an agent that ships into runs/.
        self.outputs = Path("runs", f"zoo-{self.path.name}") if self.ships else self.path

    @property
    def name(self) -> str:
        """Its name on the command line: the path, or zoo:NAME."""
        return zoo.agent_name(self.path) or str(self.path)

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("*.index"))

    @property
    def was_removed(self) -> bool:
        """True if there is no such folder. False for one whose file system does not respond."""
        try:
            self.path.stat()
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return False

    def output(self, name: str) -> Path:
        """The path of a command's output file, in a folder that exists."""
        path = self.outputs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def check_free(self) -> None:
        """Refuse a file, and a folder that has files, other than the lock of a process that was killed at its start."""
        if self.path.is_file() or (self.path.is_dir() and {entry.name for entry in self.path.iterdir()} - {LOCK_FILE}):
            resume = f", or go on with it: --resume {quoted(self.path)}" if self.has_checkpoint else ""
            raise setting_error("run_dir", self.path, f"exists; name another folder{resume}")

    def make(self) -> IO[bytes]:
        """Make the folder of a new run, and lock it until the returned file is closed; see `lock_folder`."""
        self.check_free()
        make_folder(self.path, "run_dir")
        return lock_folder(self.path)

    def create(self, config: RunConfig, spec: "EnvironmentSpec", manifest: dict[str, Any]) -> None:
        """Write the files of a new run that are known before training."""
        self.write_config(config)
        if spec.observation_mean is not None:
            np.save(self.observation_mean, spec.observation_mean, allow_pickle=False)
        write_json(self.manifest, manifest)

    def discard(self) -> None:
        """Remove the folder, unless agent steps were sampled."""
        # `make` refused a folder with entries: all of them belong to this run.
        if not read_object(self.summary).get("agent_steps_sampled"):
            shutil.rmtree(self.path, ignore_errors=True)

    def discard_without_checkpoint(self) -> None:
        """Remove the folder that a process left that was killed before its first checkpoint.

        It can be neither resumed nor used. That of a process that runs stays, and so does one of another program: some
        have a config.json, too.
        """
        is_a_runs = read_object(self.settings_file).keys() >= {"environment", "actor", "learner"}
        if is_a_runs and not self.has_checkpoint and holder_of(self.path) is None:
            self.discard()

    def as_trained(self, config: RunConfig, spec: "EnvironmentSpec") -> "EnvironmentSpec":
        """Replace in a spec what the network of this run scales observations by: their mean, or their bounds.

        A ConfigurationError: actions of the environment that are bounded otherwise than in training, where the same
        output of the network is another action.
        """
        protocol = read_object(self.manifest).get("environment_protocol", {})
        was, now = (_bounds_of(space) for space in (protocol.get("action_space", spec.action_space), spec.action_space))
        if was != now:
            problem = f"has actions from {now}, and {self.name} was trained with actions from {was}"
            raise setting_error("environment.id", config.environment.id, problem)
        bounds: Any = tuple(map(tuple, protocol.get("observation_bounds", ())))
        bounds_now: Any = spec.observation_bounds
        if np.shape(bounds) == np.shape(bounds_now):
            spec = replace(spec, observation_bounds=bounds)
        if not centres_observations(config, spec):
            return spec
        mean = np.load(self.observation_mean, allow_pickle=False)
        return replace(spec, observation_mean=mean.astype(np.float32))

    def write_config(self, config: RunConfig) -> None:
        """Write all resolved settings. This process may import their modules from now on."""
        # `msgspec.to_builtins` omits fields that an older file lacked: a later change of their default would reach it.
        write_json(self.settings_file, asdict(config))
        trust_environment(config.environment)

    def read_config(self, setting: str = "resume") -> RunConfig:
        """The resolved settings, of which the environment may be made; see `check_imports`."""
        config = self.read_settings(setting)
        check_imports(config.environment, setting, self.name)
        return config

    def read_settings(self, setting: str = "resume") -> RunConfig:
        """The resolved settings, to look at. `setting` is the option that named the folder."""
        file = self.settings_file
        if not file.is_file():
            inner = sorted(path.parent.name for path in self.path.glob("*/config.json"))
            has = f"; it holds {len(inner)}: name one, such as {inner[0]}" if inner else ""
            raise setting_error(setting, self.path, f"is not the folder of a run: it has no config.json{has}")
        try:
            return msgspec.json.decode(file.read_text(encoding="utf-8-sig"), type=RunConfig)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, ConfigurationError) as error:
            raise setting_error(setting, self.path, f"config.json cannot be read: {error}") from error


def _bounds_of(space: Mapping[str, Any]) -> str:
    """The least and the greatest action of a described space, or the first of its choices."""
    return f"{space['low']} to {space['high']}" if "low" in space else str(space.get("start"))


def centres_observations(config: RunConfig, spec: "EnvironmentSpec") -> bool:
    return spec.images and config.network.centre_observations


def manifest(config: RunConfig, spec: "EnvironmentSpec", preset: str, thread_plan: str) -> dict[str, Any]:
    """The content of manifest.json: versions, hardware, seeds, and the environment's protocol."""
    # Help, which imports this module, does without Gymnasium.
    from actors.environments import adapter_of

    environment = config.environment
    protocol: dict[str, Any] = {
        "id": environment.id,
        "actions": list(spec.action_set),
        "observation_shape": list(spec.observation_shape),
        "observation_dtype": spec.observation_dtype,
        **adapter_of(environment).training_protocol(),
    }
    if spec.action_space:
        protocol["action_space"] = spec.action_space
    if config.network.observation_scaling == "bounds":
        protocol["observation_bounds"] = spec.observation_bounds
    others = f"purposes {', '.join(get_args(Purpose))}: {EPISODE_SEED_RULE}; with the version of the weights after the "
    others += "purpose for the environments of training_evaluation"
    return {
        **provenance(),
        "preset": preset,
        "modules": module_digests(environment),
        "threads": thread_plan,
        "seeds": {"run": config.seed, "actors": ACTOR_SEED_RULE, "other_episodes": others},
        "environment_protocol": protocol,
    }


def changed_versions(folder: RunFolder) -> list[str]:
    """A line with the revision and the versions that differ from those that the run began with."""
    before = read_object(folder.manifest)
    was = {"revision": before.get("revision"), **before.get("versions", {})}
    now = {"revision": revision(), **versions()}
    changed = [f"{name} {was[name]} → {now[name]}" for name in now if was.get(name) not in (None, now[name])]
    return [f"since the run began: {', '.join(changed)}"] if changed else []


def changed_modules(folder: RunFolder, environment: EnvironmentConfig) -> list[str]:
    """A line for each module of the user whose sources differ from those that the run began with, and for each that
    has changed since this process imported it."""
    before = read_object(folder.manifest).get("modules", {})
    # The modules of a run that weights come from need not be imported.
    now = {name: digest for name, digest in module_digests(environment).items() if name in imported_digests}
    changed = sorted(name for name in now.keys() & before.keys() if before[name] != now[name])
    stale = sorted(name for name in now if imported_digests[name][1] != now[name])
    return [
        *(f"the sources of module {name} differ from those that the run began with" for name in changed),
        *(f"module {name} has changed since this process imported it: start the process anew" for name in stale),
    ]


def last_row(folder: RunFolder) -> dict[str, Any]:
    """The last whole row of metrics.jsonl; empty without one."""
    lines = []
    with suppress(OSError), folder.metrics.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        lines = file.read().splitlines()
    # Half a line: of a process that was killed or writes.
    return next((row for row in map(object_of, reversed(lines)) if row), {})


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it cannot be read, or has another type."""
    with suppress(OSError):
        return object_of(file.read_bytes())
    return {}


def object_of(text: bytes) -> dict[str, Any]:
    """The object in the text of a JSON file; empty if it cannot be read, or has another type."""
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def agent_steps_learned(folder: RunFolder) -> int:
    """Agent steps of the run, and of the runs whose weights it started from."""
    steps = max(read_object(folder.summary).get("agent_steps_sampled", 0), last_row(folder).get("agent_steps", 0))
    before = read_object(folder.manifest).get("started_from", {})
    return int(steps + before.get("agent_steps", 0))
