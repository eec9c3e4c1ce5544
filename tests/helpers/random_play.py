"""Random play, of which a run takes the mean observation."""

import pytest


def shorten_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 agent steps. A run has 800, which take half a second."""
    monkeypatch.setattr("actors.environments.vector._STEPS", 40)
