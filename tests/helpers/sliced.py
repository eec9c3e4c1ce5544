"""Learners whose vector is long enough to be cut, and what they learn from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from learners import report

from learner.learner import Learner
from learner.slices import Part
from shared.config import LearnerConfig, RunConfig
from shared.layout import ParameterLayout
from shared.types import GradientReport

SIZE = 87
LAYOUT = ParameterLayout(("w",), ((SIZE,),))
START = np.random.default_rng(7).normal(size=SIZE).astype(np.float32)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 elements: of six blocks, the last one of seven elements, are the vectors above."""
    monkeypatch.setattr("shared.blocks._LEAST_BLOCK", 16)


def sliced_learner(config: RunConfig, parts: list[Part] | None = None, **learner: Any) -> Learner:
    return Learner(replace(config, learner=LearnerConfig(**learner)), LAYOUT, START, parts)


def gradient(sequence: int) -> np.ndarray:
    """Another one for each number, some so large that they are clipped."""
    random = np.random.default_rng(sequence)
    return (random.normal(size=SIZE) * 10.0 ** random.integers(-2, 2)).astype(np.float32)


def numbered(sequence: int, version: int = 0, **changes: Any) -> GradientReport:
    """A report whose gradient depends on its number."""
    whole: dict[str, Any] = {"layout_fingerprint": LAYOUT.fingerprint, "gradient": gradient(sequence)}
    return report(sequence, version, **(whole | changes))


def contents(learner: Learner) -> dict[str, bytes]:
    """All that a checkpoint of it would hold, as bytes."""
    # As before a save: it takes a snapshot, and so writes moments into the weights.
    learner.snapshot()
    learner.gather()
    tensors = {name: variable.numpy().tobytes() for name, variable in learner.variables().items()}
    return tensors | {"state": repr(learner.state()).encode()}
