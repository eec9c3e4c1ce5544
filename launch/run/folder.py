"""The folder of a run: its files, lock, settings, weights and manifest. Nothing in it is executed.

config.json              resolved settings              checkpoints/          see `learner.checkpoint`
manifest.json            origin of its numbers          best.npz              the best weights, see `BestWeights`
metrics.jsonl, log.txt   rows and messages              first.npz             weights of another run that it began with
summary.json             written at the end             observation_mean.npy  which the network subtracts
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from launch import zoo
from launch.machine import machine_id
from launch.output import make_folder, provenance, quoted, revision, versions, write_json
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError, one_line, setting_error
from shared.layout import ParameterLayout
from shared.seeds import ACTOR_SEEDS_ARE, SEEDS_ARE, Purpose
from shared.types import WeightSnapshot

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec

# The number of a checkpoint's updates.
WeightsName = int | Literal["auto", "best", "latest"]
LOGGER = logging.getLogger("tributary")
LOCK_FILE = ".lock"
# The look of `holder_of` at a lock takes less than this.
_LOOK_SECONDS, _TRIES = 0.05, 4
# Longer than any row.
_TAIL_BYTES = 65_536
# NumPy quotes a damaged header, of any length.
_MOST_OF_AN_ERROR = 300
# Exceptions of NumPy's reader for damaged files, as seen with files that were cut or altered.
_DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error, NotImplementedError)
# Settings of environments that this process has written into a run folder, or had written by its child.
_written_here: list[EnvironmentConfig] = []
# Modules that settings from files may name. None: every module.
_permitted: ContextVar[frozenset[str] | None] = ContextVar("permitted", default=frozenset())


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
        self.videos = self.outputs / "videos"
        self._made: list[Path] = []

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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            # Not every command has --output.
            advice = "change to a folder that can be written to" if self.ships else "copy the run to another place"
            line = f"the folder of the results, {path.parent}, cannot be made: {error.strerror}; {advice}"
            raise ConfigurationError(line) from error
        return path

    def check_free(self) -> None:
        """Refuse a file, and a folder that has files, other than the lock of a process that was killed at its start."""
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            raise setting_error("run_dir", ascii(str(self.path)), "is no UTF-8, which TensorFlow needs") from None
        if self.path.is_file() or (self.path.is_dir() and {entry.name for entry in self.path.iterdir()} - {LOCK_FILE}):
            resume = f", or go on with it: --resume {quoted(self.path)}" if self.settings_file.is_file() else ""
            raise setting_error("run_dir", self.path, f"exists; name another folder{resume}")

    def check_goes_on(self) -> None:
        if self.ships:
            advice = f"start a new run from them: --start-from {quoted(self.name)}"
            raise setting_error("resume", self.name, f"has weights only, and is never written to; {advice}")

    def make(self) -> IO[bytes]:
        """Make the folder of a new run, and lock it until the returned file is closed; see `lock_folder`."""
        self.check_free()
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_folder(self.path, "run_dir")
        try:
            # Another process may have made it, too.
            lock = lock_folder(self.path)
        except ConfigurationError:
            self._remove_empty()
            raise
        if self.settings_file.exists():
            lock.close()
            raise setting_error("run_dir", self.path, "has the run of another process; name another folder")
        return lock

    def create(self, config: RunConfig, spec: "EnvironmentSpec", manifest: dict[str, Any]) -> None:
        """Write the files of a new run that are known before training."""
        self.write_config(config)
        if spec.observation_mean is not None:
            np.save(self.observation_mean, spec.observation_mean, allow_pickle=False)
        write_json(self.manifest, manifest)

    def discard(self) -> None:
        """Remove the folder and the parents that `make` made, unless agent steps were sampled."""
        if read_object(self.summary).get("agent_steps_sampled"):
            return
        # `make` refused a folder with entries: all of them belong to this run.
        for entry in self.path.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        self._remove_empty()

    def _remove_empty(self) -> None:
        """Remove the folder and the parents that `make` made, as far as they are empty."""
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def as_trained(self, config: RunConfig, spec: "EnvironmentSpec") -> "EnvironmentSpec":
        """Replace in a spec what the network of this run scales observations by: their mean, or their bounds.

        A ConfigurationError: a mean that is missing or damaged, a run without weights, and actions of the environment
        that are bounded otherwise than in training, where the same output of the network is another action.
        """
        if not self.best_weights.is_file() and not self.has_checkpoint:
            raise ConfigurationError(
                f"{self.path} has no weights, neither best.npz nor a checkpoint: the run was stopped before its first "
                f"one, or they were not kept; start anew: tributary train --config {quoted(self.settings_file)}"
            )
        protocol = read_object(self.manifest).get("environment_protocol", {})
        was, now = (_bounds_of(space) for space in (protocol.get("action_space", spec.action_space), spec.action_space))
        if was != now:
            problem = f"has actions from {now}, and {self.name} was trained with actions from {was}"
            raise setting_error("environment.id", config.environment.id, problem)
        bounds: Any = tuple(map(tuple, protocol.get("observation_bounds", ())))
        given: Any = spec.observation_bounds
        if bounds != given and np.shape(bounds) == np.shape(given):
            LOGGER.warning("%s: other bounds of observations than now: its network scales by its own", self.name)
            spec = replace(spec, observation_bounds=bounds)
        if not centres_observations(config, spec):
            return spec
        try:
            mean = np.load(self.observation_mean, allow_pickle=False)
        except (*_DAMAGE, SyntaxError) as error:
            problem = one_line(error, _MOST_OF_AN_ERROR)
            raise ConfigurationError(f"{self.observation_mean} cannot be read: {problem}") from error
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
            raise setting_error(setting, self.path, "is not the folder of a run: it has no config.json")
        if is_of_another_program(file):
            raise setting_error(setting, self.path, "is not the folder of a run: its config.json is another program's")
        try:
            return msgspec.json.decode(file.read_text(encoding="utf-8-sig"), type=RunConfig)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise setting_error(setting, self.path, f"config.json cannot be read: {error}") from error


def is_of_another_program(file: Path) -> bool:
    """True if a config.json that can be read has no environment. Other programs keep folders below runs/, too."""
    values = read_object(file)
    return bool(values) and not isinstance(values.get("environment"), dict)


def trust_environment(environment: EnvironmentConfig) -> None:
    """From now on, `check_imports` accepts these settings in this process."""
    _written_here.append(environment)


@contextmanager
def imports_permitted(*modules: str, every: bool = False) -> Iterator[None]:
    """Permit settings from files to name these modules, or `every` module, within this context.

    Opened by an entrance, for the words of its user: the command line and the functions of `tributary_rl`.
    """
    before = _permitted.get()
    _permitted.set(None if every or before is None else before.union(modules))
    try:
        yield
    finally:
        _permitted.set(before)


def check_imports(environment: EnvironmentConfig, setting: str, place: str) -> None:
    """Refuse settings from a file that name modules, unless they are permitted or this process wrote the settings.

    `setting` is the option that named the file or folder `place`.
    """
    permitted = _permitted.get()
    if permitted is None or environment in _written_here:
        return
    # Modules that are imported already are no exception: a wrapper is a function of a module with its arguments.
    modules = [name for name in dict.fromkeys(environment.modules) if name not in permitted]
    if modules:
        raise setting_error(
            setting, place, f"would import {', '.join(modules)}: give --trust-imports to run the code of these modules"
        )


def _bounds_of(space: Mapping[str, Any]) -> str:
    """The least and the greatest action of a described space, or the first of its choices."""
    return f"{space['low']} to {space['high']}" if "low" in space else str(space.get("start"))


def centres_observations(config: RunConfig, spec: "EnvironmentSpec") -> bool:
    return spec.images and config.network.centre_observations


# ---- Lock


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a folder; `pid` None: unknown, while the process writes it.

    `machine` names the boot and the process namespace in which `pid` is valid: containers may share a host name.
    """

    pid: int | None = None
    host: str | None = None
    machine: str | None = None

    @property
    def here(self) -> bool:
        """True if the process is known, and its id is valid here."""
        return self.pid is not None and self.machine == _this_machine()


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock an existing folder until the returned file is closed, by its context for example, or this process ends.

    A folder that another process holds, or that cannot be written to or locked, is a ConfigurationError. The file of a
    lock stays: after its removal two processes could lock two files of this name.
    """
    path = folder / LOCK_FILE
    new = not path.exists()
    try:
        # Not truncated when it is opened: its content belongs to the process that holds the lock.
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise ConfigurationError(f"folder {folder} cannot be written to: {error.strerror}") from error
    locked = False
    try:
        _lock(file)
        locked = True
        file.truncate(0)
        file.write(msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), _this_machine())))
        # The file stays open, and NFS shows other machines what was written when it is closed or synchronised.
        os.fsync(file.fileno())
    except OSError as error:
        problem = f"cannot be written to: {error.strerror}"
        if isinstance(error, BlockingIOError):
            problem = f"is in use by another process; stop that first: tributary stop {quoted(folder)}"
        elif not locked:
            problem = (
                f"cannot be locked ({error.strerror}), so two runs could write to it: name one on a file system with "
                f"locks (for Lustre: mounted with flock)"
            )
        if new and not isinstance(error, BlockingIOError):
            # An older one may be locked by a process on another machine, while the lock server does not respond here.
            # On a full disk, another process that has opened the new one cannot write to it, either.
            path.unlink(missing_ok=True)
        file.close()
        raise ConfigurationError(f"folder {folder} {problem}") from error
    return file


def _lock(file: IO[bytes]) -> None:
    # `holder_of` holds the lock for a moment. flock has no time limit, and to wait for a run could take days.
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOOK_SECONDS)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder_of(folder: Path) -> Holder | None:
    """The process that holds a folder; None if none does."""
    try:
        # Shared: two readers at once do not take each other for a run.
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode((folder / LOCK_FILE).read_bytes(), type=Holder)
        return Holder()
    except OSError:
        # No such file, or a file system without locks, on which no run can have begun.
        pass
    return None


def _this_machine() -> str:
    # Systems without /proc have no boot id to read, and no process namespaces.
    return machine_id() or socket.gethostname()


# ---- Weights


def load_weights(folder: RunFolder, which: WeightsName, layout: ParameterLayout) -> tuple[WeightSnapshot, str]:
    """A run's weights, and a description of their source. Imports TensorFlow.

    Raises:
        ConfigurationError: the run has none, or they are damaged or belong to another network.
    """
    from learner.checkpoint import checkpoint_updates, read_checkpoint

    if which in ("auto", "best") and folder.best_weights.is_file():
        return read_weights(folder.best_weights, layout, "" if folder.ships else "; use --weights latest")
    if which == "best":
        raise setting_error("weights", "best", f"{folder.path} has no best weights; use --weights latest")
    if which != "auto" and folder.ships:
        raise setting_error("weights", which, f"{folder.name} has its best weights only; leave --weights out")
    if not isinstance(which, int):
        version, parameters = read_checkpoint(folder.checkpoints, layout)
        return WeightSnapshot(version, parameters), f"the last checkpoint (update {version})"
    updates = checkpoint_updates(folder.checkpoints)
    if updates and which not in updates:
        nearest = " and ".join(map(str, sorted(sorted(updates, key=lambda update: abs(update - which))[:2])))
        raise setting_error("weights", which, f"no checkpoint is of this update; the nearest are of {nearest}")
    version, parameters = read_checkpoint(folder.checkpoints, layout, which)
    return WeightSnapshot(version, parameters), f"the checkpoint of update {version}"


def write_weights(
    path: Path, snapshot: WeightSnapshot, layout: ParameterLayout, source: str, dtype: npt.DTypeLike = np.float32
) -> None:
    """Write weights as an .npz file. `source` describes their source; `dtype` may be float16."""
    version, parameters = snapshot.version, snapshot.parameters.astype(dtype)
    np.savez_compressed(path, version=version, parameters=parameters, layout=layout.fingerprint, source=source)


def read_weights(path: Path, layout: ParameterLayout, advice: str = "") -> tuple[WeightSnapshot, str]:
    """Weights float32 [P] from an .npz file, and a description of their source.

    A damaged file (`advice` ends the message), or weights of another network, are a ConfigurationError.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            version, parameters = int(file["version"]), file["parameters"].astype(np.float32)
            if "source" in file:
                source, fingerprint = str(file["source"]), str(file["layout"])
            else:
                source = f"the weights that were best in {file['measure']} (update {version})"
                fingerprint = layout.fingerprint
    except _DAMAGE as error:
        raise ConfigurationError(f"{path} cannot be read: {one_line(error, _MOST_OF_AN_ERROR)}{advice}") from error
    if parameters.shape != (layout.size,) or fingerprint != layout.fingerprint:
        raise ConfigurationError(
            f"{path} is of another network: it has {parameters.size:,} parameters (layout {fingerprint}), the settings "
            f"make one of {layout.size:,} (layout {layout.fingerprint})"
        )
    return WeightSnapshot(version, parameters), source


