"""Runs in a Python program: one that trains, in a driver process of its own, and the results of any."""

import base64
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from rich.console import Console

from launch.commands.display import Display
from launch.driver import train_in_process
from launch.files import to_json
from launch.interrupts import StopRequest
from launch.results.curves import XAxis, bands, curve_of, read_metrics, read_rows
from launch.results.evaluate import EvaluateArguments, PolicyName, ProtocolName, score
from launch.run.events import Event, Row, Started
from launch.run.folder import RunFolder, last_row, read_object
from launch.run.lookup import discard_if_empty, new_run_dir, run_path
from launch.run.metrics import OWN, append_line
from launch.run.modules import imports_permitted
from launch.run.weights import WeightsName
from launch.settings.files import by_full_name, read_value
from launch.settings.resolve import ResolvedRun, TrainRequest, resolve_request
from launch.tensorflow_setup import share_tensorflow
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

OnRow = Callable[[dict[str, Any]], object]
OnEvent = Callable[[Event, "Training"], object]


@dataclass(frozen=True)
class Picture:
    """A file with a picture or a video: displayed by a notebook, a path elsewhere. A later one may replace the file."""

    path: Path
    _content: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_content", self.path.read_bytes())

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        content = base64.b64encode(self._content).decode()
        if self.path.suffix == ".mp4":
            return {"text/html": f'<video controls autoplay loop src="data:video/mp4;base64,{content}"></video>'}
        return {{".png": "image/png", ".gif": "image/gif"}[self.path.suffix]: content}


class PlayOptions(TypedDict, total=False):
    """The options of methods that play whole episodes: those of `tributary evaluate`, with its defaults."""

    protocol: ProtocolName
    policy: PolicyName
    weights: WeightsName
    seed: int | None
    trust_imports: bool


