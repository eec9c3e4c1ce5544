"""Methods, networks, explorers, optimizers and schedules by name; a user's own module can register more.

The user's module registers its class or function, `--environment.import MODULE` has every process of a run import that
module, and the settings then accept the name. A name that another one has is a ValueError. This module imports no
TensorFlow, so that settings can be checked without it.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from shared.errors import PACKAGES, ConfigurationError, raised_at, setting_error, typed_line
from shared.stderr import filtered_stderr


@dataclass(frozen=True)
class Entry:
    module: str
    class_name: str

    @property
    def is_own(self) -> bool:
        """True of a class of the user's."""
        return self.module.partition(".")[0] not in PACKAGES


@dataclass(frozen=True)
class NetworkEntry(Entry):
    images: bool
    min_side: int = 1
    whole: bool = False


NETWORKS: dict[str, NetworkEntry] = {
    "a3c_cnn": NetworkEntry("shared.networks.convolutional", "ConvolutionalNetwork", images=True, min_side=36),
    "nature_cnn": NetworkEntry("shared.networks.convolutional", "ConvolutionalNetwork", images=True, min_side=36),
    "impala_resnet": NetworkEntry("shared.networks.convolutional", "ResidualNetwork", images=True, min_side=36),
    "mlp": NetworkEntry("shared.networks.perceptron", "MultilayerPerceptron", images=False),
}
"""Networks by `--network.name`."""

EXPLORERS: dict[str, Entry] = {}
"""Explorers by `--exploration.name`."""


def register_network(name: str, network: type, *, images: bool, whole: bool = False) -> None:
    """Register a network, in a module that a run imports by `--environment.import MODULE`.

    Args:
        name: value of `--network.name`.
        network: a subclass of `shared.networks.Network` at the top level of its module, with a constructor
            network(config, observation_shape, heads, seed, observation_mean): see `shared.networks.KerasNetwork`.
        images: whether its input is images, uint8 [N, height, width, channels], or vectors, float32 [N, size]. A
            network for images is also the trunk of each image beside numbers.
        whole: it takes images beside numbers as a whole: a subclass of `shared.networks.KerasNetwork` whose
            `observation_shape` and `observation_mean` are dicts by part, and whose model has a dict of inputs. The
            image of a Dict's `camera` is `image_camera`, that of a Tuple's first part `image_0`; all numbers are
            `vector`.
    """
    module, class_name = _place_of_class("network", name, network)
    enter(NETWORKS, "a network", name, NetworkEntry(module, class_name, images, whole=whole))


def register_explorer(name: str, explorer: type) -> None:
    """Register an explorer, in a module that a run imports by `--environment.import MODULE`.

    Args:
        name: value of `--exploration.name`.
        explorer: a subclass of `shared.exploration.Explorer` at the top level of its module, with a constructor
            explorer(config, actions, environments, seed, training=True or False): the `RunConfig`, the
            `ActionSpec`, and the arguments of `Method.explorer`.
    """
    enter(EXPLORERS, "an explorer", name, Entry(*_place_of_class("explorer", name, explorer)))


def _place_of_class(kind: str, name: str, registered: object) -> tuple[str, str]:
    """Module and name of a class, by which other processes find it; a TypeError if they cannot."""
    if not isinstance(registered, type) or not registered.__qualname__.isidentifier():
        name_of_class = getattr(registered, "__qualname__", registered)
        raise TypeError(f"the {kind} {name} is {name_of_class}: register a class at the top level of a module")
    return registered.__module__, registered.__name__


PROGRAM = "__main__"
"""Module of the classes of a script or a notebook, which no other process can import."""

_Entry = TypeVar("_Entry", bound=Entry)


def enter(table: dict[str, _Entry], kind: str, name: str, entry: _Entry) -> None:
    """Add an entry to a registry. The same entry may be added again, because its module may be imported again.

    A script that settings name as a module is imported after it ran as `__main__`: its entry replaces the first one.
    """
    if not (isinstance(name, str) and name.strip()):
        raise TypeError(f"the name of {kind} is {name!r}, and must be text")
    present = table.get(name, entry)
    if present != entry and present.module != PROGRAM:
        raise ValueError(f"there is {kind} {name} already, in {present.module}: choose another name")
    table[name] = entry


def class_of(entry: Entry, base: type = object) -> Any:
    """The class of an entry; a TypeError if it does not extend `base`."""
    attribute = getattr(importlib.import_module(entry.module), entry.class_name)
    if isinstance(attribute, type) and not issubclass(attribute, base):
        raise TypeError(f"{entry.class_name} of {entry.module} does not extend {base.__module__}.{base.__name__}")
    return attribute


def make_registered(
    setting: str, name: str, table: Mapping[str, Entry], base: type, *arguments: Any, **keywords: Any
) -> Any:
    """An object of the class that a setting names.

    Raises:
        ConfigurationError: the class is a user's, and it does not extend `base`, or its constructor raises an error.
    """
    try:
        return class_of(table[name], base)(*arguments, **keywords)
    except ConfigurationError:
        raise
    except Exception as error:
        if not table[name].is_own:
            raise
        raise setting_error(setting, name, f"cannot be made: {typed_line(error)}{raised_at(error)}") from error


