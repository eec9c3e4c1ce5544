"""The command line: `tributary COMMAND`."""

import contextlib
import difflib
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from launch.bench.learner import LearnerArguments, bench_learner
from launch.bench.plan import PlanArguments, plan
from launch.bench.scaling import ScalingArguments, scaling
from launch.bench.throughput import ThroughputArguments, throughput
from launch.commands.doctor import DoctorArguments, doctor
from launch.commands.seeds import parse_seeds, train_seeds
from launch.commands.train import TrainArguments, default_run_dir, train
from launch.output.exit_codes import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE
from launch.output.json_file import check_json_file, write_json
from launch.parity.command import ParityArguments, parity
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.results.evaluate import EvaluateArguments, evaluate
from launch.results.export import ExportArguments, export
from launch.results.plot import PlotArguments, plot
from launch.results.record import RecordArguments, record
from launch.results.report import ReportArguments, report
from launch.run.folder import RunFolder
from launch.run.storage import fetch
from shared.errors import ConfigurationError

_Arguments = TypeVar("_Arguments")

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

tributary COMMAND --help shows all settings of a command.
"""

_BENCH_HELP = """\
usage: tributary bench WHAT [ARGUMENTS]

  throughput       agent steps per second with learning, beside the bound of the cores
  scaling          throughput against the number of actors, and what it saturates on
  learner          gradients per second that one learner takes in

tributary bench WHAT --help shows all settings.
"""

# 40M, 2.5k, 1e6: counts are long, and zeros are easily miscounted.
_COUNT = re.compile(r"(\d+(?:\.\d+)?)(?:([kM])|e(\d+))")
_SUFFIXES = {"k": 1e3, "M": 1e6}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    command, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    try:
        if command in ("-h", "--help"):
            print(_HELP.format(presets=", ".join(PRESETS), default=DEFAULT_PRESET), end="")
            return EXIT_DONE
        if command not in _COMMANDS:
            raise ConfigurationError(f"unknown command {command}{_nearest(command, _COMMANDS)}; see tributary --help")
        return _COMMANDS[command](rest)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _train(arguments: Sequence[str]) -> int:
    preset, rest = DEFAULT_PRESET, list(arguments)
    named = bool(rest) and not rest[0].startswith("-")
    if named:
        preset = rest.pop(0)
        if preset not in PRESETS:
            raise ConfigurationError(f"unknown preset {preset}{_nearest(preset, PRESETS)}; see tributary presets")
    base = PRESETS[preset].config
    run = _option(rest, "--resume")
    if run is not None and "://" in run:
        url, run = run, str(default_run_dir(run.rstrip("/").rpartition("/")[2]))
        fetch(url, Path(run))
        rest = [run if argument == url else argument.replace(url, run) for argument in rest]
    if run is not None:
        if named:
            raise ConfigurationError(
                f"preset {preset} with --resume {run}: a resumed run has its settings; name no preset"
            )
        base = RunFolder(Path(run)).read_config()
    parsed = _parse(TrainArguments, "train [PRESET]", rest, TrainArguments(config=base))
    if parsed.seeds is None:
        return train(parsed, preset)
    if run is not None:
        raise ConfigurationError(f"--seeds {parsed.seeds} with --resume {run}: resume each seed's run by itself")
    folder = parsed.run_dir or default_run_dir(preset)
    return train_seeds(parsed.config, parse_seeds(parsed.seeds), parsed.side_by_side, folder, preset, parsed.json)


def _evaluate(arguments: Sequence[str]) -> int:
    return evaluate(_parse(EvaluateArguments, "evaluate", arguments))


def _record(arguments: Sequence[str]) -> int:
    return record(_parse(RecordArguments, "record", arguments))


def _plot(arguments: Sequence[str]) -> int:
    return plot(_parse(PlotArguments, "plot", arguments))


def _report(arguments: Sequence[str]) -> int:
    return report(_parse(ReportArguments, "report", arguments))


def _export(arguments: Sequence[str]) -> int:
    return export(_parse(ExportArguments, "export", arguments))


def _bench(arguments: Sequence[str]) -> int:
    what, *rest = arguments or ["--help"]
    if what in ("-h", "--help"):
        print(_BENCH_HELP, end="")
        return EXIT_DONE
    if what not in _BENCHES:
        raise ConfigurationError(f"unknown bench {what}{_nearest(what, _BENCHES)}")
    return _BENCHES[what](rest)


def _throughput(arguments: Sequence[str]) -> int:
    return throughput(_parse(ThroughputArguments, "bench throughput", arguments))


def _bench_learner(arguments: Sequence[str]) -> int:
    return bench_learner(_parse(LearnerArguments, "bench learner", arguments))


def _scaling(arguments: Sequence[str]) -> int:
    renamed = [re.sub(r"^--continue(?=$|=)", "--resume", argument) for argument in arguments]
    return scaling(_parse(ScalingArguments, "bench scaling", renamed))


def _plan(arguments: Sequence[str]) -> int:
    return plan(_parse(PlanArguments, "plan", arguments))


def _doctor(arguments: Sequence[str]) -> int:
    return doctor(_parse(DoctorArguments, "doctor", arguments))


def _parity(arguments: Sequence[str]) -> int:
    return parity(_parse(ParityArguments, "parity", arguments))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write them to, with all their settings."""


def _presets(arguments: Sequence[str]) -> int:
    parsed = _parse(PresetsArguments, "presets", arguments)
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


def _parse(kind: type[_Arguments], command: str, arguments: Sequence[str], default: Any = None) -> _Arguments:
    """Parse by tyro, and turn what it prints of a mistake into one line."""
    options = {} if default is None else {"default": default}
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(kind, prog=f"tributary {command}", args=[_plain_count(a) for a in arguments], **options)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise ConfigurationError(_one_line(captured.getvalue())) from None


def _one_line(boxed: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    text = re.split(r"Argument helptext|For full helptext|─{20,}\s*│?\s*\n.*helptext", text)[0]
    words = re.sub(r"[\u2500-\u257f]+", " ", text).split()
    line = re.sub(
        r"^(Parsing error|Value error|Unrecognized options|Missing arguments?|Invalid choice)\b:?", "", " ".join(words)
    )
    return line.strip() or "wrong usage"


def _plain_count(argument: str) -> str:
    match = _COUNT.fullmatch(argument)
    if match is None:
        return argument
    number, suffix, exponent = match.groups()
    value = float(number) * (_SUFFIXES[suffix] if suffix else 10.0 ** int(exponent))
    return str(int(value)) if value.is_integer() else argument


def _option(arguments: Sequence[str], name: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _nearest(name: str, names: Sequence[str] | dict[str, Any]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {near[0]}?" if near else f", there are {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
