"""Runs in this process, without the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.inline import InlineExecutor
from launch.presets import PRESETS
from launch.run.events import Message
from launch.run.session import TrainingSession
from launch.settings.files import with_settings
from learner.learner import Learner
from shared.config import RunConfig

# CartPole in one process, in milliseconds a row, until its frames are reached.
QUICK: dict[str, Any] = {
    "executor": "inline",
    "actors": 1,
    "log_every_seconds": 0.1,
    "stop_at_return": None,
    "stop_measure": "training",
    "evaluation.every_frames": 0,
    "network.hidden_sizes": (8,),
}
MakeExecutor = Callable[..., InlineExecutor]


def session(
    config: RunConfig, folder: Path, actors: int = 1, executor: MakeExecutor = InlineExecutor, **options: Any
) -> TrainingSession:
    """A run in `folder`, which is made. `options` are those of `TrainingSession`; a run is new unless they say so."""
    spec = environment_spec(config.environment)
    folder.mkdir(exist_ok=True)
    options = {"resume": False} | options
    return TrainingSession(config, spec, folder, lambda first: executor(config, spec, actors, first), **options)


def train_inline(config: RunConfig, until: Callable[[Learner], bool], actors: int = 1) -> Learner:
    """Train without a folder, until a condition holds after a report."""
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    executor = InlineExecutor(config, spec, actors)
    for _ in Coordinator(learner, executor, config.supervision).run():
        if until(learner):
            break
    executor.close()
    return learner


def messages_of(run: TrainingSession) -> list[str]:
    """The messages since the last view."""
    return [event.text for event in run.view({}).events if isinstance(event, Message)]


def quick(**more: Any) -> RunConfig:
    """The preset for CartPole with `QUICK`, without an end unless `total_frames` says so."""
    return with_settings(PRESETS["cartpole"].config, QUICK | {"total_frames": 100_000_000} | more)
