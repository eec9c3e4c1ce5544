"""Virtual actors learn with the versions of so many; studies of them can be repeated to the bit, and go on."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.bench.arrival_model import ArrivalModel, policy_lags
from launch.bench.lag import shared_settings
from launch.bench.lag_cells import CORRECTIONS, Cell, Correction, crossed, order_file, settings
from launch.bench.lag_run import play
from launch.bench.process_cpu import cpu_seconds
from launch.bench.throughput import DRIFT
from launch.bench.virtual_actors import VirtualActors
from launch.cli import main
from launch.loop.arrivals import Arrivals
from launch.loop.coordinator import Coordinator
from launch.loop.inline_executor import InlineExecutor
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.types import GradientReport, WeightSnapshot

MODEL = ArrivalModel()


def played(config: RunConfig, folder: Path, cell: Cell) -> dict[str, Any]:
    return play(config, cell, order_file(folder, MODEL, config, cell))


def short(config: RunConfig, frames: int = 600) -> RunConfig:
    return replace(config, total_frames=frames)


@pytest.mark.parametrize("correction", ["none", "clipped"])
def test_one_virtual_actor_is_that_of_an_ordinary_run_to_the_bit(
    cartpole: RunConfig, correction: Correction, tmp_path: Path
) -> None:
    # At K = 2 the second time that one actor differentiates a rollout would be at the weights that acted, too.
    config, cell = short(cartpole), Cell(1, {"none": 2, "clipped": 1}[correction], correction, 0.5, seed=3)
    row = played(config, tmp_path, cell)
    ordinary = replace(settings(config, cell, order_file(tmp_path, MODEL, config, cell)), replay_arrivals=None)
    assert ordinary.actor.epochs == {"none": 1, "clipped": 2}[correction]
    spec = environment_spec(ordinary.environment)
    policy = Policy(ordinary, spec)
    learner = Learner(ordinary, policy.layout, policy.initial_parameters())
    executor = InlineExecutor(ordinary, spec, 1)
    deviations = []
    for event in Coordinator(learner, executor, calls_per_actor=1, supervision=ordinary.supervision).run():
        if isinstance(event, Outcome):
            deviations.append(event.report.statistics.get("ratio_deviation"))
        if learner.account.frames >= config.total_frames:
            break
    executor.close()
    assert learner.version == row["updates"] > 15
    assert hashlib.sha256(learner.snapshot().parameters.tobytes()).hexdigest()[:16] == row["weights_sha256"]
    assert row["policy_lag_max"] == 0
    if correction == "clipped":
        assert row["ratio_deviation"] == pytest.approx(np.mean(deviations)) != 0.0
    else:
        assert "ratio_deviation" not in row


def test_the_drift_is_that_of_the_gradients_that_were_taken(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped may not be a number, and is not among those that it would be divided by."""
    outcomes: list[Outcome] = []
    submit = Learner.submit
    monkeypatch.setattr(Learner, "submit", lambda *given: outcomes.append(submit(*given)) or outcomes[-1])
    config = replace(short(cartpole), learner=replace(cartpole.learner, max_policy_lag=2))
    row = played(config, tmp_path, Cell(8, 1, "clipped", 1.0, seed=1))
    taken = [made.report.statistics for made in outcomes if made.dropped is None]
    assert 0 < len(taken) < len(outcomes)
    lost = [made.report.agent_steps for made in outcomes if made.dropped is not None]
    assert row["agent_steps_dropped"] == {"too_old": sum(lost)}
    for name in DRIFT:
        assert row[name] == pytest.approx(np.mean([statistics[name] for statistics in taken]))


def test_gradients_are_of_the_versions_of_so_many_actors(cartpole: RunConfig, tmp_path: Path) -> None:
    """At K = 3, as the order says; more than the former weights of `staleness_versions` are never needed."""
    config, cell = short(cartpole, 900), Cell(8, 3, "gap", 1.0, seed=1)
    row = played(config, tmp_path, cell)
    order = order_file(tmp_path, MODEL, config, cell)
    ids = np.array([arrival.actor_id for arrival in Arrivals(str(order)).all], np.int32)
    lags = policy_lags(ids[: row["gradients"]], 3)
    assert row["gradients"] == len(lags) > 8 * 4
    assert row["policy_lag_mean"] == pytest.approx(lags.mean())
    assert (row["policy_lag_p95"], row["policy_lag_max"]) == (np.percentile(lags, 95, method="inverted_cdf"), max(lags))
    assert settings(config, cell, order).learner.staleness_versions == policy_lags(ids, 3).max() + 1
    assert row["agent_steps"] >= 900


