"""Any registered environment that is no Atari game, played by Gymnasium."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments.actions import Actions
from actors.environments.copies import make_copies
from actors.environments.packed import PackedObservations
from actors.environments.pictures import channels_together, is_stack, shape_together
from actors.environments.spec import EnvironmentSpec
from actors.environments.vectors import Vectors
from shared.config import EnvironmentConfig
from shared.errors import setting_error


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
        # Of a batch of observations, as networks see them.
        self._shape: tuple[int, ...] = ()
        self._actions: Actions | None = None
        # None where observations are an image alone.
        self._vectors: Vectors | None = None
        # None where they are an image alone, or numbers alone.
        self._packed: PackedObservations | None = None

    def check(self) -> None:
        config = self._config
        if config.sticky_action_probability:
            raise setting_error(
                "environment.sticky_action_probability",
                config.sticky_action_probability,
                "is for Atari; others by a wrapper: gymnasium.wrappers:StickyAction,repeat_action_probability=0.25",
            )

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:  # noqa: ARG002
        vector = make_copies(self._config, count, self._render_mode)
        space = vector.single_observation_space
        try:
            self._actions = Actions(vector.single_action_space)
            self._vectors = None if is_stack(space) else Vectors(space)
        except ValueError as error:
            vector.close()
            raise setting_error("environment.id", self._config.id, str(error)) from error
        if self._vectors is None:
            self._shape = (count, *shape_together(space.shape or ()))
        elif self._vectors.images:
            self._packed = PackedObservations(self._vectors)
            self._shape = (count, self._packed.parts.row_size)
        else:
            self._shape = (count, self._vectors.size)
        return vector

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:  # noqa: ARG002
        assert self._actions is not None
        vectors = self._vectors
        return EnvironmentSpec(
            observation_shape=self._shape[1:],
            observation_dtype=self._dtype,
            actions=self._actions.spec,
            action_set=self._actions.names,
            images=self._dtype == "uint8",
            has_lives=False,
            frames_per_agent_step=self._config.frame_skip,
            observation_bounds=None if vectors is None else (tuple(vectors.low.tolist()), tuple(vectors.high.tolist())),
            parts=None if self._packed is None else self._packed.parts,
            left_out=() if vectors is None else tuple(vectors.left_out),
        )

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        if isinstance(seed, int):
            return seed
        # The vector forms of environments have one stream of random numbers. Others take Python's integers only.
        return int(seed[0]) if self._config.vectorization == "gymnasium" else seed.tolist()

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        assert self._actions is not None
        return self._actions.of_space(actions)

    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        if to is None:
            to = np.empty(self._shape, self._dtype)
        if self._packed is not None:
            self._packed.write(observations, to)
        elif self._vectors is not None:
            self._vectors.write(observations, to)
        else:
            channels_together(observations, to)
        return to

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:  # noqa: ARG002
        return None

    def observation_meaning(self, spec: EnvironmentSpec) -> str:
        config = self._config
        if not spec.images:
            return f"observations of {config.id}: all their numbers side by side in their order, choices one-hot"
        if spec.parts is None:
            return f"[batch, height, width, stack x channels]: images of {config.id}, {self._pictures()}"
        numbers = ", ".join(f"{name} ({count})" for name, count in spec.parts.numbers)
        vector = f"; vector: {numbers} side by side, choices one-hot" if numbers else ""
        return f"observations of {config.id}: images {self._pictures()}{vector}"

    def training_protocol(self) -> dict[str, Any]:
        return self._rules()

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        score = {"frames_per_agent_step": spec.frames_per_agent_step, **self._rules()}
        return {**score, "images": self._pictures()} if spec.images else score

    @property
    def _dtype(self) -> str:
        """Of observations, as networks see them: that of images, wherever there are some."""
        return "float32" if self._packed is None and self._vectors is not None else "uint8"

    def _rules(self) -> dict[str, Any]:
        config = self._config
        rules: dict[str, Any] = {"options": config.options}
        return rules | {"wrappers": list(config.wrappers)} if config.wrappers else rules

    def _pictures(self) -> str:
        config, size = self._config, self._config.screen_size
        colours = "in grey" if config.greyscale else "in their colours"
        resized = "in their size" if size is None else f"resized to {size} x {size}"
        return f"{colours}, {resized}; the newest of {config.frame_stack} is last"
