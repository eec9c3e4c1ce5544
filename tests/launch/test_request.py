"""What a network cannot see, and what cannot be filmed, is told before anything starts."""

from dataclasses import replace

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from actors.environments import EnvironmentSpec
from launch.request import check_network, check_video
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