def test_each_virtual_actor_has_its_own_unfinished_rollout(cartpole: RunConfig, tmp_path: Path) -> None:
    """At the same weights the second gradient of a rollout is its first, whoever has played in between."""
    order = tmp_path / "order.txt"
    reports = [0, 1, 2, 1, 0, 2, 2, 2]
    order.write_text("\n".join(["actors 0 1 2", *(f"report {actor}" for actor in reports)]))
    config = replace(
        cartpole, executor="inline", replay_arrivals=str(order), actor=replace(cartpole.actor, epochs=2), actors=3
    )
    spec = environment_spec(config.environment)
    executor = VirtualActors(config, spec, 3)
    executor.publish(WeightSnapshot(0, Policy(config, spec).initial_parameters()))
    by_actor: dict[int, list[GradientReport]] = {0: [], 1: [], 2: []}
    for actor in (0, 1, 2):
        executor.dispatch(actor)
    while isinstance(report := executor.next_completion(), GradientReport):
        by_actor[report.actor_id].append(report)
        executor.dispatch(report.actor_id)
    executor.close()
    firsts = []
    for found in by_actor.values():
        for first, second in zip(found[::2], found[1::2], strict=True):
            assert (first.agent_steps, second.agent_steps) == (first.samples, 0)
            assert second.samples == first.samples
            np.testing.assert_allclose(second.gradient, first.gradient, atol=1e-6)
            firsts.append(first.gradient)
    assert len(firsts) == 4
    assert len({gradient.tobytes() for gradient in firsts}) == 4


def test_the_rate_of_a_cell_follows_its_k_and_nothing_ends_its_run_early(cartpole: RunConfig, tmp_path: Path) -> None:
    order = order_file(tmp_path, MODEL, cartpole, Cell(8, 4, "none", 3.0, 1))
    rate = settings(cartpole, Cell(8, 4, "none", 3.0, 1), order).optimizer.learning_rate
    assert rate == pytest.approx(3.0 * 2.0 * cartpole.optimizer.learning_rate)
    ends = replace(cartpole, stop_at_return=3.0, stop_after_seconds=1.0)
    shared = shared_settings(ends, ends)
    assert (shared.stop_at_return, shared.stop_after_seconds) == (None, None)


