"""Moments of a stream, merged piece by piece."""

import numpy as np

from shared.moments import Moments


def test_pieces_make_the_moments_of_the_whole_and_an_empty_one_changes_nothing() -> None:
    rows = np.random.default_rng(0).normal(3.0, 2.0, (40, 2))
    moments = Moments.zero(2)
    for piece in (rows[:0], rows[:7], rows[7:7], rows[7:]):
        moments = moments.merge(Moments.of(piece))
    assert moments.number == 40
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.variance, rows.var(axis=0))
