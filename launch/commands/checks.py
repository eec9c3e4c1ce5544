"""What is checked of a run's settings against its environment and its folder, before any worker starts."""

import os
from pathlib import Path

from actors.environments import EnvironmentSpec
from launch.film.stage import make_stage
from launch.loop.trace import EventTrace
from launch.machine.budget import ThreadBudget
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output import check_can_be_written
from launch.run.folder import RunFolder
from launch.run.status import check_exact_resume, check_unchanged
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.registry import METHODS, NETWORKS


def check_arrivals(config: RunConfig, budget: ThreadBudget | None) -> None:
    """Check the files that an order of arrivals is written to or read from.

    Raises:
        ConfigurationError: one cannot be, or is of another number of actors.
    """
    if config.record_arrivals is not None:
        file = Path(config.record_arrivals)
        if not file.absolute().parent.is_dir():
            raise setting_error("record_arrivals", file, f"there is no folder {file.absolute().parent}")
        if file.is_dir():
            raise setting_error("record_arrivals", file, "is a folder; name a file")
        if file.exists() and not os.access(file, os.W_OK):
            raise setting_error("record_arrivals", file, "cannot be written")
        check_can_be_written(file, "record_arrivals")
    if config.replay_arrivals is not None and budget is not None:
        recorded = len(EventTrace(config.replay_arrivals).actor_ids)
        if recorded != budget.actors:
            raise setting_error("actors", budget.actors, f"{config.replay_arrivals} is of a run with {recorded}")


def check_network(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Check, without importing TensorFlow, that network and method can take what the environment gives.

    Raises:
        ConfigurationError: they cannot.
    """
    network = config.network
    network.check_known()
    config.method.check_known()
    config.exploration.check_known()
    if spec.images != NETWORKS[network.name].images:
        *others, last = [name for name, entry in NETWORKS.items() if entry.images == spec.images]
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise setting_error(
            "network.name", network.name, f"{config.environment.id} gives {_observations(spec)}; use {wanted}"
        )
    if spec.actions.shape and not METHODS[config.method.name].continuous_actions:
        kind = "continuous actions" if spec.actions.continuous else "several actions at once"
        able = [name for name, entry in METHODS.items() if entry.continuous_actions]
        raise setting_error(
            "method.name", config.method.name, f"{config.environment.id} has {kind}; use {' or '.join(able)}"
        )
    _check_scaling(config, spec)
    least = NETWORKS[network.name].least_side
    if any(min(shape[:2]) < least for shape in spec.image_shapes):
        raise setting_error(
            "environment.screen_size", config.environment.screen_size, f"must be at least {least} for {network.name}"
        )


def _check_scaling(config: RunConfig, spec: EnvironmentSpec) -> None:
    scaling = config.network.observation_scaling
    if scaling == "none":
        return
    # Numbers beside images have an mlp of their own.
    if config.network.name != "mlp" and (spec.parts is None or not spec.parts.numbers):
        images = "; images have --network.centre-observations" if spec.images else ""
        raise setting_error(
            "network.observation_scaling", scaling, f"is for mlp, and {config.network.name} is none{images}"
        )
    if scaling == "bounds":
        assert spec.observation_bounds is not None
        unbounded = [i for i, pair in enumerate(zip(*spec.observation_bounds, strict=True)) if not _finite(pair)]
        if unbounded:
            raise setting_error(
                "network.observation_scaling",
                "bounds",
                f"{config.environment.id} has no finite bounds in observation {unbounded}; use running",
            )


def _observations(spec: EnvironmentSpec) -> str:
    if spec.parts is None:
        return f"observations of shape {spec.observation_shape}"
    images = ", ".join(f"{image.name} {image.shape}" for image in spec.parts.images)
    return f"images, {images}, and {spec.parts.vector_size} numbers beside them"


def _finite(bounds: tuple[float, float]) -> bool:
    # Gymnasium writes "no bound" as an infinity, or as the largest float32.
    low, high = bounds
    return -1e30 < low < high < 1e30


def check_video(config: RunConfig) -> None:
    """Draw one picture, where the run's evaluations are to be filmed on this machine.

    Raises:
        ConfigurationError: there is none.
    """
    if not config.evaluation.video or config.address != "local":
        return
    try:
        stage = make_stage(config.environment)
        try:
            stage.reset(config.seed)
        finally:
            stage.close()
    except ConfigurationError as error:
        raise setting_error("evaluation.video", True, f"{error}; leave it out") from error


def check_checkpoint(config: RunConfig, spec: EnvironmentSpec, folder: RunFolder, budget: ThreadBudget | None) -> None:
    """Check that the newest checkpoint fits the network, method, optimizer and actors that the settings make.

    Raises:
        ConfigurationError: it does not, or there is none that can be read.
    """
    before = folder.read_settings()
    check_unchanged(before, config, str(folder.path))
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy
    from learner.checkpoint import read_checkpoint, read_state

    read_checkpoint(folder.checkpoints, Policy(config, spec).layout)
    if budget is not None:
        check_exact_resume(before, config, budget.actors, read_state(folder.checkpoints))
