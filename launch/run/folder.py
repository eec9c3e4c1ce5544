"""What a run leaves on disk: settings, manifest, checkpoints, metrics and summary. Nothing in it can execute."""

import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from actors.environments import EnvironmentSpec
from launch import zoo
from launch.output import make_folder, write_json
from launch.presets.removed import without_removed
from launch.run.lock import FolderLock
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError, setting_error


class RunFolder:
    """The folder of one run. Use as a context: it is locked while the run is alive.

    The folder of an agent that ships is read like any other, and never written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: FolderLock | None = None
        self._made: list[Path] = []

    @property
    def name(self) -> str:
        """What to type for it: its path, or zoo:NAME."""
        return zoo.agent_name(self.path) or str(self.path)

    @property
    def ships(self) -> bool:
        """Whether it is an agent's of the zoo."""
        return zoo.agent_name(self.path) is not None

    @property
    def outputs(self) -> Path:
        """Where commands put what they make of the run: its folder; for an agent that ships, runs/zoo-NAME."""
        return Path("runs", f"zoo-{self.path.name}") if self.ships else self.path

    def output(self, name: str) -> Path:
        """Where a command puts the file or folder `name`; what it is in is made.

        Raises:
            ConfigurationError: it cannot be made.
        """
        path = self.outputs / name
        make_folder(path.parent, "output")
        return path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is one to go on from."""
        return any(self.checkpoints.glob("*.index"))

    @property
    def best_weights(self) -> Path:
        """The weights of the best evaluation, or without evaluations of the best training return, if there was one."""
        return self.path / "best.npz"

    @property
    def first_weights(self) -> Path:
        """The weights that a run started from, if they were another run's."""
        return self.path / "first.npz"

    @property
    def exploit(self) -> Path:
        """A checkpoint of a better run, whose weights this one goes on with; see `exploit.py`."""
        return self.path / "exploit"

    @property
    def manifest(self) -> Path:
        """How its numbers come about."""
        return self.path / "manifest.json"

    @property
    def summary(self) -> Path:
        """Written when the run ends."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """One JSON object per line and logging interval."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the run said while it went on, with the time."""
        return self.path / "log.txt"

    @property
    def videos(self) -> Path:
        """Folder of the videos."""
        return self.outputs / "videos"

    @property
    def observation_mean(self) -> Path:
        """What the network subtracts from observations, if it does."""
        return self.path / "observation_mean.npy"

    def check_free(self) -> None:
        """Refuse a folder in which something is already.

        Raises:
            ConfigurationError: it is not free.
        """
        if self.path.is_file():
            raise setting_error("run_dir", self.path, "is a file; name a folder")
        if self.path.exists() and any(self.path.iterdir()):
            raise setting_error(
                "run_dir", self.path, f"exists; name another folder, or go on with it: --resume {self.path}"
            )

    def create(self, config: RunConfig, spec: EnvironmentSpec, manifest: dict[str, Any]) -> None:
        """Make the folder and write what is known before training.

        Raises:
            ConfigurationError: it is not free, or cannot be made.
        """
        self.check_free()
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_folder(self.path, "run_dir")
        self.write_config(config)
        if spec.observation_mean is not None:
            np.save(self.observation_mean, spec.observation_mean, allow_pickle=False)
        write_json(self.manifest, manifest)

    def discard(self) -> None:
        """Remove what `create` made, unless something was learned. What else is there stays."""
        if self.summary.is_file() and msgspec.json.decode(self.summary.read_bytes())["agent_steps_sampled"]:
            return
        # It was free: all that is in it is of this run.
        for entry in self.path.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def with_observation_mean(self, config: RunConfig, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The spec as an earlier run completed it.

        Raises:
            ConfigurationError: the mean that the run's network subtracts is missing or damaged, or there are no weights
                that it could be for.
        """
        if not self.best_weights.is_file() and not self.has_checkpoint:
            raise ConfigurationError(
                f"{self.path} has no weights, neither {self.best_weights.name} nor a checkpoint: the run was stopped "
                f"before its first one, or they were not kept; start anew: tributary train --config "
                f"{self.path / 'config.json'}"
            )
        if not centres_observations(config, spec):
            return spec
        try:
            mean = np.load(self.observation_mean, allow_pickle=False)
        except (OSError, EOFError, ValueError, SyntaxError, TypeError) as error:
            raise ConfigurationError(f"{self.observation_mean} cannot be read: {error}") from error
        if mean.shape != spec.observation_shape:
            raise ConfigurationError(
                f"{self.observation_mean} has shape {mean.shape}, and observations {spec.observation_shape}; leave "
                f"--environment as it was"
            )
        return replace(spec, observation_mean=mean.astype(np.float32))

    def check_goes_on(self) -> None:
        """Refuse to resume an agent that ships.

        Raises:
            ConfigurationError: it is one.
        """
        if self.ships:
            raise setting_error(
                "resume",
                self.name,
                f"has weights only, and is never written to; start a new run from them: --start-from {self.name}",
            )

    def write_config(self, config: RunConfig) -> None:
        """Write the resolved settings. Their modules may be imported in this process from now on."""
        write_json(self.path / "config.json", msgspec.to_builtins(config))
        if config.environment not in _written_here:
            _written_here.append(config.environment)

    def read_config(
        self, setting: str = "resume", *, trust_imports: bool = False, named_modules: Collection[str] = ()
    ) -> RunConfig:
        """The resolved settings of an earlier run, for making its environment.

        Raises:
            ConfigurationError: see `read_settings` and `check_imports`.
        """
        config = self.read_settings(setting)
        if not trust_imports:
            check_imports(config.environment, named_modules, setting, self.name)
        return config

    def read_settings(self, setting: str = "resume") -> RunConfig:
        """The resolved settings of an earlier run, to look at.

        Raises:
            ConfigurationError: the folder is not a run's, or its settings cannot be read.
        """
        file = self.path / "config.json"
        if not file.is_file():
            raise setting_error(setting, self.path, "is not the folder of a run: it has no config.json")
        try:
            settings = msgspec.json.decode(file.read_bytes())
            if isinstance(settings, dict):
                settings = without_removed(settings)
            return msgspec.convert(settings, RunConfig)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise setting_error(setting, self.path, f"config.json cannot be read: {error}") from error

    def __enter__(self) -> "RunFolder":
        self._lock = FolderLock(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        self._lock.release()


# Settings of environments that this process has written into a run folder.
_written_here: list[EnvironmentConfig] = []


def check_imports(environment: EnvironmentConfig, named_modules: Collection[str], setting: str, place: str) -> None:
    """Refuse settings from a file that name modules, unless the user named the same modules or this process wrote them.

    Args:
        environment: the settings that were read.
        named_modules: modules that the user typed in the same command.
        setting: the option that names the file, for the message.
        place: the file or folder, for the message.

    Raises:
        ConfigurationError: names the modules.
    """
    # Modules that are imported already are no exception: a wrapper is a function of a module with its arguments.
    modules = [name for name in dict.fromkeys(environment.modules) if name not in named_modules]
    if modules and environment not in _written_here:
        raise setting_error(
            setting, place, f"would import {', '.join(modules)}: give --trust-imports to run the code of these modules"
        )


def centres_observations(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """Whether the run's network subtracts a mean observation."""
    return spec.images and config.network.centre_observations
