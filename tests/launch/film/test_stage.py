"""Episodes with their pictures, values and preferences; environments that draw none; and `tributary record`."""

import json
from dataclasses import replace
from pathlib import Path

import av
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from PIL import Image
from untrained_runs import untrained

from actors.environments import environment_spec
from actors.policy import Acted, Policy
from launch.cli import main
from launch.film.stage import AtariStage, as_frame, make_stage, play_episode
from launch.presets import PRESETS
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError


class Blind(CartPoleEnv):
    """Takes every mode, and draws nothing."""

    def render(self) -> None:
        return None


class Deaf(CartPoleEnv):
    """Does not know of modes."""

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> str:
    name = f"{request.param.__name__}-v0"
    gymnasium.register(name, entry_point=request.param, max_episode_steps=50)
    yield name
    del gymnasium.registry[name]


@pytest.mark.filterwarnings("ignore:.*RGB-array rendering")
@pytest.mark.parametrize("registered", [Blind, Deaf], indirect=True)
def test_an_environment_without_pictures_is_refused(registered: str) -> None:
    config = EnvironmentConfig(id=registered, frame_skip=1, clip_rewards=False)
    with pytest.raises(ConfigurationError, match=f"--environment.id {registered}: cannot be shown: ") as raised:
        make_stage(config).reset(1)
    assert "\n" not in str(raised.value)


PICTURE = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


@pytest.mark.parametrize(
    ("rendered", "frame"),
    [
        (PICTURE, PICTURE),
        (np.moveaxis(PICTURE, -1, 0), PICTURE),
        (np.dstack([PICTURE, np.full((6, 5), 9, np.uint8)]), PICTURE),
        (PICTURE[..., 0], np.repeat(PICTURE[..., :1], 3, axis=2)),
        ([np.zeros_like(PICTURE), PICTURE], PICTURE),
        (PICTURE.astype(np.float32), PICTURE),
    ],
)
def test_pictures_of_other_forms_are_converted(rendered: object, frame: np.ndarray) -> None:
    np.testing.assert_array_equal(as_frame(rendered), frame)


@pytest.mark.parametrize("rendered", [5, "text", np.zeros(3, np.uint8), np.zeros((6, 4, 2), np.uint8), PICTURE / 7])
def test_what_is_no_picture_is_refused(rendered: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        as_frame(rendered)


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_a_step_has_the_action_and_the_output_of_the_network(cartpole: RunConfig, recurrent: str) -> None:
    config = replace(cartpole, network=replace(cartpole.network, recurrent=recurrent))
    policy = Policy(config, environment_spec(config.environment), seed=3, training=False)
    stage = make_stage(config.environment)
    seen: list[tuple[np.ndarray, tuple]] = []
    states: list[tuple] = []

    def act(observations: np.ndarray, memory: tuple) -> Acted:
        seen.append((observations.copy(), memory))
        acted = policy.greedy(observations, memory)
        states.append(acted.state)
        return acted

    first, *steps = play_episode(stage, policy, act, 7)
    stage.close()
    assert first.action is None
    np.testing.assert_allclose(first.preferences, steps[0].preferences)
    assert len(steps) == len(seen) > 5
    # A memory begins with zeros, and goes from step to step.
    assert all((part == 0).all() for part in seen[0][1])
    assert all(after is before for before, (_, after) in zip(states[:-1], seen[1:], strict=True))
    for step, (observations, memory) in zip(steps, seen, strict=True):
        assert step.preferences.shape == (2,)
        assert step.action == np.argmax(step.preferences)
        np.testing.assert_allclose(step.preferences, policy.preferences(observations, memory)[0])
        assert step.value == policy.values(observations, memory)[0]
    assert [step.ended for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].episode_return == len(steps)


def test_probabilities_are_those_by_which_actions_are_drawn(cartpole: RunConfig) -> None:
    count = 20_000
    policy = Policy(cartpole, environment_spec(cartpole.environment), environments=count, seed=3, training=False)
    weights = np.random.default_rng(0).normal(0, 0.5, policy.layout.size).astype(np.float32)
    policy.assign(weights)
    seen = np.repeat(np.array([[0.1, -0.7, 0.05, 0.9]], np.float32), count, axis=0)
    drawn = np.bincount(policy.act(seen).actions, minlength=2) / count
    probabilities = policy.preferences(seen)[0]
    assert 0.05 < probabilities[0] < 0.95
    np.testing.assert_allclose(drawn, probabilities, atol=4 * 0.5 / np.sqrt(count))


def test_q_methods_have_action_values_and_gaussians_nothing_to_weigh(cartpole: RunConfig) -> None:
    spec = environment_spec(cartpole.environment)
    policy = Policy(replace(cartpole, method=replace(cartpole.method, name="q_learning")), spec, training=False)
    seen = np.array([[0.1, -0.7, 0.05, 0.9]], np.float32)
    preferences = policy.preferences(seen)
    assert preferences.max() == policy.values(seen)[0]
    assert np.argmax(preferences) == policy.greedy(seen).actions[0]
    assert policy.method.preferences_are == "action value"
    pendulum = PRESETS["pendulum"].config
    gaussian = Policy(pendulum, environment_spec(pendulum.environment), training=False)
    assert gaussian.preferences(np.zeros((1, 3), np.float32)) is None


MADE_BY = {"command", "created", "revision", "versions", "hardware"}


def test_what_is_shown_stays_in_step_with_what_the_agent_plays() -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5", sticky_action_probability=0.25, max_episode_frames=1_200)
    stage = AtariStage(config)
    generator = np.random.default_rng(0)
    stage.reset(7)
    frames, total, ended = 0, 0.0, False
    while not ended:
        # It raises where rewards or ends differ.
        _, reward, ended, shown = stage.step(generator.integers(0, 6, 1, np.int32))
        frames, total = frames + len(shown), total + reward
        assert shown[0].shape == (210, 160, 3)
    stage.close()
    assert total < 0
    assert frames > 1_000


def test_a_video_has_every_frame_of_the_episode_and_its_provenance(pong_run: Path, tmp_path: Path) -> None:
    video, result = tmp_path / "pong.mp4", tmp_path / "pong.json"
    assert main(f"record {pong_run} --overlay --output {video} --json {result}".split()) == 0
    made = json.loads(result.read_text())
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 60
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        comment = json.loads(container.metadata["comment"])
    # An episode is 300 frames, of which the no-ops before it are not shown.
    assert len(pictures) == made["frames"]
    assert 250 <= made["frames"] <= 301
    assert comment.keys() >= MADE_BY
    assert comment["protocol"]["frames_per_agent_step"] == 4
    # In colour, and moving; the caption's bar is below the picture.
    assert np.ptp(pictures[150].astype(int), axis=2).max() > 50
    assert np.abs(pictures[150].astype(int) - pictures[240]).max() > 50
    assert pictures[150].shape[0] > 630
    assert not (tmp_path / "pong.part.mp4").exists()


def test_a_run_with_a_memory_is_evaluated_and_recorded_as_its_environment_draws_itself(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "cartpole", **{"network.recurrent": "lstm"})
    figures = tmp_path / "evaluation.json"
    assert main(f"evaluate {run} --episodes 3 --policy greedy --json {figures}".split()) == 0
    assert json.loads(figures.read_text())["episodes"] == 3
    assert main(f"record {run} --output {tmp_path / 'film.gif'} --episodes 1".split()) == 0
    with Image.open(tmp_path / "film.gif") as picture:
        assert picture.n_frames > 3
        assert json.loads(picture.info["comment"]).keys() >= MADE_BY
