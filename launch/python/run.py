"""A run in a Python program: its settings, rows, scores, curves and videos."""

import base64
import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from launch.results.curves import read_rows
from launch.results.evaluate import PolicyName, ProtocolName
from launch.run.folder import RunFolder, WeightsName, read_summary
from launch.run.status import run_path
from launch.tensorflow_setup import share_tensorflow
from shared.config import RunConfig


@dataclass(frozen=True)
class Picture:
    """A file with a picture or a video: displayed by a notebook, a path elsewhere."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        content = base64.b64encode(self.path.read_bytes()).decode()
        if self.path.suffix == ".mp4":
            return {"text/html": f'<video controls autoplay loop src="data:video/mp4;base64,{content}"></video>'}
        return {{".png": "image/png", ".gif": "image/gif"}[self.path.suffix]: content}


class Run:
    """A trained run.

    Args:
        run: its folder, `latest`, `zoo:NAME`, the URL of its copy, or another `Run`.

    Raises:
        ConfigurationError: that is no run.
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
        return read_summary(self._folder)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl in the order of their frames, for `pandas.DataFrame` for example."""
        return read_rows(self._folder) if self._folder.metrics.is_file() else []

    def evaluate(
        self,
        *,
        protocol: ProtocolName = "training",
        episodes: int = 100,
        policy: PolicyName = "as-trained",
        weights: WeightsName = "auto",
        seed: int | None = None,
        trust_imports: bool = False,
    ) -> dict[str, Any]:
        """Play whole episodes, as `tributary evaluate` does. Returns what evaluation-PROTOCOL.json then holds.

        Raises:
            ConfigurationError: the run has no such weights, or its environment no such protocol.
            KeyboardInterrupt: there was one; nothing is written.
        """
        from launch.results.evaluate import EvaluateArguments, score

        share_tensorflow()
        arguments = EvaluateArguments(
            run=self.path,
            protocol=protocol,
            episodes=episodes,
            policy=policy,
            weights=weights,
            seed=seed,
            trust_imports=trust_imports,
        )
        result = score(arguments, Console(quiet=True))
        if result is None:
            raise KeyboardInterrupt
        return result

    def plot(self, y: str = "mean_return_100", *, x: Literal["frames", "agent_steps", "seconds"] = "frames") -> Picture:
        """Draw its learning curve, as `tributary plot` does, into curve.png in its folder.

        Raises:
            ConfigurationError: the run has no such figures.
        """
        from launch.results.plot import PlotArguments, plot

        output = self._folder.output("curve.png")
        with redirect_stdout(io.StringIO()):
            plot(PlotArguments(runs=(self.path,), x=x, y=y, output=output))
        return Picture(output)

    def video(
        self,
        *,
        episodes: int = 1,
        format: Literal["mp4", "gif"] = "mp4",
        overlay: bool = False,
        protocol: ProtocolName = "training",
        policy: PolicyName = "as-trained",
        weights: WeightsName = "auto",
        seed: int | None = None,
        trust_imports: bool = False,
    ) -> Picture:
        """Film whole episodes, as `tributary record` does, into videos/ in its folder.

        Raises:
            ConfigurationError: the run has no such weights, or its environment no pictures.
        """
        from launch.film.record import RecordArguments, film

        share_tensorflow()
        arguments = RecordArguments(
            run=self.path,
            episodes=episodes,
            format=format,
            overlay=overlay,
            protocol=protocol,
            policy=policy,
            weights=weights,
            seed=seed,
            trust_imports=trust_imports,
        )
        return Picture(Path(film(arguments, Console(quiet=True))["file"]))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self._folder.name

    def __repr__(self) -> str:
        return f"Run({self._folder.name!r})"
