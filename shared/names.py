"""What a run chooses by name and a user's own module can add to: networks and explorers here, methods in `methods`.

A module of the user's own registers its class; `--environment.import MODULE` has every process of a run import it, and
the settings then take its name. This module imports nothing of the project, so that settings can be checked without
TensorFlow.
"""

import importlib
from dataclasses import dataclass
from typing import Any, TypeVar


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
    "a3c_cnn": NetworkEntry("shared.convolutional", "ConvolutionalNetwork", images=True, least_side=36),
    "nature_cnn": NetworkEntry("shared.convolutional", "ConvolutionalNetwork", images=True, least_side=36),
    "impala_resnet": NetworkEntry("shared.residual", "ResidualNetwork", images=True, least_side=36),
    "mlp": NetworkEntry("shared.perceptron", "MultilayerPerceptron", images=False),
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
