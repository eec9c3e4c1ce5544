"""What is compared of the ways to add gradients, and what is predicted of them; two real measurements are slow."""

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from launch.bench import scaling_synthetic as module
from launch.bench.process_cpu import cpu_seconds
from launch.bench.scaling_result import Point
from launch.bench.scaling_settings import ScalingArguments
from launch.bench.scaling_synthetic import Way, show_synthetic, summarise_synthetic, ways_of
from launch.bench.synthetic import SyntheticAggregator
from launch.cli import main
from launch.on_ray.actor_process import Weights
from shared.config import RunConfig

ONE, MANY = Point(8, 1, 20), Point(8, 16, 20)
COSTS = {"objects": {"float32": 4e-3}, "sums": {"float32": 3e-4}, "heads": {"float32": 1e-3}}
IDLE = {"kind": "idle", "share_of_core": 0.01}


def measured(cpu: float, rate: float = 32.0, lag: float = 7.0) -> dict[str, Any]:
    return {
        "gradients_per_second": rate,
        "updates_per_second": 2.0,
        "cpu_seconds_per_gradient": cpu,
        "busy_fraction": rate * cpu,
        "policy_lag_mean": lag,
        "policy_lag_max": 9,
        "process_cpu_seconds_per_gradient": {"SyntheticActorProcess": 1e-3, "raylet": 2e-3},
    }


def test_every_way_is_measured_once_and_shown_beside_its_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made: list[tuple[Way, float]] = []
    costs: list[tuple[int, int, float, float]] = []

    def measure(_arguments: ScalingArguments, _spec: object, way: Way, seconds: float) -> dict[str, Any]:
        made.append((way, seconds))
        return measured({"none": 4.2e-3, "node": 4e-4, "group": 3.5e-4}[way.level])

    def costs_of(
        _network: str, count: int, share: int, _precisions: object, idle: float, pace: float
    ) -> dict[str, Any]:
        costs.append((count, share, idle, pace))
        return COSTS

    monkeypatch.setattr(module, "_measure", measure)
    monkeypatch.setattr(module, "learner_costs", costs_of)
    monkeypatch.setattr(module, "idle_cost", lambda *_: IDLE["share_of_core"])

    class Components:
        def step_seconds(self) -> float:
            return 1e-3

    monkeypatch.setattr(module, "measure_components", lambda _config, _spec, counts: {counts[0]: Components()})
    folder = tmp_path / "synthetic"
    command = f"bench scaling --synthetic --actors 8 --gradients-per-update 1,16 --repeats 1 --output {folder}"
    assert main(command.split()) == 0
    assert made == [(Way(ONE, "none"), 1e-3), (Way(MANY, "node"), 1e-3), (Way(MANY, "group"), 1e-3)]
    # Eight actors of 32 x 20 agent steps of a millisecond each.
    assert costs == [(1, 1, 0.01, pytest.approx(0.08)), (16, 2, 0.01, pytest.approx(0.08))]
    # A hundredth of a core, over 12.4 gradients a second.
    assert "4.20 (4.81)" in capsys.readouterr().out
    assert main(f"bench scaling --continue {folder}".split()) == 0
    assert len(made) == 3
    alone, nodes, groups = json.loads((folder / "scaling.json").read_text())["points"]
    assert [row["added"] for row in (alone, nodes, groups)] == ["none", "node", "group"]
    assert groups["times_one_learner"] == pytest.approx(12.0)
    predicted = groups["predicted"]
    assert predicted["cpu_seconds_per_gradient"] == pytest.approx(3e-4 + 0.01 / predicted["gradients_per_second"])
    # 32 x 20 agent steps of a millisecond each.
    assert alone["predicted"]["gradients_per_second"] == pytest.approx(8 / 0.644, rel=0.01)
    assert alone["predicted"]["policy_lag_mean"] == 7.0
    assert groups["cores_busy"] == pytest.approx(3e-3 * 32 / module.usable_cores())


def test_a_machine_that_is_full_is_named() -> None:
    settings = vars(ScalingArguments(synthetic=True))
    kept = [
        {"kind": "components", "seconds_per_agent_step": 1e-3},
        IDLE,
        {"kind": "costs", "of": ONE, "seconds": COSTS},
        {"kind": "synthetic", "of": [*ONE, "none"], **measured(4e-3, rate=1e4)},
    ]
    result = summarise_synthetic(settings, [ONE, MANY], kept)
    console = Console(file=StringIO(), width=120)
    show_synthetic(console, result, Path("folder"))
    assert "this machine that holds the rate back" in console.file.getvalue()
    assert len(result["points"]) == 1


def test_ways_are_compared_at_the_same_number_of_actors() -> None:
    twice = [point._replace(actors=16) for point in (ONE, MANY)]
    ways = [(ONE, "none", 4e-3), (MANY, "group", 1e-3), (twice[0], "none", 6e-3), (twice[1], "group", 2e-3)]
    kept = [
        {"kind": "components", "seconds_per_agent_step": 1e-3},
        IDLE,
        *({"kind": "costs", "of": of, "seconds": COSTS} for of in [ONE, MANY, *twice]),
        *({"kind": "synthetic", "of": [*point, level], **measured(cpu)} for point, level, cpu in ways),
    ]
    settings = vars(ScalingArguments(synthetic=True))
    found = summarise_synthetic(settings, [ONE, MANY, *twice], kept)["points"]
    times = {(row["actors"], row["added"]): row["times_one_learner"] for row in found}
    assert times == pytest.approx({(8, "none"): 1, (8, "group"): 4, (16, "none"): 1, (16, "group"): 3})
    alone = summarise_synthetic(settings, [MANY], kept)["points"]
    assert [row["times_one_learner"] for row in alone] == [None]


