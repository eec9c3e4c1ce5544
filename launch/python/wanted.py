"""A run that a program wants to be trained: which settings it has, and where it is kept."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.commands.preset_line import base_settings, named_modules, preset_or_environment
from launch.commands.train_line import settings_to_start_from
from launch.commands.training_process import training_process
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import advice_on_preset
from launch.presets.written import named, read_config_file, with_settings
from launch.run.folder import RunFolder
from launch.run.status import default_run_dir, numbered, run_path
from shared.config import RunConfig
from shared.errors import setting_error


class WantedRun:
    """The run that `tributary_rl.train` was asked for. See there for what each argument is.

    Attributes:
        folder: of the run.
        config: its settings.
        preset: what they start from.

    Raises:
        ConfigurationError: the settings cannot be, or the arguments not together.
    """

    def __init__(
        self,
        preset: str | None,
        settings: Mapping[str, Any],
        *,
        config: Any = None,
        run_dir: Any = None,
        resume: Any = None,
        start_from: Any = None,
        trust_imports: bool = False,
    ) -> None:
        self._resumes = resume is not None
        self._start_from = None if start_from is None else run_path(str(start_from))
        self._made = False
        self._typed = ["--trust-imports"] if trust_imports else list[str]()
        if self._resumes:
            given = {"preset": preset, "config": config, "run_dir": run_dir, "start_from": start_from}
            for name, value in given.items():
                if value is not None:
                    raise setting_error(name, value, f"--resume {resume} has its settings and its folder; leave it out")
            folder = RunFolder(run_path(str(resume)))
            folder.check_goes_on()
            modules = named_modules(_environment_line(settings))
            base = folder.read_config(trust_imports=trust_imports, named_modules=modules)
            self.preset = DEFAULT_PRESET
        else:
            if preset is not None:
                preset, environment_id = preset_or_environment(preset)
                settings = settings if environment_id is None else {"environment.id": environment_id, **settings}
            self.preset, base = self._base(preset, config, settings)
        self.config = _on_the_same_cluster(with_settings(base, settings), settings)
        self.folder = folder.path if self._resumes else self._new_folder(run_dir)

    @property
    def advice(self) -> str:
        """What the command line adds to a mistake in the settings; see `advice_on_preset`."""
        if self._resumes or self.preset not in PRESETS:
            return ""
        return advice_on_preset(self.preset, self.config.environment.id)

    def process(self) -> AbstractContextManager[subprocess.Popen[str]]:
        """The process that trains it, with its output in a pipe."""
        return training_process(
            self.config,
            self.folder,
            self.preset,
            subprocess.PIPE,
            resume=self._resumes,
            start_from=self._start_from,
            asked_by=["tributary_rl.train", self.preset, *self._typed],
        )

    def discard_if_empty(self) -> None:
        """Remove the folder that was made for a run that could not start."""
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()

    def _base(self, preset: str | None, config: Any, settings: Mapping[str, Any]) -> tuple[str, RunConfig]:
        """As the command line has it: the preset that the settings start from, and those that they change."""
        file = None if config is None else read_config_file(Path(config))
        if self._start_from is not None and preset is None and (file is None or file.preset is None):
            other = RunFolder(self._start_from)
            base = settings_to_start_from(
                other, trust_imports=bool(self._typed), named_modules=named_modules(_environment_line(settings))
            )
            return other.outputs.name, base if file is None else file.over(base)
        return base_settings(preset, file, [*self._typed, *_environment_line(settings)])

    def _new_folder(self, run_dir: Any) -> Path:
        if run_dir is not None:
            return Path(run_dir).absolute()
        for folder in numbered(default_run_dir(self.preset).absolute()):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise setting_error("run_dir", folder, f"cannot be made: {error.strerror}") from error
            self._made = True
            return folder
        raise AssertionError("unreachable")


def _environment_line(settings: Mapping[str, Any]) -> list[str]:
    """What is looked at before the settings are read, as it is typed: the environment, and the modules to import."""
    found = named(settings)
    environment, imports = found.get("environment.id"), found.get("environment.imports", ())
    line = [] if environment is None else ["--environment.id", str(environment)]
    return [*line, "--environment.imports", *imports] if imports else line


def _on_the_same_cluster(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """In a task or an actor of Ray's a run is on the cluster of that, unless an address is set."""
    # A program that has not imported it is in neither.
    ray = sys.modules.get("ray")
    if config.address != "local" or "address" in named(settings) or ray is None or not ray.is_initialized():
        return config
    context = ray.get_runtime_context()
    return config if context.worker.mode != ray.WORKER_MODE else replace(config, address=context.gcs_address)
