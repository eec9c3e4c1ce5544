"""Experiment 2: why do an optimizer's slots differ between eager and graph?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from launch.parity.finding import Finding, reported, required
from launch.parity.returns import discounted_returns, standardised
from shared.types import Float32Array

_SAMPLES, _STEPS, _RATE = 100, 5, 5e-4
_TOLERANCES = ((1e-5, 1e-8), (1e-4, 0.0))
# float32 rounds to 6e-8; sums over 100 samples in three layers and five steps may lose three digits of that.
_LARGEST_RELATIVE = 1e-4

_EXPLANATION = """\
Both ways compute the same function. A graph is rewritten before it runs: the remapper of TensorFlow's graph
optimizer fuses a layer's product, bias and ReLU into one operation, whose sums run in another order. Without that
one rewrite both agree to the bit. With it gradients differ in their last digits. That shows in entries that are
small beside their tensor's largest: each is the difference of larger numbers, and has few digits left to agree on.
np.allclose asks every entry to agree relative to itself, and is not symmetric: its tolerance is relative to the
second argument. Adam divides m by √v, so where the true gradient is 0 it turns rounding noise into steps as large
as the learning rate. Standardised returns that differ by one unit in the last place do the same, as the swap shows,
whose runs are otherwise equal. To compare two runs, relate a difference to the slot's largest entry. To make them
agree, compute the returns once, and switch the remapper off:
tf.config.optimizer.set_experimental_options({'remapping': False})."""


class _Batch(NamedTuple):
    observations: tf.Tensor
    actions: tf.Tensor
    rewards: tf.Tensor


Slots = dict[str, Float32Array]


class Disagreement(NamedTuple):
    """How two runs' slots differ.

    `unequal` counts the slots that np.allclose calls different, by tolerance and direction, and `names` lists them.
    `largest_relative` is the largest difference relative to the slot's largest entry. `entry_share` is the size of the
    largest entry that differs, relative to its slot's largest; None if none does.
    """

    unequal: dict[str, int]
    names: list[str]
    largest_relative: float
    entry_share: float | None


def compare(first: Slots, second: Slots) -> Disagreement:
    """Compare every slot in both directions of np.allclose, and relative to its largest entry."""
    unequal, names, shares, relative = {}, set(), [0.0], 0.0
    for rtol, atol in _TOLERANCES:
        for direction, (left, right) in {"forth": (first, second), "back": (second, first)}.items():
            label = f"rtol {rtol:g}, atol {atol:g}, {direction}"
            unequal[label] = 0
            for name, a in left.items():
                differs = ~np.isclose(a, right[name], rtol=rtol, atol=atol)
                if differs.any():
                    unequal[label] += 1
                    names.add(name)
                    shares.append(float(np.abs(a[differs]).max() / np.abs(a).max()))
    for name, a in first.items():
        largest = max(float(np.abs(a).max()), float(np.abs(second[name]).max()), 1e-30)
        relative = max(relative, float(np.abs(a - second[name]).max()) / largest)
    return Disagreement(unequal, sorted(names), relative, max(shares) if names else None)


def run(seeds: int) -> Finding:
    """Train the forum's network, 8 → 64 → 64 → 1 with ReLU, eagerly and in a graph, from each of `seeds` seeds."""
    names = ("eager_graph", "graphs_returns", "one_ulp", "without_remapper")
    pairs: dict[str, list[Disagreement]] = {name: [] for name in names}
    parameters = []
    for seed in range(seeds):
        batch = _batch(seed)
        returns = standardised(discounted_returns(batch.rewards))
        graphs_returns = tf.function(lambda x: standardised(discounted_returns(x)), autograph=False)(batch.rewards)
        nudged = tf.constant(np.nextafter(returns.numpy(), np.float32(np.inf)))
        eager = _train(seed, batch, returns)
        graph = _train(seed, batch, graphs_returns, in_graph=True)
        pairs["eager_graph"].append(compare(eager.slots, graph.slots))
        pairs["graphs_returns"].append(compare(eager.slots, _train(seed, batch, graphs_returns).slots))
        pairs["one_ulp"].append(compare(eager.slots, _train(seed, batch, nudged).slots))
        with _without_remapper():
            unfused = _train(seed, batch, graphs_returns, in_graph=True)
        pairs["without_remapper"].append(compare(eager.slots, unfused.slots))
        parameters.append(float(np.abs(eager.parameters - graph.parameters).max()) / _RATE)
    slots = len(eager.slots) * seeds
    found = pairs["eager_graph"]
    worst = _largest_relative(found)
    shares = [pair.entry_share for pair in found if pair.entry_share is not None]
    different = sorted({name for pair in found for name in pair.names})
    exact = sum(pair.largest_relative == 0.0 for pair in pairs["without_remapper"])
    return Finding(
        "Why do an optimizer's slots differ between eager and graph?",
        (
            required(
                "eager against graph: largest difference of any slot, relative to its largest entry",
                f"{worst:.1e}",
                f"at most {_LARGEST_RELATIVE:g}",
                worst <= _LARGEST_RELATIVE,
            ),
            *(
                reported(f"slots that np.allclose calls different, {label}", f"{count} of {slots}")
                for label, count in _total(found).items()
            ),
            reported("which slots", ", ".join(different) or "none"),
            reported(
                "largest entry that differs, relative to its slot's largest", f"{max(shares):.1e}" if shares else "none"
            ),
            reported("parameters: largest difference, in learning rates", f"{max(parameters):.1e}"),
            reported("eager against graph without the remapper: equal to the bit", f"{exact} of {seeds} seeds"),
            reported(
                "two eager runs, one with the graph's standardised returns",
                f"{_largest_relative(pairs['graphs_returns']):.1e} of the largest entry",
            ),
            reported(
                "two eager runs, one with standardised returns one ULP off",
                f"{_largest_relative(pairs['one_ulp']):.1e} of the largest entry, "
                f"{max(_total(pairs['one_ulp']).values())} slots different",
            ),
        ),
        _EXPLANATION,
        {
            "slots": slots,
            "parameters_in_learning_rates": parameters,
            **{name: [pair._asdict() for pair in found] for name, found in pairs.items()},
        },
    )


