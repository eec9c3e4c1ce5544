"""The tables and pictures of README and docs are those of the rows in the repository."""

import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from launch.bench.scaling import AGENT_STEPS_TO_TARGET

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "studies")]
import figures  # noqa: E402
import measurements  # noqa: E402
import parity  # noqa: E402

MARKED = [page for page in figures.pages() if "<!-- figures: " in page.read_text()]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_a_page_has_the_tables_of_todays_rows(page: Path) -> None:
    assert page.read_text() == figures.written(page.read_text()), "run make figures"


def test_each_table_stands_on_a_page() -> None:
    texts = [page.read_text() for page in figures.pages()]
    marks = [name for text in texts for _, name, _ in figures.MARKED.findall(text)]
    # Each mark has its end: a page has no other comments.
    assert sum(text.count("<!--") for text in texts) == 2 * len(marks)
    names = ("many_workers/rows.csv", "atari/published.csv", "atari/published-57.csv")
    others = {figures.STUDIES / name for name in names}
    tables = {str(file.relative_to(figures.STUDIES)) for file in {*figures.STUDIES.glob("*/*.csv")} - others}
    assert sorted(marks) == sorted(figures.TABLES.keys() | tables)
    assert ROOT / "README.md" in MARKED


@pytest.mark.parametrize("picture", figures.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_of_todays_rows(picture: Path) -> None:
    assert figures.rows_of(picture) in picture.read_text(), "run make figures"


def test_each_picture_of_results_is_drawn() -> None:
    drawn = {*(ROOT / "docs" / "pictures").glob("*.svg"), *figures.REFERENCE_RUNS.glob("*.svg")}
    assert drawn - figures.PICTURES.keys() == {ROOT / "docs" / "pictures" / "architecture.svg"}


def test_five_games_predict_the_median_of_57() -> None:
    games = ("BattleZone", "DoubleDunk", "NameThisGame", "Phoenix", "Qbert")
    random = dict(zip(games, (2360.0, -18.6, 2292.3, 761.4, 163.9), strict=True))
    human = dict(zip(games, (37187.5, -16.4, 8049.0, 7242.6, 13455.0), strict=True))
    assert figures.predicted_median(random) == 0 == figures.predicted_median(random | {"DoubleDunk": -24.0})
    assert figures.predicted_median(human) == pytest.approx(101**0.9653 - 1)
    # Deep IMPALA (arXiv 1802.01561, Table C.1), whose median of 57 games is 192 %.
    impala = dict(zip(games, (20885.0, -0.33, 21537.2, 210996.45, 351200.12), strict=True))
    assert figures.predicted_median(impala) == pytest.approx(226.4, abs=0.1)


def test_each_measurement_says_where_it_was_made() -> None:
    for line in map(json.loads, measurements.MEASUREMENTS.read_text().splitlines()):
        assert line.keys() - {"form", "note"} == {"what", "command", "revision", "day", "cpu", "idle", "figure"}
        assert re.fullmatch(r"[0-9a-f]{8}", line["revision"]), line
        assert re.fullmatch(r"\d+ cores? of an .*\(.*\)", line["cpu"]), line


def test_what_a_run_usually_takes_is_the_median_of_the_rows() -> None:
    pong = [figures.read_object(folder / "summary.json") for folder in figures.REFERENCE_RUNS.glob("pong-seed-*")]
    rows = {"pong": [summary["confirmed_crossing"]["agent_steps"] for summary in pong]}
    rows["cartpole"] = [line["figure"]["agent_steps"] for line in measurements.measured("scores/cartpole")]
    assert {preset: len(found) for preset, found in rows.items()} == {"pong": 5, "cartpole": 3}
    for preset, found in rows.items():
        assert figures.PRESETS[preset].usual_agent_steps == pytest.approx(statistics.median(found), rel=0.01)
    # Rehearsals divide these, by agent steps in flight and epochs, by their rates.
    to_target = defaultdict(list)
    for line in measurements.measured("workers-to-18"):
        form = line["form"]
        in_flight = form["actors"] * form["actor.environments"] * form["actor.unroll_length"]
        to_target[in_flight, form["actor.epochs"]].append(line["figure"]["agent_steps"])
    medians = {form: statistics.median(found) for form, found in {**to_target, (1024, 4): rows["pong"]}.items()}
    assert medians == AGENT_STEPS_TO_TARGET["pong"]
    rehearsed = {line["figure"].get("agent_steps_to_target") for line in measurements.measured("rehearsal")}
    assert rehearsed == {*medians.values(), None}


def test_the_first_steps_of_rmsprops_forms_are_those_of_the_study() -> None:
    with (figures.STUDIES / "parity" / "rmsprop.csv").open(encoding="utf-8") as file:
        said = {row["form"]: float(row["first step"]) for row in csv.DictReader(file)}
    made = {name: parity.first_step(form, parity.START.get(name, 0.0)) for name, form in parity.FORMS.items()}
    assert made == pytest.approx(said, rel=3e-3)
