"""Copies of an environment that is no Atari game, stepped together; their autoreset is NEXT_STEP."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from actors.environments.making import make_environment
from actors.environments.pictures import has_pictures
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, setting_error
from shared.imports import import_modules


def make_copies(config: EnvironmentConfig, count: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    """So many copies, stepped as the settings say: one after another, in processes, or in a vector form of their own.

    Raises:
        ConfigurationError: a wrapper cannot be found or made, or there is no vector form that can be used.
    """
    copies = [partial(make_environment, config, render_mode)] * count
    match config.vectorization:
        case "gymnasium":
            return _vector_form(config, count, render_mode)
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
