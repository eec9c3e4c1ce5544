"""`tributary bench throughput`: agent steps per second with learning, beside the bound of the machine's cores.

The bound on C cores is C / (e + a + E·g), where e, a and g are the seconds of one core that an agent step takes in the
environment, in acting and in the gradient, and E is the number of epochs. The three are measured by plain Keras: layers
on uint8 images that lie in memory as tensors with channels last, one forward pass to act, one forward and one backward
pass for the gradient of each minibatch. What an actor adds to that (transposing images, calls, reading results) lowers
its fraction of the bound; what it saves raises it. Measured alone and on all cores at once, the two bounds separate the
system's overhead from the contention of busy cores.
"""

import itertools
import multiprocessing
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, VectorEnvironment, environment_spec
from launch.commands.options import PresetArguments, parse_with_preset
from launch.driver import train_in_process
from launch.interrupts import Interrupts
from launch.machine import thread_budget, usable_cores
from launch.output import EXIT_DONE, check_json_file, provenance, write_json
from launch.request import check_network
from launch.run.events import Event, Row
from launch.tensorflow_setup import prepare_tensorflow
from launch.train import TrainingFailedError
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, EnvironmentFailedError, setting_error
from shared.types import StageSeconds

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Excluded after the actors' first reports: first traces, first updates.
WARM_UP_SECONDS = 4.0
# Metrics of the distance between the acting and the differentiated policy, in rows of runs that reuse rollouts.
DRIFT = ("ratio_deviation", "clipped_share", "approximate_kl")
_REPEATS = 3
# From a request to the opening of its window: by then each process has received the request and is at work.
_NOTICE_SECONDS = 0.1
_WARM_UP_CALLS = 3
_READY = "ready"
_SPAWN = multiprocessing.get_context("spawn")
# (filters, kernel, stride) and units. Not taken from shared.networks: the reference must not change with our networks.
_CONVOLUTIONAL = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
_PLAIN_NETWORKS = (*_CONVOLUTIONAL, "impala_resnet")


@dataclass(frozen=True)
class ThroughputArguments(PresetArguments):
    """Measure agent steps per second with learning, and for an Atari game the bound of the cores: what environment,
    acting and gradient cost alone. About a minute and a half. Limits that would end a run are ignored."""

    seconds: float = 15.0
    """Duration of the measurement of the whole system."""
    json: Path | None = None
    """Output file of the figures."""


def throughput_line(arguments: Sequence[str]) -> int:
    """Run `tributary bench throughput [PRESET] [SETTINGS]` and return its exit code.

    Raises:
        ConfigurationError: the preset is unknown or a setting is invalid.
    """
    parsed = parse_with_preset(ThroughputArguments, "bench throughput", arguments)
    return EXIT_DONE if parsed is None else throughput(*parsed)


