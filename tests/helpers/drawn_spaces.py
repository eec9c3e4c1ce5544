"""Hypothesis strategies of Gymnasium's spaces: dtypes, shapes, bounds and starts."""

import math

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import strategies as st

_LARGEST = float(np.finfo(np.float32).max)
bounds = st.sampled_from(
    [
        (-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.3), (-math.inf, math.inf), (-1e300, 1e300), (0.1, 2 * math.pi),
        (-_LARGEST, _LARGEST), (0.0, 1e-30), (1e6, 1e6 + 1), (0.0, 0.0),
    ]
)  # fmt: skip


def _box(ends: tuple[float, float], shape: tuple[int, ...], dtype: type) -> Box:
    least, most = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    low, high = (end if math.isinf(end) else min(max(end, least), most) for end in ends)
    # One dimension without the bounds that the others have.
    lows, highs = np.full(shape, low, dtype), np.full(shape, high, dtype)
    if shape == (3,):
        lows[0], highs[0] = -np.inf, np.inf
    return Box(lows, highs, shape, dtype)


boxes = st.builds(
    _box, bounds, st.sampled_from([(), (1,), (3,), (2, 3)]), st.sampled_from([np.float32, np.float64, np.float16])
)
whole = st.builds(
    Box,
    st.integers(-5, 0),
    st.integers(1, 99),
    st.sampled_from([(), (2,)]),
    st.sampled_from([np.int64, np.int8, np.int32]),
)
choices = st.one_of(
    st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 2**40)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.just(MultiDiscrete([[2, 3], [1, 4]], start=[[0, -7], [5, 2**40]])),
    st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)
actions = boxes | whole | choices
"""Spaces of actions that can be trained."""
# A board of bytes, and whole numbers that float32 cannot tell apart.
_UNLIKE_ACTIONS = [
    Box(0, 2, (19, 19), np.uint8),
    Box(0, 10**12, (2,), np.int64),
    Box(2**24, 2**24 + 9, (2,), np.int64),
    Box(1e15, 1e15 + 1, (), np.float64),
    Box(0, 2**64 - 1, (1,), np.uint64),
    Box(-np.inf, np.inf, (1,), np.float64),
]
numbers = st.recursive(
    actions | st.sampled_from(_UNLIKE_ACTIONS),
    lambda inner: st.builds(lambda a, b: Dict({"a": a, "b": Tuple((b, Text(4)))}), inner, inner),
    max_leaves=3,
)
"""Spaces of observations without images."""
PICTURE, RGBA, GREY = (Box(0, 255, (40, 44, *channels), np.uint8) for channels in ((3,), (4,), ()))
pictures = st.sampled_from(
    [
        PICTURE, RGBA, GREY, Box(0, 255, (40, 44, 1), np.uint8),
        Dict({"picture": PICTURE, "speed": Box(-np.inf, np.inf, (2,))}), Dict({"left": RGBA, "right": GREY}),
    ]
)  # fmt: skip
no_actions = st.sampled_from([Tuple((Discrete(2), Discrete(2))), Dict({"a": Discrete(2)}), Text(3)])
"""Spaces of actions that cannot be trained."""
