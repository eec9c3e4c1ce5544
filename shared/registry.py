"""The methods, networks and explorers that a run chooses by name; a user's own module can register more.

The user's module registers its class, `--environment.import MODULE` has every process of a run import that module, and
the settings then accept the name. This module imports no TensorFlow, so that settings can be checked without it.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from shared.errors import setting_error, typed_line


@dataclass(frozen=True)
class Entry:
    """Where a class is: its module, and its name there."""

    module: str
    class_name: str


@dataclass(frozen=True)
class NetworkEntry(Entry):
    """Where a network is; whether it takes images, else vectors; and the least side of an image, in pixels."""

    images: bool
    least_side: int = 1


NETWORKS: dict[str, NetworkEntry] = {
    "a3c_cnn": NetworkEntry("shared.networks.convolutional", "ConvolutionalNetwork", images=True, least_side=36),
    "nature_cnn": NetworkEntry("shared.networks.convolutional", "ConvolutionalNetwork", images=True, least_side=36),
    "impala_resnet": NetworkEntry("shared.networks.residual", "ResidualNetwork", images=True, least_side=36),
    "mlp": NetworkEntry("shared.networks.perceptron", "MultilayerPerceptron", images=False),
}
"""By what `--network.name` takes."""

EXPLORERS: dict[str, Entry] = {}
"""By what `--exploration.name` takes."""


def register_network(name: str, network: type, *, images: bool) -> None:
    """Enter a network of the user's own, in a module that a run imports: `--environment.import MODULE`.

    Args:
        name: what `--network.name` then takes.
        network: a subclass of `shared.networks.Network`, at the top of its module. It is made as network(config,
            observation_shape, heads, seed, observation_mean): see `shared.networks.KerasNetwork`.
        images: whether it takes images, uint8 [N, height, width, channels], or vectors, float32 [N, size]. One for
            images is also the trunk of each image that is seen beside numbers.

    Raises:
        ValueError: another network has the name.
    """
    enter(NETWORKS, "a network", name, NetworkEntry(network.__module__, network.__name__, images))


def register_explorer(name: str, explorer: type) -> None:
    """Enter a way to explore of the user's own, in a module that a run imports: `--environment.import MODULE`.

    Args:
        name: what `--exploration.name` then takes.
        explorer: a class with the methods of `shared.methods.method.Explorer`, at the top of its module. It is made as
            explorer(config, actions, environments, seed, training=True or False), see `Method.explorer`, with the
            `RunConfig` and the `ActionSpec` before the rest.

    Raises:
        ValueError: another explorer has the name.
    """
    enter(EXPLORERS, "an explorer", name, Entry(explorer.__module__, explorer.__name__))


_Entry = TypeVar("_Entry", bound=Entry)


def enter(table: dict[str, _Entry], kind: str, name: str, entry: _Entry) -> None:
    """Enter something in a table by its name. The same one may be entered again, where its module is imported again.

    `kind` says what it is, with its article.

    Raises:
        ValueError: something else has the name.
    """
    if table.setdefault(name, entry) != entry:
        raise ValueError(f"there is {kind} {name} already, in {table[name].module}: choose another name")


def class_of(entry: Entry) -> Any:
    """The class that an entry is for."""
    return getattr(importlib.import_module(entry.module), entry.class_name)


@dataclass(frozen=True)
class MethodEntry(Entry):
    """Where a method is; whether it can take continuous actions, and several at once; and whether it bootstraps from a
    target network, where a run does not switch that off."""

    continuous_actions: bool
    target_network: bool = False


METHODS: dict[str, MethodEntry] = {
    "actor_critic": MethodEntry("shared.methods.actor_critic", "ActorCritic", continuous_actions=True),
    "q_learning": MethodEntry("shared.methods.q_learning", "QLearning", continuous_actions=False, target_network=True),
    "sarsa": MethodEntry("shared.methods.q_learning", "Sarsa", continuous_actions=False, target_network=True),
}


def register_method(name: str, method: type, *, continuous_actions: bool, target_network: bool = False) -> None:
    """Enter a method of the user's own, in a module that a run imports: `--environment.import MODULE`.

    Args:
        name: what `--method.name` then takes.
        method: a subclass of `shared.methods.method.Method`, at the top of its module.
        continuous_actions: whether it can take them, and several choices at once.
        target_network: whether it bootstraps from one, where a run does not switch that off.

    Raises:
        ValueError: another method has the name.
    """
    entry = MethodEntry(method.__module__, method.__name__, continuous_actions, target_network)
    enter(METHODS, "a method", name, entry)


def import_modules(names: Iterable[str]) -> None:
    """Import each module, once. The folder that the process stands in is searched last.

    Raises:
        ConfigurationError: there is no such module, or it cannot be imported.
    """
    for name in names:
        if name in sys.modules:
            continue
        # Python has put the folder of the command there instead. Last, so that it takes nothing's place.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                raise _not_imported(name, error) from error
            raise setting_error(
                "environment.import",
                name,
                f"there is no such module: install it, on every node, or go to the folder that it is in (this is "
                f"{os.getcwd()})",
            ) from error
        except Exception as error:
            raise _not_imported(name, error) from error


def _not_imported(name: str, error: Exception) -> Exception:
    return setting_error("environment.import", name, f"cannot be imported: {typed_line(error)}")