@dataclass(frozen=True)
class MethodEntry(Entry):
    """Location of a method, whether it supports continuous actions and several choices at once, whether it bootstraps
    from a target network unless a run disables it, and whether it supports masks of allowed actions."""

    continuous_actions: bool
    target_network: bool = False
    masks: bool = False


METHODS: dict[str, MethodEntry] = {
    "actor_critic": MethodEntry("shared.methods.actor_critic", "ActorCritic", continuous_actions=True, masks=True),
    **{
        name: MethodEntry("shared.methods.q_learning", kind, continuous_actions=False, target_network=True, masks=True)
        for name, kind in (("q_learning", "QLearning"), ("sarsa", "Sarsa"))
    },
}


def register_method(name: str, method: type, *, continuous_actions: bool, target_network: bool = False) -> None:
    """Register a method, in a module that a run imports by `--environment.import MODULE`.

    Args:
        name: value of `--method.name`.
        method: a subclass of `shared.methods.method.Method` at the top level of its module. With an `action_head` it
            supports masks of allowed actions.
        continuous_actions: whether it supports continuous actions and several choices at once.
        target_network: whether it bootstraps from a target network unless a run disables it.
    """
    masks = bool(getattr(method, "action_head", ""))
    entry = MethodEntry(*_place_of_class("method", name, method), continuous_actions, target_network, masks)
    enter(METHODS, "a method", name, entry)


OPTIMIZERS: dict[str, Entry] = {
    name: Entry("learner.optimizer", kind) for name, kind in (("rmsprop", "RMSProp"), ("adam", "Adam"), ("sgd", "SGD"))
}
"""Optimizers by `--optimizer.name`."""


def register_optimizer(name: str, optimizer: type) -> None:
    """Register an optimizer, in a module that a run imports by `--environment.import MODULE`.

    Args:
        name: value of `--optimizer.name`.
        optimizer: a subclass of `learner.optimizer.Optimizer` at the top level of its module.
    """
    enter(OPTIMIZERS, "an optimizer", name, Entry(*_place_of_class("optimizer", name, optimizer)))


SCHEDULES: dict[str, Entry] = {name: Entry("shared.schedules", name) for name in ("linear", "cosine", "constant")}
"""Schedules by `--optimizer.schedule`."""


def register_schedule(name: str, schedule: Callable[[float], float]) -> None:
    """Register a schedule, in a module that a run imports by `--environment.import MODULE`.

    Args:
        name: value of `--optimizer.schedule`.
        schedule: a function at the top level of its module. Its argument is the progress, the share from 0 to 1 of the
            frames of the learning rate's annealing; it returns the factor of the learning rate, 0 or more.

    Raises:
        ValueError: the function is inside another one or has no name.
    """
    place = getattr(schedule, "__qualname__", repr(schedule))
    if not place.isidentifier():
        raise ValueError(f"the schedule {name} is {place}: name a function at the top level of a module")
    enter(SCHEDULES, "a schedule", name, Entry(schedule.__module__, schedule.__name__))


# Names of the modules that this process and those that it descends from are importing.
_IMPORTING = "TRIBUTARY_IMPORTING"
tensorflow_by_module = threading.Event()
"""Set if a module that settings name was the first to import TensorFlow."""
# A module is in `sys.modules` before its import has ended: another thread waits here until it has.
_importing = threading.RLock()


def import_modules(names: Iterable[str]) -> None:
    """Import each module once. The current directory is searched last. Thread-safe.

    Raises:
        ConfigurationError: a module does not exist, or cannot be imported.
    """
    for name in names:
        if name in PACKAGES:
            problem = "is the name of a package of tributary-rl: rename the module"
            raise setting_error("environment.import", name, problem)
        with _importing:
            if name not in sys.modules:
                _import(name)


def _import(name: str) -> None:
    importing = os.environ.get(_IMPORTING, "")
    if name in importing.split():
        problem = "starts a run of its own when it is imported, each of which imports it again"
        raise setting_error("environment.import", name, f'{problem}: put that below `if __name__ == "__main__":`')
    # Python puts the directory of the command there instead. Last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    os.environ[_IMPORTING] = f"{importing} {name}"
    imported = "tensorflow" in sys.modules
    try:
        # It may import TensorFlow.
        with filtered_stderr():
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # A program without `if __name__ == "__main__"` may end with sys.exit().
        raise setting_error("environment.import", name, _import_problem(name, error)) from error
    finally:
        if "tensorflow" in sys.modules and not imported:
            tensorflow_by_module.set()
        os.environ[_IMPORTING] = importing


def _import_problem(name: str, error: BaseException) -> str:
    package = error.name.partition(".")[0] if isinstance(error, ImportError) and error.name else ""
    if package not in PACKAGES and isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        remedy = "install it, on every node, or go to the folder that it is in"
        if name.endswith(".py"):
            remedy = f"a module is named without .py: {name[:-3]}"
        return f"there is no such module: {remedy} (this is {os.getcwd()})"
    problem = f"cannot be imported: {typed_line(error)}"
    if package in PACKAGES:
        problem += f"; {package} is a package of tributary-rl: rename yours, if it has this name"
    return problem
