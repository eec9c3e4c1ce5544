"""A rehearsal: the real learner, loop and transport with any number of actors, which sleep in place of computing.

    a few real actors, one a core      cycles of calls: results and durations, each actor form once
        │
    N rehearsed processes              sleep as long, and send a ready-made gradient
        │  pipes, shared memory
    executor, loop, learner            real, in a process of their own; rows of metrics as of any run

So a machine of two cores shows the rate of a learner with 64 actors, each of which would have a core of its own.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.environments import EnvironmentSpec
from launch.bench.rehearsed_process import CALLS, GRADIENT, RecordedCall, rehearsed_process
from launch.bench.throughput import WARM_UP_SECONDS, steady_state
from launch.machine import LEARNER_BYTES, PROCESSES, machine_bytes, usable_cores
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from launch.processes import module_command, module_environment
from launch.run.events import Row
from launch.tensorflow_setup import prepare_for
from shared.config import RunConfig
from shared.errors import ConfigurationError, EnvironmentFailedError, TrainingFailedError, setting_error
from shared.types import EpisodeStats, Float32Array, GradientReport, NextCall, StageSeconds

if TYPE_CHECKING:
    from actors.actor import Actor
    from launch.run.session import TrainingSession
    from shared.types import WeightSnapshot

# Proportional set size of a process that imports Ray and Gymnasium (62 MiB), rounded up: most of its pages are shared.
REHEARSED_ACTOR_BYTES = 70 * 2**20
_RECORDED_SECONDS = 4.0
_MIN_CYCLES = 3
_WARM_UP_CYCLES = 2
# The same gradient in every update would carry the weights away.
_GRADIENT_SCALE = 1e-6
_POLL_SECONDS = 0.2
_START_SECONDS = 3600.0
_COPIED_BYTES = 2**28
# Above these shares a part is full.
_FULL_MACHINE, _FULL_LEARNER, _NOTABLE_WAIT, _NOTABLE_DELAY = 0.95, 0.9, 0.1, 0.1
_NO_EPISODES = EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64))


def rehearsed(config: RunConfig) -> RunConfig:
    """The settings of a rehearsal: on this machine alone, without evaluations.

    Raises:
        ConfigurationError: the actors are for GPUs.
    """
    if config.actor.device == "gpu":
        raise setting_error("actor.device", "gpu", "only actors on CPUs can be rehearsed; use cpu")
    return replace(
        config,
        executor="ray",
        address="local",
        storage=None,
        trackers=(),
        evaluation=replace(config.evaluation, every_frames=0),
        # Hundreds of processes start one after another on a few cores.
        supervision=replace(config.supervision, start_seconds=_START_SECONDS),
    )


def check_memory(actors: int) -> None:
    """Raise a ConfigurationError if the processes of this number of rehearsed actors do not fit into the memory."""
    places = (machine_bytes() - LEARNER_BYTES) // REHEARSED_ACTOR_BYTES
    if actors > places:
        room = f"there is room for {max(0, places)} rehearsed actors of about {REHEARSED_ACTOR_BYTES >> 20} MiB each"
        raise setting_error(
            "actors", actors, f"{room}, in the {machine_bytes() / 2**30:.1f} GiB of this machine; rehearse fewer"
        )


def rehearsed_state(
    config: RunConfig, spec: EnvironmentSpec, actors: int, seconds: float, recordings: Path
) -> dict[str, Any]:
    """The steady state of a run with rehearsed actors, `seconds` long, and the load of its parts.

    `recordings` is a folder in which each form of actors is recorded once.
    """
    actor, count = config.actor, min(actors, usable_cores())
    shape = actor.environments, actor.unroll_length, actor.epochs, actor.minibatches, count
    recording = recordings / "x".join(map(str, shape))
    if not recording.exists():
        _record_actors(config, spec, count, recording)
    for file in recording.glob("[0-9]*"):
        file.unlink()
    ((rows, memory),) = _results([("train", config, spec, actors, seconds, recording)])
    state = steady_state(config, rows, seconds)
    stages = state["stage_seconds_per_step"]
    touched = sum(state[f"{of}s_per_second"] * memory[f"bytes_per_{of}"] for of in ("gradient", "update"))
    return {
        **state,
        "wait_share": stages["wait"] / sum(stages.values()),
        "learner_bytes_per_second": touched,
        "learner_memory_share": touched / memory["copied_bytes_per_second"],
        "machine_share": state["machine_cores"] / (os.cpu_count() or 1),
    }


def full(point: Mapping[str, float]) -> str:
    """The part of a rehearsal that has no more to give."""
    # The sleeping processes wake up, write their gradients, and take the learner's core for that.
    if point["machine_share"] > _FULL_MACHINE or point["learner_delay"] > _NOTABLE_DELAY:
        return "machine"
    if point["learner_cores"] > _FULL_LEARNER:
        return "learner"
    return "wait" if point["wait_share"] > _NOTABLE_WAIT else "actors"


def _record_actors(config: RunConfig, spec: EnvironmentSpec, count: int, folder: Path) -> None:
    """Record `count` real actors at the same time: the cores are busy as those of the machine that is rehearsed."""
    folder.mkdir()
    results = _results([("record", config, spec, number, count, folder) for number in range(count)])
    np.save(folder / GRADIENT, results[0][1])
    (folder / CALLS).write_bytes(pickle.dumps([cycles for cycles, _ in results]))


def _results(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of calls of `main`, each in a process of its own at the same time. The first error ends them."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as folder:
        files = [Path(folder, str(number)) for number in range(len(calls))]
        try:
            for file, call in zip(files, calls, strict=True):
                file.write_bytes(pickle.dumps(call))
                command, variables = module_command("launch.bench.rehearsal", str(file)), module_environment()
                # In a group of its own, which no Ctrl-C reaches: this process ends it then.
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables, process_group=0))
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(_POLL_SECONDS)
        finally:
            for process in processes:
                process.terminate()
            ended = [process.wait() for process in processes]
        results = [pickle.loads(file.read_bytes()) for file in files]
    for result in results:
        if isinstance(result, Exception):
            raise result
    if any(ended):
        raise ConfigurationError("the actors could not be rehearsed: a process died; fewer --actors need less memory")
    return results


# ---- In the process of one recorded actor


def _record(
    config: RunConfig, spec: EnvironmentSpec, number: int, count: int, folder: Path
) -> tuple[list[list[RecordedCall]], Float32Array]:
    """Cycles of calls of a real actor, and one of its gradients, while `count` actors are at work."""
    prepare_for("actor", config)
    from actors.actor import Actor
    from actors.policy import Policy
    from learner.learner import Learner

    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    weights = learner.snapshot()
    actor = Actor(config, spec, number)
    target = learner.target_snapshot()
    while actor.next_call is NextCall.WARM_UP:
        actor.run(weights, target)
    for _ in range(_WARM_UP_CYCLES):
        cycle, gradient = _cycle(config, actor, weights, target)
    (folder / f"ready-{number}").touch()
    while len(list(folder.glob("ready-*"))) < count:
        _cycle(config, actor, weights, target)
    cycles: list[list[RecordedCall]] = []
    ends = time.perf_counter() + _RECORDED_SECONDS
    while len(cycles) < _MIN_CYCLES or time.perf_counter() < ends:
        cycle, _ = _cycle(config, actor, weights, target)
        cycles.append(cycle)
    actor.close()
    return cycles, gradient * _GRADIENT_SCALE


def _cycle(
    config: RunConfig, actor: "Actor", weights: "WeightSnapshot", target: "WeightSnapshot | None"
) -> tuple[list[RecordedCall], Float32Array]:
    """The calls of one rollout and its gradients, and the last gradient."""
    # CPU seconds: other work on this machine does not make them longer. Environments in processes have their own.
    own_cpu = time.perf_counter if config.environment.vectorization == "async" else time.process_time
    calls: list[RecordedCall] = []
    written = np.ones_like(weights.parameters)
    gradient, since = np.empty(0, np.float32), (own_cpu(), time.perf_counter())
    while not calls or actor.next_call is NextCall.GRADIENT:
        began = own_cpu()
        result = actor.run(weights, target)
        if isinstance(result, GradientReport):
            # As into the memory that the learner reads.
            np.copyto(written, result.gradient)
        ended = own_cpu()
        if isinstance(result, GradientReport):
            now = ended, time.perf_counter()
            share, since = (now[0] - since[0]) / (now[1] - since[1]), now
            gradient = result.gradient
            # Without episodes: a repeated one would be counted again and again.
            result = result._replace(
                gradient=np.empty(0, np.float32),
                episodes=_NO_EPISODES,
                stage_seconds=StageSeconds(*(share * seconds for seconds in result.stage_seconds)),
            )
        calls.append(RecordedCall(result, ended - began))
    return calls, gradient


# ---- In the process of the learner


def _train(
    config: RunConfig, spec: EnvironmentSpec, actors: int, seconds: float, recording: Path
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rows since all actors were at work, with the CPU seconds of the learner's process and of the whole machine so
    far, and those for which its loop had to wait for a core; and the bytes that the learner reads and writes, beside
    those that one core can."""
    from launch.on_ray.cluster import connect, disconnecting
    from launch.on_ray.executor import RayExecutor
    from launch.on_ray.node_aggregator import AggregatingExecutor
    from launch.on_ray.placement import Slots
    from launch.run.folder import RunFolder

    def make_executor(first_actor_id: int) -> RayExecutor:
        executor = AggregatingExecutor if config.aggregation == "node" else RayExecutor
        return executor(config, spec, Slots(actors), first_actor_id, rehearsed_process(recording))

    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent, disconnecting():
        # Before Ray, whose thread prints what its processes print, and imports then what this hides.
        prepare_for("learner", config)
        connect(config, actors)
        from launch.run.session import TrainingSession

        folder = RunFolder(Path(parent, "run"))
        with folder.make(), futures.ThreadPoolExecutor(1) as thread:
            folder.create(config, spec, {})
            session = TrainingSession(config, spec, folder.path, make_executor, resume=False)
            loop = thread.submit(threading.get_native_id).result()
            result = thread.submit(session.run)
            try:
                rows = list(_rows(session, actors, seconds, recording, result, loop))
            finally:
                session.interrupt()
        sizes = [variable.numpy().nbytes for variable in session.learner.variables().values()]
        vector = session.learner.snapshot().parameters.nbytes
    # A gradient is read. An update reads and writes all variables, and copies the weights for a snapshot and again for
    # the actors.
    return rows, {
        "bytes_per_gradient": vector,
        "bytes_per_update": 2 * sum(sizes) + 4 * vector,
        "copied_bytes_per_second": _copied_bytes_per_second(),
    }


