"""Experiments about TensorFlow's numbers: eager execution and graphs, gradient and update in one graph, RMSProps.

    python docs/studies/parity.py                    all of them, in ten minutes on one core
    python docs/studies/parity.py optimizer_slots    one of them

Each prints a table with figures of this machine. The exit code is 1 if a required row does not hold.
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.inline import InlineExecutor
from launch.output import plain_table
from launch.presets import PRESETS
from learner.learner import Learner
from learner.update import GradientAccumulator
from shared.config import EvaluationConfig, OptimizerConfig, RunConfig
from shared.layout import ParameterLayout
from shared.types import Float32Array, WeightSnapshot

Step = Callable[[tf.Tensor, tf.Tensor], None]

_SEEDS = 5


class Row(NamedTuple):
    """One figure. `holds` is None where nothing is required of it."""

    claim: str
    measured: str
    required: str = ""
    holds: bool | None = None


def show(question: str, rows: Sequence[Row]) -> None:
    verdicts = {None: "", True: "holds", False: "FAILS"}
    shown = [
        {question: row.claim, "measured": row.measured, "required": row.required, "": verdicts[row.holds]}
        for row in rows
    ]
    console = Console(width=150)
    console.print()
    console.print(plain_table(shown, console.width, left=shown[0].keys()), highlight=False)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall time and of this process's CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


# ---- Eager execution and graphs

_DISCOUNT = 0.99
_LENGTHS = (1, 2, 10, 100, 1000)
_MAX_ULP = 4.0
_SAMPLES, _STEPS, _RATE = 100, 5, 5e-4
_TOLERANCES = ((1e-5, 1e-8), (1e-4, 0.0))
# float32 rounds to 6e-8; sums over 100 samples in three layers and five steps may lose three digits of that.
_LARGEST_RELATIVE = 1e-4


def discounted_returns() -> tuple[str, list[Row]]:
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
    return (
        "Are discounted returns the same eagerly and in a graph?",
        [
            Row("plain: sequences equal to the bit", str(equal), str(len(rewards)), equal == len(rewards)),
            Row("standardised: largest difference", f"{worst:.2f} ULP", f"at most {_MAX_ULP:g}", worst <= _MAX_ULP),
            Row("standardised constant returns are finite", str(finite), "True", finite),
        ],
    )


def optimizer_slots(seeds: int = _SEEDS) -> tuple[str, list[Row]]:
    """Train 8 → 64 → 64 → 1 with ReLU by five steps of Adam, eagerly and in a graph.

    TensorFlow's remapper fuses a layer's product, bias and ReLU into one operation, whose sums run in another order.
    Without it both modes agree to the bit. With it, entries that are small beside their tensor's largest differ:
    np.allclose compares every entry relative to itself, and its tolerance is relative to the second argument only.
    Standardised returns that differ by one ULP have the same effect.
    """
    returns, graphs_returns = map(
        tf.constant, _both_modes(lambda x: _standardised(_returns(x)))(np.ones(_SAMPLES, "f4"))
    )
    nudged = tf.constant(np.nextafter(returns.numpy(), np.float32(np.inf)))
    graph_differs, returns_differ, nudge_differs, unfused_differs, moved = [], [], [], [], []
    unequal, slots, share = Counter[str](), 0, 0.0
    for seed in range(seeds):
        eager, parameters = _train(seed, returns)
        graph, graphs_parameters = _train(seed, graphs_returns, in_graph=True)
        tf.config.optimizer.set_experimental_options({"remapping": False})
        unfused, _ = _train(seed, graphs_returns, in_graph=True)
        tf.config.optimizer.set_experimental_options({"remapping": True})
        graph_differs.append(_difference(eager, graph))
        returns_differ.append(_difference(eager, _train(seed, graphs_returns)[0]))
        nudge_differs.append(_difference(eager, _train(seed, nudged)[0]))
        unfused_differs.append(_difference(eager, unfused))
        moved.append(float(np.abs(parameters - graphs_parameters).max()) / _RATE)
        slots += len(eager)
        for (rtol, atol), (a, b) in itertools.product(_TOLERANCES, zip(eager, graph, strict=True)):
            for direction, (left, right) in {"forth": (a, b), "back": (b, a)}.items():
                rejected = ~np.isclose(left, right, rtol=rtol, atol=atol)
                unequal[f"rtol {rtol:g}, atol {atol:g}, {direction}"] += int(rejected.any())
                share = max(share, float(np.abs(left[rejected]).max(initial=0.0) / np.abs(left).max()))
    worst, exact = max(graph_differs), unfused_differs.count(0.0)
    return (
        "Why do an optimizer's slots differ between eager and graph?",
        [
            Row(
                "eager and graph: largest difference, relative to the slot's largest entry",
                f"{worst:.1e}",
                f"at most {_LARGEST_RELATIVE:g}",
                worst <= _LARGEST_RELATIVE,
            ),
            Row("the same without the remapper: seeds equal to the bit", str(exact), str(seeds), exact == seeds),
            *(Row(f"np.allclose rejects, {label}", f"{count} of {slots} slots") for label, count in unequal.items()),
            Row("largest entry that differs, relative to its slot's largest", f"{share:.1e}"),
            Row("parameters: largest difference, in learning rates", f"{max(moved):.1e}"),
            Row("two eager runs, the graph's returns", f"{max(returns_differ):.1e} of the largest entry"),
            Row("two eager runs, returns one ULP off", f"{max(nudge_differs):.1e} of the largest entry"),
        ],
    )


def cost_of_a_call() -> tuple[str, list[Row]]:
    """The outputs are the same; the overhead of a call differs. An actor calls once per step, with few observations."""
    observations, batch_sizes, repeats = 100_000, (32, 100_000), 3
    data = np.random.default_rng(0).normal(size=(observations, 4)).astype(np.float32)
    model = _network(4, 2)
    graph = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, 4), tf.float32)], autograph=False)
    ways: dict[str, Callable[[Float32Array], Float32Array]] = {
        "eager": lambda batch: model(batch).numpy(),
        "graph": lambda batch: graph(batch).numpy(),
        "predict_on_batch": model.predict_on_batch,
    }
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
    return "What does one evaluation of the network cost?", rows


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


def _difference(first: list[Float32Array], second: list[Float32Array]) -> float:
    """The largest difference of the slots of two optimizers, relative to the largest entry of its slot."""
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-30)) for a, b in pairs)


def _train(seed: int, weights: tf.Tensor, *, in_graph: bool = False) -> tuple[list[Float32Array], Float32Array]:
    """Slots and parameters after five steps of Adam on the REINFORCE loss of one batch, with gradient and update as
    separate calls."""
    random = np.random.default_rng(seed)
    observations = tf.constant(random.normal(size=(_SAMPLES, 8)), tf.float32)
    actions = tf.constant(random.integers(0, 2, (_SAMPLES, 1)), tf.float32)
    model = _network(8, 1, "sigmoid", seed)
    trained = model.trainable_variables
    optimizer = keras.optimizers.Adam(_RATE)
    optimizer.build(trained)

    def gradients(weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            probability = model(observations)
            log_prob = tf.math.log(actions * probability + (1.0 - actions) * (1.0 - probability))
            loss = -tf.reduce_mean(log_prob[:, 0] * weights)
        return tape.gradient(loss, trained)

    step = tf.function(gradients, autograph=False) if in_graph else gradients
    for _ in range(_STEPS):
        optimizer.apply(step(weights), trained)
    # The iteration and the learning rate come first.
    slots = [variable.numpy() for variable in optimizer.variables[2:]]
    return slots, np.concatenate([np.ravel(variable) for variable in trained])


def _network(inputs: int, outputs: int, activation: str | None = None, seed: int = 0) -> keras.Model:
    x = first = keras.Input((inputs,))
    for i, layer in enumerate([(64, "relu"), (64, "relu"), (outputs, activation)]):
        x = keras.layers.Dense(*layer, kernel_initializer=keras.initializers.GlorotUniform(seed + i))(x)
    return keras.Model(first, x)


# ---- Gradient and update

_UPDATES, _BATCH, _ETA, _DECAY, _EPSILON = 3, 16, 0.01, 0.9, 1e-7


def gradient_and_update_in_one_graph(traces: int = 200) -> tuple[str, list[Row]]:
    """A trace in which the backward pass reads weights that were already updated is wrong for good.

    TensorFlow orders the reads and writes of a variable, and its graph optimizer may drop an order that seems
    redundant. Such traces were seen with TensorFlow 2.21 and Keras 3.15; a count of 0 says that this machine, these
    versions and this network do not show the fault. The two graph calls of this project cannot have it.
    """
    random = np.random.default_rng(0)
    problem = _Problem(
        tf.constant(random.normal(size=(_BATCH, 4)), tf.float32),
        tf.constant(random.normal(size=(_BATCH, 2)), tf.float32),
        [random.normal(0.0, 0.3, weights.shape).astype(np.float32) for weights in _network(4, 2).get_weights()],
    )
    optimizers = {"SGD": keras.optimizers.SGD, "RMSprop": keras.optimizers.RMSprop, "Adam": keras.optimizers.Adam}
    names = list(optimizers)
    references = {name: _by_keras(problem, make(_ETA), _eager) for name, make in optimizers.items()}
    own_reference = _by_numpy(problem)
    wrong: dict[str, Counter[str]] = {"fused": Counter(), "controlled": Counter(), "ours": Counter()}
    for i in range(traces):
        name = names[i % len(names)]
        for kind, step in (("fused", _fused), ("controlled", _controlled)):
            reached = _by_keras(problem, optimizers[name](_ETA), step)
            wrong[kind][name] += _is_wrong(reached, references[name], problem.weights)
        wrong["ours"]["RMSProp"] += _is_wrong(_by_ours(problem), own_reference, problem.weights)
    counts = {
        kind: f"{count.total()} of {traces} wrong ({', '.join(f'{name} {number}' for name, number in count.items())})"
        for kind, count in wrong.items()
    }
    return (
        "May gradient and update share one tf.function?",
        [
            Row("gradient and Keras' apply in one tf.function", counts["fused"]),
            Row("the same, with control dependencies on the gradients", counts["controlled"]),
            Row("ours: two graph calls", counts["ours"], "0 wrong", wrong["ours"].total() == 0),
        ],
    )


class _Problem(NamedTuple):
    x: tf.Tensor
    y: tf.Tensor
    weights: list[Float32Array]


def _is_wrong(reached: Sequence[Float32Array], expected: Sequence[Float32Array], start: Sequence[Float32Array]) -> bool:
    """Whether weights are off by over a thousandth of their change: rounding is far below, the fault far above."""
    return any(
        np.abs(r - e).max() > 1e-3 * np.abs(e - s).max() for r, e, s in zip(reached, expected, start, strict=True)
    )


def _gradients(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return tape.gradient(loss, model.trainable_variables)


def _eager(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    return lambda x, y: optimizer.apply(_gradients(model, x, y), model.trainable_variables)


def _fused(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    return tf.function(_eager(model, optimizer), autograph=False)


def _controlled(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        gradients = _gradients(model, x, y)
        with tf.control_dependencies(gradients):
            optimizer.apply([tf.identity(g) for g in gradients], model.trainable_variables)

    return tf.function(step, autograph=False)


def _by_keras(
    problem: _Problem,
    optimizer: keras.optimizers.Optimizer,
    make_step: Callable[[keras.Model, keras.optimizers.Optimizer], Step],
) -> list[Float32Array]:
    model = _network(4, 2)
    model.set_weights(problem.weights)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer)
    for _ in range(_UPDATES):
        step(problem.x, problem.y)
    return model.get_weights()


def _by_ours(problem: _Problem) -> list[Float32Array]:
    model = _network(4, 2)
    layout = ParameterLayout.of(model.trainable_variables)
    settings = OptimizerConfig(decay=_DECAY, epsilon=_EPSILON, max_gradient_norm=None)
    accumulator = GradientAccumulator(layout.flatten(problem.weights), layout, 1, settings)
    gradient = tf.function(lambda x, y: _gradients(model, x, y), autograph=False)
    for _ in range(_UPDATES):
        model.set_weights(layout.split(accumulator.parameters.numpy()))
        accumulator.push(layout.flatten([g.numpy() for g in gradient(problem.x, problem.y)]), _ETA)
    return layout.split(accumulator.parameters.numpy())


def _by_numpy(problem: _Problem) -> list[Float32Array]:
    model = _network(4, 2)
    weights = [w.astype(np.float64) for w in problem.weights]
    squares = [np.zeros_like(w) for w in weights]
    for _ in range(_UPDATES):
        model.set_weights(weights)
        gradients = [np.asarray(g, np.float64) for g in _gradients(model, problem.x, problem.y)]
        squares = [_DECAY * s + (1 - _DECAY) * g**2 for s, g in zip(squares, gradients, strict=True)]
        weights = [w - _ETA * g / np.sqrt(s + _EPSILON) for w, g, s in zip(weights, gradients, squares, strict=True)]
    return [w.astype(np.float32) for w in weights]


# ---- CartPole

_THRESHOLD = 150.0
_MAX_AGENT_STEPS = 400_000
_ROLLOUTS = 40
_ONE_GRADIENT = 2.0

_PLAIN = OptimizerConfig(schedule="constant", max_gradient_norm=None)
# Each library's defaults. PyTorch's ε stands outside the root: 1e-8 there is about 1e-16 inside it.
FORMS = {
    "TensorFlow 1": replace(_PLAIN, decay=0.9, epsilon=1e-10),
    "Keras": replace(_PLAIN, decay=0.9, epsilon=1e-7),
    "PyTorch": replace(_PLAIN, decay=0.99, epsilon=1e-16),
    "A3C paper": replace(_PLAIN, decay=0.99, epsilon=0.1),
    "with bias correction": replace(_PLAIN, decay=0.99, epsilon=1e-5, bias_correction=True),
}
# RMSProp's g before the first update, where it is not 0.
START = {"TensorFlow 1": 1.0}


def iterations_of_eager_and_graph() -> tuple[str, list[Row]]:
    """Both modes draw the same random numbers, and their first updates agree to rounding.

    They play the same games until rounding changes a sampled action; from there on they differ as two seeds do.
    """
    config = _cartpole()
    rollout, trained = {}, {}
    for mode in ("eager", "graph"):
        tf.config.run_functions_eagerly(mode == "eager")
        rollout[mode] = _rollout_seconds(config)
        trained[mode] = [_trained_on_cartpole(replace(config, seed=seed)) for seed in range(1, _SEEDS + 1)]
    first = max(
        float(np.abs(e.first_update - g.first_update).max() / np.abs(e.first_update).max())
        for e, g in zip(trained["eager"], trained["graph"], strict=True)
    )
    claim = "parameters after the first update, relative to the largest"
    rows = [Row(claim, f"{first:.1e}", "at most 1e-5", first <= 1e-5)]
    for mode, runs in trained.items():
        wall, cpu = rollout[mode]
        rows.append(Row(f"{mode}: a rollout and its gradient", f"{1e3 * wall:.1f} ms wall, {1e3 * cpu:.1f} ms CPU"))
        steps = [run.agent_steps for run in runs]
        seconds = np.median([run.seconds for run in runs])
        measured = f"median {np.median(steps):,.0f}, {min(steps):,} to {max(steps):,}; median {seconds:.1f} s"
        rows.append(Row(f"{mode}: agent steps to a mean return of {_THRESHOLD:g}", measured))
    fewer = sum(g.agent_steps < e.agent_steps for e, g in zip(trained["eager"], trained["graph"], strict=True))
    rows.append(Row("seeds for which the graph needed fewer agent steps", f"{fewer} of {_SEEDS}"))
    return "Does a graph need more iterations than eager execution?", rows


def forms_of_rmsprop() -> tuple[str, list[Row]]:
    """All divide by the root of a running mean g of squared gradients; start of g and place of ε differ."""
    steps = {name: first_step(form, START.get(name, 0.0)) for name, form in FORMS.items()}
    rows = []
    for name, theirs in {"TensorFlow 1": _tensorflow_1_step(), "Keras": _keras_step()}.items():
        holds = abs(steps[name] - theirs) / theirs <= 1e-5
        measured = f"{steps[name]:.4f} and {theirs:.4f}"
        rows.append(Row(f"{name}: first step, ours and the library's own", measured, "within 1e-5", holds))
    # Gradient 2 and rate 1: 2/√(0.9 + 0.4), 2/√0.4, 2/√0.04, 2/√(0.04 + 0.1), and 1 with bias correction.
    for name, expected in zip(FORMS, (1.7541, 3.1623, 10.0, 5.3452, 1.0), strict=True):
        holds = abs(steps[name] - expected) <= 1e-4 * expected
        rows.append(Row(f"{name}: first step, gradient 2, rate 1", f"{steps[name]:.4f}", f"{expected}", holds))
    config = _cartpole()
    for name, form in FORMS.items():
        optimizer = replace(form, learning_rate=config.optimizer.learning_rate)
        start = START.get(name, 0.0)
        trained = [
            _trained_on_cartpole(replace(config, seed=seed, optimizer=optimizer), start)
            for seed in range(1, _SEEDS + 1)
        ]
        median = np.median([training.agent_steps for training in trained])
        measured = f"median {median:,.0f}; {sum(training.reached for training in trained)} of {_SEEDS} seeds reached it"
        rows.append(Row(f"{name}: agent steps to a mean return of {_THRESHOLD:g}, same rate", measured))
    return "How do the RMSProps of TensorFlow 1, Keras and PyTorch differ?", rows


def _cartpole() -> RunConfig:
    # Gradients in the call that plays, so that each event of the loop is an update. One actor's are fresh.
    preset = PRESETS["cartpole"].config
    actor = replace(preset.actor, fresh_gradients=False)
    return replace(preset, actors=1, actor=actor, stop_at_return=None, evaluation=EvaluationConfig())


class _Training(NamedTuple):
    """`reached` is False where the training was given up after 400,000 agent steps."""

    reached: bool
    agent_steps: int
    seconds: float
    first_update: Float32Array


def _trained_on_cartpole(config: RunConfig, mean_square: float = 0.0) -> _Training:
    """Train inline with one actor until the last 100 episodes have a mean return of `_THRESHOLD`.

    `mean_square`: RMSProp's g before the first update.
    """
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    _start_from(learner.variables(), mean_square)
    executor = InlineExecutor(config, spec, actors=1)
    started = time.perf_counter()
    first_update: Float32Array | None = None
    reached = False
    for _ in Coordinator(learner, executor, config.supervision).run():
        if first_update is None:
            first_update = learner.snapshot().parameters
        reached = len(learner.account.recent_returns) == 100 and (learner.account.mean_return or 0.0) >= _THRESHOLD
        if reached or learner.account.ledger.sampled >= _MAX_AGENT_STEPS:
            break
    executor.close()
    assert first_update is not None, "every rollout is an update"
    return _Training(reached, learner.account.ledger.sampled, time.perf_counter() - started, first_update)


def _rollout_seconds(config: RunConfig) -> tuple[float, float]:
    spec = environment_spec(config.environment)
    actor, weights = Actor(config, spec, 0), WeightSnapshot(0, Policy(config, spec).initial_parameters())
    for _ in range(3):
        actor.run(weights)
    times = [timed(lambda: actor.run(weights)) for _ in range(_ROLLOUTS)]
    actor.close()
    wall, cpu = np.median(times, axis=0)
    return float(wall), float(cpu)


def _start_from(variables: dict[str, tf.Variable], mean_square: float) -> None:
    slot = variables["optimizer_mean_square"]
    slot.assign(tf.fill(slot.shape, mean_square))


def first_step(form: OptimizerConfig, mean_square: float) -> float:
    accumulator = GradientAccumulator(np.zeros(1, np.float32), ParameterLayout(("weight",), ((1,),)), 1, form)
    _start_from(accumulator.variables, mean_square)
    accumulator.push(np.array([_ONE_GRADIENT], np.float32), 1.0)
    return -float(accumulator.parameters.numpy()[0])


def _tensorflow_1_step() -> float:
    variable = tf.Variable(0.0)
    optimizer = tf.compat.v1.train.RMSPropOptimizer(1.0)
    optimizer.apply_gradients([(tf.constant(_ONE_GRADIENT), variable)])
    return -float(variable.numpy())


def _keras_step() -> float:
    variable = keras.Variable(0.0)
    keras.optimizers.RMSprop(1.0).apply([tf.constant(_ONE_GRADIENT)], [variable])
    return -float(variable.numpy())


EXPERIMENTS = (
    discounted_returns,
    optimizer_slots,
    cost_of_a_call,
    gradient_and_update_in_one_graph,
    iterations_of_eager_and_graph,
    forms_of_rmsprop,
)


def main() -> int:
    # Fresh traces are what many of the experiments measure; TensorFlow would warn of each.
    tf.get_logger().setLevel("ERROR")
    chosen = [experiment for experiment in EXPERIMENTS if experiment.__name__ in sys.argv[1:] or len(sys.argv) == 1]
    failed = False
    for experiment in chosen:
        question, rows = experiment()
        show(question, rows)
        failed = failed or any(row.holds is False for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
