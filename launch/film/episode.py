"""One episode as an animated GIF in memory, for a page or TensorBoard."""

import tempfile
from pathlib import Path

from PIL import Image

from actors.environments import EnvironmentSpec
from actors.policy import Policy
from launch.film.stage import make_stage, play_episode
from launch.film.writer import VideoWriter
from shared.config import RunConfig
from shared.seeds import episode_seeds
from shared.types import Video, WeightSnapshot


def film_episode(config: RunConfig, spec: EnvironmentSpec, snapshot: WeightSnapshot) -> Video:
    """A whole episode with the weights of `snapshot`, by the actions that evaluations take."""
    seeds = episode_seeds(config.seed, "training_video", 1)
    policy = Policy(config, spec, seed=seeds.actions, training=False)
    policy.assign(snapshot.parameters, snapshot.frames)
    act = policy.greedy if config.evaluation.policy == "greedy" else policy.act
    stage = make_stage(config.environment)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "episode.gif"
            with VideoWriter(file, stage.frames_per_second, comment="") as writer:
                for step in play_episode(stage, policy, act, int(seeds.environments[0])):
                    for frame in step.frames:
                        writer.add(frame)
            with Image.open(file) as picture:
                width, height = picture.size
            return Video(file.read_bytes(), width, height)
    finally:
        stage.close()
