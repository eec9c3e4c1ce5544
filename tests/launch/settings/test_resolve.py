"""The settings of a run for its number of actors: a preset is a set of hyperparameters, and actors only divide it."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from launch.presets import PRESETS
from launch.run.folder import RunFolder
from launch.settings.files import with_settings
from launch.settings.help import as_toml
from launch.settings.resolve import TrainRequest, changed_by_hand, divided_among, resolve_request
from shared.config import RunConfig
from shared.errors import ConfigurationError

DIVIDED = [name for name, preset in PRESETS.items() if preset.config.actor.total_environments]
# What `divided_among` may change.
DERIVED = (
    "actor.environments",
    "actor.unroll_length",
    "actor.epochs",
    "actor.minibatches",
    "learner.gradients_per_update",
)


def update_of(config: RunConfig) -> float:
    """Agent steps of an update."""
    actor, count = config.actor, config.learner.gradients_per_update
    return actor.environments * actor.unroll_length * count / actor.minibatches


@pytest.mark.parametrize("preset", DIVIDED)
def test_the_number_of_actors_changes_no_update(preset: str) -> None:
    config = PRESETS[preset].config
    total, unroll_length = config.actor.total_environments, config.actor.unroll_length
    for actors in range(1, 129):
        run = divided_among(config, actors)
        least = 1 if unroll_length >= 64 else 2
        if actors & (actors - 1) == 0:
            assert actors * run.actor.environments == max(total, least * actors)
        assert 0.66 <= actors * run.actor.environments / max(total, least * actors) <= 1.34, actors
        wanted = config.learner.agent_steps_per_update
        assert abs(update_of(run) - wanted) <= 0.2 * wanted
        together = run.actor.environments * run.learner.gradients_per_update
        assert together >= min(max(4, 2 * run.actor.epochs), total)
        unchanged = {name: attrgetter(name)(config) for name in DERIVED}
        assert with_settings(run, unchanged) == config
        assert divided_among(run, actors) == run
        if run.actor.epochs == config.actor.epochs:
            assert divided_among(run, 1) == divided_among(config, 1), "settings of another run can be divided anew"


@pytest.mark.parametrize(
    ("changed", "environments", "minibatches"),
    [
        # An update that does not divide a rollout does not shatter it.
        ({"learner.agent_steps_per_update": 300}, 32, 4),
        # It waits for no more environments than there are.
        ({"actor.total_environments": 2, "actor.unroll_length": 128}, 2, 1),
    ],
)
def test_an_update_of_one_actor(changed: dict[str, int], environments: int, minibatches: int) -> None:
    run = divided_among(with_settings(PRESETS["pong"].config, changed), 1)
    assert (run.actor.environments, run.actor.minibatches) == (environments, minibatches)
    assert run.learner.gradients_per_update == 1


@pytest.mark.parametrize("preset", ["lunarlander", "acrobot", "pong"])
@pytest.mark.parametrize("changed", [{"network.recurrent": "lstm"}, {"actor.epochs": 3}, {"actor.unroll_length": 20}])
def test_changed_settings_keep_the_agent_steps_of_an_update(preset: str, changed: dict[str, object]) -> None:
    config = with_settings(PRESETS[preset].config, changed)
    for actors in (1, 2, 3, 8, 12, 16, 32, 64):
        run = divided_among(config, actors)
        wanted = config.learner.agent_steps_per_update
        assert wanted is not None
        assert abs(update_of(run) - wanted) <= wanted / 5, (actors, run.actor)
        if config.network.recurrent == "lstm":
            assert run.actor.environments % run.actor.minibatches == 0


def test_a_choice_by_hand_is_kept_for_every_number_of_actors() -> None:
    derived = (
        ("actor.environments", 3),
        ("actor.epochs", 3),
        ("actor.minibatches", 2),
        ("learner.gradients_per_update", 5),
    )
    for name, value in derived:
        chosen = resolve_request(TrainRequest("pong", {name: value})).config
        assert all(attrgetter(name)(divided_among(chosen, actors)) == value for actors in (1, 4, 64))
    # As in the default: a choice all the same.
    default = RunConfig().actor.environments
    chosen = resolve_request(TrainRequest("pong", {"actor.environments": default})).config
    assert divided_among(chosen, 64).actor.environments == default
    assert update_of(divided_among(chosen, 64)) == chosen.learner.agent_steps_per_update
    line = r"^--actor\.total-environments 16: decides on --actor-environments; leave one out"
    with pytest.raises(ConfigurationError, match=line.replace("actor-env", "actor.env")):
        resolve_request(TrainRequest("pong", {"actor.environments": 3, "actor.total_environments": 16}))


def test_options_of_the_environment_are_added_to_those_that_it_has() -> None:
    config = with_settings(PRESETS["cartpole"].config, {"environment.options": {"length": 1, "mass": 2}})
    for added in ({"environment.options": {"mass": 3}}, {"environment": {"options": {"mass": 3}}}):
        assert changed_by_hand(config, added).environment.options == {"length": 1, "mass": 3}


def test_a_settings_file_of_an_older_version_is_completed_by_a_resume(tmp_path: Path) -> None:
    """A later change of a default would otherwise change the run."""
    folder = RunFolder(tmp_path)
    folder.write_config(PRESETS["cartpole"].config)
    whole = json.loads(folder.settings_file.read_text())
    older = {**whole, "method": {**whole["method"]}}
    del older["trackers"], older["method"]["clip_ratio"]
    folder.settings_file.write_text(json.dumps(older))
    folder.write_config(folder.read_settings())
    written = json.loads(folder.settings_file.read_text())
    assert written.keys() == whole.keys()
    assert written["method"].keys() == whole["method"].keys()


def test_ataris_frame_skip_is_for_atari_unless_it_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "nstep-q"\nenvironment.id = "CartPole-v1"\nnetwork.name = "mlp"\n')
    whole, skips = tmp_path / "whole.toml", tmp_path / "skips.toml"
    whole.write_text(as_toml(PRESETS["a3c"].config, "a3c"))
    skips.write_text(file.read_text() + "environment.frame_skip = 2\n")
    vectors = {"environment.id": "CartPole-v1", "network.name": "mlp"}
    typed = {**vectors, "environment.frame_skip": 4}
    for request, frame_skip in (
        (TrainRequest("a3c", vectors), 1),
        (TrainRequest("onestep-sarsa", vectors), 1),
        (TrainRequest(config=file), 1),
        (TrainRequest("a3c", typed), 4),
        (TrainRequest(config=file, settings={"environment.frame_skip": 2}), 2),
        (TrainRequest("a3c", {"environment.id": "ALE/Breakout-v5"}), 4),
        (TrainRequest(config=file, settings={"environment.id": "ALE/Breakout-v5", "network.name": "a3c_cnn"}), 4),
        (TrainRequest(config=skips, settings={"environment.id": "Acrobot-v1"}), 2),
        (TrainRequest(config=whole, settings=vectors), 1),
    ):
        assert resolve_request(request).config.environment.frame_skip == frame_skip, request


def test_a_line_names_one_environment() -> None:
    assert resolve_request(TrainRequest("CartPole-v1", {"environment.id": "CartPole-v1"})).preset == "cartpole"
    with pytest.raises(ConfigurationError, match=r"^--environment\.id Acrobot-v1: CartPole-v1 is an environment, too"):
        resolve_request(TrainRequest("CartPole-v1", {"environment.id": "Acrobot-v1"}))


def test_epochs_of_many_actors_need_shared_environments() -> None:
    for preset, changed in (("a3c", {}), ("pong", {"actor.environments": 16})):
        with pytest.raises(ConfigurationError, match=r"^--actor\.epochs-of-many 3: is for --actor\.total-env"):
            resolve_request(TrainRequest(preset, {**changed, "actor.epochs_of_many": 3}))


def test_a_choice_in_a_file_is_kept_unless_another_one_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "pong"\n[actor]\nenvironments = 5\n')
    from_file = resolve_request(TrainRequest(config=file)).config
    assert divided_among(from_file, 4).actor.environments == 5
    typed = resolve_request(TrainRequest(config=file, settings={"actor.total_environments": 16})).config
    assert divided_among(typed, 4).actor.environments == 4
    # As in the defaults: a choice all the same.
    file.write_text('preset = "pong"\n[learner]\ngradients_per_update = 1\n[actor]\nenvironments = 32\n')
    as_default = divided_among(resolve_request(TrainRequest(config=file)).config, 64)
    assert (as_default.actor.environments, as_default.learner.gradients_per_update) == (32, 1)
    # A file of `tributary config` has what derives the edited setting, too.
    file.write_text('preset = "pong"\n[actor]\nepochs = 1\nepochs_of_many = 2\n')
    assert divided_among(resolve_request(TrainRequest(config=file)).config, 64).actor.epochs == 1
    # For another preset it is no edit: what has no source there is as the file has it.
    file.write_text('preset = "atari"\n[actor]\nenvironments = 32\ntotal_environments = 64\n')
    assert resolve_request(TrainRequest("a3c", config=file)).config.actor.total_environments == 64
    file.write_text('preset = "pong"\n[actor]\nenvironments = 5\ntotal_environments = 10\n')
    with pytest.raises(ConfigurationError, match=f"^{file}: --actor.total-environments 10: decides on"):
        resolve_request(TrainRequest(config=file))


@pytest.mark.parametrize("setting", ["actor.total_environments", "learner.agent_steps_per_update"])
def test_a_resume_does_not_begin_anew(setting: str, tmp_path: Path) -> None:
    config = divided_among(with_settings(PRESETS["cartpole"].config, {"executor": "inline"}), 4)
    RunFolder(tmp_path).write_config(config)
    same = {setting: attrgetter(setting)(config)}
    assert resolve_request(TrainRequest(settings=same, resume=str(tmp_path))).config == config
    with pytest.raises(ConfigurationError, match=f"^--{setting.replace('_', '-')} 64: .* keeps its shares"):
        resolve_request(TrainRequest(settings={setting: 64}, resume=str(tmp_path)))
    chosen = resolve_request(TrainRequest(settings={"actor.environments": 2}, resume=str(tmp_path))).config.actor
    assert (chosen.environments, chosen.total_environments) == (2, None)


def test_a_run_that_starts_from_another_is_not_kept_where_that_one_is(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_config(replace(PRESETS["cartpole"].config, storage="memory://kept"))
    assert resolve_request(TrainRequest(start_from=str(tmp_path))).config == PRESETS["cartpole"].config
