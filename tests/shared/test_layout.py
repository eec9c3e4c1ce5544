import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.layout import ParameterLayout

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(deadline=None, max_examples=30)
@given(shapes=shapes, seed=st.integers(0, 99))
def test_round_trip_through_live_variables(shapes: list[tuple[int, ...]], seed: int) -> None:
    variables = [keras.Variable(np.zeros(shape, np.float32), name=f"v{i}") for i, shape in enumerate(shapes)]
    layout = ParameterLayout.of(variables)
    flat = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    for variable, part in zip(variables, layout.split(flat), strict=True):
        variable.assign(part)
    np.testing.assert_array_equal(layout.flatten([v.numpy() for v in variables]), flat)
    np.testing.assert_array_equal(flat[layout.range_of("v0")], np.ravel(variables[0]))


def test_fingerprint_tells_names_shapes_and_order_apart() -> None:
    layouts = [
        ParameterLayout(("a", "b"), ((2,), (3,))),
        ParameterLayout(("a", "c"), ((2,), (3,))),
        ParameterLayout(("a", "b"), ((3,), (2,))),
        ParameterLayout(("b", "a"), ((2,), (3,))),
    ]
    assert len({layout.fingerprint for layout in layouts}) == 4


def test_wrong_lengths_and_shapes_are_refused() -> None:
    layout = ParameterLayout(("a",), ((2,),))
    with pytest.raises(ValueError, match="vector of 2 parameters"):
        layout.split(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="a: expected shape"):
        layout.flatten([np.zeros(3)])
    with pytest.raises(ValueError, match="expected 1 tensors"):
        layout.flatten([])