def throughput(arguments: ThroughputArguments, preset: str) -> int:
    """Measure, print and write the figures; return the exit code.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    check_json_file(arguments.json)
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    config = endless(arguments.config)
    spec = environment_spec(config.environment)
    check_network(config, spec)
    budget = thread_budget(config)
    # With fewer actors than cores, the other cores are the learner's.
    cores = min(usable_cores(), budget.actors)
    console = Console()
    bounds = []
    if has_bound(config, spec):
        bounds.append(_measure_bounds(config, spec, cores, console))
    else:
        networks = ", ".join(_PLAIN_NETWORKS)
        console.print(f"no bound: it is known for Atari games with the networks {networks}", style="dim")
    console.print(f"the whole system, {budget.describe()} …", style="dim", highlight=False)
    measured = steady_state(train_for(config, arguments.seconds), arguments.seconds)
    if bounds:
        # Before and after the system, so that a slow minute of a shared machine is in both.
        bounds.append(_measure_bounds(config, spec, cores, console))
    rate = measured["agent_steps_per_second"]
    result = {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * config.frames_per_agent_step,
        **_bound_figures(bounds, cores, rate),
        **measured,
        **provenance(),
        "preset": preset,
        "settings": flat_settings(config) | {"actors": budget.actors},
    }
    _show(console, result)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


class Components(NamedTuple):
    """e, a and E·g of the bound in seconds of one core per agent step, a list of the repeats of each."""

    environment: list[float]
    acting: list[float]
    gradient: list[float]

    def medians(self) -> dict[str, float]:
        return {part: float(np.median(getattr(self, part))) for part in self._fields}

    def step_seconds(self) -> float:
        """e + a + E·g of the medians."""
        return sum(self.medians().values())

    def bound(self, cores: int) -> float:
        """Upper bound of agent steps per second on `cores` cores."""
        return cores / self.step_seconds()

    def with_repeats(self, others: "Components") -> "Components":
        """The repeats of both measurements."""
        return Components(*(mine + theirs for mine, theirs in zip(self, others, strict=True)))


def _measure_bounds(
    config: RunConfig, spec: EnvironmentSpec, cores: int, console: Console
) -> tuple[Components, Components]:
    """Components of one process alone, and of `cores` processes at once."""
    console.print(
        f"environment, acting and gradient, one thread each, alone and {cores} at once …", style="dim", highlight=False
    )
    measured = measure_components(config, spec, (1, cores))
    return measured[1], measured[cores]


def _bound_figures(bounds: Sequence[tuple[Components, Components]], cores: int, rate: float) -> dict[str, Any]:
    """The JSON figures of the bounds; empty without any."""
    if not bounds:
        return {}
    (alone, loaded), (alone_after, loaded_after) = bounds
    figures: dict[str, Any] = {"bound_cores": cores}
    for name, key, components in (
        ("alone", "", alone.with_repeats(alone_after)),
        ("under_load", "_under_load", loaded.with_repeats(loaded_after)),
    ):
        figures[f"bound{key}_agent_steps_per_second"] = components.bound(cores)
        figures[f"fraction_of_bound{key}"] = rate / components.bound(cores)
        figures[name] = {
            "seconds_per_step": components.medians(),
            "least_and_most_seconds_per_step": {
                part: (min(repeats), max(repeats)) for part, repeats in components._asdict().items()
            },
        }
    return figures


def has_bound(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """Whether the bound can be measured: the plain networks are for images of Atari games."""
    return spec.has_lives and config.network.name in _PLAIN_NETWORKS


def measure_components(
    config: RunConfig, spec: EnvironmentSpec, counts: Sequence[int], seconds: float = 0.7
) -> dict[int, Components]:
    """Components by the number of processes that are at work at the same time, for each of `counts`.

    Each process has one thread. A repeat lasts `seconds`, and is the mean over the processes. The counts take turns, so
    that a slow minute is in all of them.

    Raises:
        ConfigurationError: a measuring process died.
    """
    with measuring_processes(_component_meter, config, spec, max(counts)) as processes:
        measured = {count: Components([], [], []) for count in counts}
        for _ in range(_REPEATS):
            for part in Components._fields:
                for count in measured:
                    times = measure_at_once(processes[:count], seconds, part)
                    getattr(measured[count], part).append(float(np.mean(times)))
    return measured


# A meter runs in a process of its own. It measures between two times of time.monotonic, which all processes share.
Meter = Callable[..., Any]
MakeMeter = Callable[[RunConfig, EnvironmentSpec], Meter]


@contextmanager
def measuring_processes(
    make: MakeMeter, config: RunConfig, spec: EnvironmentSpec, count: int
) -> Iterator[list[Connection]]:
    """Connections to `count` processes, each with a meter that `make` has constructed.

    Raises:
        ConfigurationError: a process died.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_measuring_process(make, config, spec)) for _ in range(count)]
        for process in processes:
            assert _receive(process) == _READY
        yield processes


def measure_at_once(processes: Sequence[Connection], seconds: float, *request: Any) -> list[Any]:
    """Call the meters of all `processes` with (opens, closes, *request) for one window of `seconds`.

    Raises:
        ConfigurationError: a process died.
    """
    opens = time.monotonic() + _NOTICE_SECONDS
    for process in processes:
        process.send((opens, opens + seconds, *request))
    return [_receive(process) for process in processes]


