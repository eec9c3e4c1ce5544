"""Random play, of which a run takes the mean observation."""

import pytest


def shorten_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments for 40 vector steps. Of a run it is 16 for 400, which take seconds; making 16 takes three."""
    monkeypatch.setattr("actors.environments.vector._ENVIRONMENTS", 2)
    monkeypatch.setattr("actors.environments.vector._STEPS", 40)
