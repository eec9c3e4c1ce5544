"""The processes of an actor and of the evaluator as Ray actors: construct and delegate.

Each imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver,
which only names these classes, does without.
"""

from typing import NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec
from launch.machine.shared_memory import VectorAddress, attach
from launch.machine.tensorflow_process import prepare_tensorflow
from shared.config import RunConfig
from shared.errors import typed_line
from shared.types import EvaluationPolicy, EvaluationResult, GradientReport, WeightSnapshot
from shared.wire import decode, encode

_NO_GRADIENT = np.empty(0, np.float32)


class Weights(NamedTuple):
    """A `WeightSnapshot` as it travels: its parameters encoded, see `shared.wire`, or their address in memory."""

    version: int
    parameters: npt.NDArray[np.generic] | VectorAddress
    frames: int


class Reply(NamedTuple):
    """A report as it travels. Its gradient is encoded beside it, or None if it was written to shared memory."""

    report: GradientReport
    gradient: npt.NDArray[np.generic] | None


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
        self._attached: dict[VectorAddress, npt.NDArray[np.generic] | None] = {}
        self._precision = config.transfer.precision
        self._not_made: str | None = None
        try:
            prepare_tensorflow(config.actor.tensorflow_threads, gpu=config.actor.device == "gpu")
            self._runner = self.make_runner(config, spec, actor_id)
        except Exception as error:
            self._not_made = why_not_made(error, config)

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> Runner:
        """Make what `run` calls. A bench overrides it."""
        from actors.actor import Actor

        return Actor(config, spec, actor_id)

    def run(self, weights: Weights, target: WeightSnapshot | None, reply_in: VectorAddress | None) -> Reply:
        """See `Actor.run`. The gradient is written to the vector `reply_in`, if it is reachable from here.

        Raises:
            ActorNotMadeError: the constructor could not make the actor.
        """
        if self._not_made is not None:
            raise ActorNotMadeError(self._not_made)
        parameters = weights.parameters
        if isinstance(parameters, VectorAddress):
            attached = self._attach(parameters)
            assert attached is not None, "weights come in memory only after a gradient went out that way"
            parameters = attached
        report = self._runner.run(WeightSnapshot(weights.version, decode(parameters), weights.frames), target)
        gradient = encode(report.gradient, self._precision)
        # The gradient must not travel twice.
        report = report._replace(gradient=_NO_GRADIENT)
        to = None if reply_in is None else self._attach(reply_in)
        if to is None:
            return Reply(report, gradient)
        to[...] = gradient
        return Reply(report, None)

    def _attach(self, address: VectorAddress) -> npt.NDArray[np.generic] | None:
        if address not in self._attached:
            self._attached[address] = attach(address)
        return self._attached[address]


def why_not_made(error: Exception, config: RunConfig) -> str:
    """Why an actor could not be made, in one line. It follows "actor 3 "."""
    reason = typed_line(error)
    if not isinstance(error, gymnasium.error.UnregisteredEnv):
        return f"could not be made: {reason}"
    return (
        f"does not know --environment.id {config.environment.id}: {reason} What registers it has to run in the actors' "
        f"processes too, for example in a sitecustomize.py that they find"
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
        from launch.film.episode import film_episode

        return result._replace(video=film_episode(self._config, self._spec, snapshot))
