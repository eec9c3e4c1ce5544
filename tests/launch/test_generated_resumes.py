"""Resumes with one changed setting out of all."""

from operator import attrgetter
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sessions import quick

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.run.folder import RunFolder
from launch.settings.check import check_checkpoint, on_device, resume_lines
from launch.settings.files import KINDS, option_name, with_settings
from launch.train import train
from shared.config import RunConfig
from shared.errors import ConfigurationError
from shared.types import Float32Array, GradientReport, WeightSnapshot

# Settings that a resume may change in order to learn otherwise: the first gradient is another one.
LEARNING = {
    "seed", "method.n_step", "method.return_lambda", "method.value_cost", "method.entropy_cost",
    "method.final_entropy_cost", "method.standardise_advantages", "actor.environments", "actor.unroll_length",
    "actor.minibatches", "actor.fresh_gradients",
}  # fmt: skip
# Each copy gets a process, for seconds; tests of environments have the equality.
SLOW = {"environment.vectorization"}


def another(name: str, value: Any) -> Any:
    """Another value of a setting, which may be one that is refused."""
    kind: Any = KINDS[name]
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return 0.5 * value or 0.5
        case tuple():
            return (*value[1:], value[-1] / 2) if value and isinstance(value[0], int | float) else ("wandb",)
        case dict():
            return {"max_episode_steps": 7}
        case str():
            return f"{value}-other"
    return next((other for word, other in (("int", 3), ("float", 0.5)) if word in str(kind)), "other")


def first_gradient(config: RunConfig) -> Float32Array:
    spec = environment_spec(config.environment)
    actor, parameters = Actor(config, spec, 7), Policy(config, spec).initial_parameters()
    while not isinstance(report := actor.run(WeightSnapshot(3, parameters, 100)), GradientReport):
        pass
    return report.gradient


@pytest.fixture(scope="module")
def resumable(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Float32Array]:
    """A run, and the first gradient of its resume."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(quick(total_frames=100), folder, lambda _: None)
    run = RunFolder(folder)
    return run, first_gradient(run.read_settings())


def check_change(name: str, resumable: tuple[RunFolder, Float32Array]) -> None:
    """A change is refused in one line, or harmless, or a wish to learn otherwise."""
    run, gradient = resumable
    before, refused = run.read_settings(), ""
    try:
        config = with_settings(before, {name: another(name, attrgetter(name)(before))})
        spec = environment_spec(before.environment)
        config, _ = on_device(config, spec, gpus=0)
        check_checkpoint(config, spec, run)
    except ConfigurationError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("--")
        assert "\n" not in refused
        return
    (line,) = (line for line in resume_lines(config, run) if f" {option_name(name)} " in line)
    assert line.startswith("changed: ")
    if name not in LEARNING:
        np.testing.assert_array_equal(first_gradient(config), gradient)


@settings(
    derandomize=True, deadline=None, database=None, max_examples=6, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.sampled_from(sorted(KINDS.keys() - SLOW)))
def test_some_changes_of_a_resume_are_refused_or_harmless(resumable: tuple, name: str) -> None:
    check_change(name, resumable)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS.keys() - SLOW))
def test_a_change_of_a_resume_is_refused_or_harmless(name: str, resumable: tuple) -> None:
    check_change(name, resumable)
