"""What docs/studies/parity.md says of eager execution and graphs, by its script with fewer repetitions."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf

SCRIPT = Path(__file__).parents[2] / "docs" / "studies" / "parity.py"


@pytest.fixture(scope="module")
def parity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_warnings_of_retracing() -> Iterator[None]:
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(lambda parity: parity.discounted_returns(), marks=pytest.mark.slow, id="returns"),
        pytest.param(lambda parity: parity.optimizer_slots(seeds=1), id="slots"),
        pytest.param(
            lambda parity: parity.gradient_and_update_in_one_graph(traces=12), marks=pytest.mark.slow, id="update"
        ),
    ],
)
def test_what_is_required_holds(experiment: Callable[[Any], tuple[str, list[Any]]], parity: ModuleType) -> None:
    _, rows = experiment(parity)
    required = [row for row in rows if row.holds is not None]
    assert required
    assert not [row for row in required if not row.holds]
