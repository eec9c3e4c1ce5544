"""The Euclidean norm of a flat vector by way of those of its blocks, so that slices of it add up to the same bits."""

import numpy as np
import tensorflow as tf

from shared.blocks import block_count, block_size
from shared.graph import Graph
from shared.types import Float32Array


def block_norms(vector: tf.Tensor, block: int) -> tf.Tensor:
    """The Euclidean norm of each block of `block` elements of float32 [P]: float32 [n]; the last one may be shorter.

    Each block is summed by one thread, in one pass over its memory, which is not copied.
    """
    size = vector.shape[0]
    whole = size // block
    rows = [tf.reshape(vector[: whole * block], [whole, block])] if whole else []
    if size % block:
        rows.append(vector[None, whole * block :])
    norms = [tf.raw_ops.EuclideanNorm(input=row, axis=[1]) for row in rows]
    return norms[0] if len(norms) == 1 else tf.concat(norms, axis=0)


def norm_of(norms: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm, a float32 scalar, of a vector whose blocks have these norms, float32 [n]."""
    return tf.sqrt(tf.reduce_sum(tf.square(norms)))


class BlockwiseNorm:
    """The same two steps as graphs of their own, to the bit, for vectors of `size` elements."""

    def __init__(self, size: int) -> None:
        block = block_size(size)
        self._block_norms = Graph(lambda vector: block_norms(vector, block), [tf.TensorSpec([size], tf.float32)])
        self._norm = Graph(norm_of, [tf.TensorSpec([block_count(size)], tf.float32)])

    def block_norms(self, vector: Float32Array) -> Float32Array:
        """See `block_norms`."""
        (result,) = self._block_norms(vector)
        return result.numpy()

    def norm(self, norms: Float32Array) -> np.float32:
        """See `norm_of`."""
        (result,) = self._norm(norms)
        return np.float32(result.numpy())