def test_a_learner_in_slices_is_measured_beside_one_in_a_piece_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made: list[Way] = []

    def measure(_arguments: ScalingArguments, _spec: object, way: Way, _seconds: float) -> dict[str, Any]:
        made.append(way)
        return measured({1: 4e-3, 4: 5e-3}[way.shards])

    folder = tmp_path / "synthetic"
    folder.mkdir()
    kept = [
        {"kind": "components", "seconds_per_agent_step": 1e-3},
        IDLE,
        {"kind": "costs", "of": ONE, "seconds": COSTS},
        # As before there were slices: it is gone on with.
        {"kind": "synthetic", "of": [*ONE, "none"], **measured(4e-3)},
    ]
    (folder / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    settings = {"synthetic": True, "actors": "8", "repeats": 1, "shards": 4}
    (folder / "settings.json").write_text(json.dumps(settings))
    monkeypatch.setattr(module, "_measure", measure)
    of_slices = {"learner": {"float32": 5e-3}, "slice": {"float32": 0.2}}
    monkeypatch.setattr(module, "slices_costs", lambda *_: of_slices)
    assert main(f"bench scaling --continue {folder}".split()) == 0
    assert main(f"bench scaling --continue {folder}".split()) == 0
    assert made == [Way(ONE, "none", 4)]
    assert "in 4 slices" in capsys.readouterr().out
    whole, sliced = json.loads((folder / "scaling.json").read_text())["points"]
    assert [(row["shards"], row["times_one_learner"]) for row in (whole, sliced)] == [(1, 1.0), (4, 0.8)]
    # Eight actors of 0.64 seconds a gradient: the slices, of 0.2, are full, and the learner's process is not.
    assert sliced["predicted"]["gradients_per_second"] == pytest.approx(1 / 0.2, rel=0.02)
    assert whole["predicted"]["gradients_per_second"] == pytest.approx(8 / 0.644, rel=0.01)


def test_the_reports_of_a_ready_made_sum_are_as_large_as_those_of_actors() -> None:
    """What several reports shared would be pickled once for all of them."""
    sender = SyntheticAggregator(RunConfig(), None, 0, 4)  # type: ignore[arg-type]
    reports = sender.collect(Weights(3, np.zeros(5, np.float32), 0), None).reports
    assert [(report.actor_id, report.sequence, report.version) for report in reports] == [(n, 1, 3) for n in range(4)]
    for part in ("episodes", "stage_seconds", "statistics"):
        assert len({id(getattr(report, part)) for report in reports}) == 4


def test_what_is_applied_by_itself_is_added_nowhere() -> None:
    assert ways_of([ONE, MANY], 1) == [Way(ONE, "none"), Way(MANY, "node"), Way(MANY, "group")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--actors 6", "--nodes 4: does not divide the 6 actors"),
        ("--shards 0 --actors 8", "--shards 0: must be at least 1"),
        ("--nodes 0 --actors 8", "--nodes 0: must be at least 1"),
        ("--address auto --actors 8", "makes nodes of its own"),
    ],
)
def test_mistakes(arguments: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(f"bench scaling --synthetic {arguments} --output {tmp_path / 'x'}".split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert problem in err
    assert not (tmp_path / "x").exists()


def test_slices_are_not_left_out_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(f"bench scaling --shards 2 --output {tmp_path / 'x'}".split()) == 2
    assert "--shards 2: is compared by actors that only send messages: --synthetic" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_cpu_seconds_are_of_the_processes_below_one_by_their_kind(tmp_path: Path) -> None:
    def process(pid: int, parent: int, ticks: int, command: str) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        # The name of a process may have brackets and spaces in it.
        rest = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} {ticks} 0"
        (folder / "stat").write_text(f"{pid} (a) name) {rest}")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())

    tick = os.sysconf("SC_CLK_TCK")
    process(2, 1, tick, "python bench")
    process(3, 2, tick, "/ray/raylet --head")
    process(4, 3, tick, "ray::NodeAggregator.collect")
    process(5, 3, 2 * tick, "ray::NodeAggregator")
    process(6, 1, 9 * tick, "ray::NodeAggregator")
    assert cpu_seconds(2, tmp_path) == {"raylet": 2.0, "NodeAggregator": 6.0}


@pytest.mark.slow
def test_real_messages_cost_the_learner_less_when_they_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_slices = {"learner": {"float32": 5e-3}, "slice": {"float32": 5e-3}}
    monkeypatch.setattr(module, "learner_costs", lambda *_: COSTS)
    monkeypatch.setattr(module, "slices_costs", lambda *_: of_slices)
    monkeypatch.setattr(module, "idle_cost", lambda *_: IDLE["share_of_core"])
    command = (
        "bench scaling --synthetic --actors 4 --nodes 2 --gradients-per-update 1,4 --shards 2 --seconds 5 --repeats 1 "
        "--envs 4"
    )
    assert main([*command.split(), "--output", str(tmp_path / "run")]) == 0
    alone, sliced, nodes, groups = json.loads((tmp_path / "run" / "scaling.json").read_text())["points"]
    assert sliced["process_cpu_seconds_per_gradient"]["SliceProcess"] > 0.0
    assert alone["updates_per_second"] == pytest.approx(alone["gradients_per_second"], rel=0.1)
    for row in (nodes, groups):
        assert row["updates_per_second"] == pytest.approx(row["gradients_per_second"] / 4, rel=0.1)
        assert row["cpu_seconds_per_gradient"] < alone["cpu_seconds_per_gradient"]
    assert {"GroupAggregator", "NodeAggregator", "raylet"} <= groups["process_cpu_seconds_per_gradient"].keys()
