"""What bench scaling makes of its measurements, how it goes on after an interrupt, and one real measurement."""

import csv
import json
import re
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from launch.bench import scaling as module
from launch.bench.scaling import Point, ScalingArguments, measure_throughput, show, summarise
from launch.bench.throughput import DRIFT
from launch.cli import main
from launch.run.metrics import lag_summary

POINTS = [Point(1, 1, 20), Point(2, 1, 20)]


def measured(point: Point, rate: float, utilisation: float = 0.1, wait: float = 5e-6) -> dict[str, Any]:
    return {
        "kind": "throughput",
        "point": list(point),
        "agent_steps_per_second": rate,
        "frames_per_second": 4 * rate,
        "updates_per_second": rate / 640,
        "policy_lag_mean": 0.5,
        "policy_lag_p95": 1,
        "policy_lag_max": 2,
        "learner_utilisation": utilisation,
        "agent_steps_dropped": {"too_old": 1},
        "stage_seconds_per_step": {
            "environment": 240e-6 * point.actors**0.5,
            "acting": 40e-6,
            "gradient": 60e-6,
            "synchronise": 1e-6,
            "wait": wait,
        },
    }


def parts(seconds: float) -> dict[str, float]:
    return {"environment": seconds / 2, "acting": 0.0, "gradient": seconds / 2}


def components(alone: float, at_once: float | None = None) -> dict[str, Any]:
    """With `at_once`, on two cores, as this version writes them; without, as 0.1.0 did."""
    older = {"kind": "components", "seconds": {"20": parts(alone)}}
    if at_once is None:
        return older
    return older | {"seconds_under_load": {"20": {"1": parts(alone), "2": parts(at_once)}}, "cores": 2}


def test_speed_up_and_efficiency_are_of_medians_against_one_actor_and_the_bound() -> None:
    made = [measured(POINTS[0], rate) for rate in (2_000, 2_500, 9_999)]
    made += [measured(POINTS[1], rate) for rate in (100, 4_500, 4_700)]
    made += [components(3e-4), components(5e-4), {"kind": "ceiling", "gradients_per_second": {"1": 100.0}}]
    one, two = summarise({"envs": 32}, POINTS, made)["points"]
    assert one["agent_steps_per_second"] == 2_500
    assert (two["least"], two["most"]) == (100, 4_700)
    assert two["speed_up"] == pytest.approx(4_500 / 2_500)
    assert two["efficiency"] == pytest.approx(0.9)
    assert two["bound"] == pytest.approx(2 / 4e-4)
    assert two["fraction_of_bound"] == pytest.approx(0.9)
    assert two["learner_ceiling"] == pytest.approx(100.0 * 32 * 20)
    assert two["agent_steps_dropped"] == {"too_old": 3}
    assert two["bound_under_load"] is None


def test_how_far_policies_move_from_those_that_acted_stands_beside_the_actors() -> None:
    """With four gradients of each rollout, each is of a quarter of its agent steps."""
    settings = {"envs": 32, "epochs": 2, "minibatches": 2}
    drifts = {POINTS[0]: (0.05, 0.01, 0.001), POINTS[1]: (0.09, 0.15, 0.012)}
    made = [measured(p, 2_000) | {"drift": dict(zip(DRIFT, drifts[p], strict=True))} for p in POINTS]
    made += [{"kind": "ceiling", "gradients_per_second": {"1": 100.0}}]
    rows = summarise(settings, POINTS, made)["points"]
    assert [tuple(row[name] for name in DRIFT) for row in rows] == list(drifts.values())
    assert {row["learner_ceiling"] for row in rows} == {100.0 * 32 * 20 / 4}
    console = Console(file=StringIO(), width=120)
    show(console, {"points": rows, "verdict": []}, Path("folder"))
    assert re.search(r"drift\s*\n.*0\.050\s*\n.*0\.090", console.file.getvalue())
    plain = summarise({"envs": 32}, POINTS, [measured(p, 2_000) for p in POINTS])["points"]
    assert all(row[name] is None for row in plain for name in DRIFT)


