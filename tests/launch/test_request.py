"""The settings of a run: rollouts that many actors share, and its name."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from launch.presets import PRESETS
from launch.request import ResolvedRun, TrainRequest, complete, shared_by
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError


@pytest.mark.parametrize(
    ("preset", "actors", "rollout", "minibatches", "gradients"),
    [
        ("pong", 4, (8, 64), 2, 1),
        ("pong", 16, (2, 64), 1, 2),
        ("pong", 63, (1, 32), 1, 8),
        ("pong", 256, (1, 16), 1, 16),
        ("pong", 1024, (1, 16), 1, 16),
        ("cartpole", 8, (2, 64), 1, 2),
        ("cartpole", 64, (1, 16), 1, 16),
        ("lunarlander", 8, (8, 128), 4, 1),
        ("lunarlander", 32, (2, 128), 2, 2),
        ("lunarlander", 64, (1, 128), 2, 4),
    ],
)
def test_many_actors_share_the_steps_in_flight_and_an_update_keeps_its_agent_steps(
    preset: str, actors: int, rollout: tuple[int, int], minibatches: int, gradients: int
) -> None:
    config = PRESETS[preset].config
    shared = shared_by(config, actors)
    assert (shared.actor.environments, shared.actor.unroll_length) == rollout
    assert (shared.actor.minibatches, shared.learner.gradients_per_update) == (minibatches, gradients)
    assert (shared.actor.fresh_gradients, shared.learner.accumulation) == (True, "mean")
    assert shared.actor.epochs == config.actor.epochs
    # Nothing is left to share on a resume.
    assert shared_by(shared, actors) == shared


@pytest.mark.parametrize("preset", [name for name, preset in PRESETS.items() if preset.config.actor.steps_in_flight])
def test_any_number_of_actors_keeps_the_steps_of_an_update(preset: str) -> None:
    config = PRESETS[preset].config
    actor = config.actor
    update = actor.environments * actor.unroll_length // actor.minibatches
    for actors in range(1, 257):
        shared = shared_by(config, actors)
        rollout = shared.actor.environments * shared.actor.unroll_length
        assert rollout * shared.learner.gradients_per_update == update * shared.actor.minibatches
        assert shared.actor.environments * shared.learner.gradients_per_update >= 4
        assert actors * rollout <= actor.steps_in_flight or rollout == 16


@pytest.mark.parametrize(
    ("preset", "environment_id", "name", "expected"),
    [
        ("cartpole", "CartPole-v1", None, "cartpole"),
        ("vectors", "my_module:Picking-v0", None, "Picking-v0"),
        ("vectors", "shop/Picking-v0", None, "Picking-v0"),
        ("pong", "ALE/Boxing-v5", None, "Boxing-v5"),
        ("vectors", "my_module:Picking-v0", "night.2", "night.2"),
        # The name of another run.
        ("Picking-v0-20261122-015812", "Picking-v0", None, "Picking-v0-20261122-015812"),
    ],
)
def test_a_run_is_called_after_its_preset_or_its_environment_or_as_the_user_likes(
    preset: str, environment_id: str, name: str | None, expected: str
) -> None:
    config = RunConfig(environment=EnvironmentConfig(id=environment_id))
    assert ResolvedRun(config, preset, typed_name=name).name == expected


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"name": "a/b"}, "--name a/b: must be letters, digits, and .-_ between them"),
        ({"name": ".a"}, "--name .a: must be letters"),
        ({"name": "a", "run_dir": "b"}, "--name a: --run-dir b names the folder; leave one out"),
        ({"name": "a", "resume": "b"}, "--name a: --resume b has its settings and its folder; leave it out"),
    ],
)
def test_what_is_no_name_is_one_line(more: dict, line: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(line)}"):
        complete(TrainRequest(**more))


@pytest.mark.parametrize("preset", ["pong", "cartpole", "lunarlander"])
def test_few_actors_keep_the_rollouts_of_the_preset(preset: str) -> None:
    assert shared_by(PRESETS[preset].config, 2) == PRESETS[preset].config


def test_a_rollout_has_the_steps_of_a_return() -> None:
    config = PRESETS["cartpole"].config
    config = replace(config, method=replace(config.method, n_step=20, return_lambda=None))
    assert shared_by(config, 256).actor.unroll_length == 32


def test_rollouts_that_are_chosen_by_hand_are_left_alone(tmp_path: Path) -> None:
    chosen = complete(TrainRequest("pong", {"actor.unroll_length": 16})).config
    assert shared_by(chosen, 64) == chosen
    # As in the preset: a choice all the same.
    as_it_is = complete(TrainRequest("pong", {"actor.environments": 32})).config
    assert shared_by(as_it_is, 64) == as_it_is
    both = TrainRequest("pong", {"actor.environments": 32, "actor.steps_in_flight": 512})
    with pytest.raises(ConfigurationError, match=r"--actor\.steps-in-flight 512: chooses --actor\.environments by the"):
        complete(both)
    file = tmp_path / "mine.toml"
    file.write_text('preset = "pong"\n[actor]\nsteps_in_flight = 512\n')
    assert complete(TrainRequest(config=file)).config.actor.steps_in_flight == 512
    typed = complete(TrainRequest(config=file, settings={"actor.environments": 16})).config.actor
    assert (typed.environments, typed.steps_in_flight) == (16, None)
    assert complete(TrainRequest("pong")).config.actor.steps_in_flight == 2_048
