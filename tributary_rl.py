"""Tributary from Python: train, evaluate and use agents in scripts, in notebooks, and in tasks of Ray's.

    import tributary_rl as tributary

    run = tributary.train("cartpole", seed=2, total_frames=300_000)
    agent = tributary.load(run)
    action, state = agent.act(observation)

What is not in this file may change. Loading an agent needs neither Ray nor the command line. See docs/python.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

if TYPE_CHECKING:
    from launch.python.agent import Agent
    from launch.python.run import OnEvent, OnRow, Picture, PlayOptions, Run, Training
    from launch.run.events import Episodes, Evaluated, Message, Preparing, Progressed, Row, Saved, Started, Stopped
    from launch.run.weights import WeightsName
    from shared.errors import ConfigurationError, TrainingFailedError
    from shared.registry import (
        register_explorer,
        register_method,
        register_network,
        register_optimizer,
        register_schedule,
    )

__all__ = [
    "ConfigurationError",
    "Episodes",
    "Evaluated",
    "Message",
    "Picture",
    "Preparing",
    "Progressed",
    "Row",
    "Run",
    "Saved",
    "Started",
    "Stopped",
    "TrainingFailedError",
    "evaluate",
    "load",
    "register_explorer",
    "register_method",
    "register_network",
    "register_optimizer",
    "register_schedule",
    "start",
    "train",
]


# Memory without a name, /proc, the affinity of threads and more are Linux's.
if sys.platform != "linux":
    raise ImportError("Tributary needs Linux: use a container, or WSL on Windows")


def _import_own_packages() -> None:
    """Import the project's packages by their place: others have modules of these names, ROS 2 a package `launch`.

    A module of the user that is imported already cannot be replaced: its user needs it.
    """
    here = os.path.dirname(os.path.realpath(__file__))
    for name in ("shared", "actors", "learner", "launch"):
        folder = os.path.join(here, name)
        package = sys.modules.get(name)
        if package is None:
            spec = importlib.util.spec_from_file_location(
                name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
            assert spec is not None
            assert spec.loader is not None
            package = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(package)
        elif folder not in map(os.path.realpath, getattr(package, "__path__", ())):
            place = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", ())), "this program")
            raise ImportError(
                f"the module {name} of {place} has the name of a package of tributary-rl, which cannot be imported "
                f"beside it: rename that module"
            )


_import_own_packages()

# Searched in this order when a name is first used: the command line starts here, too, and prints its help at once.
_MODULES = ("shared.errors", "shared.registry", "launch.run.events", "launch.python.run")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        attribute = getattr(importlib.import_module(module), name, None)
        if attribute is not None:
            globals()[name] = attribute
            return attribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def main() -> int:
    """Run the command line `tributary`. Returns the exit code."""
    from launch.cli import main

    return main()


AnyRun = str | PathLike[str]
"""A `Run`, the folder of one, `latest`: the newest below runs/, `zoo:NAME`: an agent that ships, or the URL of a run's
copy, as `--storage` keeps it, which is fetched into a new folder below runs/."""
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _parameters_of(
    model: Callable[_Parameters, Any],
) -> Callable[[Callable[..., _Result]], Callable[_Parameters, _Result]]:
    """A decorator for functions that have the parameters of `model`, for editors, notebooks and `help`."""

    def decorate(function: Any) -> Any:
        function.__signature__ = inspect.signature(model).replace(return_annotation=function.__annotations__["return"])
        return function

    return decorate


def train(
    preset: str | None = None,
    *,
    seed: int | None = None,
    total_frames: int | None = None,
    stop_after_seconds: float | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | PathLike[str] | None = None,
    run_dir: str | PathLike[str] | None = None,
    name: str | None = None,
    resume: AnyRun | None = None,
    start_from: AnyRun | None = None,
    on_row: OnRow | None = None,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
    trust_imports: bool = False,
) -> Run:
    """Train an agent as `tributary train` does, in processes of its own. Ctrl-C stops the run, which is saved.

    Args:
        preset: one of `tributary presets`, or the id of an environment. None: the one for the environment that
            `settings` name, or Pong's.
        seed: of weights, environments and actions.
        total_frames: agent steps x frame skip after which training stops.
        stop_after_seconds: seconds of training after which it stops.
        settings: any others by their names in docs/settings.md, like `{"optimizer.learning_rate": 1e-3}`.
        config: file of settings, TOML or a run's config.json. Those that are given here come before it.
        run_dir: folder of the run. None: a new one below runs/, called after `name` and the time.
        name: of a new run. None: that of the preset, or of the environment where the preset is for another one.
        resume: run to go on with in its folder; its settings are the defaults.
        start_from: run whose best weights the new one starts with; its settings are the defaults without a preset.
        on_row: called with each row of numbers as metrics.jsonl has it. When it returns False, the run is stopped.
        on_event: called with each event of the run (`Started`, `Message`, `Preparing`, `Progressed`, `Episodes`, `Row`,
            `Evaluated`, `Saved`, `Stopped`) and the handle that `start` returns. When it returns False, the run is
            stopped.
        progress: print the run's lines. None: `train` does, and `start` does not.
        trust_imports: import the modules that the settings of an earlier run name, and run their code.

    Raises:
        ConfigurationError: a mistake in the settings, in the words of the command line.
        TrainingFailedError: training failed.
        KeyboardInterrupt: there was one. The run is saved.
        Exception: what `on_row` or `on_event` raised. The run is saved.
    """
    training = _training(**locals() | {"progress": progress is not False})
    training.follow()
    return training.wait()


@_parameters_of(train)
def start(*preset: Any, **arguments: Any) -> Training:
    """Start to train, see `train`, and go on with the program. Returns a handle with `stop()` and `wait()`.

    It returns as soon as the run starts its actors. `on_row` and `on_event` are called in another thread. When the
    program ends, the run is saved, and ends too.

    Raises:
        ConfigurationError: see `train`.
    """
    call = inspect.signature(train).bind(*preset, **arguments)
    call.apply_defaults()
    training = _training(**call.arguments | {"progress": bool(arguments.get("progress"))})
    training.start()
    return training


def load(run: AnyRun, *, weights: WeightsName = "auto", seed: int = 0, trust_imports: bool = False) -> Agent:
    """An agent that acts: `Agent.act`.

    Args:
        run: see `AnyRun`.
        weights: best: of the best evaluation, or before the first one of the best training return. latest: of the last
            checkpoint. auto: best if there is one.
        seed: of the actions that it samples.
        trust_imports: see `train`.

    Raises:
        ConfigurationError: there is no such run, or no weights that can be read.
    """
    from launch.python.agent import Agent
    from launch.run.modules import imports_permitted

    with imports_permitted(every=trust_imports):
        return Agent(str(run), weights, seed)


def evaluate(run: AnyRun, *, episodes: int = 100, **options: Unpack[PlayOptions]) -> dict[str, Any]:
    """Play whole episodes, see `Run.evaluate`. Returns the scores with the protocol that they were made by."""
    from launch.python.run import Run

    return Run(run).evaluate(episodes=episodes, **options)


def _training(on_row: OnRow | None, on_event: OnEvent | None, progress: bool, **request: Any) -> Training:
    # It imports the library, which loading an agent does without.
    from launch.python.run import Training, resolved_run

    return Training(resolved_run(**request), request["run_dir"], on_row, on_event, progress=progress)


if __name__ == "__main__":
    sys.exit(main())
