"""Fresh traces are what many of the experiments measure; TensorFlow would warn of each."""

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def no_warnings_of_retracing() -> Iterator[None]:
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")
    yield
    logger.setLevel(before)
