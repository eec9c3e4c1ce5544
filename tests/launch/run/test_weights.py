"""The best weights of a run, by what measured them."""

import errno
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from launch.run.folder import RunFolder
from launch.run.weights import BestWeights
from shared.types import WeightSnapshot

NAN, INF = float("nan"), float("inf")


def best_version(file: Path) -> int | None:
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as best:
        assert set(best["parameters"].tolist()) == {float(best["version"])}
        return int(best["version"])


@pytest.mark.parametrize(
    ("offers", "kept"),
    [
        # A learner that died before its next checkpoint goes on with the best weights of the file.
        ([(20.0, "evaluation"), None, *((mean, "evaluation") for mean in (19.0, 21.0, 21.0))], [0, 0, 3, 3]),
        # Like is compared with like, and a confirmation says more than luck.
        (
            [
                *((50.0, "training"), (10.0, "evaluation"), (9.0, "training")),
                # A resume without evaluations is not held up by an old one.
                *((60.0, "training"), (30.0, "evaluation"), (25.0, "evaluation")),
                *((20.0, "confirmation"), (10.0, "another evaluation")),
            ],
            [0, 1, 1, 3, 4, 4, 6, 7],
        ),
        # Weights without a finite return are never the best.
        ([(NAN, "confirmation"), (-5.0, "evaluation"), (INF, "evaluation"), (None, "confirmation")], [None, 1, 1, 1]),
        # Weights that could not be written need not be beaten.
        ([(10.0, "evaluation"), (18.0, "full disk"), (15.0, "evaluation")], [0, 0, 2]),
        # Any weights are better than those of a damaged file.
        ([b"", (-5.0, "evaluation"), (-6.0, "evaluation")], [1, 1]),
        ([b"PK\x03", (-5.0, "evaluation"), (-6.0, "evaluation")], [1, 1]),
    ],
)
def test_the_best_weights(offers: list, kept: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are offered with a mean return and what measured it; their number is their version. None is a resume, and
    bytes are found in the file at one."""
    logged, found, file = list[str](), list[int | None](), tmp_path / "best.npz"
    best = BestWeights(RunFolder(tmp_path), logged.append)

    for version, offer in enumerate(offers):
        if offer is None or isinstance(offer, bytes):
            if offer is not None:
                file.write_bytes(offer)
            best = BestWeights(RunFolder(tmp_path), logged.append)
            continue
        mean, measure = offer
        source = measure if measure in ("training", "another evaluation") else "evaluation"
        with monkeypatch.context() as patch:
            if measure == "full disk":
                patch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
            parameters = np.full(3, version, np.float32)
            best.keep_if_best(WeightSnapshot(version, parameters), mean, source, always=measure == "confirmation")
        found.append(best_version(file))
    assert found == kept
    damaged = any(isinstance(offer, bytes) for offer in offers)
    assert len(logged) == ((18.0, "full disk") in offers) + damaged
    assert all("best.npz cannot be read" in line for line in logged if damaged)
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.npz"]
