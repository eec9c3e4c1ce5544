"""What actors differentiate, as a test sees it."""

import copy

import pytest

from actors.rollout import RolloutBuilder
from shared.types import Rollout


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
    """Copies of the rollouts that actors finish from now on."""
    finish, rollouts = RolloutBuilder.finish, []

    def record(*arguments):
        rollout = finish(*arguments)
        rollouts.append(copy.deepcopy(rollout))
        return rollout

    monkeypatch.setattr(RolloutBuilder, "finish", record)
    return rollouts
