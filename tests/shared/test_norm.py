"""The norm by blocks: right, and the same bits in one piece and by slices."""

import numpy as np
import pytest
import tensorflow as tf

from shared.blocks import block_size
from shared.norm import BlockwiseNorm, block_norms, norm_of


@pytest.mark.parametrize("size", [1, 1024, 5000, 700_000])
def test_it_is_the_euclidean_norm_and_slices_add_up_to_its_bits(size: int) -> None:
    vector = np.random.default_rng(size).normal(size=size).astype(np.float32)
    block = block_size(size)
    norms = BlockwiseNorm(size)
    found = norms.block_norms(vector)
    assert float(norms.norm(found)) == pytest.approx(np.linalg.norm(vector.astype(np.float64)), rel=1e-6)
    together = tf.function(lambda v: norm_of(block_norms(v, block)))(vector)
    assert together.numpy().tobytes() == norms.norm(found).tobytes()
    # Whatever the slices are, down to single blocks.
    for blocks in (1, 2, 7):
        each = blocks * block
        parts = [block_norms(tf.constant(vector[i : i + each]), block).numpy() for i in range(0, size, each)]
        assert np.concatenate(parts).tobytes() == found.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_what_is_not_finite_or_overflows_is_seen(bad: float) -> None:
    vector = np.ones(3000, np.float32)
    vector[2000] = bad
    norms = BlockwiseNorm(3000)
    assert not np.isfinite(norms.norm(norms.block_norms(vector)))


def test_a_norm_whose_square_overflows_is_not_finite_though_that_of_each_block_is() -> None:
    vector = np.full(4096, 3e17, np.float32)
    norms = BlockwiseNorm(4096)
    assert np.isfinite(norms.block_norms(vector)).all()
    assert np.isfinite(np.square(norms.block_norms(vector))).all()
    assert not np.isfinite(norms.norm(norms.block_norms(vector)))
