"""Real Ray processes: the account, a killed actor, Ctrl-C, resume."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from accounts import account_of
from namesakes import write_namesakes
from waiting import UNTIL_FRAMES
from watched_processes import Training, processes_with, rows, without_ray

SMALL = f"cartpole --actor.environments 4 --actor.unroll-length 10 {UNTIL_FRAMES}"


def start(arguments: str, run: Path) -> Training:
    return Training(Path(sys.executable).parent, run, f"{arguments} --run-dir {run}", OF_RUN=str(run))


def parameters_of(run: Path) -> np.ndarray:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(run / "checkpoints")))
    return reader.get_tensor("variables/parameters/.ATTRIBUTES/VARIABLE_VALUE")


def train(arguments: str, run: Path) -> dict:
    with start(arguments, run) as training:
        training.end(0)
    return account_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["--actor.no-fresh-gradients", "--actor.epochs 2 --actor.fresh-gradients"])
def test_the_process_of_one_actor_computes_what_the_inline_executor_does(more: str, tmp_path: Path) -> None:
    evaluations = "--evaluation.every-frames 1500 --evaluation.episodes 7 --evaluation.environments 3"
    settings = f"{SMALL} --actors 1 --total-frames 5k {more} {evaluations}"
    on_ray = train(settings, tmp_path / "ray")
    inline = train(f"{settings} --executor inline", tmp_path / "inline")
    without_seconds = lambda summary: {**summary["evaluation"], "seconds": None}  # noqa: E731
    assert without_seconds(on_ray) == without_seconds(inline)
    np.testing.assert_array_equal(parameters_of(tmp_path / "ray"), parameters_of(tmp_path / "inline"))


def test_a_run_with_a_killed_actor_is_interrupted_and_resumed(tmp_path: Path) -> None:
    """And files with the names of our packages, where the user stands, do not break what Ray starts."""
    write_namesakes(tmp_path)
    run = tmp_path / "ray"
    # Each differentiates a rollout four times, at the newest weights it was sent.
    settings = f"{SMALL} --actors 2 --total-frames 100M --actor.epochs 2 --actor.minibatches 2"
    settings += " --learner.gradients-per-update 3 --supervision.hang-seconds 300"
    with start(f"{settings} --log-every-seconds 0.5", run) as training:
        driver = training.process.pid
        training.wait_for(lambda: rows(run) and rows(run)[-1]["updates"] > 1, "updates")
        # While one stands still, the other reports several times in a row.
        processes = processes_with(f"OF_RUN={run}")
        halted = next(pid for pid, name in processes.items() if name.startswith("ray::ActorProcess"))
        assert os.getsid(halted) != os.getsid(driver), "a signal for the driver's process group would end Ray, too"
        os.kill(halted, signal.SIGSTOP)
        at_halt = rows(run)[-1]["updates"]
        training.wait_for(lambda: rows(run)[-1]["updates"] > at_halt + 20, "updates without the halted actor")
        os.kill(halted, signal.SIGKILL)
        training.wait_for(lambda: rows(run)[-1]["actor_restarts"] == 1, "the replacement")
        replaced = rows(run)[-1]["updates"]
        training.wait_for(lambda: rows(run)[-1]["updates"] > replaced + 20, "updates after the replacement")
        training.interrupt()
    output = training.printed()
    assert "Traceback" not in output
    assert "actor 2 replaces actor" in output
    interrupted = account_of(run)
    assert (interrupted["status"], interrupted["actor_restarts"]) == ("interrupted", 1)
    assert rows(run)[-1]["actors_alive"] == 2
    assert interrupted["rollouts_lost_with_actors"] == 1

    frames = interrupted["frames"] + 1000
    with Training(Path(sys.executable).parent, run, f"--resume {run} --total-frames {frames}") as training:
        training.end(0)
    resumed, output = account_of(run), training.printed()
    assert resumed["status"] == "frames_reached", output
    assert resumed["frames"] >= frames
    assert resumed["updates"] > interrupted["updates"]
    for ended in (interrupted, resumed):
        assert ended["gradients_applied"] == 3 * ended["updates"]
        assert set(ended["agent_steps_dropped"]) <= {"unfinished_update"}
    assert "mean return of the last" in output
    for noise in ("oneDNN", "cuda", "absl", "Traceback", "pid="):
        assert noise not in "\n".join(without_ray(output)), output


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--aggregation node --learner.gradients-per-update 2"])
def test_a_crossing_is_confirmed_by_the_actors(more: str, tmp_path: Path) -> None:
    settings = SMALL.replace("--stop-at-return None", "--stop-at-return 15")
    summary = train(f"{settings} --actors 2 {more}", tmp_path / "run")
    assert summary["status"] == "return_reached"
    assert summary["confirmed_crossing"]["evaluation_mean_return"] == summary["evaluation"]["mean_return"] >= 15.0
    assert summary["evaluation"]["confirms"]
    assert summary["evaluation"]["episodes"] in (40, 60, 80, 100)
    assert 0.0 < summary["evaluation_seconds"] < summary["wall_seconds"]
