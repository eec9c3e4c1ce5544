"""What travels: itself, or bfloat16 rounded to nearest."""

import numpy as np
import pytest

from shared.wire import decode, encode, wire_dtype


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_encoded_vector_has_the_announced_dtype_and_comes_back(precision: str) -> None:
    vector = np.random.default_rng(0).normal(0.0, 1e-3, 1001).astype(np.float32)
    encoded = encode(vector, precision)
    assert encoded.dtype == wire_dtype(precision)
    decoded = decode(encoded)
    assert decoded.dtype == np.float32
    # 8 bits of significand: half a unit in the last place is 2^-9 of the value.
    np.testing.assert_allclose(decoded, vector, rtol=0.0 if precision == "float32" else 2.0**-8, atol=0.0)


def test_bfloat16_is_rounded_to_nearest_and_not_cut_off() -> None:
    exact = np.float32(1.0) + np.float32(2.0**-7)
    just_below = np.nextafter(exact, np.float32(0.0), dtype=np.float32)
    assert decode(encode(np.array([just_below]), "bfloat16"))[0] == exact


def test_what_is_not_finite_stays_so_that_the_learner_can_refuse_it() -> None:
    vector = np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    decoded = decode(encode(vector, "bfloat16"))
    assert np.isnan(decoded[0])
    assert np.isinf(decoded[1:3]).all()


def test_float32_is_not_copied() -> None:
    vector = np.ones(3, np.float32)
    assert decode(encode(vector, "float32")) is vector
