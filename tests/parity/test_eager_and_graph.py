"""Eager execution and graphs: equal returns, why optimizer slots differ, and the cost of one call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from findings import Row, conclude, timed

from shared.types import Float32Array

pytestmark = [pytest.mark.parity, pytest.mark.timeout(1200)]

_SEEDS = 5
_DISCOUNT = 0.99
_LENGTHS = (1, 2, 10, 100, 1000)
_MOST_ULP = 4.0
_SAMPLES, _STEPS, _RATE = 100, 5, 5e-4
_TOLERANCES = ((1e-5, 1e-8), (1e-4, 0.0))
# float32 rounds to 6e-8; sums over 100 samples in three layers and five steps may lose three digits of that.
_LARGEST_RELATIVE = 1e-4

Slots = list[Float32Array]
Predict = Callable[[Float32Array], Float32Array]


def test_discounted_returns() -> None:
    """R ← r + γR is one multiplication and one addition per step, in a fixed order: equal to the bit in a graph.

    A mean and a standard deviation are sums of many terms, which a graph may add in another order. The difference is
    counted in units in the last place (ULP) of the largest entry: an entry near 0 is the difference of larger numbers.
    """
    rewards: list[Float32Array] = [np.ones(length, np.float32) for length in _LENGTHS]
    for seed in range(_SEEDS):
        random = np.random.default_rng(seed)
        rewards += [random.normal(size=length).astype(np.float32) for length in _LENGTHS]
    plain, scaled = _both_modes(_returns), _both_modes(lambda x: _standardised(_returns(x)))
    equal = sum(eager.tobytes() == graph.tobytes() for eager, graph in map(plain, rewards))
    worst = max(_ulp_at_scale(*scaled(sequence)) for sequence in rewards)
    constant = [_both_modes(_standardised)(np.full(length, 3.7, np.float32)) for length in _LENGTHS]
    finite = all(np.isfinite(values).all() for pair in constant for values in pair)
    conclude(
        "Are discounted returns the same eagerly and in a graph?",
        [
            Row("plain: sequences equal to the bit", str(equal), str(len(rewards)), equal == len(rewards)),
            Row("standardised: largest difference", f"{worst:.2f} ULP", f"at most {_MOST_ULP:g}", worst <= _MOST_ULP),
            Row("standardised constant returns are finite", str(finite), "True", finite),
        ],
    )


def test_optimizer_slots() -> None:
    """Train 8 → 64 → 64 → 1 with ReLU by five steps of Adam, eagerly and in a graph.

    TensorFlow's remapper fuses a layer's product, bias and ReLU into one operation, whose sums run in another order.
    Without it both modes agree to the bit. With it, entries that are small beside their tensor's largest differ:
    np.allclose compares every entry relative to itself, and its tolerance is relative to the second argument only.
    Standardised returns that differ by one ULP have the same effect.
    """
    names = ("eager and graph", "the graph's returns", "returns one ULP off", "without the remapper")
    pairs: dict[str, list[_Disagreement]] = {name: [] for name in names}
    moved = []
    for seed in range(_SEEDS):
        batch = _batch(seed)
        returns = _standardised(_returns(batch.rewards))
        graphs_returns = tf.function(lambda x: _standardised(_returns(x)), autograph=False)(batch.rewards)
        nudged = tf.constant(np.nextafter(returns.numpy(), np.float32(np.inf)))
        eager = _train(seed, batch, returns)
        graph = _train(seed, batch, graphs_returns, in_graph=True)
        with _without_remapper():
            unfused = _train(seed, batch, graphs_returns, in_graph=True)
        others = graph, _train(seed, batch, graphs_returns), _train(seed, batch, nudged), unfused
        for name, other in zip(names, others, strict=True):
            pairs[name].append(_compare(eager.slots, other.slots))
        moved.append(float(np.abs(eager.parameters - graph.parameters).max()) / _RATE)
    slots = len(eager.slots) * _SEEDS
    worst = {name: max(pair.largest_relative for pair in found) for name, found in pairs.items()}
    found = pairs[names[0]]
    unequal = {label: sum(pair.unequal[label] for pair in found) for label in found[0].unequal}
    exact = sum(pair.largest_relative == 0.0 for pair in pairs[names[3]])
    conclude(
        "Why do an optimizer's slots differ between eager and graph?",
        [
            Row(
                "eager and graph: largest difference, relative to the slot's largest entry",
                f"{worst[names[0]]:.1e}",
                f"at most {_LARGEST_RELATIVE:g}",
                worst[names[0]] <= _LARGEST_RELATIVE,
            ),
            Row("the same without the remapper: seeds equal to the bit", str(exact), str(_SEEDS), exact == _SEEDS),
            *(Row(f"np.allclose rejects, {label}", f"{count} of {slots} slots") for label, count in unequal.items()),
            Row(
                "largest entry that differs, relative to its slot's largest",
                f"{max(pair.entry_share for pair in found):.1e}",
            ),
            Row("parameters: largest difference, in learning rates", f"{max(moved):.1e}"),
            *(Row(f"two eager runs, {name}", f"{worst[name]:.1e} of the largest entry") for name in names[1:3]),
        ],
    )


def test_cost_of_a_call() -> None:
    """The outputs are the same; the overhead of a call differs. An actor calls once per step, with few observations."""
    observations, batch_sizes, repeats = 100_000, (32, 100_000), 3
    data = np.random.default_rng(0).normal(size=(observations, 4)).astype(np.float32)
    ways = _ways_to_predict()
    outputs = [predict(data) for predict in ways.values()]
    worst = max(float(np.abs(output - outputs[0]).max() / np.abs(outputs[0]).max()) for output in outputs)
    rows = [Row("outputs, relative to the largest", f"{worst:.1e}", "at most 1e-5", worst <= 1e-5)]
    for size in batch_sizes:
        batches = [data[i : i + size] for i in range(0, observations - observations % size, size)]
        for name, predict in ways.items():
            # The first call builds the graph.
            predict(batches[0])
            times = [timed(lambda p=predict, b=batches: [p(batch) for batch in b]) for _ in range(repeats)]
            wall, cpu = np.median(times, axis=0)
            measured = f"{wall:.3f} s wall, {cpu:.3f} s CPU; {1e6 * wall / len(batches):,.0f} µs a call"
            rows.append(Row(f"{name}: {len(batches) * size:,} observations in batches of {size:,}", measured))
    conclude("What does one evaluation of the network cost?", rows)


def _returns(rewards: tf.Tensor) -> tf.Tensor:
    """R_t = r_t + γR_{t+1} for float32 [T], backwards from 0 after the last reward."""
    result = tf.zeros(())
    reversed_returns = []
    for reward in reversed(tf.unstack(rewards)):
        result = reward + _DISCOUNT * result
        reversed_returns.append(result)
    return tf.stack(reversed_returns[::-1])


def _standardised(returns: tf.Tensor) -> tf.Tensor:
    centred = returns - tf.reduce_mean(returns)
    return centred / (tf.math.reduce_std(returns) + 1e-8)


def _both_modes(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[Float32Array], tuple[Float32Array, Float32Array]]:
    graph = tf.function(function, autograph=False)
    return lambda x: (function(tf.constant(x)).numpy(), graph(tf.constant(x)).numpy())


def _ulp_at_scale(a: Float32Array, b: Float32Array) -> float:
    scale = np.maximum(np.abs(a).max(), np.abs(b).max()).astype(np.float32)
    return float(np.abs(a.astype(np.float64) - b).max() / np.spacing(scale)) if scale > 0 else 0.0


class _Disagreement(NamedTuple):
    """`unequal` counts slots that np.allclose rejects, by tolerance and direction. `entry_share` is the largest entry
    that differs, relative to its slot's largest.
    """

    unequal: dict[str, int]
    largest_relative: float
    entry_share: float


def _compare(first: Slots, second: Slots) -> _Disagreement:
    unequal, share, relative = {}, 0.0, 0.0
    for rtol, atol in _TOLERANCES:
        for direction, (left, right) in {"forth": (first, second), "back": (second, first)}.items():
            masks = [~np.isclose(a, b, rtol=rtol, atol=atol) for a, b in zip(left, right, strict=True)]
            unequal[f"rtol {rtol:g}, atol {atol:g}, {direction}"] = sum(bool(mask.any()) for mask in masks)
            for a, mask in zip(left, masks, strict=True):
                share = max(share, float(np.abs(a[mask]).max(initial=0.0) / np.abs(a).max()))
    for a, b in zip(first, second, strict=True):
        largest = max(float(np.abs(a).max()), float(np.abs(b).max()), 1e-30)
        relative = max(relative, float(np.abs(a - b).max()) / largest)
    return _Disagreement(unequal, relative, share)


@contextmanager
def _without_remapper() -> Iterator[None]:
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": before})


class _Batch(NamedTuple):
    observations: tf.Tensor
    actions: tf.Tensor
    rewards: tf.Tensor


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
    """Five steps of Adam on the REINFORCE loss, with gradient and update as separate calls."""
    model = _network(8, [(64, "relu"), (64, "relu"), (1, "sigmoid")], seed)
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
    # The iteration and the learning rate come first.
    slots = [variable.numpy() for variable in optimizer.variables[2:]]
    return _Trained(slots, np.concatenate([np.ravel(variable) for variable in trained]))


def _network(inputs: int, layers: list[tuple[int, str | None]], seed: int) -> keras.Model:
    x = first = keras.Input((inputs,))
    for i, (units, activation) in enumerate(layers):
        start = keras.initializers.GlorotUniform(seed + i)
        x = keras.layers.Dense(units, activation, kernel_initializer=start, name=f"dense{i}")(x)
    return keras.Model(first, x)


def _ways_to_predict() -> dict[str, Predict]:
    model = _network(4, [(64, "relu"), (64, "relu"), (2, None)], 0)
    graph = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, 4), tf.float32)], autograph=False)
    return {
        "eager": lambda batch: model(batch).numpy(),
        "graph": lambda batch: graph(batch).numpy(),
        "predict_on_batch": model.predict_on_batch,
    }