@contextmanager
def _measuring_process(make: MakeMeter, config: RunConfig, spec: EnvironmentSpec) -> Iterator[Connection]:
    """The connection to a process that runs `_serve`."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(theirs, make, config, spec), daemon=True)
    # The first spawned process starts this one, which would unblock the interrupts that are blocked below.
    resource_tracker.ensure_running()
    # The process inherits the mask: Ctrl-C, which a terminal sends to all processes of its group, ends it from here
    # and prints no traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _receive(process: Connection) -> Any:
    try:
        received = process.recv()
        if isinstance(received, EnvironmentFailedError):
            raise received
        return received
    except (EOFError, OSError) as error:
        raise ConfigurationError("environment, acting and gradient could not be measured: a process died") from error


def _serve(connection: Connection, make: MakeMeter, config: RunConfig, spec: EnvironmentSpec) -> None:
    """Reply to requests with what the meter measures, until the other end of the pipe is closed."""
    prepare_tensorflow(1, gpu=False)
    try:
        meter = make(config, spec)
        connection.send(_READY)
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            connection.send(meter(*request))
    except EnvironmentFailedError as error:
        connection.send(error)


def _component_meter(config: RunConfig, spec: EnvironmentSpec) -> Meter:
    """Measures the seconds per agent step of one component."""
    works = make_works(config, spec)
    for work in works.values():
        for _ in range(_WARM_UP_CALLS):
            work.call()
    return lambda opens, closes, part: seconds_per_agent_step(works[part], opens, closes)


class Work(NamedTuple):
    """A call to measure, and the number of agent steps that it accounts for."""

    call: Callable[[], object]
    agent_steps: int


def seconds_per_agent_step(
    work: Work, opens: float, closes: float, clock: Callable[[], float] = time.monotonic
) -> float:
    """Seconds per agent step over the calls within a window of `clock`, which all processes share; at least one call.

    The work is also done before and after the window: within it each process finds the others at work.
    """
    while (first := clock()) < opens:
        work.call()
    last, calls = first, 0
    while True:
        work.call()
        now = clock()
        if now > closes and calls:
            return (last - first) / (calls * work.agent_steps)
        last, calls = now, calls + 1


def make_works(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Work]:
    """Environment, acting and gradient of one actor in plain Keras, by name. Imports TensorFlow."""
    import tensorflow as tf

    actor, random = config.actor, np.random.default_rng(config.seed)
    environment = VectorEnvironment(config.environment, actor.environments)
    # The environment itself, without the processing of its observations.
    environment.unwrapped.reset(seed=config.seed)
    turn = itertools.cycle(random.integers(0, spec.actions.size, (1_000, actor.environments)))

    policy = _plain_network(config, spec, times=1)
    observed = _images((actor.environments, *policy.input_shape[1:]))
    act = tf.function(lambda x: policy(x), input_signature=[tf.TensorSpec.from_tensor(observed)], autograph=False)

    agent_steps = actor.environments * actor.unroll_length // actor.minibatches
    times = actor.unroll_length if _is_recurrent(config) else 1
    network = _plain_network(config, spec, times)
    images = _images((agent_steps // times, *network.input_shape[1:]))
    actions = tf.constant(random.integers(0, spec.actions.size, agent_steps), tf.int32)
    returns = tf.constant(random.normal(size=agent_steps), tf.float32)

    def gradient(images: "tf.Tensor") -> "list[tf.Tensor]":
        with tf.GradientTape() as tape:
            logits, values = network(images)
            values = values[:, 0]
            log_probs = tf.nn.log_softmax(logits)
            advantages = tf.stop_gradient(returns - values)
            policy_loss = -tf.reduce_mean(tf.gather(log_probs, actions, batch_dims=1) * advantages)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1))
            loss = policy_loss + 0.5 * tf.reduce_mean(tf.square(returns - values)) - 0.01 * entropy
        return tape.gradient(loss, network.trainable_variables)

    graph = tf.function(gradient, input_signature=[tf.TensorSpec.from_tensor(images)], autograph=False)
    return {
        "environment": Work(lambda: environment.unwrapped.step(next(turn)), actor.environments),
        "acting": Work(lambda: act(observed), actor.environments),
        "gradient": Work(lambda: [graph(images) for _ in range(actor.epochs)], agent_steps),
    }


def _is_recurrent(config: RunConfig) -> bool:
    return config.network.recurrent != "none"


def _images(shape: tuple[int, ...]) -> "tf.Tensor":
    import tensorflow as tf

    return tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _plain_network(config: RunConfig, spec: EnvironmentSpec, times: int) -> "keras.Model":
    """Policy logits and values [N, …] of images [N, …]; with an LSTM of sequences [N / times, times, …]."""
    import keras

    sequence = (times,) if _is_recurrent(config) else ()
    inputs = keras.Input((*sequence, *spec.observation_shape), dtype="uint8")
    images = keras.ops.reshape(inputs, (-1, *spec.observation_shape)) if sequence else inputs
    x = keras.layers.Rescaling(1 / 255)(images)
    x = (_residual if config.network.name == "impala_resnet" else _convolutional)(x, config)
    if sequence:
        from shared.networks.recurrent import LSTM_UNITS

        steps = keras.ops.reshape(x, (-1, times, x.shape[-1]))
        units = LSTM_UNITS
        states = keras.layers.LSTM(units, return_sequences=True, dtype="float32")(steps)
        x = keras.ops.reshape(states, (-1, units))
    heads = [keras.layers.Dense(n, dtype="float32")(x) for n in (spec.actions.size, 1)]
    return keras.Model(inputs, heads)


def _activated(x: "keras.KerasTensor", config: RunConfig) -> "keras.KerasTensor":
    """ReLU of x, layer-normalised before if the settings have it."""
    import keras

    if config.network.layer_norm:
        x = keras.layers.LayerNormalization(list(range(1, len(x.shape))), 1e-5)(x)
    return keras.layers.ReLU()(x)


def _convolutional(x: "keras.KerasTensor", config: RunConfig) -> "keras.KerasTensor":
    import keras

    convolutions, units = _CONVOLUTIONAL[config.network.name]
    for filters, kernel, stride in convolutions:
        x = _activated(keras.layers.Conv2D(filters, kernel, stride)(x), config)
    x = keras.layers.Flatten()(x)
    return _activated(keras.layers.Dense(units)(x), config)


def _residual(x: "keras.KerasTensor", config: RunConfig) -> "keras.KerasTensor":
    import keras

    for filters in (16, 32, 32):
        x = keras.layers.Conv2D(filters, 3, padding="same")(x)
        x = keras.layers.MaxPooling2D(3, 2, "same")(x)
        for _ in range(2):
            before = x
            for _ in range(2):
                x = keras.layers.Conv2D(filters, 3, padding="same")(_activated(x, config))
            x = keras.layers.Add()([before, x])
    x = keras.layers.Flatten()(_activated(x, config))
    return _activated(keras.layers.Dense(256)(x), config)


def endless(config: RunConfig) -> RunConfig:
    """The settings without the limits that end a run, and with a row of metrics each second."""
    return replace(config, total_frames=10**12, stop_at_return=None, stop_after_seconds=None, log_every_seconds=1.0)


def train_for(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Train until `seconds` after the warm-up. Returns the rows since the actors' first report.

    Raises:
        ConfigurationError: the run ended before.
    """
    rows: list[dict[str, Any]] = []

    def take(event: Event) -> bool:
        if isinstance(event, Row) and event.values["agent_steps"] > 0:
            rows.append(event.values)
        return not _covers(rows, seconds)

    # A closed terminal interrupts the bench, which ends the run: its process belongs to no terminal.
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent, Interrupts():
        try:
            train_in_process(config, Path(parent) / "run", take, preset="bench", output=subprocess.DEVNULL)
        except (ConfigurationError, TrainingFailedError) as error:
            raise ConfigurationError(f"the system could not be measured: {error}") from error
    if not _covers(rows, seconds):
        raise ConfigurationError("the system could not be measured: the run ended early")
    return rows