class Run:
    """A trained run.

    Args:
        run: its folder, `latest`, `zoo:NAME`, the URL of its copy, or another `Run`.

    Raises:
        ConfigurationError: there is no such run.
    """

    def __init__(self, run: str | PathLike[str]) -> None:
        self._folder = RunFolder(run_path(str(run)))
        self.config: RunConfig = self._folder.read_settings("run")

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def summary(self) -> dict[str, Any]:
        """Its result, as summary.json has it; empty before the run has ended."""
        return read_object(self._folder.summary)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl in the order of their frames, for `pandas.DataFrame` for example."""
        return read_rows(self._folder) if self._folder.metrics.is_file() else []

    def evaluate(self, *, episodes: int = 100, **options: Unpack[PlayOptions]) -> dict[str, Any]:
        """Play whole episodes, as `tributary evaluate` does. Returns the new content of evaluation-PROTOCOL.json.

        Raises:
            ConfigurationError: the run has no such weights, or its environment no such protocol.
            KeyboardInterrupt: there was one; nothing is written.
        """
        share_tensorflow()
        arguments = EvaluateArguments(run=self.path, episodes=episodes, **options)
        with imports_permitted(every=arguments.trust_imports), chdir("."):
            result = score(arguments, Console(quiet=True))
        if result is None:
            raise KeyboardInterrupt
        return result

    def plot(self, y: str = "mean_return_100", *, x: XAxis = "frames") -> Picture:
        """Draw its learning curve, as `tributary plot` does, into curve.png in its folder.

        Raises:
            ConfigurationError: the run has no such figures.
        """
        from launch.results.plot import curves_figure, save

        output = self._folder.output("curve.png")
        with curves_figure(bands([curve_of(read_metrics(self.path), x, y)]), x, y) as chart:
            save(chart, [output], runs=[self._folder.name])
        return Picture(output)

    def video(
        self,
        *,
        episodes: int = 1,
        format: Literal["mp4", "gif"] = "mp4",
        overlay: bool = False,
        **options: Unpack[PlayOptions],
    ) -> Picture:
        """Film whole episodes, as `tributary record` does, into videos/ in its folder.

        Raises:
            ConfigurationError: the run has no such weights, or its environment no pictures.
            KeyboardInterrupt: one came before the first frame.
        """
        from launch.film.record import RecordArguments, film

        share_tensorflow()
        arguments = RecordArguments(run=self.path, episodes=episodes, format=format, overlay=overlay, **options)
        with imports_permitted(every=arguments.trust_imports), chdir("."):
            file = film(arguments, Console(quiet=True))["file"]
        if file is None:
            raise KeyboardInterrupt
        return Picture(Path(file))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self._folder.name

    def __repr__(self) -> str:
        return f"Run({self._folder.name!r})"


def resolved_run(
    preset: str | None, settings: Mapping[str, Any] | None, *, trust_imports: bool = False, **where: Any
) -> ResolvedRun:
    """The arguments of `tributary_rl.train` as a run with resolved settings; for errors see `resolve_request`."""
    if preset is not None and not isinstance(preset, str):
        problem = "is no text: register the class of an environment in a module, and give MODULE:ID"
        raise setting_error("preset", f"{preset}", problem)
    # A text of another type, such as an enumeration, would be none in the run's process.
    changes, preset = by_full_name(settings or {}), read_value("preset", str | None, preset)
    named = {name: where.pop(name, None) for name in ("seed", "total_frames", "stop_after_seconds")}
    changes |= {name: value for name, value in named.items() if value is not None}
    where |= {name: str(where[name]) for name in ("resume", "start_from") if where.get(name) is not None}
    where["config"] = read_value("config", Path | None, where.get("config"))
    with imports_permitted(every=trust_imports):
        run = resolve_request(TrainRequest(preset, changes, **where))
    _check_that_others_find(run.config.environment)
    return run


def _check_that_others_find(environment: EnvironmentConfig) -> None:
    """Refuse an environment that is registered in this process only: a run has processes of its own."""
    # Importing this module does without it.
    import gymnasium

    spec = gymnasium.registry.get(environment.registered_id)
    entry = spec and spec.entry_point
    if entry is None:
        return
    entry = entry.func if isinstance(entry, partial) else entry
    module = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__
    program, name = getattr(sys.modules["__main__"], "__file__", None), environment.registered_id
    # A script may name itself as a module.
    files = [getattr(sys.modules.get(of), "__file__", None) for of in environment.modules]
    if module == "__main__" and (program is None or program not in files):
        problem = "is registered by this script or notebook, which other processes cannot import; put it into a module"
        raise setting_error("environment.id", environment.id, f"{problem}, and give MODULE:{name}")
    if environment.modules:
        return
    package = module.partition(".")[0]
    plugins = {plugin.module.partition(".")[0] for plugin in entry_points(group="gymnasium.envs")}
    if package not in {"gymnasium", "ale_py", *plugins}:
        problem = f"is registered in this process only: register it in {module}, and give {module}:{name}"
        raise setting_error("environment.id", environment.id, problem)


class Training:
    """A run under way, see `tributary_rl.train`. When the program that started it ends, it is saved and ends too."""

    def __init__(
        self, run: ResolvedRun, run_dir: Any, on_row: OnRow | None, on_event: OnEvent | None = None, *, progress: bool
    ) -> None:
        self._run, self._on_row, self._on_event, self._progress = run, on_row, on_event, progress
        self._command = ["tributary_rl.train", run.preset]
        self._made = run.resume is None and run_dir is None
        if run_dir is not None:
            # As on the command line, which takes ~ for the home folder.
            run_dir = read_value("run_dir", Path, run_dir).absolute()
        self.path: Path = run.resume or run_dir or new_run_dir(run.name)
        self._started, self._ended = threading.Event(), threading.Event()
        self._stop = StopRequest()
        self._error: BaseException | None = None
        # That of the callbacks.
        self._thread: int | None = None
        # Recorded numbers that no row has yet, and the last row.
        self._unwritten: dict[str, float] = {}
        self._row: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        """True until the run has ended."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Make the run finish the rollouts under way, save and end. Returns at once; `wait` waits for the end."""
        self._stop.request("stop()")

    def record(self, numbers: Mapping[str, float]) -> None:
        """Add these numbers to the next row of the run, to TensorBoard and W&B, as own/NAME. Returns at once.

        Those that come after the last row are in a copy of it at the end of metrics.jsonl.
        """
        row = {str(name): float(value) for name, value in numbers.items()}
        self._unwritten |= row
        self._stop.numbers.update(row)
        if not self.running:
            self._write_late()

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended, at most `timeout` seconds. Returns the run, done or stopped.

        Raises:
            ConfigurationError: it could not start.
            TrainingFailedError: it failed, or was stopped before it trained.
            TimeoutError: it goes on.
            RuntimeError: called by `on_row` or `on_event`, for whose return the run waits.
            Exception: the error of `on_row` or `on_event`, after which the run was stopped and saved.
        """
        if self.running and threading.get_ident() == self._thread:
            raise RuntimeError("wait() in a callback would wait for the callback itself")
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the run in {self.path} goes on")
        if self._error is not None:
            raise self._error
        return Run(self.path)

    def start(self) -> None:
        """Train in another thread. Returns when the run has its folder and starts its actors, or has ended.

        Raises:
            ConfigurationError: it could not start.
        """
        threading.Thread(target=self.follow, daemon=True).start()
        try:
            self._started.wait()
        except BaseException:
            # An interrupt: the caller has no handle yet by which to stop the run.
            self.stop()
            raise
        if isinstance(self._error, ConfigurationError):
            raise self._error

    def follow(self) -> None:
        """Train until the run has ended. `wait` raises its errors."""
        self._thread = threading.get_ident()
        console = Console(force_terminal=False, force_jupyter=False, quiet=not self._progress)
        try:
            with Display(self._run.config, console, self._run.preset) as display:
                self._train(display)
        except BaseException as error:
            self._error = error
            if isinstance(error, KeyboardInterrupt) and not self._stop.interrupted:
                # Nobody pressed Ctrl-C.
                stopped = "the run was stopped before it trained"
                if RunFolder(self.path).has_checkpoint:
                    resume = f"resume={str(self.path)!r} goes on from its last checkpoint"
                    stopped = f"the run was stopped without a learner; {resume}"
                self._error = TrainingFailedError(stopped)
        finally:
            if self._made:
                discard_if_empty(self.path)
            self._ended.set()
            self._started.set()
            # What came in between.
            with suppress(OSError):
                self._write_late()

    def _train(self, display: Display) -> None:
        def on_event(event: Event) -> object:
            display.show(event)
            if isinstance(event, Started):
                self._started.set()
            if isinstance(event, Row):
                self._row = event.values
                for name, value in list(self._unwritten.items()):
                    if self._row.get(OWN + name) == value:
                        del self._unwritten[name]
            goes_on = None if self._on_event is None else self._on_event(event, self)
            if isinstance(event, Row) and self._on_row is not None and not _is_false(goes_on):
                goes_on = self._on_row(event.values)
            return not _is_false(goes_on)

        try:
            result = train_in_process(
                self._run.config, self.path, on_event, stop=self._stop, command=self._command, **self._run.options
            )
        except TrainingFailedError as error:
            raise TrainingFailedError(f"{error} ({self.path})") from error
        self._write_late()
        if result.trained and result.status == "failed":
            raise TrainingFailedError(f"training ended with the status failed; see log.txt in {self.path}")

    def _write_late(self) -> None:
        """Write a copy of the last row with the numbers that came after it."""
        if not self._unwritten or not self._row:
            return
        # Readers take it in place of the row before. After the rows of a later session it would replace those.
        if last_row(RunFolder(self.path)).get("frames", self._row["frames"]) == self._row["frames"]:
            self._row = self._row | {OWN + name: value for name, value in self._unwritten.items()}
            self._unwritten = {}
            append_line(RunFolder(self.path).metrics, to_json(self._row).encode() + b"\n")


def _is_false(returned: object) -> bool:
    """True if a callback returned False, or NumPy's False, the result of comparing with a mean of NumPy's."""
    return isinstance(returned, bool | np.bool_) and not returned
