"""Experiment 1: are discounted returns the same eagerly and in a graph?"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from launch.parity.finding import Finding, required
from shared.types import Float32Array

_DISCOUNT = 0.99
_LENGTHS = (1, 2, 10, 100, 1000)
_MOST_ULP = 4.0

_EXPLANATION = """\
The recursion R ← r + γR is one multiplication and one addition per step, in a fixed order, so both ways round the
same numbers in the same places. A mean and a standard deviation are sums of many terms: a graph may add them in
another order, and the last digits may differ. An ULP is the gap between neighbouring float32 numbers. It is counted
at the size of the largest entry, since an entry near 0 is the difference of larger numbers and inherits their
rounding."""


def discounted_returns(rewards: tf.Tensor) -> tf.Tensor:
    """R_t = r_t + γR_{t+1} for float32 [T], backwards from 0 after the last reward."""
    result = tf.zeros(())
    reversed_returns = []
    for reward in reversed(tf.unstack(rewards)):
        result = reward + _DISCOUNT * result
        reversed_returns.append(result)
    return tf.stack(reversed_returns[::-1])


def standardised(returns: tf.Tensor) -> tf.Tensor:
    """Shifted to mean 0 and scaled to standard deviation 1. Constant returns become 0."""
    centred = returns - tf.reduce_mean(returns)
    return centred / (tf.math.reduce_std(returns) + 1e-8)


def ulp_at_scale(a: Float32Array, b: Float32Array) -> float:
    """Largest difference, in units of the last place of the largest entry."""
    scale = np.maximum(np.abs(a).max(), np.abs(b).max()).astype(np.float32)
    return float(np.abs(a.astype(np.float64) - b).max() / np.spacing(scale)) if scale > 0 else 0.0


def ulp_per_entry(a: Float32Array, b: Float32Array) -> int:
    """Largest number of float32 steps between two entries of the same place."""
    return int(np.abs(_ordered(a) - _ordered(b)).max())


def run(seeds: int) -> Finding:
    """Compare over `seeds` seeds of normally distributed rewards, and constant ones, of 1 to 1,000 steps."""
    rewards: list[Float32Array] = [np.ones(length, np.float32) for length in _LENGTHS]
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        rewards += [random.normal(size=length).astype(np.float32) for length in _LENGTHS]
    plain_equal, at_scale, per_entry = 0, 0.0, 0
    plain_both_ways, scaled_both_ways = _both_ways(discounted_returns), _both_ways(_standardised_returns)
    for sequence in rewards:
        plain, scaled = plain_both_ways(sequence), scaled_both_ways(sequence)
        plain_equal += plain[0].tobytes() == plain[1].tobytes()
        at_scale = max(at_scale, ulp_at_scale(*scaled))
        per_entry = max(per_entry, ulp_per_entry(*scaled))
    constant = [_both_ways(standardised)(np.full(length, 3.7, np.float32)) for length in _LENGTHS]
    finite = all(np.isfinite(values).all() for pair in constant for values in pair)
    return Finding(
        "Are discounted returns the same eagerly and in a graph?",
        (
            required(
                "not standardised: equal to the bit",
                f"{plain_equal} of {len(rewards)} sequences",
                f"{len(rewards)}",
                plain_equal == len(rewards),
            ),
            required(
                "standardised: largest difference, at the scale of the largest entry",
                f"{at_scale:.2f} ULP",
                f"at most {_MOST_ULP:g} ULP",
                at_scale <= _MOST_ULP,
            ),
            required("standardised constant returns are finite", "yes" if finite else "no", "yes", finite),
        ),
        _EXPLANATION,
        {
            "sequences": len(rewards),
            "bit_equal_sequences": plain_equal,
            "standardised_ulp_at_scale": at_scale,
            "standardised_ulp_per_entry": per_entry,
            "constant_returns_finite": finite,
        },
    )


def _standardised_returns(rewards: tf.Tensor) -> tf.Tensor:
    return standardised(discounted_returns(rewards))


def _both_ways(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[Float32Array], tuple[Float32Array, Float32Array]]:
    """The function that gives what `function` gives eagerly, and in a graph that is traced once for each length."""
    graph = tf.function(function, autograph=False)

    def both(x: Float32Array) -> tuple[Float32Array, Float32Array]:
        tensor = tf.constant(x)
        return function(tensor).numpy(), graph(tensor).numpy()

    return both


def _ordered(x: Float32Array) -> npt.NDArray[np.int64]:
    """Integers in the order of the floats, one apart for neighbours."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
