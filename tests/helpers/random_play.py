"""Random play, of which a run takes the mean observation."""

import pytest


def shorten_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments for 40 vector steps. A run has four for 400, which take a second."""
    monkeypatch.setattr("actors.environments.vector._ENVIRONMENTS", 2)
    monkeypatch.setattr("actors.environments.vector._STEPS", 40)