def _rows(
    session: "TrainingSession", actors: int, seconds: float, recording: Path, result: futures.Future[Any], loop: int
) -> Iterator[dict[str, Any]]:
    """The rows of a run since all actors were at work, until `seconds` after the warm-up. `loop` is its thread."""
    ends = None
    while ends is None or time.monotonic() < ends:
        futures.wait([result], _POLL_SECONDS)
        if result.done():
            result.result()
            raise ConfigurationError("the system could not be measured: the run ended early")
        rows = [event.values for event in session.view({}).events if isinstance(event, Row)]
        if ends is None and len(list(recording.glob("[0-9]*"))) < actors:
            continue
        ends = ends or time.monotonic() + WARM_UP_SECONDS + seconds + 2.0
        for row in rows:
            yield row | {
                "learner_cpu_seconds": time.process_time(),
                "learner_delay_seconds": _delay_seconds(loop),
                "machine_cpu_seconds": _machine_cpu_seconds(),
            }


def _machine_cpu_seconds() -> float:
    """CPU seconds of all processes since this machine was started."""
    ticks = [int(word) for word in Path(PROCESSES, "stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    _, _, _, idle, waiting, *_ = ticks
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _delay_seconds(thread: int) -> float:
    """Seconds so far in which a thread of this process could have run, but had no core. 0 where the kernel has none."""
    with suppress(OSError):
        return int(Path(PROCESSES, f"self/task/{thread}/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    return 0.0


def _copied_bytes_per_second() -> float:
    """Bytes that one core reads and writes when it copies memory."""
    source = np.ones(_COPIED_BYTES // 8)
    target, seconds = np.ones_like(source), []
    for _ in range(3):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(seconds)


def main(file: Path) -> int:
    """Carry out the call in a file, and replace it by its result, or its error. Returns the exit code."""
    what, *arguments = pickle.loads(file.read_bytes())
    result: Any
    try:
        result = {"record": _record, "train": _train}[what](*arguments)
    except (ConfigurationError, TrainingFailedError, EnvironmentFailedError) as error:
        result = error
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    file.write_bytes(pickle.dumps(result))
    return EXIT_FAILED if isinstance(result, Exception) else EXIT_DONE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(Path(sys.argv[1])))
