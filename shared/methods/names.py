"""The methods, by the name that `--method.name` takes.

To add one: write a module with a subclass of `shared.methods.method.Method`, and enter it below; or call
`register_method` in a module of your own. Nothing else knows methods by name. This module imports no
TensorFlow, so that settings can be checked without it.
"""

from dataclasses import dataclass

from shared.names import Entry, enter


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
