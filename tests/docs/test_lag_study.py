"""The study of docs/lag.md is kept with its recipe, from which its orders of arrival and its tables follow."""

import hashlib
import json
import re
import shlex
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag import LagArguments, shared_settings
from launch.bench.lag_cells import Cell, order_file
from launch.bench.lag_result import markdown, summarise
from launch.commands.arguments import parse
from launch.commands.preset_line import spelt_out
from launch.presets import PRESETS
from shared.config import RunConfig, flat_settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "lag.md").read_text()
STUDY = json.loads((DOCS / "lag-study" / "study.json").read_text())
ROWS: list[dict[str, Any]] = [json.loads(line) for line in (DOCS / "lag-study" / "rows.jsonl").read_text().splitlines()]

# The same recipe at other learning rates.
RATES = [json.loads(line) for line in (DOCS / "lag-study" / "rates.jsonl").read_text().splitlines()]


def told() -> RunConfig:
    """The settings of the command that the page tells."""
    (line,) = re.findall(r"^tributary bench lag cartpole .*--total-frames.*$", PAGE, re.M)
    _, _, _, preset, *typed = shlex.split(line, comments=True)
    base = PRESETS[preset].config
    return shared_settings(parse(LagArguments, "bench lag", spelt_out(typed), LagArguments(base)).config, base)


def test_the_page_tells_the_command_of_the_study() -> None:
    now = flat_settings(told())
    assert {name: now[name] for name in STUDY["settings"] if name in now} == STUDY["settings"]
    assert STUDY["model"] == msgspec.to_builtins(ArrivalModel())


def test_the_tables_are_those_of_the_rows() -> None:
    assert markdown(told(), summarise(ROWS)).strip() in PAGE


def test_the_table_of_rates_is_that_of_its_rows() -> None:
    """Mean and range over the seeds of both files, at the end and over the run."""
    seeds = {row["seed"] for row in RATES}
    same = [row for row in ROWS if (row["gradients_per_update"], row["rate"]) == (1, 1) and row["seed"] in seeds]
    found = defaultdict[tuple[int, float, str], list[tuple[float, float]]](list)
    for row in RATES + same:
        over_the_run = statistics.mean(value for value in row["curve"] if value is not None)
        found[row["actors"], row["rate"], row["correction"]].append((row["evaluation_mean_return"], over_the_run))
    for actors, rate in sorted({(row["actors"], rate) for row in RATES for rate in (row["rate"], 1.0)}):
        cells = [found[actors, rate, correction] for correction in ("none", "inverse", "gap")]
        assert all(len(cell) == len(seeds) for cell in cells)
        ends = [[end for end, _ in cell] for cell in cells]
        told = [f"{statistics.mean(e):.0f} ({min(e):.0f} to {max(e):.0f})" for e in ends]
        runs = [f"{statistics.mean(over for _, over in cell):.0f}" for cell in cells]
        assert f"| {actors} | ×{rate:g} | {' | '.join(told)} | {' | '.join(runs)} |" in PAGE


def test_orders_of_arrival_follow_from_the_recipe(tmp_path: Path) -> None:
    config, model = told(), msgspec.convert(STUDY["model"], ArrivalModel)
    seen = set()
    for row in [*ROWS, *RATES]:
        cell = Cell(**{name: row[name] for name in Cell._fields})
        file = order_file(tmp_path, model, config, cell)
        if file not in seen:
            assert hashlib.sha256(file.read_bytes()).hexdigest()[:16] == row["arrivals_sha256"], cell.name
            seen.add(file)
    assert len(seen) >= 10
