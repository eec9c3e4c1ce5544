"""Mistakes cost one line and exit code 2, before any worker starts."""

import shlex
from pathlib import Path

import pytest

MISTAKES = {
    "evaluate": "RUN is missing; see tributary evaluate --help",
    "presets a": "a: unexpected argument; see tributary presets --help",
    "stop a --seed 3": "--seed: there is no such option; see tributary stop --help-all",
    "train pnog": "unknown preset pnog; did you mean pong?",
    "train Seaquest": "minigrid; an environment is named by its id, like ALE/Seaquest-v5",
    "train pong --workers 4": "--workers: there is no such option; did you mean --actors?",
    "train ppo": "unknown preset ppo: pong is asynchronous PPO on Pong",
    "train pong --nam mine": "--nam: there is no such option; did you mean --name or --network.name or",
    "trian": "unknown command trian; did you mean train?",
    "runs nosuch": "nosuch: there is no such folder",
    "bench foo": "unknown command bench foo; did you mean bench?",
    "train --environment.id ALE/Pnog-v5": "no such environment; did you mean ALE/Pong-v5",
    "train NoSuch-v0": "--environment.id NoSuch-v0: no such environment; see gymnasium.registry",
    "report": "RUNS is missing; see tributary report --help",
    "train cartpole --environment.id Pendulum-v1 --method.name sarsa": "has continuous actions; use actor_critic",
    "train --optimizer.schedule cosin": "--optimizer.schedule cosin: no such schedule; there are linear, cosine",
    "train --method.n-step 65": "--method.n-step 65: is more than --actor.unroll-length 32",
    "train --method.no-target-network": "--method.target-network False: is for --method.name q_learning or sarsa; ",
    "train cartpole --network.observation-scaling bounds": "no finite bounds in observation [1, 3]; use running",
    "train pong --network.observation-scaling running": "and the network is a3c_cnn; images have --network.centre",
    "train cartpole --environment.id phys2d/CartPole-v1": "cannot be made",
    "train --environment.id Pong-v4": "would skip twice",
    "train --network.name mlp": "use a3c_cnn, nature_cnn or impala_resnet",
    "train cartpole --network.name a3c_cnn": "CartPole-v1 gives observations of shape (4,); use mlp",
    "train --resume no-such-folder": "no-such-folder: there is no such folder; there is no run below runs/",
    "train pong --resume no-such-folder": "PRESET pong: the run of --resume no-such-folder keeps its settings",
    "train --stop-measure evaluation": "needs evaluations",
    "train pong --environment.id CartPole-v1": "preset pong is made for ALE/Pong-v5: start from cartpole",
    "train a3c --environment.id CartPole-v1": "preset a3c is made for ALE/Pong-v5: start from a3c-continuous",
    "train cartpole --environment.id ALE/Seaquest-v5": "preset cartpole is made for CartPole-v1: start from atari",
    "help bench scalng": "unknown command bench scalng; did you mean bench scaling?",
    "train --json no-such-folder/result.json": "in a folder that exists",
    "train cartpole --storage file:///proc/no/such/run": "--storage file:///proc/no/such/run: cannot be written",
    "train cartpole --name a/b": "--name a/b: must be letters, digits, and .-_ between them",
    "train --executor inline --learner.device gpu": "inline updates are on the device of the actors",
    "evaluate zoo:cartpole --episodes 0": "--episodes 0: must be at least 1",
    "evaluate zoo:pnog": "zoo:pnog: no such agent ships; did you mean zoo:pong?",
    "evaluate pong": "the agent that ships is zoo:pong",
    "evaluate .": "is not the folder of a run: it has no config.json",
    # Rules of several settings.
    "train --actors 4:2": "--actors 4:2: must have its bounds in order",
    "train --actors 0:3": "--actors 0:3: must be at least 1",
    "train --actors many": "--actors many: must be a number, auto, or MIN:MAX",
    "train --network.recurrent lstm --actor.environments 4 --actor.unroll-length 6 --actor.minibatches 3": "3: does "
    "not divide --actor.environments 4: with a memory",
    "train a3c --aggregation node --learner.max-policy-lag 1": "leave --learner.max-policy-lag out",
    "train a3c --aggregation node --executor inline": "--aggregation node: is for --executor ray",
    "train a3c --address 10.0.0.5:6379 --executor inline": "--address 10.0.0.5:6379: is for --executor ray",
    # Options of an environment's constructor.
    "train cartpole --environment.options sutton_barto_rewrd true": "--environment.options sutton_barto_rewrd True: "
    "CartPole-v1 takes no such option; did you mean sutton_barto_reward?",
    "train pendulum --environment.options mass 2": "--environment.options mass 2: Pendulum-v1 takes no such option; it "
    "takes g",
    # Settings without an effect.
    "train cartpole --environment.frame-stack 4": "is for images; for others --environment.wrappers gymnasium.wrapp",
    "train cartpole --environment.no-greyscale": "--environment.greyscale False: is for images; leave it out with Cart",
    "train cartpole --seed 3 --environment.no-fire-on-reset": "--environment.fire-on-reset False: is for Atari",
    "train cartpole --exploration.noise state_dependent": "is for continuous actions; leave it out with Cart",
    "train pendulum --exploration.noise independent --exploration.noise-persistence-agent-steps 8": "is for "
    "--exploration.noise state_dependent; leave it out with independent",
    "train cartpole-q --method.entropy-cost 0.01": "0.01: is for --method.name actor_critic; leave it out with q_learn",
    # A setting without an effect, before a rule of several settings.
    "train cartpole-q --method.entropy-cost 0.5 --method.n-step 999": "0.5: is for --method.name actor_critic; leave",
    "train pong-q --method.target-interval-agent-steps 9": "is for --method.target-network True; leave it out with",
    "train lunarlander --optimizer.decay 0.99": "is for --optimizer.name rmsprop; leave it out with adam",
    "train cartpole-tutorial --optimizer.annealing-frames 900": "is for --optimizer.schedule linear or cosine; leave",
    "train pong --network.hidden-sizes 8": "--network.hidden-sizes (8,): is for --network.name mlp; leave it out",
    # Runs that are named.
    "evaluate latest": "there is none",
    "evaluate memory://no/run": "RUN memory://no/run: holds no run: it has no config.json",
    "train cartpole --start-from zoo:cartpole --network.hidden-sizes 16": "zoo:cartpole was trained with (64, 64)",
    "train cartpole-q --start-from zoo:cartpole": "is of another network",
    "train pong --start-from zoo:pong --network.no-centre-observations": "zoo:pong was trained with True",
    "train --start-from zoo:pong --environment.screen-size 60": "or of other observations or actions",
    "train --start-from zoo:pong --resume zoo:pong": "keeps its settings and its folder; leave this out",
    "train --start-from nowhere": "nowhere: there is no such folder",
    "train --resume zoo:pong": "start a new run from them: --start-from zoo:pong",
    "evaluate zoo:cartpole --weights latest": "no checkpoint in",
    "evaluate zoo:cartpole --weights newest": "must be auto, best or latest",
    "evaluate zoo:cartpole --protocol noop": "is for Atari",
    "record zoo:cartpole --output nowhere/film.mp4": "film.mp4: must end in .mp4 or .gif, in a folder that exists",
    "plot .": "is not the folder of a run, and holds none",
    "plot zoo:cartpole --y score": ", agent_steps,",
    "export zoo:cartpole --output .": "exists",
    "watch": "tributary record zoo:pong writes a video",
    "train cartpole --seeds 1,2 --seed 3": "--seed 3: is of one run, and --seeds trains several",
    # Measurements.
    "bench throughput pogn": "did you mean pong?",
    "bench throughput pong --actor.minibatches 3": "does not divide",
    "bench scaling --actors two": "must be numbers like 1,2,4",
    "bench scaling --repeats 0": "must be at least 1",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(command: str, refused, working_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("a worker would have started"))
    assert MISTAKES[command] in refused(shlex.split(command))
    assert not list(working_folder.iterdir())
