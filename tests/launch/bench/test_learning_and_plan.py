"""bench learning: what it compares and makes of its runs; and the plan's arithmetic, and one of this machine."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.bench import learning as module
from launch.bench.learning import Contender, Study, contenders_of, run_left, summarise
from launch.bench.plan import Costs, advice, predict, saturation_actors
from launch.cli import main
from launch.commands.seeds import PlannedRun
from launch.machine import ACTOR_BYTES
from launch.output import write_json
from launch.presets import PRESETS
from launch.run.folder import RunFolder, lock_folder
from shared.config import ActorConfig, LearnerConfig, RunConfig
from shared.errors import ConfigurationError

PONG = PRESETS["pong"].config


def test_each_preset_is_compared_as_typed_and_with_each_variant() -> None:
    typed = ["--mark=5", "--actors", "2", "--compare=--actors 3", "--compare=--optimizer.learning-rate 2e-3"]
    _, found = contenders_of(["pong", "breakout", *typed])
    variants = ("", " --actors 3", " --optimizer.learning-rate 2e-3")
    assert [c.name for c in found] == [preset + variant for preset in ("pong", "breakout") for variant in variants]
    assert [c.config.actors for c in found] == [2, 3, 2, 2, 3, 2]
    assert [c.config.optimizer.learning_rate for c in found] == [1e-3, 1e-3, 2e-3] * 2
    assert {c.config.stop_at_return for c in found} == {5.0}
    assert found[3].config.environment.id == "ALE/Breakout-v5"
    assert found[2].folder == "pong-optimizer.learning-rate-2e-3"


def test_a_run_ends_at_the_mark_or_when_its_time_is_up() -> None:
    def limits(*typed: str) -> tuple[float | None, float | None]:
        config = contenders_of(["pong", *typed])[1][0].config
        return config.stop_at_return, config.stop_after_seconds

    assert limits() == (18.0, None), "the preset's own"
    assert limits("--mark=20") == (20.0, None)
    # The preset's mark would end a run before its time.
    assert limits("--minutes=2") == (None, 120.0)
    assert limits("--mark=20", "--minutes=2") == (20.0, 120.0)


def ended(
    folder: Path, status: str, seconds: float | None, mean: float | None, frames: int = PONG.total_frames
) -> None:
    """A run with its summary."""
    folder.mkdir(parents=True)
    RunFolder(folder).write_config(PONG)
    moment = {"seconds": seconds, "frames": 4_000_000, "agent_steps": 1_000_000, "evaluation_mean_return": mean}
    summary = {
        "status": status,
        "confirmed_crossing": None if seconds is None else moment,
        "mean_return_100": mean,
        "frames": frames,
        "agent_steps_sampled": frames // 4,
        "wall_seconds": 900.0,
        "agent_steps_per_second": 1_389.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_seed_that_misses_the_mark_takes_longer_than_any_other(tmp_path: Path) -> None:
    contender = Contender("pong", "pong", PONG)
    study = Study(tmp_path, [contender], [1, 2, 3, 4, 5])
    ended(study.run(contender, 1), "return_reached", 300.0, 18.5)
    ended(study.run(contender, 2), "return_reached", 240.0, 19.5)
    ended(study.run(contender, 3), "frames_reached", None, -20.0)
    ended(study.run(contender, 4), "interrupted", None, 1.0, frames=5_000_000)
    found = summarise(study)["contenders"][0]
    assert (found["runs_ended"], found["runs_that_reached_the_mark"]) == (3, 2)
    assert found["over_seeds"]["seconds_to_mark"] == {"median": 300.0, "least": 240.0, "most": None}
    # Only runs that were evaluated at the target count; a mean return exists for all that have ended.
    assert found["over_seeds"]["evaluation_mean_return"] == {"median": 19.0, "least": 18.5, "most": 19.5}
    assert found["over_seeds"]["mean_return_100"]["least"] == -20.0
    assert [run["status"] for run in found["runs"]][3:] == ["interrupted", "not run"]
    # A mean return that is NaN, as version 0.5 wrote it, is that of a run that has none.
    shutil.rmtree(study.run(contender, 3))
    ended(study.run(contender, 3), "frames_reached", None, float("nan"))
    result = summarise(study)
    means = {"median": 19.0, "least": 18.5, "most": 19.5}
    assert result["contenders"][0]["over_seeds"]["mean_return_100"] == means
    write_json(tmp_path / "learning.json", result)
    assert json.loads((tmp_path / "learning.json").read_text(), parse_constant=pytest.fail) == result
    # Between a time and none there is no median.
    halves = summarise(study._replace(seeds=[1, 3]))["contenders"][0]["over_seeds"]["seconds_to_mark"]
    assert halves == {"median": None, "least": 300.0, "most": None}


def test_what_is_left_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "seed-1"
    run = PlannedRun("pong, seed 1", PONG, folder, "pong")
    assert run_left(run) == run
    ended(folder, "return_reached", 300.0, 18.5)
    assert run_left(run) is None
    with pytest.raises(ConfigurationError, match="has a run with actors auto, and not 3; name another folder"):
        run_left(run._replace(config=replace(PONG, actors=3)))
    shutil.rmtree(folder)
    ended(folder, "interrupted", None, 1.0, frames=5_000_000)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "1.index").touch()
    assert run_left(run) == run._replace(resume=True)
    with lock_folder(folder), pytest.raises(ConfigurationError, match="in use"):
        run_left(run)
    (folder / "checkpoints" / "1.index").unlink()
    # Without a checkpoint nothing can be gone on with: it is trained from its beginning.
    assert run_left(run) == run
    assert not folder.exists()


def test_a_study_interrupted_before_its_first_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> list[int]:
        with arguments[-1].training():
            signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(module, "train_in_turn", interrupted)
    study = tmp_path / "study"
    assert main(f"bench learning cartpole --seeds 1 --output {study}".split()) == 130
    (contender,) = json.loads((study / "learning.json").read_text())["contenders"]
    assert [run["status"] for run in contender["runs"]] == ["not run"]


# 1 ms per agent step alone and 1.5 ms on busy cores. A gradient of the configuration below is of 100.
COSTS = Costs(
    {"environment": 6e-4, "acting": 1e-4, "gradient": 3e-4},
    {"environment": 9e-4, "acting": 2e-4, "gradient": 4e-4},
    {"shared_memory": 0.05, "objects": 0.06, "sums": 0.01, "shared_memory_sums": 0.02, "aggregator": 0.03},
    1_000_000,
)


def config(count: int = 1, calls: int = 1, **changes: object) -> RunConfig:
    actor = ActorConfig(environments=10, unroll_length=20, epochs=2, calls_in_flight=calls)
    learner = LearnerConfig(gradients_per_update=count)
    return replace(PRESETS["pong"].config, actor=actor, learner=learner, **changes)


def test_actors_of_one_machine_share_its_cores_with_the_learner() -> None:
    one = predict(config(), COSTS, 1, 1, 2)
    assert one["gradients_per_second"] == pytest.approx(1 / (0.1 + 0.05))
    assert one["agent_steps_per_second"] == pytest.approx(100 / 0.15)
    assert one["frames_per_second"] == pytest.approx(400 / 0.15)
    assert one["minutes_to_40m_frames"] == pytest.approx(40e6 / (400 / 0.15) / 60)
    assert (one["memory_gib"], one["policy_lag"]) == (pytest.approx(ACTOR_BYTES / 2**30), 0.0)
    assert one["held_back_by"] == "actors"
    four = predict(config(), COSTS, 4, 1, 2)
    assert (four["gradients_per_second"], four["held_back_by"]) == (pytest.approx(2 / (0.15 + 0.05)), "cores")


def test_actors_of_several_machines_are_held_back_by_the_learner() -> None:
    many = predict(config(), COSTS, 64, 32, 2)
    assert (many["gradients_per_second"], many["held_back_by"]) == (pytest.approx(1 / 0.06), "learner")
    assert many["learner_utilisation"] == pytest.approx(1.0)
    assert saturation_actors(config(), COSTS, 2, 2) == pytest.approx((0.15 + 0.06) / 0.06)


def test_a_second_call_hides_the_transfer_and_adds_lag_and_a_fresh_gradient_has_less() -> None:
    found = predict(config(5, calls=2), COSTS._replace(learner={"shared_memory": 0.01}), 3, 1, 8)
    # Two of seven further cores are busy.
    assert found["gradients_per_second"] == pytest.approx(3 / (0.1 + 0.05 * 2 / 7))
    assert found["policy_lag"] == pytest.approx((3 * 2 - 1) / 5)
    plain = config(4)
    fresh = replace(plain, actor=replace(plain.actor, fresh_gradients=True))
    # It is old by its own part of a rollout.
    assert predict(fresh, COSTS, 9, 1, 8)["policy_lag"] == pytest.approx(0.3 * 8 / 4)


def test_advice_names_the_number_of_actors_and_what_to_set_for_more() -> None:
    result = {
        "node_cores": 2,
        "saturation_actors": {"one_machine": 1.4, "several_machines": 80.0},
        "curve": [predict(config(), COSTS, 2, 1, 2), predict(config(), COSTS, 128, 64, 2)],
    }
    one, several, more, _ = advice(config(), result)
    assert "--actors 2" in one
    assert "the learner is full at 1" in one
    assert "full at about 80 actors" in several
    assert "--learner.gradients-per-update" in more
    assert len(advice(config(), result | {"curve": result["curve"][:1]})) == 3, "nothing to change"


def test_nodes_with_enough_actors_send_sums() -> None:
    """8 actors on 2 nodes, sums of 4: 8 / 4 + 2 (1 - 1 / 4) - 1 updates of lag."""
    found = predict(config(4), COSTS, 8, 2, 5)
    assert found["policy_lag"] == pytest.approx(2.5)
    # Three of four further cores are busy: 0.1 + 0.05 * 3 / 4 s an actor's gradient, 0.01 the learner's.
    assert found["gradients_per_second"] == pytest.approx(8 / (0.1375 + 0.01))
    assert predict(config(11), COSTS, 8, 2, 5)["policy_lag"] == pytest.approx(7 / 11), "no part of 11 fits"


def test_smaller_nodes_send_parts_of_an_update() -> None:
    """8 actors of two epochs on 2 nodes, sums of 8 for K = 16: (8 + 2 (8 - 1) - 8) / 16 updates of lag."""
    found = predict(config(16), COSTS, 8, 2, 5)
    assert found["policy_lag"] == pytest.approx(14 / 16)
    # A sum of 16 was measured with 0.01 s a gradient, and one of 8 costs as much.
    assert (found["gradients_per_second"], found["held_back_by"]) == (pytest.approx(1 / 0.02), "learner")


def test_one_machine_of_many_cores_adds_its_gradients_too() -> None:
    found = predict(config(4), COSTS, 32, 1, 64)
    assert (found["gradients_per_second"], found["held_back_by"]) == (pytest.approx(1 / 0.03), "nodes")
    assert found["learner_utilisation"] == pytest.approx(0.02 / 0.03)
    assert predict(config(4), COSTS, 32, 1, 8)["held_back_by"] == "learner", "eight at work do not need it"
    # 0.15 + 0.02 s a gradient with all cores busy, and the process that adds takes one each 0.03 s.
    assert saturation_actors(config(4), COSTS, 1, 64) == pytest.approx(0.17 / 0.03)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plan_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A method with a target network, and a normalised observation: neither reaches the sender of gradients."""
    file = tmp_path / "plan.json"
    changes = "--method.name q_learning --learner.gradients-per-update 2 --actors 3"
    assert main(["plan", "cartpole", *changes.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    learner = found["learner_seconds_per_gradient"]
    assert learner.keys() == {"shared_memory", "objects", "sums", "shared_memory_sums", "aggregator"}
    assert min(learner.values()) > 0.0
    assert found["step_seconds_alone"] == pytest.approx(sum(found["stage_seconds_alone"].values()))
    assert found["settings"]["learner.gradients_per_update"] == 2
    assert {1, 3, 1024} <= {row["actors"] for row in found["curve"]}
    output = capsys.readouterr().out
    for line in found["advice"]:
        assert line in output
