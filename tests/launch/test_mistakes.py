"""Mistakes cost one line and exit code 2, before any worker starts."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.cli import main

MISTAKES = {
    "train pnog": "unknown preset pnog, did you mean pong?",
    "trian": "unknown command trian, did you mean train?",
    "train --environment.id ALE/Pnog-v5": "no such environment; did you mean ALE/Pong-v5",
    "train --environment.id Pong": "ALE/Pong-v5",
    "train BreakoutX-v5": "no such environment; did you mean ALE/Breakout-v5",
    "report": "RUN: is missing; name at least one run folder",
    "train cartpole --environment.id Pendulum-v1 --method.name sarsa": "has continuous actions; use actor_critic",
    "train --method.name dqn": "no such method; there are actor_critic, q_learning, sarsa",
    "train --optimizer.schedule cosin": "--optimizer.schedule cosin: no such schedule; there are linear, cosine",
    "train --method.clip-schedule cosin": "--method.clip-schedule cosin: no such schedule; there are linear, cosine",
    "train --method.n-step 65": "--method.n-step 65: is more than --actor.unroll-length 32",
    "train --method.target-interval-agent-steps 0": "must be at least 1",
    "train --method.no-target-network": "--method.target-network False: is for --method.name q_learning or sarsa; ",
    "train cartpole --network.observation-scaling bounds": "no finite bounds in observation [1, 3]; use running",
    "train pong --network.observation-scaling running": "is for mlp",
    "train --exploration.final-epsilons 0.1 0.2 1.5": "--exploration.final-epsilons 1.5: must be between 0 and 1",
    "train cartpole --environment.id phys2d/CartPole-v1": "cannot be made",
    "train --actor.environments 0": "--actor.environments 0: must be at least 1",
    "train --actor.unroll-length -5": "--actor.unroll-length -5: must be at least 1",
    "train --actors 0": "--actors 0: must be at least 1",
    "train --optimizer.learning-rate 0": "must be greater than 0",
    "train --optimizer.learning-rate nan": "must be greater than 0",
    "train --learner.gradients-per-update 0": "must be between 1 and 1,000,000",
    "train --environment.id Pong-v4": "would skip twice",
    "train --actors 1000": "there is room for",
    "train --network.name mlp": "use a3c_cnn, nature_cnn or impala_resnet",
    "train cartpole --network.name a3c_cnn": "use mlp",
    "train --network.name resnet": "a3c_cnn",
    "train --resume no-such-folder": "no-such-folder: there is no such folder, and no run below runs/",
    "train pong --resume no-such-folder": "--preset pong: --resume no-such-folder has its settings",
    "train --stop-measure evaluation": "needs evaluations",
    "train pong --environment.id CartPole-v1": "preset pong is made for ALE/Pong-v5: start from cartpole",
    "train pong --environment.id CartPole-v1 --environment.frame-skip 1": "start from cartpole",
    "train pong --environment.id Acrobot-v1": "start from acrobot",
    "train pong --environment.id MountainCar-v0": "start from vectors",
    "train cartpole --environment.id ALE/Seaquest-v5": "preset cartpole is made for CartPole-v1: start from atari",
    "help trian": "unknown command trian, did you mean train?",
    "help bench scalng": "unknown bench scalng, did you mean scaling?",
    "train --json no-such-folder/result.json": "in a folder that exists",
    "train --executor inline --learner.device gpu": "runs on the CPU",
    "train --checkpoint.exact": "is for --executor inline",
    "train --checkpoint.every-updates 0": "must be at least 1",
    "train --supervision.max-restarts -1": "must be at least 0",
    "train --supervision.hang-seconds 0": "must be greater than 0",
    "train --replay-arrivals order.txt": "needs --executor inline",
    "train --replay-arrivals order.txt --executor inline": "cannot be read",
    "train --record-arrivals no-such-folder/order.txt": "there is no folder",
    "train --record-arrivals .": "is a folder; name a file",
    "train --record-arrivals /proc/order.txt": "cannot be written",
    "evaluate zoo:cartpole --episodes 0": "--episodes 0: must be at least 1",
    "evaluate no-such-folder": "no-such-folder: there is no such folder, and no run below runs/",
    "evaluate .": "is not the folder of a run: it has no config.json",
    # Runs that are named.
    "evaluate latest": "there is none",
    "plot latest": "there is none",
    "train --resume latest": "there is none",
    "train --resume=latest": "there is none",
    "train cartpole --start-from zoo:cartpole --network.hidden-sizes 16": "zoo:cartpole was trained with (64, 64)",
    "train cartpole --start-from zoo:cartpole --network.activation relu": "zoo:cartpole was trained with tanh",
    "train cartpole-q --start-from zoo:cartpole": "is of another network",
    "train pong --start-from zoo:pong --network.no-centre-observations": "zoo:pong was trained with True",
    "train breakout --start-from zoo:pong": "and zoo:pong was trained with observations of shape (84, 84, 4) and as "
    "actions 6 of them",
    "train --start-from zoo:pong --environment.screen-size 60": "has observations of shape (60, 60, 4)",
    "train --start-from zoo:pong --resume zoo:pong": "has its settings and its folder; leave it out",
    "train --start-from nowhere": "nowhere: there is no such folder",
    "train pendulum --start-from nowhere": "nowhere: there is no such folder",
    "train --resume zoo:pong": "start a new run from them: --start-from zoo:pong",
    "train --resume=zoo:pong --total-frames 50M": "start a new run from them: --start-from zoo:pong",
    "evaluate zoo:cartpole --weights latest": "leave --weights out",
    "evaluate zoo:cartpole --protocol noop": "is for Atari",
    "record zoo:cartpole --output nowhere/film.mp4": "in a folder that exists",
    "plot": "RUN: is missing",
    "plot nowhere": "nowhere: there is no such folder",
    "plot .": "is not the folder of a run, and holds none",
    "plot zoo:cartpole --y score": ", agent_steps,",
    "export zoo:cartpole --output .": "exists",
    "watch": "tributary record zoo:pong writes a video",
    "watch zoo:cartpole": "tributary record zoo:cartpole writes a video",
    # Several seeds, and runs that go on by themselves.
    "train cartpole --seeds 1,2 --resume zoo:cartpole": "--resume",
    "train cartpole --side-by-side 2": "--side-by-side 2: is for --seeds, and there is one run",
    "train cartpole --seeds 1,2 --address auto --side-by-side 2": "--side-by-side 2: divides this machine; on a",
    "train cartpole --address auto --detach --run-dir one": "ray job submit -- tributary train",
    # Measurements.
    "plan --node-cores 0": "must be at least 1",
    "plan pogn": "did you mean pong?",
    "plan pong --network.name mlp": "use a3c_cnn",
    "plan pong --actor.minibatches 3": "does not divide",
    "bench scaling --actors two": "must be numbers like 1,2,4",
    "bench scaling --seconds 0": "must be greater than 0",
    "bench scaling --repeats 0": "must be at least 1",
    "bench scaling --actors=1000": "there is room for",
    "bench scaling pogn": "did you mean pong?",
    "bench thruput": "unknown bench thruput, did you mean throughput?",
    "bench throughput --seconds 0": "must be greater than 0",
    "bench throughput --actor.environments 0": "must be at least 1",
    "bench throughput pnog": "unknown preset pnog, did you mean pong?",
    "bench throughput --json no-such-folder/x.json": "in a folder that exists",
    "bench learning atari": "--mark R, the return to reach, or --minutes N",
    "bench learning pogn": "unknown preset pogn, did you mean pong?",
    "bench learning pong --stop-at-return 3": "--stop-at-return 3.0: is given by --mark here",
    "bench learning pong --stop-after-seconds 3": "is given by --minutes here",
    "bench learning pong --seed 3": "is given by --seeds here",
    "bench learning pong --minutes 0": "must be greater than 0",
    "bench learning pong --seeds 1,1": "must name each seed once",
    "bench learning pong --side-by-side 0": "must be at least 1",
    "bench learning pong --storage s3://bucket/run": "is for one run",
    "bench learning pong pong": "would be compared with itself",
    "bench learning pong --compare ''": "would be compared with itself",
    "bench learning pong --compare '--seeds 3'": "takes settings of training",
    "bench learning pong --compare '--actors \"2'": "cannot be read",
    "bench learning pong --compare '--actors no'": "--actors",
    "bench learning pong --json no-such-folder/x.json": "in a folder that exists",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    command: str, refused: Callable[[list[str]], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("a worker would have started"))
    assert MISTAKES[command] in refused(shlex.split(command))
    assert not list(tmp_path.iterdir())


PARSER_MISTAKES = {
    "evaluate": "RUN",
    "train --checkpoint.exact=maybe": "maybe",
    "train cartpole --executor remote": "'remote'",
    "train cartpole --optimizer.name adamw": "adamw",
    "train cartpole --environment.options length=5": "--environment.options",
    "train --total-frames many": "must be a whole number",
    "train --no-such-setting 1": "--no-such-setting",
    "train --learning-rate 1": "--optimizer.learning-rate",
}


@pytest.mark.parametrize("command", PARSER_MISTAKES)
def test_what_the_parser_refuses_has_code_2(command: str, capsys: pytest.CaptureFixture) -> None:
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert PARSER_MISTAKES[command] in " ".join(err.replace("│", " ").split())