def best_score(folder: RunFolder) -> tuple[str, float] | None:
    """The measure of a run's best weights, and their mean return; None if the file is missing or damaged."""
    try:
        with np.load(folder.best_weights, allow_pickle=False) as best:
            return str(best["measure"]), float(best["mean_return"])
    except _DAMAGE:
        return None


# ---- Manifest, summary and rows


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
        "autoreset": "next_step",
        "rewards_clipped_for_training": environment.clip_rewards,
        "returns_clipped": False,
        "frame_skip": environment.frame_skip,
        **adapter_of(environment).training_protocol(),
    }
    if spec.images:
        protocol["mean_of_random_play_subtracted"] = config.network.centre_observations
    if spec.action_space:
        protocol["action_space"] = spec.action_space
    if config.network.observation_scaling == "bounds":
        protocol["observation_bounds"] = spec.observation_bounds
    others = f"purposes {', '.join(get_args(Purpose))}: {SEEDS_ARE}; with the version of the weights after the purpose "
    others += "for the environments of training_evaluation"
    return {
        **provenance(),
        "preset": preset,
        "modules": module_digests(environment),
        "threads": thread_plan,
        "seeds": {"run": config.seed, "actors": ACTOR_SEEDS_ARE, "other_episodes": others},
        "environment_protocol": protocol,
    }