def test_the_bound_under_load_is_of_as_many_processes_as_the_point_has_cores() -> None:
    points = [*POINTS, Point(4, 1, 20)]
    made = [measured(point, 4_000) for point in points] + [components(4e-4, 5e-4), components(4e-4, 5e-4)]
    one, two, four = summarise({"envs": 32}, points, made)["points"]
    assert (one["bound"], one["bound_under_load"]) == (pytest.approx(2_500), pytest.approx(2_500))
    assert (two["bound"], two["bound_under_load"]) == (pytest.approx(5_000), pytest.approx(4_000))
    assert two["fraction_of_bound_under_load"] == pytest.approx(1.0)
    # Two cores bound four actors as they bound two.
    assert (four["bound"], four["bound_under_load"]) == (two["bound"], two["bound_under_load"])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (measured(POINTS[1], 3_900), "no saturation"),
        (measured(POINTS[1], 2_500, utilisation=0.95), "limited by the learner, which is busy 95%"),
        (measured(POINTS[1], 2_500, wait=200e-6), "wait 31% of their time"),
        (measured(POINTS[1], 2_500), "limited by the cores; environment takes 339 µs"),
    ],
)
def test_the_verdict_names_what_holds_back(second: dict[str, Any], words: str) -> None:
    (verdict,) = summarise({"envs": 32}, POINTS, [measured(POINTS[0], 2_000), second])["verdict"]
    assert words in verdict


def test_lag_percentiles() -> None:
    assert lag_summary(Counter({0: 94, 3: 5, 7: 1})) == (pytest.approx(0.22), 3, 7)
    assert lag_summary(Counter()) == (0.0, 0, 0)


def test_an_interrupted_measurement_keeps_what_it_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Point] = []

    def measure(_: ScalingArguments, point: Point) -> dict[str, Any]:
        if len(made) == 3:
            made.append(point)
            raise KeyboardInterrupt
        made.append(point)
        return {k: v for k, v in measured(point, 2_000.0 * point.actors).items() if k not in ("kind", "point")}

    monkeypatch.setattr(module, "measure_throughput", measure)
    monkeypatch.setattr(
        module, "_measure_ceiling", lambda _a, _p, store, _c: store.add("ceiling", gradients_per_second={})
    )
    monkeypatch.setattr(
        module,
        "_measure_components",
        lambda _a, _u, _s, store, _c: store.add("components", seconds=components(4e-4)["seconds"]),
    )
    folder = tmp_path / "scaling"
    assert main(f"bench scaling --repeats 2 --output {folder}".split()) == 130
    assert len(json.loads((folder / "scaling.json").read_text())["points"]) == 2
    assert main(f"bench scaling --continue {folder}".split()) == 0
    # Points take turns; the interrupted one is measured again, and none twice.
    assert made == [*POINTS, *POINTS, POINTS[1]]
    result = json.loads((folder / "scaling.json").read_text())
    assert [row["repeats"] for row in result["points"]] == [2, 2]
    assert result.keys() >= {"command", "hardware", "versions", "settings", "verdict"}
    lines = (folder / "scaling.csv").read_text().splitlines()
    assert json.loads(lines[0].removeprefix("# "))["hardware"]["cores"]
    assert [row["actors"] for row in csv.DictReader(lines[1:])] == ["1", "2"]
    for name in ("throughput", "stages", "lag"):
        assert (folder / f"{name}.svg").read_text().endswith("</svg>\n")
        with Image.open(folder / f"{name}.png") as picture:
            assert "settings" in json.loads(picture.text["Description"])


@pytest.mark.slow
def test_one_real_point() -> None:
    row = measure_throughput(ScalingArguments(envs=2, seconds=5.0), Point(1, 2, 5))
    assert row["agent_steps_per_second"] > 0
    assert 0 < row["learner_utilisation"] < 1
    assert row["drift"] == {}
    row = measure_throughput(ScalingArguments(envs=4, seconds=5.0, epochs=2, minibatches=2), Point(1, 1, 5))
    assert 0 < row["drift"]["ratio_deviation"] < 1
    assert 0 < row["learner_utilisation"] < 1


def test_measurements_go_on_behind_a_line_that_was_cut_short(tmp_path: Path) -> None:
    store = module.Store(tmp_path / "measurements.jsonl")
    store.add("ceiling", value={"a": 1})
    with (tmp_path / "measurements.jsonl").open("a") as file:
        file.write('{"kind": "throughput", "point": {}')
    assert [found["kind"] for found in store.read()] == ["ceiling"]
    store.add("components")
    assert [found["kind"] for found in store.read()] == ["ceiling", "components"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--actors two", "must be numbers like 1,2,4"),
        ("--environment CartPole-v1", "the bench is for Atari; name an ALE game"),
        ("--continue FOLDER", "is not the folder of a scaling measurement"),
        ("--actors 1000", "there is room for"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "scaling", *arguments.replace("FOLDER", str(tmp_path)).split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
