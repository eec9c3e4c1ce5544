"""The methods, by the name that `--method.name` takes.

To add one: write a module with a subclass of `shared.methods.method.Method`, and enter it below. Nothing else knows
methods by name. This module imports nothing, so that settings can be checked without TensorFlow.
"""

from typing import NamedTuple


class MethodEntry(NamedTuple):
    """Where a method is: `module` and the name of its class; whether it can take continuous actions; and whether it
    bootstraps from a target network, where a run does not switch that off."""

    module: str
    class_name: str
    continuous_actions: bool
    target_network: bool = False


METHODS: dict[str, MethodEntry] = {
    "actor_critic": MethodEntry("shared.methods.actor_critic", "ActorCritic", continuous_actions=True),
    "q_learning": MethodEntry("shared.methods.q_learning", "QLearning", continuous_actions=False, target_network=True),
    "sarsa": MethodEntry("shared.methods.q_learning", "Sarsa", continuous_actions=False, target_network=True),
}
