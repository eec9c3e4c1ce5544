"""`tributary parity`: run the experiments, print a table of each, and say whether what must hold holds."""

import importlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output.json_file import check_json_file, write_json
from launch.output.provenance import provenance
from launch.parity.finding import Finding
from shared.errors import setting_error

_FEWEST_SEEDS = 5
_COLOURS = {"holds": "green", "fails": "bold red", "reported": "dim"}


@dataclass(frozen=True)
class ParityArguments:
    """Answer by experiment what people ask about TensorFlow's numbers: eager and graph, gradients, optimizers."""

    traces: int = 200
    """Fresh traces of each kind of step in experiment 3."""
    seeds: int = 5
    """Seeds of the experiments that repeat (at least 5)."""
    only: tuple[int, ...] = ()
    """Numbers of the experiments to run. Default: all."""
    json: Path | None = None
    """File to write every figure to."""


def parity(arguments: ParityArguments) -> int:
    """Run `tributary parity`. Returns the exit code: 0 if every required row holds, else 1.

    Raises:
        ConfigurationError: a mistake in the arguments.
    """
    check_json_file(arguments.json)
    if arguments.traces < 1:
        raise setting_error("traces", arguments.traces, "must be at least 1")
    if arguments.seeds < _FEWEST_SEEDS:
        raise setting_error("seeds", arguments.seeds, f"must be at least {_FEWEST_SEEDS}: medians of fewer say little")
    unknown = [number for number in arguments.only if number not in _EXPERIMENTS]
    if unknown:
        raise setting_error("only", unknown[0], f"there are experiments 1 to {len(_EXPERIMENTS)}")
    prepare_tensorflow(1, gpu=False)
    _silence_retracing()
    console = Console()
    findings: dict[int, Finding] = {}
    for number in arguments.only or tuple(_EXPERIMENTS):
        module, takes = _EXPERIMENTS[number]
        console.print(f"experiment {number} of {len(_EXPERIMENTS)} …", style="dim", highlight=False)
        started = time.perf_counter()
        findings[number] = _experiment(module, takes, arguments)()
        _show(console, number, findings[number], time.perf_counter() - started)
    required = [row for finding in findings.values() for row in finding.rows if row.verdict != "reported"]
    failing = [row.claim for row in required if row.verdict == "fails"]
    if failing:
        console.print(f"{len(failing)} of {len(required)} required rows fail: {'; '.join(failing)}", style="bold red")
    else:
        console.print(f"all {len(required)} required rows hold", style="bold green", highlight=False)
    if arguments.json is not None:
        experiments = {str(number): asdict(finding) for number, finding in findings.items()}
        write_json(
            arguments.json,
            {**provenance(), "holds": not failing, "experiments": experiments},
        )
    return 1 if failing else 0


# The module of each experiment, and the argument that its `run` takes.
_EXPERIMENTS = {
    1: ("returns", "seeds"),
    2: ("slots", "seeds"),
    3: ("fused_step", "traces"),
    4: ("learning_speed", "seeds"),
    5: ("accumulation", None),
    6: ("prediction", None),
    7: ("behaviour", None),
    8: ("rmsprop", "seeds"),
}


def _experiment(module: str, takes: str | None, arguments: ParityArguments) -> Callable[[], Finding]:
    run = importlib.import_module(f"launch.parity.{module}").run
    return partial(run, getattr(arguments, takes)) if takes else run


def _silence_retracing() -> None:
    # Fresh traces are what is measured; TensorFlow would warn of each.
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")


def _show(console: Console, number: int, finding: Finding, seconds: float) -> None:
    title = f"{number}. {finding.question}  ({seconds:.0f} s)"
    table = Table(title=title, title_justify="left", title_style="bold", show_lines=False, pad_edge=False, box=None)
    table.add_column("", ratio=5)
    table.add_column("measured", ratio=5)
    table.add_column("required", ratio=3)
    table.add_column("", no_wrap=True)
    for row in finding.rows:
        table.add_row(row.claim, row.measured, row.expected, f"[{_COLOURS[row.verdict]}]{row.verdict}[/]")
    console.print(table, highlight=False)
    console.print(" ".join(finding.explanation.split()), highlight=False, markup=False)
    console.print()
