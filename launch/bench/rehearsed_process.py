"""The process of an actor in a rehearsal: it sleeps in place of computing.

Ray imports this module in each such process, so it imports neither TensorFlow nor the bench.
"""

import pickle
import random
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec
from launch.loop.executor import CallResult
from launch.on_ray.actor_process import ActorProcess
from launch.on_ray.transport import REPLY_VECTORS, Call, serve
from shared.config import RunConfig
from shared.types import Float32Array, GradientReport, Heartbeat

# Files in the folder of a recording.
GRADIENT, CALLS = "gradient.npy", "calls.pickle"


class RecordedCall(NamedTuple):
    """A call of an actor that was recorded: its result without the gradient, and its duration."""

    result: GradientReport | Heartbeat
    seconds: float


class RehearsedProcess(ActorProcess):
    """Repeats the recorded calls of a real actor, whole cycles of a rollout and its gradients: same results, same
    durations, one gradient for all.

    Attributes:
        recording: folder with a vector in `GRADIENT`, and in `CALLS` for each recorded actor a list of cycles, each of
            them a list of calls. A process adds a file with its id when it is at work.
    """

    recording: Path

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int, emulator_threads: int = 1) -> None:  # noqa: ARG002
        # No actor is constructed.
        self._id, self._sequence = actor_id, 0
        self._random = random.Random(actor_id)
        # Mapped: all processes share its memory.
        self._gradient = np.asarray(np.load(self.recording / GRADIENT, mmap_mode="r"))
        recorded = pickle.loads((self.recording / CALLS).read_bytes())
        self._cycles: list[list[RecordedCall]] = recorded[actor_id % len(recorded)]
        self._calls: list[RecordedCall] = []
        self._ended: float | None = None
        self._written = 0

    def handle(self, call: Call) -> CallResult:
        """Sleep as long as a recorded call took. Returns its result, with the version of the weights of this one."""
        began = time.perf_counter()
        if self._ended is None:
            # Actors that begin together would stay together for many rollouts.
            began += self._random.random() * sum(recorded.seconds for recorded in self._cycles[0])
            (self.recording / str(self._id)).touch()
        wait = 0.0 if self._ended is None else began - self._ended
        if not self._calls:
            self._calls = list(self._random.choice(self._cycles))
        result, seconds = self._calls.pop(0)
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        self._ended = time.perf_counter()
        if isinstance(result, Heartbeat):
            return result._replace(actor_id=self._id)
        self._sequence += 1
        return result._replace(
            actor_id=self._id,
            sequence=self._sequence,
            version=call.weights.version,
            gradient=self._gradient,
            stage_seconds=result.stage_seconds._replace(wait=wait),
        )

    def serve(self) -> None:
        """Write the gradient once into each vector, as it is always the same: a real actor writes on a core of its own,
        and the recorded seconds contain that."""
        assert self._channel is not None
        serve(self._channel, self.handle, self._write_once)

    def _write_once(self, vector: Float32Array, gradient: Float32Array) -> None:
        if self._written < REPLY_VECTORS:
            np.copyto(vector, gradient)
            self._written += 1

    def close(self) -> None:
        """It has no environments."""


def rehearsed_process(recording: Path) -> type[RehearsedProcess]:
    """The class with its recording, which Ray sends by value."""
    return type("Rehearsed", (RehearsedProcess,), {"recording": recording})
