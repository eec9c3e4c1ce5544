"""Any registered environment with vector observations, played by Gymnasium in the calling thread."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from actors.environments.spec import EnvironmentSpec
from shared.config import EnvironmentConfig
from shared.errors import setting_error
from shared.types import ActionSpec


class GymnasiumAdapter:
    """Makes and reads Gymnasium's own vector environment. See `Adapter` for what each method is for.

    Args:
        config: which environment.
        render_mode: of `gymnasium.make`; rgb_array to take pictures.
    """

    protocols: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, config: EnvironmentConfig, render_mode: str | None = None) -> None:
        self._config = config
        self._render_mode = render_mode

    def check(self) -> None:
        config = self._config
        if config.frame_skip != 1:
            raise setting_error(
                "environment.frame_skip", config.frame_skip, f"frames are skipped for Atari only; set 1 for {config.id}"
            )

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:  # noqa: ARG002
        config, options = self._config, dict[str, Any](self._config.options)
        if self._render_mode is not None:
            options["render_mode"] = self._render_mode
        # The vector forms that some environments register have autoreset rules of their own.
        return SyncVectorEnv(
            [lambda: gymnasium.make(config.id, **options)] * count, autoreset_mode=AutoresetMode.NEXT_STEP
        )

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:
        environment_id = self._config.id
        space, observations = vector.single_action_space, vector.single_observation_space
        if isinstance(space, gymnasium.spaces.Discrete):
            if int(space.start) != 0:
                raise setting_error("environment.id", environment_id, f"actions start at {space.start}, not at 0")
            actions = ActionSpec(int(space.n))
        elif isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
            actions = ActionSpec(space.shape[0], continuous=True)
        else:
            raise setting_error("environment.id", environment_id, f"actions are {space}: neither a choice nor a vector")
        if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
            raise setting_error("environment.id", environment_id, f"observations are {observations}, not vectors")
        return EnvironmentSpec(
            observation_shape=observations.shape,
            observation_dtype="float32",
            actions=actions,
            action_set=tuple(str(i) for i in range(actions.size)),
            images=False,
            has_lives=False,
            frames_per_agent_step=1,
            observation_bounds=(tuple(observations.low.tolist()), tuple(observations.high.tolist())),
        )

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        # Several are taken as Python's integers only.
        return seed if isinstance(seed, int) else seed.tolist()

    def observations(
        self, observations: npt.NDArray[np.generic], to: npt.NDArray[np.generic] | None
    ) -> npt.NDArray[np.generic]:
        if to is None:
            return observations.astype(np.float32)
        to[...] = observations
        return to

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:  # noqa: ARG002
        return None

    def observation_meaning(self) -> str:
        return f"observations of {self._config.id}, as they are"

    def training_protocol(self) -> dict[str, Any]:
        return {"options": self._config.options}

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        return {"frames_per_agent_step": spec.frames_per_agent_step, "options": self._config.options}
