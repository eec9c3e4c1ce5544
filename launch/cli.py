"""The command line: `tributary COMMAND`. Each command imports what it needs, so that help comes at once."""

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from launch.arguments import option, parse
from launch.output.exit_codes import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE
from launch.output.lasting import lasting_output
from launch.presets import DEFAULT_PRESET, PRESETS
from shared.errors import ConfigurationError

_HELP = """\
usage: tributary COMMAND [ARGUMENTS]

commands:
  train [PRESET]   train an agent (presets: {presets}; default {default})
  evaluate RUN     play whole episodes with the weights of a run, by an explicit protocol
  record RUN       write whole episodes as a video
  plot RUN…        draw learning curves; several seeds become a median with its band
  report RUN…      write one HTML page: what was run, how, and what came of it
  export RUN       write the network as a Keras model and a SavedModel
  bench WHAT       measure: throughput, scaling, learner
  parity           answer by experiment what people ask about TensorFlow's numbers
  plan             predict what a cluster of so many actors would give
  doctor           check this machine, or every node of a cluster
  presets          list the presets
  help [COMMAND]   this list, or all settings of a command, as COMMAND --help does

tributary --version says which version this is.
"""

_TRAIN_HELP = """\
usage: tributary train [PRESET] [SETTINGS]

Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once. The settings that most runs change, with
the values of the preset {preset}:

{settings}

tributary train [PRESET] --help-all shows every setting; docs/settings.md has them on one page.
"""

