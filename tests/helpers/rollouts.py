"""Methods, and the rollouts that actors differentiate."""

import copy

import pytest

from actors.rollout import RolloutBuilder
from shared.config import MethodConfig
from shared.types import Rollout

METHODS = {
    "actor_critic": MethodConfig(return_lambda=0.9),
    "q_learning": MethodConfig(name="q_learning"),
    "sarsa": MethodConfig(name="sarsa"),
    "without a target network": MethodConfig(name="q_learning", target_network=False, return_lambda=0.65),
}


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
    """Copies of the rollouts that actors finish from now on."""
    finish, rollouts = RolloutBuilder.finish, []

    def record(*arguments):
        rollout = finish(*arguments)
        rollouts.append(copy.deepcopy(rollout))
        return rollout

    monkeypatch.setattr(RolloutBuilder, "finish", record)
    return rollouts
