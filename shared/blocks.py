"""The flat vector in blocks that follow from its length alone, and in slices that begin where blocks begin.

What is summed block by block, and then over the blocks, has the same bits however the vector is cut into slices.
"""

from itertools import pairwise

from shared.errors import setting_error

# So many that slices of whole blocks are about equal, and so few that each is worth an operation of its own.
_MOST_BLOCKS = 32
# Elements. Below the least a block is not worth its operation; above the most, several threads may share its sum.
_LEAST_BLOCK, _MOST_BLOCK = 1024, 65_536
# Elements of 64 bytes: kernels go through a slice by the same groups of elements as through the whole vector.
_ALIGNMENT = 16


def block_size(size: int) -> int:
    """Elements of each block of a vector of `size` elements; the last block may have fewer."""
    each = -(-size // _MOST_BLOCKS)
    return min(max(-(-each // _ALIGNMENT) * _ALIGNMENT, _LEAST_BLOCK), _MOST_BLOCK)


def block_count(size: int) -> int:
    """Blocks of a vector of `size` elements."""
    return -(-size // block_size(size))


def slice_bounds(size: int, shards: int) -> list[tuple[int, int]]:
    """Where each slice of a vector of `size` elements begins and ends: contiguous, of whole blocks, about equal.

    Raises:
        ConfigurationError: there are fewer blocks than slices.
    """
    blocks, each = block_count(size), block_size(size)
    if shards > blocks:
        raise setting_error(
            "learner.shards", shards, f"the {size:,} parameters make {blocks} blocks, and a slice is at least one; "
            f"use {blocks} or fewer",
        )  # fmt: skip
    borders = [min(number * blocks // shards * each, size) for number in range(shards + 1)]
    return list(pairwise(borders))
