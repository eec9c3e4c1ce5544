"""`tributary record`: every frame of whole episodes, in step with the agent."""

import json
from pathlib import Path

import av
import numpy as np
from PIL import Image
from untrained_runs import untrained

from launch.cli import main
from launch.film.stage import AtariStage
from shared.config import EnvironmentConfig

MADE_BY = {"command", "created", "revision", "versions", "hardware"}


def test_what_is_shown_stays_in_step_with_what_the_agent_plays() -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5", sticky_action_probability=0.25, max_episode_frames=8_000)
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
    assert frames > 2_000


def test_a_video_has_every_frame_of_the_episode_and_its_provenance(pong_run: Path, tmp_path: Path) -> None:
    video, result = tmp_path / "pong.mp4", tmp_path / "pong.json"
    assert main(f"record {pong_run} --overlay --output {video} --json {result}".split()) == 0
    made = json.loads(result.read_text())
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 60
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        comment = json.loads(container.metadata["comment"])
    # An episode is 600 frames, of which the no-ops before it are not shown.
    assert len(pictures) == made["frames"]
    assert 550 <= made["frames"] <= 601
    assert comment.keys() >= MADE_BY
    assert comment["protocol"]["frames_per_agent_step"] == 4
    # In colour, and moving; the caption's bar is below the picture.
    assert np.ptp(pictures[300].astype(int), axis=2).max() > 50
    assert np.abs(pictures[300].astype(int) - pictures[540]).max() > 50
    assert pictures[300].shape[0] > 630
    assert not (tmp_path / "pong.part.mp4").exists()


def test_a_gif_of_an_environment_that_draws_itself(cartpole_runs: list[Path], tmp_path: Path) -> None:
    video = tmp_path / "cartpole.gif"
    assert main(f"record {cartpole_runs[0]} --output {video}".split()) == 0
    with Image.open(video) as picture:
        assert picture.n_frames > 3
        assert json.loads(picture.info["comment"]).keys() >= MADE_BY


def test_a_run_with_a_memory_is_evaluated_and_recorded(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "cartpole", **{"network.recurrent": "lstm"})
    figures = tmp_path / "evaluation.json"
    assert main(f"evaluate {run} --episodes 3 --policy greedy --json {figures}".split()) == 0
    assert json.loads(figures.read_text())["episodes"] == 3
    assert main(f"record {run} --output {tmp_path / 'film.gif'} --episodes 1".split()) == 0
    assert (tmp_path / "film.gif").stat().st_size > 1_000
