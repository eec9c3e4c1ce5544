"""The study of docs/lag.md is kept with its recipe, from which its orders of arrival and its tables follow."""

import hashlib
import itertools
import json
import re
import shlex
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag import LagArguments, shared_settings
from launch.bench.lag_cells import CORRECTIONS, Cell, order_file
from launch.bench.lag_result import markdown
from launch.bench.lag_summary import summarise
from launch.commands.arguments import parse
from launch.commands.preset_line import spelt_out
from launch.presets import PRESETS
from shared.config import RunConfig, flat_settings

DOCS = Path(__file__).parents[2] / "docs"
ZOO = DOCS.parent / "launch" / "zoo"
PAGE = (DOCS / "lag.md").read_text()
STUDY = json.loads((DOCS / "lag-study" / "study.json").read_text())
ROWS: list[dict[str, Any]] = [json.loads(line) for line in (DOCS / "lag-study" / "rows.jsonl").read_text().splitlines()]

# The same recipe at other learning rates, and with an eighth of the actors slower.
RATES = [json.loads(line) for line in (DOCS / "lag-study" / "rates.jsonl").read_text().splitlines()]
STRAGGLERS = [json.loads(line) for line in (DOCS / "lag-study" / "stragglers.jsonl").read_text().splitlines()]
# Games by an earlier preset.
GAMES = {
    name: [json.loads(line) for line in (DOCS / "lag-study" / f"{name}.jsonl").read_text().splitlines()]
    for name in ("pong", "breakout")
}
# Pong by the preset for games.
PONG_DRIFT = [json.loads(line) for line in (DOCS / "lag-study" / "pong-drift.jsonl").read_text().splitlines()]


def over_the_run(row: dict[str, Any]) -> float:
    """The mean of a run's curve."""
    return statistics.mean(value for value in row["curve"] if value is not None)


def told() -> RunConfig:
    """The settings of the command that the page tells."""
    (line,) = re.findall(r"^tributary bench lag cartpole .*--seeds 1-5$", PAGE, re.M)
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
    same = [row for row in ROWS if row["gradients_per_update"] == 1 and row["rate"] >= 1 and row["seed"] in seeds]
    found = defaultdict[tuple[int, float, str], list[tuple[float, float]]](list)
    for row in RATES + same:
        found[row["actors"], row["rate"], row["correction"]].append((row["evaluation_mean_return"], over_the_run(row)))
    for actors, rate in sorted({(row["actors"], rate) for row in RATES for rate in (1.0, 4.0, row["rate"])}):
        cells = [found[actors, rate, correction] for correction in ("none", "inverse")]
        assert all(len(cell) == len(seeds) for cell in cells)
        ends = [[end for end, _ in cell] for cell in cells]
        told = [f"{statistics.mean(e):.0f} ({min(e):.0f} to {max(e):.0f})" for e in ends]
        runs = [f"{statistics.mean(over for _, over in cell):.0f}" for cell in cells]
        assert f"| {actors} | ×{rate:g} | {' | '.join(told)} | {' | '.join(runs)} |" in PAGE


def test_the_table_of_stragglers_is_that_of_its_rows() -> None:
    """As the table of rates is, beside the same seeds without stragglers."""
    seeds = {row["seed"] for row in STRAGGLERS}
    same = [row for row in ROWS if (row["gradients_per_update"], row["rate"]) == (1, 1) and row["seed"] in seeds]
    for actors in {row["actors"] for row in STRAGGLERS}:
        for slow, rows in (("0", same), ("1/8", STRAGGLERS)):
            ends, runs = list[str](), list[str]()
            for correction in CORRECTIONS:
                cell = [row for row in rows if (row["actors"], row["correction"]) == (actors, correction)]
                assert {row["seed"] for row in cell} == seeds
                end = [row["evaluation_mean_return"] for row in cell]
                ends.append(f"{statistics.mean(end):.0f} ({min(end):.0f} to {max(end):.0f})")
                runs.append(f"{statistics.mean(over_the_run(row) for row in cell):.0f}")
            oldest = [row["policy_lag_max"] for row in rows if (row["actors"], row["correction"]) == (actors, "none")]
            lags = f"{min(oldest)} to {max(oldest)}"
            assert f"| {actors} | {slow} | {lags} | {' | '.join(ends)} |" in PAGE
            assert f"| {actors} | {slow} | {' | '.join(runs)} |" in PAGE


def test_orders_of_arrival_follow_from_the_recipe(tmp_path: Path) -> None:
    config, even = told(), msgspec.convert(STUDY["model"], ArrivalModel)
    seen = set()
    for name, model, rows in (("even", even, ROWS + RATES), ("slow", replace(even, stragglers=0.125), STRAGGLERS)):
        folder = tmp_path / name
        folder.mkdir()
        for row in rows:
            cell = Cell(**{name: row[name] for name in Cell._fields})
            file = order_file(folder, model, config, cell)
            if file not in seen:
                assert hashlib.sha256(file.read_bytes()).hexdigest()[:16] == row["arrivals_sha256"], cell.name
                seen.add(file)
    assert len(seen) >= 10


def test_the_table_of_games_is_that_of_their_rows() -> None:
    returns = {
        (game, row["actors"], row["correction"], row["rate"], row["seed"]): row["evaluation_mean_return"]
        for game, rows in GAMES.items()
        for row in rows
    }
    section = PAGE.partition("### Pong and Breakout")[2].partition("###")[0]
    told = 0
    for actors, correction, rate, *cells in re.findall(
        r"^\| ([\d,]+) \| [\d.]+ \| (\w+), ×(\d) \| (.+) \| (.+) \| (.+) \|$", section, re.M
    ):
        for (game, seed), cell in zip([("pong", 1), ("pong", 2), ("breakout", 1)], cells, strict=True):
            key = (game, int(actors.replace(",", "")), correction, float(rate), seed)
            assert cell == (f"{returns[key]:.2f}" if key in returns else "not run"), key
            told += key in returns
    assert told == len(returns)


def test_the_tables_of_how_far_the_policy_moves_are_those_of_their_rows() -> None:
    for row in PONG_DRIFT:
        line = f"| {row['actors']} | {row['policy_lag_mean']:.3g} | {row['ratio_deviation']:.3f} | "
        assert line + f"{row['clipped_share']:.1%} | {row['approximate_kl']:.4f} |" in PAGE
    ends = (0, 0.5e6, 1e6, 2e6, 4e6, 6e6, 8e6, 10.1e6)
    for agent in ("breakout", "spaceinvaders", "pong", "qbert", "seaquest"):
        rows = [json.loads(line) for line in (ZOO / agent / "metrics.jsonl").read_text().splitlines()]
        # Nothing was differentiated again before the first row that tells.
        rows = [row for row in rows if "ratio_deviation" in row]
        means = [
            statistics.mean(row["ratio_deviation"] for row in rows if start <= row["agent_steps"] < end)
            for start, end in itertools.pairwise(ends)
        ]
        actors, lag = max(row["actors_alive"] for row in rows), statistics.mean(row["policy_lag_mean"] for row in rows)
        told = " | ".join(f"{mean:.3f}" for mean in means)
        assert f"| `zoo:{agent}` | {actors} | {lag:.1f} | {told} |" in PAGE