def module_digests(environment: EnvironmentConfig) -> dict[str, str]:
    """The SHA-256 of the sources of the user's imported modules, by name; of a package that of all its files."""
    digests = {}
    for name in set(environment.modules):
        module = sys.modules.get(name)
        files = [Path(file)] if (file := getattr(module, "__file__", None)) else []
        for folder in getattr(module, "__path__", ()):
            files += Path(folder).rglob("*.py")
        sources = b"\0".join(file.read_bytes() for file in sorted(set(files)) if file.is_file())
        digests[name] = hashlib.sha256(sources).hexdigest()
    return digests


def changed_versions(folder: RunFolder) -> list[str]:
    """A line with the revision and the versions that differ from those that the run began with."""
    before = read_object(folder.manifest)
    was = {"revision": before.get("revision"), **before.get("versions", {})}
    now = {"revision": revision(), **versions()}
    changed = [f"{name} {was[name]} → {now[name]}" for name in now if was.get(name) not in (None, now[name])]
    return [f"since the run began: {', '.join(changed)}"] if changed else []


def changed_modules(folder: RunFolder, environment: EnvironmentConfig) -> list[str]:
    """A line for each module of the user whose sources differ from those that the run began with."""
    before, now = read_object(folder.manifest).get("modules", {}), module_digests(environment)
    return [
        f"the sources of module {name} differ from those that the run began with"
        for name in sorted(now)
        if name in before and before[name] != now[name]
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
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


def agent_steps_learned(folder: RunFolder) -> int:
    """Agent steps of the run, and of the runs whose weights it started from."""
    own = max(read_object(folder.summary).get("agent_steps_sampled", 0), last_row(folder).get("agent_steps", 0))
    before = read_object(folder.manifest).get("started_from", {})
    return int(own + before.get("agent_steps", 0))
