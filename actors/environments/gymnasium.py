"""Any registered environment that is no Atari game, played by Gymnasium."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from actors.environments.actions import Actions
from actors.environments.making import make_environment
from actors.environments.packed import PackedObservations
from actors.environments.pictures import channels_together, has_pictures, is_stack
from actors.environments.spec import EnvironmentSpec
from actors.environments.vectors import Vectors
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, setting_error
from shared.imports import import_modules
from shared.types import Float32Array


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
        self._count = 0
        self._actions: Actions | None = None
        # None for an image alone; and where there are no images beside numbers.
        self._vectors: Vectors | None = None
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
        vector = self._made(count)
        self._count = count
        try:
            self._actions = Actions(vector.single_action_space)
            space = vector.single_observation_space
            self._vectors = None if is_stack(space) else Vectors(space)
        except ValueError as error:
            vector.close()
            raise setting_error("environment.id", self._config.id, str(error)) from error
        if self._vectors is not None and self._vectors.images:
            self._packed = PackedObservations(self._vectors)
        return vector

    def _made(self, count: int) -> gymnasium.vector.VectorEnv:
        copies = [partial(make_environment, self._config, self._render_mode)] * count
        match self._config.vectorization:
            case "gymnasium":
                return _vector_form(self._config, count, self._render_mode)
            case "async":
                # Neither forked from a process with TensorFlow's threads, nor holding the others' pipes open: each ends
                # when this process does.
                start = partial(AsyncVectorEnv, copies, context="forkserver", autoreset_mode=AutoresetMode.NEXT_STEP)
                with _clean_children():
                    try:
                        return start()
                    except ValueError as error:
                        if not isinstance(error.__cause__, gymnasium.error.CustomSpaceError):
                            raise
                        # Spaces that are none of Gymnasium's own have no place in shared memory.
                        return start(shared_memory=False)
            case _:
                return SyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP)

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:
        assert self._actions is not None
        seen = EnvironmentSpec(
            observation_shape=(),
            observation_dtype="uint8",
            actions=self._actions.spec,
            action_set=self._actions.names,
            images=True,
            has_lives=False,
            frames_per_agent_step=self._config.frame_skip,
        )
        if self._vectors is None:
            stack, height, width, channels = cast(tuple[int, ...], vector.single_observation_space.shape)
            return replace(seen, observation_shape=(height, width, stack * channels))
        seen = replace(
            seen,
            observation_bounds=(tuple(self._vectors.low.tolist()), tuple(self._vectors.high.tolist())),
            left_out=tuple(self._vectors.left_out),
        )
        if self._packed is not None:
            return replace(seen, observation_shape=(self._packed.parts.row_size,), parts=self._packed.parts)
        return replace(seen, observation_shape=(self._vectors.size,), observation_dtype="float32", images=False)

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        if isinstance(seed, int):
            return seed
        # The vector forms of environments have one stream of random numbers. Others take Python's integers only.
        return int(seed[0]) if self._config.vectorization == "gymnasium" else seed.tolist()

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        assert self._actions is not None
        return self._actions.of_space(actions)

    def observations(self, observations: Any, to: npt.NDArray[np.generic] | None) -> npt.NDArray[np.generic]:
        if self._vectors is None:
            return channels_together(observations, cast(npt.NDArray[np.uint8] | None, to))
        if self._packed is not None:
            rows = np.empty((self._count, self._packed.parts.row_size), np.uint8) if to is None else to
            self._packed.write(observations, cast(npt.NDArray[np.uint8], rows))
            return rows
        vectors = np.empty((self._count, self._vectors.size), np.float32) if to is None else cast(Float32Array, to)
        self._vectors.write(observations, vectors)
        return vectors

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

    def _rules(self) -> dict[str, Any]:
        config = self._config
        rules: dict[str, Any] = {"options": config.options}
        return rules | {"wrappers": list(config.wrappers)} if config.wrappers else rules

    def _pictures(self) -> str:
        config, size = self._config, self._config.screen_size
        colours = "in grey" if config.greyscale else "in their colours"
        resized = "in their size" if size is None else f"resized to {size} x {size}"
        return f"{colours}, {resized}; the newest of {config.frame_stack} is last"


def _vector_form(config: EnvironmentConfig, count: int, render_mode: str | None) -> gymnasium.vector.VectorEnv:
    """The vector form that an environment has registered itself.

    Raises:
        ConfigurationError: there is none that can be used.
    """

    def refused(why: str) -> ConfigurationError:
        return setting_error("environment.vectorization", "gymnasium", f"{why}; use sync or async")

    import_modules(config.modules)
    spec = gymnasium.spec(config.registered_id)
    if spec.vector_entry_point is None:
        raise refused(f"{config.id} has registered no vector form")
    if config.wrappers or config.frame_skip > 1:
        setting = "wrappers are" if config.wrappers else "--environment.frame-skip is"
        raise refused(f"{setting} for single environments")
    options: dict[str, Any] = {**config.options, **({} if render_mode is None else {"render_mode": render_mode})}
    vector = gymnasium.make_vec(spec, count, vectorization_mode="vector_entry_point", **options)
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP or has_pictures(vector.single_observation_space):
        vector.close()
        rule = getattr(mode, "value", "a rule that it does not name")
        raise refused(f"the vector form of {config.id} resets by {rule}, and not by NextStep, or gives images")
    return vector


@contextmanager
def _clean_children() -> Iterator[None]:
    """Have new processes not import this process's main module: in Ray's workers that is Ray, for each of them."""
    # It would be run again in each.
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)
