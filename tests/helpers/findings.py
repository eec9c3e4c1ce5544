"""The table of an experiment: measured figures, and the bounds that some of them must keep."""

import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


def timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


class Row(NamedTuple):
    """One figure. `holds` is None where nothing is required of it."""

    claim: str
    measured: str
    required: str = ""
    holds: bool | None = None


def conclude(question: str, rows: list[Row]) -> None:
    table = Table(title=question, title_justify="left", title_style="bold", pad_edge=False, box=None)
    for header, ratio in ("", 5), ("measured", 5), ("required", 3), ("", 1):
        table.add_column(header, ratio=ratio)
    for row in rows:
        verdict = {None: "", True: "holds", False: "FAILS"}[row.holds]
        table.add_row(row.claim, row.measured, row.required, verdict)
    console = Console(width=150)
    console.print()
    console.print(table, highlight=False)
    assert not [row for row in rows if row.holds is False]
