"""What a network cannot see, and what cannot be filmed, is told before anything starts."""

import re
from dataclasses import replace

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from actors.environments import EnvironmentSpec
from launch.presets import PRESETS
from launch.request import ResolvedRun, TrainRequest, check_network, check_video, complete, shared_by
from shared.config import EnvironmentConfig, EvaluationConfig, NetworkConfig, RunConfig
from shared.errors import ConfigurationError
from shared.types import ActionSpec, ImagePart, ObservationParts

IMAGES = EnvironmentSpec(
    observation_shape=(84, 84, 4),
    observation_dtype="uint8",
    actions=ActionSpec(2),
    action_set=("0", "1"),
    images=True,
    has_lives=False,
    frames_per_agent_step=1,
)
PARTS = ObservationParts((("speed", 2),), (ImagePart("image_camera", (84, 84, 4)), ImagePart("image_map", (40, 35, 1))))
BOTH = replace(IMAGES, parts=PARTS, observation_bounds=((-1.0, -1.0), (1.0, float("inf"))))
VECTORS = replace(IMAGES, images=False, observation_shape=(3,), observation_dtype="float32")


@pytest.mark.parametrize(
    ("spec", "network", "line"),
    [
        (VECTORS, {}, "--network.name a3c_cnn: Task-v0 gives observations of shape (3,); use mlp"),
        (IMAGES, {"name": "mlp"}, "gives observations of shape (84, 84, 4); use a3c_cnn, nature_cnn or impala_resnet"),
        (BOTH, {"name": "mlp"}, "gives images, image_camera (84, 84, 4), image_map (40, 35, 1), and 2 numbers beside"),
        (BOTH, {}, "--environment.screen-size 84: must be at least 36 for a3c_cnn"),
        (IMAGES, {"observation_scaling": "running"}, "is for mlp, and a3c_cnn is none; images have --network.centre-"),
        (
            replace(BOTH, parts=PARTS._replace(numbers=())),
            {"observation_scaling": "running"},
            "is for mlp, and a3c_cnn is none; images have",
        ),
        (BOTH, {"observation_scaling": "bounds"}, "Task-v0 has no finite bounds in observation [1]; use running"),
    ],
)
def test_what_a_network_cannot_see_is_one_line(spec: EnvironmentSpec, network: dict, line: str) -> None:
    config = RunConfig(environment=EnvironmentConfig(id="Task-v0"), network=NetworkConfig(**network))
    with pytest.raises(ConfigurationError) as raised:
        check_network(config, spec)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_numbers_beside_images_may_be_scaled() -> None:
    parts = PARTS._replace(images=PARTS.images[:1])
    check_network(RunConfig(network=NetworkConfig(observation_scaling="running")), replace(BOTH, parts=parts))


class Unseen(CartPoleEnv):
    """Knows of no pictures."""

    def __init__(self) -> None:
        super().__init__()


def test_what_cannot_be_filmed_is_one_line_where_it_is_to_be_filmed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Unseen-v0", entry_point=Unseen)
    monkeypatch.setitem(gymnasium.registry, "Unseen-v0", spec)
    unseen = RunConfig(
        environment=EnvironmentConfig(id="Unseen-v0", frame_skip=1), evaluation=EvaluationConfig(video=True)
    )
    with pytest.raises(ConfigurationError) as raised:
        check_video(unseen)
    assert "--evaluation.video True: --environment.id Unseen-v0: cannot be shown: " in str(raised.value)
    assert "\n" not in str(raised.value)
    check_video(replace(unseen, evaluation=EvaluationConfig()))
    # The nodes of a cluster may draw what this machine cannot.
    check_video(replace(unseen, address="auto"))
    for name in ("CartPole-v1", "ALE/Pong-v5"):
        check_video(replace(unseen, environment=EnvironmentConfig(id=name)))


@pytest.mark.parametrize(
    ("preset", "actors", "rollout", "minibatches", "gradients"),
    [
        ("pong", 16, (4, 64), 1, 1),
        ("pong", 63, (1, 64), 1, 4),
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
    assert shared.actor.environments * shared.learner.gradients_per_update >= 4
    # Nothing is left to share on a resume.
    assert shared_by(shared, actors) == shared


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
    assert shared_by(PRESETS[preset].config, 4) == PRESETS[preset].config


def test_a_rollout_has_the_steps_of_a_return() -> None:
    config = PRESETS["cartpole"].config
    config = replace(config, method=replace(config.method, n_step=20, return_lambda=None))
    assert shared_by(config, 256).actor.unroll_length == 20


def test_rollouts_that_are_chosen_by_hand_are_left_alone() -> None:
    def change(config: RunConfig) -> RunConfig:
        return replace(config, actor=replace(config.actor, unroll_length=16))

    chosen = complete(TrainRequest("pong", change=change)).config
    assert shared_by(chosen, 64) == chosen
    assert complete(TrainRequest("pong")).config.actor.steps_in_flight == 4_096