@pytest.mark.parametrize(
    "correction", ["gap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("inverse", "delay_compensated"))]
)
def test_what_corrects_lag_changes_nothing_where_there_is_none(
    cartpole: RunConfig, correction: Correction, tmp_path: Path
) -> None:
    """Which is why a study leaves it out for one actor."""
    config = short(cartpole)
    hashes = {played(config, tmp_path, Cell(1, 2, name, 1.0, 1))["weights_sha256"] for name in ("none", correction)}
    assert len(hashes) == 1
    cells = crossed([1, 8], [2], CORRECTIONS, [1.0], [1])
    assert [cell.correction for cell in cells] == ["none", "clipped", *CORRECTIONS]


SMALL = (
    "bench lag cartpole --network.hidden-sizes 8 --actor.environments 2 --actor.unroll-length 4 --total-frames 200 "
    "--evaluation.episodes 2 --evaluation.environments 2 --virtual-actors 4 --gradients-per-update 2"
)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Without how long they took."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_study_goes_on_where_it_was_killed_and_a_row_is_repeated_to_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    study = f"{SMALL} --corrections none,inverse --rates 1 --output {folder}"
    assert main(f"{study} --seeds 1 --json {tmp_path / 'x.json'}".split()) == 0
    before = rows_of(folder)
    assert [row["correction"] for row in before] == ["none", "inverse"]
    assert before[0]["weights_sha256"] != before[1]["weights_sha256"], "it does something"
    for made in before:
        # At each tenth of the frames, and the last one at their end; no episode is as short as the first tenth.
        assert len(made["curve"]) == 10
        assert made["curve"][-1] == round(made["mean_return_100"], 2)
        assert made["curve"][0] is None or made["curve"][0] <= 20
    assert len(json.loads((tmp_path / "x.json").read_text())["best"]) == 2
    # As it is when the process is killed while it writes.
    whole = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(whole[:-20])
    (order,) = (folder / "arrivals").iterdir()
    order.unlink()
    capsys.readouterr()
    assert main(f"{study} --seeds 1".split()) == 0
    assert f"study: {folder}, 1 of 2 runs to do" in capsys.readouterr().out
    assert rows_of(folder) == before
    assert order.is_file()
    for name in ("lag.json", "lag.md", "lag.svg", "lag.png", "study.json"):
        assert (folder / name).stat().st_size > 0
    # An older version knew fewer settings.
    recipe = json.loads((folder / "study.json").read_text())
    del recipe["settings"]["learner.max_policy_lag"]
    (folder / "study.json").write_text(json.dumps(recipe))
    assert main(f"{study} --seeds 1".split()) == 0
    assert f"study: {folder}, 0 of 2 runs to do" in capsys.readouterr().out
    # Another study is not mixed with it, and none begins among the files of something else.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    assert main(f"{SMALL} --output {tmp_path / 'run'}".split()) == 2
    assert f"--output {tmp_path / 'run'}: has other files, and no study" in capsys.readouterr().err
    assert main(f"{study} --seeds 1 --model.stragglers 0.5".split()) == 2
    assert "has a study with stragglers 0.0, and not 0.5; name another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_study_and_one_in_processes_have_the_rows_of_any_other(tmp_path: Path) -> None:
    def line(name: str, more: str = "") -> str:
        return f"{SMALL} --corrections none,gap --rates 1 --seeds 1-2 --output {tmp_path / name} {more}"

    assert main(line("alone").split()) == 0
    command = [sys.executable, "-m", "launch.cli", *line("killed", "--processes 2").split()]
    bench = subprocess.Popen(command, start_new_session=True)
    rows = tmp_path / "killed" / "rows.jsonl"
    deadline = time.monotonic() + 120
    while not rows.is_file() and bench.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(bench.pid, signal.SIGKILL)
    bench.wait(timeout=60)
    assert main(line("killed", "--processes 2").split()) == 0

    def by_cell(name: str) -> list[dict[str, Any]]:
        return sorted(rows_of(tmp_path / name), key=lambda row: [str(row[name]) for name in Cell._fields])

    assert by_cell("killed") == by_cell("alone")


@pytest.mark.slow
def test_an_interrupt_ends_a_study_at_once_also_in_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is said of going on is right for a study, which no `train --resume` takes."""
    folder = tmp_path / "study"
    line = f"{SMALL} --corrections none --rates 1 --seeds 1 --total-frames 8 --output {folder}"
    command = [sys.executable, "-m", "launch.cli", *line.split(), "--evaluation.episodes", "10000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as bench:
        # TensorFlow and the training take 5 seconds of CPU or so, and the evaluation never ends.
        deadline = time.monotonic() + 180
        while cpu_seconds(bench.pid).get("other", 0.0) < 12:
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert main(["bench", *line.split()[1:]]) == 2
        error = capsys.readouterr().err
        assert f"folder {folder} is in use by another process" in error
        assert main(["stop", str(folder)]) == 0
        assert f"ended: {folder}; the command that began it goes on" in capsys.readouterr().out.replace("\n", " ")
        assert bench.stdout is not None
        assert "interrupted: runs that have ended are kept" in bench.stdout.read()
        assert bench.wait(timeout=60) == 130
    assert not (folder / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("pogn", "unknown preset pogn, did you mean pong?"),
        ("cartpole --actors 3", "--actors 3: is given by --virtual-actors here"),
        ("cartpole --seed 3", "is given by --seeds here"),
        ("cartpole --learner.gradients-per-update 2", "is given by --gradients-per-update here"),
        ("cartpole --learner.staleness gap", "is given by --corrections here"),
        ("cartpole --learner.target-policy-lag 2 --learner.accumulation mean", "is not for bench lag"),
        ("cartpole-q --corrections none,clipped", "q_learning has no probabilities to take a ratio of"),
        ("cartpole --learner.shards 2 --corrections none,gap", "leave --learner.shards out"),
        ("cartpole --model.spread inf", "--model.spread inf: must be at least 0"),
        ("cartpole --executor inline", "--executor inline: means nothing here"),
        ("cartpole --stop-at-return 10", "means nothing here"),
        ("cartpole --evaluation.every-frames 1k", "means nothing here"),
        ("cartpole --actor.calls-in-flight 2", "the model has one call of an actor"),
        ("cartpole --virtual-actors 0,2", "must be numbers above 0"),
        ("cartpole --virtual-actors 1.5", "must be numbers above 0"),
        ("cartpole --gradients-per-update x", "must be numbers above 0"),
        ("cartpole --rates nan", "must be numbers above 0"),
        ("cartpole --corrections none,old", "must be some of none,inverse,gap,delay_compensated,clipped"),
        ("cartpole --seeds 1,1", "must name each seed once"),
        ("cartpole --processes 0", "must be at least 1"),
        ("cartpole --model.stragglers 2", "must be between 0 and 1"),
        ("cartpole --json no-such-folder/x.json", "in a folder that exists"),
    ],
)
def test_mistakes(typed: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "lag", *shlex.split(typed)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert problem in err
