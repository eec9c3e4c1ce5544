"""`tributary plot RUN…`: learning curves; several seeds as a median with quartiles, several games as one figure."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro
from rich.console import Console

from launch.output import EXIT_DONE, check_json_file, check_output, print_line, provenance, write_json
from launch.results.aggregate import Aggregate, aggregates
from launch.results.curves import Band, Curve, XAxis, bands, read_curve
from launch.run.folder import RunFolder
from launch.run.latest import RunPath
from shared.errors import ConfigurationError, setting_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PlotArguments:
    """Draw learning curves of one or more runs. Runs that differ in their seed only become one median with a band, and
    runs of several environments have a panel for each."""

    runs: Annotated[tuple[RunPath, ...], tyro.conf.Positional]
    """Folders of runs, folders that hold such folders, latest, or zoo:NAME."""
    x: XAxis = "frames"
    """frames, agent_steps, or seconds of training."""
    y: str = "mean_return_100"
    """Any figure of metrics.jsonl."""
    aggregate: Literal["median", "iqm"] = "median"
    """median: of runs that differ in their seed only, with quartiles. iqm: the interquartile mean over seeds and games
    with a 95 % stratified bootstrap band (arXiv 2108.13264); of several games, returns are human-normalised."""
    output: Path | None = None
    """File to write, .png or .svg. Default: both, as curve.png and curve.svg in the folder of the run; of several runs,
    in the folder that they are in, or else in the working directory."""
    json: Path | None = None
    """File to write the curves to."""


def plot(arguments: PlotArguments) -> int:
    """Run `tributary plot`. Returns the exit code.

    Raises:
        ConfigurationError: a folder is not a run's, or has no such figures.
    """
    check_json_file(arguments.json)
    output = arguments.output
    check_output(output, (".png", ".svg"))
    runs = find_runs(arguments.runs)
    curves = [read_curve(run, arguments.x, arguments.y) for run in runs]
    drawing = _iqm(curves, arguments) if arguments.aggregate == "iqm" else _medians(curves, arguments)
    from launch.results.pictures import save

    paths = [output] if output is not None else [default_output(runs, f"curve.{kind}") for kind in ("png", "svg")]
    with drawing.picture as drawn:
        save(drawn, paths, runs=[RunFolder(run).name for run in runs])
    console = Console()
    for line in drawing.lines:
        print_line(console, line)
    for path in paths:
        print_line(console, f"curves: {path}")
    if arguments.json is not None:
        how = {"x": arguments.x, "y": arguments.y, "aggregate": arguments.aggregate}
        write_json(arguments.json, {**how, "groups": drawing.groups, **provenance()})
    return EXIT_DONE


class _Drawing(NamedTuple):
    """What to draw, to print, and to write of the curves."""

    picture: AbstractContextManager["Figure"]
    lines: list[str]
    groups: list[dict[str, Any]]


def _medians(curves: list[Curve], arguments: PlotArguments) -> _Drawing:
    groups = bands(curves)
    from launch.results.curve_picture import curves_figure

    return _Drawing(curves_figure(groups, arguments.x, arguments.y), band_lines(groups), as_json(groups))


def _iqm(curves: list[Curve], arguments: PlotArguments) -> _Drawing:
    groups = aggregates(curves, arguments.y)
    from launch.results.curve_picture import aggregates_figure

    return _Drawing(
        aggregates_figure(groups, arguments.x, arguments.y),
        [aggregate_line(group, arguments.x) for group in groups],
        [_aggregate_as_json(group) for group in groups],
    )


def find_runs(paths: tuple[Path, ...]) -> list[Path]:
    """The folders of runs among `paths` and right below them.

    Raises:
        ConfigurationError: there is none.
    """
    if not paths:
        raise ConfigurationError("RUN: is missing; name at least one run folder, or latest")
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / "config.json").is_file() else sorted(p.parent for p in path.glob("*/config.json"))
        if not inside:
            raise setting_error("run", path, "is not the folder of a run, and holds none")
        found += inside
    return found


def default_output(runs: list[Path], name: str) -> Path:
    """Where the file `name` that is made of these runs goes: into the run's folder; of several, into the one that holds
    them all side by side, or else the working directory. The first one's folder would say of itself what is true of
    all."""
    if len(runs) == 1:
        return RunFolder(runs[0]).output(name)
    parents = {run.absolute().parent for run in runs}
    in_one = len(parents) == 1 and not RunFolder(runs[0]).ships
    return (parents.pop() if in_one else Path.cwd()) / name


def band_lines(groups: list[Band]) -> list[str]:
    """Where each group ended, in words."""
    lines = []
    for band in groups:
        ends = ", ".join(f"{curve.y[-1]:.1f} (seed {curve.config.seed})" for curve in band.curves)
        lines.append(f"{band.label}: at the end {ends}")
    return lines


def aggregate_line(group: Aggregate, x: XAxis) -> str:
    """Where a group ended, in words. It ends where the first of its runs does."""
    runs = ", ".join(f"{name} {count}" for name, count in group.games.items())
    what = "interquartile mean of human-normalised returns" if group.human_normalised else "interquartile mean"
    band = f"95 % {group.low[-1]:.2f} to {group.high[-1]:.2f}"
    if max(group.games.values()) == 1:
        band = "no band from one run of each"
    return (
        f"{group.label}: at {group.x[-1]:,.0f} {x.replace('_', ' ')} {what} {group.iqm[-1]:.2f}, {band} (runs: {runs})"
    )


def _aggregate_as_json(group: Aggregate) -> dict[str, Any]:
    return {
        "label": group.label,
        "games": group.games,
        "runs": [{"folder": str(curve.folder), "seed": curve.config.seed} for curve in group.curves],
        "x": group.x.tolist(),
        "interquartile_mean": group.iqm.tolist(),
        "interval_95_low": group.low.tolist(),
        "interval_95_high": group.high.tolist(),
        "human_normalised": group.human_normalised,
    }


def as_json(groups: list[Band]) -> list[dict[str, Any]]:
    """The numbers behind the picture."""
    return [
        {
            "label": band.label,
            "runs": [
                {"folder": str(c.folder), "seed": c.config.seed, "x": c.x.tolist(), "y": c.y.tolist()}
                for c in band.curves
            ],
            "x": band.x.tolist(),
            "lower_quartile": band.low.tolist(),
            "median": band.median.tolist(),
            "upper_quartile": band.high.tolist(),
        }
        for band in groups
    ]
