"""Runs with masks of the allowed actions: what their agents and exported networks take and give."""

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from untrained_runs import untrained
from waiting import UNTIL_FRAMES

import tributary_rl as tributary
from launch.cli import main
from launch.film.stage import Performance
from launch.results.evaluate import PlayArguments, PolicyName

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "job_picking.py"
RUNS: dict[str, dict[str, Any]] = {
    "one choice, info": {},
    "Q-learning": {"method.name": "q_learning", "environment.options": {"in_observation": True}},
    "several choices, memory": {
        "environment.options": {"several": True, "in_observation": True},
        "network.recurrent": "lstm",
    },
    "images": {"environment.options": {"in_observation": True, "images": True}},
}


def masked_run(folder: Path, settings: dict[str, Any]) -> Path:
    images = settings.get("environment.options", {}).get("images", False)
    always = {"environment.id": "Picky-v0", "environment.imports": ("masked_tasks",)}
    always["environment.action_mask"] = "action_mask"
    return untrained(folder, "images" if images else "vectors", **always, **settings)


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_an_agent_plays_its_environment_with_allowed_actions_only(settings: dict[str, Any], tmp_path: Path) -> None:
    """With the mask of info, or with that of the observation; the environment raises at any other action."""
    agent = tributary.load(str(masked_run(tmp_path / "run", settings)), trust_imports=True)
    options = settings.get("environment.options", {})
    environments = [agent.environment()]
    # Its images are single ones, where the agent takes stacks.
    if not options.get("images"):
        environments.append(gymnasium.make("Picky-v0", **options))
    for environment, deterministic in itertools.product(environments, (True, False)):
        observation, info = environment.reset(seed=3)
        state, steps = None, 0
        for _ in range(40):
            action, state = agent.act(observation, state, deterministic, mask=info.get("action_mask"))
            observation, _, terminated, truncated, info = environment.step(action)
            steps += 1
            if terminated or truncated:
                observation, info = environment.reset()
                state = None
        assert steps == 40


def test_an_agent_takes_masks_of_a_batch_and_refuses_what_is_no_mask(tmp_path: Path) -> None:
    agent = tributary.load(str(masked_run(tmp_path / "run", RUNS["one choice, info"])), trust_imports=True)
    observations, masks = np.zeros((5, 10), np.float32), np.eye(5, dtype=bool)
    np.testing.assert_array_equal(agent.act(observations, mask=masks)[0], np.arange(5))
    np.testing.assert_array_equal(agent.act(observations, deterministic=True, mask=masks.astype(int))[0], np.arange(5))
    assert agent.act(observations[0], mask=[0, 0, 0, 1, 0])[0] == 3
    for mask, message in (
        (None, r"Picky-v0 is played with masks: act\(observation, mask=…\) takes action_mask"),
        ([1, 0], r"the mask is an array int64 \[2\], where a truth value for each of 5 actions \[5\] is expected"),
        ([0] * 5, "the mask allows no action"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.act(observations[0], mask=mask)
    with pytest.raises(ValueError, match="a mask was given, and the agent was trained on CartPole-v1 without masks"):
        tributary.load("zoo:cartpole").act(np.zeros(4), mask=[1, 1])


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["one choice, info", "Q-learning"])
def test_a_recording_plays_allowed_actions_and_shows_no_others(name: str, policy: PolicyName, tmp_path: Path) -> None:
    run = masked_run(tmp_path / "run", RUNS[name])
    performance = Performance(PlayArguments(run=run, policy=policy, seed=1), 3)
    steps = [step for step in performance.play(range(3)) if step.action is not None]
    performance.stage.close()
    assert len(steps) > 15
    hidden = 0
    for step in steps:
        assert step.preferences[step.action] > (0 if name != "Q-learning" else -1)
        hidden += int(np.isnan(step.preferences).sum() if name == "Q-learning" else (step.preferences == 0).sum())
    assert hidden > len(steps)


def test_the_example_trains_resumes_and_is_evaluated(working_folder: Path, refused: Callable[[str], str]) -> None:
    """Its environment raises at a job that is done."""
    shutil.copy(EXAMPLE, working_folder)
    line = (
        f"train job_picking:JobPicking-v0 --executor inline --actors 2 {UNTIL_FRAMES} "
        "--optimizer.annealing-frames 100k --environment.no-normalise-rewards "
        "--actor.environments 4 --actor.unroll-length 8 --actor.epochs 2 "
        "--actor.minibatches 2 --environment.action-mask"
    )
    problem = "--environment.action-mask mask: the observation has no keys, and info has 'action_mask'"
    assert problem in refused(f"{line} mask")
    assert main(f"{line} action_mask --total-frames 400 --run-dir run".split()) == 0
    assert main(["train", "--resume", "run", "--trust-imports", "--total-frames", "800"]) == 0
    assert json.loads((working_folder / "run" / "summary.json").read_text())["frames"] >= 800
    for policy in ("greedy", "sampled"):
        assert main(f"evaluate run --episodes 8 --policy {policy} --trust-imports --json result".split()) == 0
    assert json.loads((working_folder / "result").read_text())["protocol"]["action_mask"] == "action_mask"
    assert -2 < sys.modules["job_picking"].play("run") < 0
