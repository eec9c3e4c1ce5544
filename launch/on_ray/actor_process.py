"""The processes of an actor and of the evaluator as Ray actors: construct and delegate.

Each imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver,
which only names these classes, does without.
"""

from typing import NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec
from launch.machine.line import Line, LineAddress, take_line
from launch.machine.shared_memory import VectorAddress, attach
from launch.machine.tensorflow_process import prepare_tensorflow
from shared.config import RunConfig
from shared.errors import typed_line
from shared.types import (
    EvaluationPolicy,
    EvaluationResult,
    GradientReport,
    WeightSnapshot,
)
from shared.wire import decode, encode

_NO_GRADIENT = np.empty(0, np.float32)


class Weights(NamedTuple):
    """A `WeightSnapshot` as it travels: its parameters encoded, see `shared.wire`, or their address in memory."""

    version: int
    parameters: npt.NDArray[np.generic] | VectorAddress
    frames: int
    reward_factor: float = 1.0


class Reply(NamedTuple):
    """A report as it travels through Ray, with its gradient, encoded, beside it.

    `took_line`: the actor has taken the line that it was offered, and waits to be told to `serve`.
    """

    report: GradientReport
    gradient: npt.NDArray[np.generic]
    took_line: bool


class Request(NamedTuple):
    """A call as it travels over a line. All vectors are in shared memory.

    `target` is None where the actor keeps the target network that it has. The gradient is to be written to `reply_in`;
    the report, with an empty one, is the answer.
    """

    weights: Weights
    target: Weights | None
    reply_in: VectorAddress


class Runner(Protocol):
    """What an `ActorProcess` runs: an `Actor`, or its replacement in a bench."""

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport: ...


class ActorNotMadeError(Exception):
    """An actor's process lives, and could not make its actor. The message says why, in one line."""


class ActorProcess:
    """An `Actor` in a process of its own.

    What its constructor raises, each call raises: to Ray a constructor that raises is a process that died, without a
    cause that a program can read, and Ray would print the traceback on the driver's terminal.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> None:
        self._attached: dict[VectorAddress, npt.NDArray[np.generic]] = {}
        self._line: Line | None = None
        self._precision = config.transfer.precision
        self._not_made: str | None = None
        try:
            self._runner = self.make_runner(config, spec, actor_id)
        except Exception as error:
            self._not_made = why_not_made(error, config)

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> Runner:
        """Make what `run` calls, TensorFlow's threads and device set first. A bench overrides it."""
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=config.actor.device == "gpu")
        from actors.actor import Actor

        return Actor(config, spec, actor_id)

    def run(self, weights: Weights, target: Weights | None, line: LineAddress | None) -> Reply:
        """See `Actor.run`. `line` is one that later calls may come over, if it can be taken from here.

        Raises:
            ActorNotMadeError: the constructor could not make the actor.
        """
        self._check_made()
        if line is not None and self._line is None:
            self._line = take_line(line)
        report, gradient = self._run(weights, target)
        return Reply(report, gradient, self._line is not None)

    def serve(self) -> None:
        """Answer the calls that come over the line that was taken, until its other end is closed."""
        assert self._line is not None
        try:
            while True:
                try:
                    request: Request = self._line.receive()
                except EOFError:
                    return
                report, gradient = self._run(request.weights, request.target)
                self._vector(request.reply_in)[...] = gradient
                self._line.send(report)
        finally:
            # Whoever waits for an answer sees that there will be none.
            self._line.close()

    def _check_made(self) -> None:
        if self._not_made is not None:
            raise ActorNotMadeError(self._not_made)

    def _run(self, weights: Weights, target: Weights | None) -> tuple[GradientReport, npt.NDArray[np.generic]]:
        report = self._runner.run(self._snapshot(weights), None if target is None else self._snapshot(target))
        # The gradient must not travel twice.
        return report._replace(gradient=_NO_GRADIENT), encode(report.gradient, self._precision)

    def _snapshot(self, weights: Weights) -> WeightSnapshot:
        parameters = weights.parameters
        if isinstance(parameters, VectorAddress):
            parameters = self._vector(parameters)
        return WeightSnapshot(weights.version, decode(parameters), weights.frames, weights.reward_factor)

    def _vector(self, address: VectorAddress) -> npt.NDArray[np.generic]:
        if address not in self._attached:
            vector = attach(address)
            assert vector is not None, "whoever offers a line that can be taken has memory that can be reached"
            self._attached[address] = vector
        return self._attached[address]


def why_not_made(error: Exception, config: RunConfig) -> str:
    """Why an actor could not be made, in one line. It follows "actor 3 "."""
    reason = typed_line(error)
    if not isinstance(error, gymnasium.error.UnregisteredEnv):
        return f"could not be made: {reason}"
    return (
        f"does not know --environment.id {config.environment.id}: {reason} Name the module that registers it: "
        f"--environment.import MODULE"
    )


class EvaluatorProcess:
    """An `Evaluator` in a process of its own."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=False)
        from actors.evaluator import Evaluator

        self._config, self._spec = config, spec
        self._evaluator = Evaluator(config, spec, config.evaluation)

    def run(self, weights: Weights, policy: EvaluationPolicy) -> EvaluationResult:
        """See `Evaluator.run`."""
        assert isinstance(weights.parameters, np.ndarray)
        snapshot = WeightSnapshot(weights.version, decode(weights.parameters), weights.frames)
        result = self._evaluator.run(snapshot, policy)
        if not self._config.evaluation.video:
            return result
        try:
            from launch.film.record import film_episode

            return result._replace(video=film_episode(self._config, self._spec, snapshot))
        except Exception as error:
            # What only shows does not cost the evaluation.
            return result._replace(video_error=typed_line(error))