def _covers(rows: list[dict[str, Any]], seconds: float) -> bool:
    return bool(rows) and rows[-1]["elapsed_seconds"] >= rows[0]["elapsed_seconds"] + WARM_UP_SECONDS + seconds + 1.0


def steady_state(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Rates and costs of the `seconds` after the warm-up, from a run's rows of metrics.

    Raises:
        ConfigurationError: the rows cover too little time.
    """
    working = [row for row in rows if row["agent_steps"] > 0]
    begin = working[0]["elapsed_seconds"] + WARM_UP_SECONDS if working else 0.0
    counted = [row for row in working if begin <= row["elapsed_seconds"] <= begin + seconds + 1.0]
    # The row of an interval without a gradient has no rates and no statistics.
    rows = [row for row in counted[1:] if sum(row["policy_lag_counts"].values())]
    if not any(row["agent_steps_per_second"] for row in rows):
        raise setting_error("seconds", seconds, "is too short for the actors to start and be measured")
    first, last = counted[0], counted[-1]
    elapsed = last["elapsed_seconds"] - first["elapsed_seconds"]
    weights = [row["agent_steps_per_second"] for row in rows]
    return {
        "agent_steps_per_second": (last["agent_steps"] - first["agent_steps"]) / elapsed,
        "updates_per_second": (last["updates"] - first["updates"]) / elapsed,
        "learner_seconds_per_update": float(np.mean([row["learner_milliseconds"] for row in rows])) * 1e-3,
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "stage_seconds_per_step": {
            stage: float(np.average([row["stage_microseconds"][stage] for row in rows], weights=weights)) * 1e-6
            for stage in rows[0]["stage_microseconds"]
        },
        "drift": {name: float(np.mean([row[name] for row in rows])) for name in DRIFT if name in rows[0]},
        "measured_seconds": elapsed,
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    stages, settings = result["stage_seconds_per_step"], result["settings"]
    network = settings["network.name"]
    if settings["network.recurrent"] != "none":
        network += f" + {settings['network.recurrent']}"
    title = (
        f"{settings['environment.id']}, {network}: {settings['actors']} actors x "
        f"{settings['actor.environments']} environments, unroll {settings['actor.unroll_length']}"
    )
    if settings["actor.epochs"] * settings["actor.minibatches"] > 1:
        title += f", {settings['actor.epochs']} epochs x {settings['actor.minibatches']} minibatches"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("µs per agent step and core")
    plain = [name for name in ("alone", "under_load") if name in result]
    for heading in (*({"alone": "alone", "under_load": "all cores at once"}[name] for name in plain), "in the system"):
        table.add_column(heading, justify="right")
    for stage in StageSeconds._fields:
        # Synchronising and waiting are stages of the system only.
        seconds = (result[name]["seconds_per_step"].get(stage) for name in plain)
        cells = ("" if value is None else f"{1e6 * value:.1f}" for value in seconds)
        table.add_row(stage, *cells, f"{1e6 * stages[stage]:.1f}")
    console.print(table, highlight=False)
    rate, frames = result["agent_steps_per_second"], result["frames_per_second"]
    lines = [f"agent steps/s      {rate:,.0f}   (frames/s {frames:,.0f})"]
    if plain:
        lines += [
            f"bound              {result['bound_agent_steps_per_second']:,.0f}   on {result['bound_cores']} cores",
            f"fraction of bound  {result['fraction_of_bound']:.3f}",
            f"bound under load   {result['bound_under_load_agent_steps_per_second']:,.0f}",
            f"fraction of that   {result['fraction_of_bound_under_load']:.3f}",
        ]
    lines += [
        f"learner            {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s",
        f"policy lag         mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}",
    ]
    if drift := result["drift"]:
        lines.append(
            f"policy drift       mean |ratio - 1| {drift['ratio_deviation']:.3f}, clipped "
            f"{drift['clipped_share']:.1%}, KL about {drift['approximate_kl']:.4f} nats"
        )
    for line in lines:
        console.print(line, highlight=False)
