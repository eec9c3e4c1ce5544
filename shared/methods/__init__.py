"""The methods, by the name that `--method.name` takes.

To add one: write a module with a subclass of `shared.methods.method.Method`, and enter it below. Nothing else knows
methods by name. This module imports no TensorFlow, so that settings can be checked without it.
"""

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shared.methods.method import Method


class MethodEntry(NamedTuple):
    """Where a method is: `module` and the name of its class; and whether it can take continuous actions."""

    module: str
    class_name: str
    continuous_actions: bool


METHODS: dict[str, MethodEntry] = {
    "actor_critic": MethodEntry("shared.methods.actor_critic", "ActorCritic", continuous_actions=True),
    "q_learning": MethodEntry("shared.methods.q_learning", "QLearning", continuous_actions=False),
    "sarsa": MethodEntry("shared.methods.q_learning", "Sarsa", continuous_actions=False),
}


def method_class(name: str) -> "type[Method]":
    """The class of the method `name`. Imports TensorFlow."""
    entry = METHODS[name]
    return getattr(importlib.import_module(entry.module), entry.class_name)