def _largest_relative(pairs: list[Disagreement]) -> float:
    return max(pair.largest_relative for pair in pairs)


def _total(pairs: list[Disagreement]) -> dict[str, int]:
    return {label: sum(pair.unequal[label] for pair in pairs) for label in pairs[0].unequal}


@contextmanager
def _without_remapper() -> Iterator[None]:
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": before})


def _batch(seed: int) -> _Batch:
    random = np.random.default_rng(seed)
    return _Batch(
        tf.constant(random.normal(size=(_SAMPLES, 8)), tf.float32),
        tf.constant(random.integers(0, 2, (_SAMPLES, 1)), tf.float32),
        tf.ones(_SAMPLES),
    )


class _Trained(NamedTuple):
    slots: Slots
    parameters: Float32Array


def _train(seed: int, batch: _Batch, weights: tf.Tensor, *, in_graph: bool = False) -> _Trained:
    """Five steps of Adam on the REINFORCE loss. Gradient and update are separate calls, as they must be."""
    model = _network(seed)
    trained = model.trainable_variables
    optimizer = keras.optimizers.Adam(_RATE)
    optimizer.build(trained)

    def gradients(weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            probability = model(batch.observations)
            log_prob = tf.math.log(batch.actions * probability + (1.0 - batch.actions) * (1.0 - probability))
            loss = -tf.reduce_mean(log_prob[:, 0] * weights)
        return tape.gradient(loss, trained)

    step = tf.function(gradients, autograph=False) if in_graph else gradients
    for _ in range(_STEPS):
        optimizer.apply(step(weights), trained)
    slots = {
        f"{kind}/{owner.path}": np.asarray(variable)
        for kind, variables in (("m", optimizer._momentums), ("v", optimizer._velocities))
        for variable, owner in zip(variables, trained, strict=True)
    }
    return _Trained(slots, np.concatenate([np.ravel(variable) for variable in trained]))


def _network(seed: int) -> keras.Model:
    inputs = keras.Input((8,))
    x = inputs
    for i, (units, activation) in enumerate(((64, "relu"), (64, "relu"), (1, "sigmoid"))):
        start = keras.initializers.GlorotUniform(seed + i)
        x = keras.layers.Dense(units, activation, kernel_initializer=start, name=f"dense{i}")(x)
    return keras.Model(inputs, x)
