"""What a network cannot see is told before anything starts."""

from dataclasses import replace

import pytest

from actors.environments import EnvironmentSpec
from launch.commands.checks import check_network
from shared.config import EnvironmentConfig, NetworkConfig, RunConfig
from shared.errors import ConfigurationError
from shared.observations import ImagePart, ObservationParts
from shared.types import ActionSpec

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