_BENCH_HELP = """\
usage: tributary bench WHAT [ARGUMENTS]

  throughput       agent steps per second with learning, beside the bound of the cores
  scaling          throughput against the number of actors, and what it saturates on
  learner          gradients per second that one learner takes in

tributary bench WHAT --help shows all settings.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    with lasting_output():
        return _run(*(arguments if arguments is not None else sys.argv[1:] or ["--help"]))


def _run(command: str, *rest: str) -> int:
    try:
        if command == "help" and rest:
            command, rest = rest[0], (*rest[1:], "--help")
        if command in ("-h", "--help", "help"):
            print(_HELP.format(presets=", ".join(PRESETS), default=DEFAULT_PRESET), end="")
            return EXIT_DONE
        if command == "--version":
            return _version()
        if command not in _COMMANDS:
            raise ConfigurationError(f"unknown command {command}{_nearest(command, _COMMANDS)}; see tributary --help")
        return _COMMANDS[command](rest)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _version() -> int:
    from launch.output.provenance import revision

    try:
        installed = version("tributary-rl")
    except PackageNotFoundError:
        installed = "not installed"
    print(f"tributary {installed}, revision {revision()}")
    return EXIT_DONE


def _train(arguments: Sequence[str]) -> int:
    from launch.commands.seeds import parse_seeds, train_seeds
    from launch.commands.train import TrainArguments, default_run_dir, train
    from launch.presets.choice import advice_on_preset, preset_for
    from launch.run.folder import RunFolder
    from launch.run.latest import run_path
    from launch.run.storage import fetch

    rest = list(arguments)
    named = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if named is not None and named not in PRESETS:
        raise ConfigurationError(f"unknown preset {named}{_nearest(named, PRESETS)}; see tributary presets")
    run, environment_id = option(rest, "--resume"), option(rest, "--environment.id")
    fitting = preset_for(environment_id) if environment_id is not None and named is None and run is None else None
    preset = named or fitting or DEFAULT_PRESET
    base = PRESETS[preset].config
    if run is not None and "://" in run:
        url, run = run, str(default_run_dir(run.rstrip("/").rpartition("/")[2]))
        fetch(url, Path(run))
        rest = [run if argument == url else argument.replace(url, run) for argument in rest]
    if run is not None:
        if named is not None:
            raise ConfigurationError(
                f"preset {preset} with --resume {run}: a resumed run has its settings; name no preset"
            )
        base = RunFolder(run_path(run)).read_config()
    if {"-h", "--help"} & set(rest):
        from launch.commands.settings import short_help

        print(_TRAIN_HELP.format(preset=preset, settings=short_help(base, TrainArguments)), end="")
        return EXIT_DONE
    rest = ["--help" if argument == "--help-all" else argument for argument in rest]
    parsed = parse(TrainArguments, "train [PRESET]", rest, TrainArguments(config=base))
    if fitting is not None and fitting != DEFAULT_PRESET:
        print(f"preset:       {fitting}: {PRESETS[fitting].description}")
    if parsed.seeds is None:
        try:
            return train(parsed, preset)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}{advice_on_preset(preset, parsed.config.environment.id)}") from error
    if run is not None:
        raise ConfigurationError(f"--seeds {parsed.seeds} with --resume {run}: resume each seed's run by itself")
    folder = parsed.run_dir or default_run_dir(preset)
    return train_seeds(parsed.config, parse_seeds(parsed.seeds), parsed.side_by_side, folder, preset, parsed.json)


def _evaluate(arguments: Sequence[str]) -> int:
    from launch.results.evaluate import EvaluateArguments, evaluate

    return evaluate(parse(EvaluateArguments, "evaluate", arguments))


def _record(arguments: Sequence[str]) -> int:
    from launch.results.record import RecordArguments, record

    return record(parse(RecordArguments, "record", arguments))


def _plot(arguments: Sequence[str]) -> int:
    from launch.results.plot import PlotArguments, plot

    return plot(parse(PlotArguments, "plot", arguments))


def _report(arguments: Sequence[str]) -> int:
    from launch.results.report import ReportArguments, report

    return report(parse(ReportArguments, "report", arguments))


def _export(arguments: Sequence[str]) -> int:
    from launch.results.export import ExportArguments, export

    return export(parse(ExportArguments, "export", arguments))


def _bench(arguments: Sequence[str]) -> int:
    what, *rest = arguments or ["--help"]
    if what in ("-h", "--help"):
        print(_BENCH_HELP, end="")
        return EXIT_DONE
    if what not in _BENCHES:
        raise ConfigurationError(f"unknown bench {what}{_nearest(what, _BENCHES)}")
    return _BENCHES[what](rest)


def _throughput(arguments: Sequence[str]) -> int:
    from launch.bench.throughput import ThroughputArguments, throughput

    return throughput(parse(ThroughputArguments, "bench throughput", arguments))


def _bench_learner(arguments: Sequence[str]) -> int:
    from launch.bench.learner import LearnerArguments, bench_learner

    return bench_learner(parse(LearnerArguments, "bench learner", arguments))


def _scaling(arguments: Sequence[str]) -> int:
    from launch.bench.scaling import ScalingArguments, scaling

    renamed = [re.sub(r"^--continue(?=$|=)", "--resume", argument) for argument in arguments]
    return scaling(parse(ScalingArguments, "bench scaling", renamed))


def _plan(arguments: Sequence[str]) -> int:
    from launch.bench.plan import PlanArguments, plan

    return plan(parse(PlanArguments, "plan", arguments))


def _doctor(arguments: Sequence[str]) -> int:
    from launch.commands.doctor import DoctorArguments, doctor

    return doctor(parse(DoctorArguments, "doctor", arguments))


def _parity(arguments: Sequence[str]) -> int:
    from launch.parity.command import ParityArguments, parity

    return parity(parse(ParityArguments, "parity", arguments))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write them to, with all their settings."""


def _presets(arguments: Sequence[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    from launch.output.json_file import check_json_file, write_json

    parsed = parse(PresetsArguments, "presets", arguments)
    check_json_file(parsed.json)
    table = Table(box=None, pad_edge=False)
    for heading in ("preset", "environment", "network", "description"):
        table.add_column(heading, no_wrap=heading != "description")
    for name, preset in PRESETS.items():
        default = " (default)" * (name == DEFAULT_PRESET)
        table.add_row(name + default, preset.config.environment.id, preset.config.network.name, preset.description)
    Console().print(table)
    if parsed.json is not None:
        import msgspec

        write_json(parsed.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})
    return EXIT_DONE


_BENCHES: dict[str, Callable[[Sequence[str]], int]] = {
    "throughput": _throughput,
    "scaling": _scaling,
    "learner": _bench_learner,
}

_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "record": _record,
    "plot": _plot,
    "report": _report,
    "export": _export,
    "bench": _bench,
    "parity": _parity,
    "plan": _plan,
    "doctor": _doctor,
    "presets": _presets,
}


def _nearest(name: str, names: Sequence[str] | dict[str, Any]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {near[0]}?" if near else f", there are {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
