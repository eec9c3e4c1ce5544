"""The tables and pictures of README and docs are those of the rows in the repository."""

import json
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import figures  # noqa: E402
import measurements  # noqa: E402

MARKED = [page for page in figures.pages() if "<!-- figures: " in page.read_text()]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_a_page_has_the_tables_of_todays_rows(page: Path) -> None:
    assert page.read_text() == figures.written(page.read_text()), "run make figures"


def test_each_table_stands_on_a_page() -> None:
    marks = {name for page in MARKED for name in re.findall(r"<!-- figures: (\S+) -->\n", page.read_text())}
    others = {figures.STUDIES / "many_workers" / "rows.csv", figures.STUDIES / "atari" / "published.csv"}
    tables = {str(file.relative_to(figures.STUDIES)) for file in {*figures.STUDIES.glob("*/*.csv")} - others}
    assert marks == figures.TABLES.keys() | tables
    assert ROOT / "README.md" in MARKED


@pytest.mark.parametrize("picture", figures.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_of_todays_rows(picture: Path) -> None:
    assert figures.rows_of(picture) in picture.read_text(), "run make figures"


def test_each_picture_of_results_is_drawn() -> None:
    drawn = {*(ROOT / "docs" / "pictures").glob("*.svg"), *figures.REFERENCE_RUNS.glob("*.svg")}
    assert drawn - figures.PICTURES.keys() == {ROOT / "docs" / "pictures" / "architecture.svg"}


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


def bench(**more: object) -> dict:
    """What `tributary bench scaling pong --actors 2,64 --rehearse` writes."""
    points = [{"actors": n, "agent_steps_per_second": 2345.678, "full": "actors", "stages": {}} for n in (2, 64)]
    made = {"command": "tributary bench scaling pong --actors 2,64 --rehearse --json /tmp/a.json", "preset": "pong"}
    made |= {"created": "2026-11-29T10:00:00+00:00", "revision": "801fa19a0000", "hardware": {"cores": 2}}
    return {"points": points, "busy": [], "settings": {"actors": "2,64"}, **made, **more}


def test_a_bench_becomes_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MEASUREMENTS", tmp_path / "lines")
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(bench()))
    measurements.add("rehearsal", file, "AMD EPYC (Zen 5)")
    two, many = measurements.measured("rehearsal")
    assert two["command"] == "tributary bench scaling pong --actors 2,64 --rehearse"
    assert two["figure"] == {"actors": 2, "agent_steps_per_second": 2346.0, "full": "actors"}
    assert measurements.where(two) == "`801fa19`, 2026-11-29, 2 cores of an AMD EPYC (Zen 5), idle"
    assert (two["form"]["actor.environments"], many["form"]["actor.environments"]) == (16, 2)
    assert measurements.marked("2", two) == "2"
    # The preset is changed: the figure of before says so.
    two["form"]["actor.epochs"] += 1
    assert measurements.marked("2", two) == "2, **an earlier form**"
    file.write_text(json.dumps(bench(busy=["load"], command="tributary bench throughput pong --actor.epochs 1")))
    measurements.add("other", file, "AMD EPYC (Zen 5)")
    assert not any("form" in line or line["idle"] for line in measurements.measured("other"))
