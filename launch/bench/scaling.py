"""`tributary bench scaling`: throughput against the number of actors, beside the bound and the learner's ceiling."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.scaling_measurements import Store, measure_all
from launch.bench.scaling_result import Point, show, summarise, write
from launch.bench.scaling_settings import ScalingArguments, bench_config, points_of
from launch.machine.budget import thread_budget
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, check_json_file, make_folder, write_json
from shared.errors import setting_error


def scaling(arguments: ScalingArguments) -> int:
    """Run `tributary bench scaling`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    folder, arguments = _open(arguments)
    points = points_of(arguments)
    spec = _check(arguments, points, folder)
    store = Store(folder / "measurements.jsonl")
    console = Console()
    interrupted = False
    try:
        measure_all(arguments, points, spec, store, console)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted: what was measured is kept")
    result = summarise(_settings(arguments), points, store.read())
    if not result["points"]:
        console.print(f"nothing was measured; go on with tributary bench scaling --continue {folder}", soft_wrap=True)
        return EXIT_INTERRUPTED
    write(folder, result)
    show(console, result, folder)
    if interrupted:
        console.print(f"go on with: tributary bench scaling --continue {folder}", soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def _open(arguments: ScalingArguments) -> tuple[Path, ScalingArguments]:
    """The folder, and the settings: those in it when it is gone on with."""
    if arguments.resume is not None:
        file = arguments.resume / "settings.json"
        if not file.is_file():
            raise setting_error("continue", arguments.resume, "is not the folder of a scaling measurement")
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=ScalingArguments)
        except msgspec.DecodeError as error:
            raise setting_error("continue", arguments.resume, f"settings.json cannot be read: {error}") from error
        return arguments.resume, replace(kept, json=arguments.json)
    folder = arguments.output or Path(f"scaling-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise setting_error("output", folder, f"exists; name another, or go on with it: --continue {folder}")
    return folder, arguments


def _check(arguments: ScalingArguments, points: Sequence[Point], folder: Path) -> EnvironmentSpec:
    """Refuse what could not be measured; make the folder."""
    for name in ("seconds", "until_seconds"):
        if not getattr(arguments, name) > 0:
            raise setting_error(name, getattr(arguments, name), "must be greater than 0")
    if arguments.repeats < 1:
        raise setting_error("repeats", arguments.repeats, "must be at least 1")
    spec = environment_spec(bench_config(arguments, points[0]).environment)
    if not spec.has_lives:
        raise setting_error("environment", arguments.environment, "the bench is for Atari; name an ALE game")
    if arguments.address == "local":
        for point in points:
            thread_budget(bench_config(arguments, point))
    if arguments.resume is None:
        make_folder(folder, "output")
        write_json(folder / "settings.json", _settings(arguments))
    return spec


def _settings(arguments: ScalingArguments) -> dict[str, Any]:
    """What is measured; where the results go is not part of it."""
    return {name: value for name, value in asdict(arguments).items() if name not in ("output", "resume", "json")}
