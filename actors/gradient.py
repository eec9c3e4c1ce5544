"""From a rollout to flat gradients of the method's loss."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from actors.policy import Acted, Policy, assign_graph, build_network
from shared.config import RunConfig
from shared.graph import Graph, as_array
from shared.methods.method import MethodLoss, RolloutTensors
from shared.types import Float32Array, Rollout, WeightSnapshot


class RolloutPart(NamedTuple):
    """One gradient of a rollout: float32 [P], and the method's statistics over its agent steps, by name.

    The gradient is over `samples` agent steps, `agent_steps` of which are in a gradient for the first time.
    """

    gradient: Float32Array
    statistics: dict[str, float]
    agent_steps: int
    samples: int


class Gradients(ABC):
    """The gradients of rollouts. The weights may change between two gradients of the same rollout.

    A graph returns a gradient and updates nothing: a `tf.function` that also applied it could read weights that were
    already updated.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> None:
        self._policy = policy
        self._target_network = None
        if config.method.uses_target_network:
            self._target_network = build_network(config, spec, policy.method)
            self._assign_target = assign_graph(self._target_network, policy.layout)
        # Lists, because `for_another_actor` shares them as it does the graphs: the version of the target network, and
        # the names of the statistics, which are known when the graph is traced.
        self._target_version: list[int] = []
        self._statistics: list[str] = []

    def assign_target(self, target: WeightSnapshot) -> None:
        """Set the target network, unless it has that version already."""
        if [target.version] != self._target_version:
            # A variable may alias the memory that it is assigned from, and shared memory is overwritten later.
            self._assign_target(target.parameters.copy())
            self._target_version[:] = [target.version]

    @abstractmethod
    def for_another_actor(self, seed: int) -> Self:
        """The gradients of another actor of this process, by the same graphs."""

    @property
    @abstractmethod
    def traces(self) -> int:
        """Number of traces of its graphs."""

    @property
    @abstractmethod
    def rollout_is_done(self) -> bool:
        """Whether the last rollout has no gradients left."""

    def keep(self, t: int, acted: Acted) -> None:  # noqa: B027
        """Keep what gradients need of the actions at time `t` of the current rollout."""

    @abstractmethod
    def begin(self, rollout: Rollout) -> None:
        """Begin a rollout, with the weights that acted. Its arrays do not change until it is done."""

    @abstractmethod
    def next(self) -> RolloutPart:
        """The next gradient of the rollout, at the current weights."""

    def drop(self) -> int:
        """Drop what is left of the rollout. Returns its number of agent steps that are in no gradient yet."""
        return 0

    def state(self) -> dict[str, npt.NDArray[np.generic]] | None:
        return None

    def restore(self, rollout: Rollout, state: dict[str, npt.NDArray[np.generic]]) -> None:  # noqa: ARG002
        """Resume from a saved state, whose last rollout may have gradients left."""
        raise AssertionError("a rollout of one gradient is never half done")

    def _differentiated(self, tape: tf.GradientTape, loss: MethodLoss) -> tuple[tf.Tensor, tf.Tensor]:
        by_variable = tape.gradient(loss.total, self._policy.network.trainable_variables)
        # A weight that the loss does not depend on has gradient 0. So have running moments, the last in the layout,
        # which are not trained.
        by_variable += [None] * (len(self._policy.layout.sizes) - len(by_variable))
        pieces = zip(by_variable, self._policy.layout.sizes, strict=True)
        flat = tf.concat([tf.zeros(size) if g is None else tf.reshape(g, [-1]) for g, size in pieces], axis=0)
        self._statistics[:] = loss.statistics
        return flat, tf.stack(list(loss.statistics.values()))

    def _named(self, statistics: tf.Tensor) -> dict[str, float]:
        return dict(zip(self._statistics, statistics.numpy().tolist(), strict=True))


class RolloutGradient(Gradients):
    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> None:
        super().__init__(config, spec, policy)
        self._graph = Graph(self._gradient_graph, rollout_signature(config, spec, policy.network.state_units))
        self._rollout: Rollout | None = None

    def for_another_actor(self, seed: int) -> Self:  # noqa: ARG002
        other = copy(self)
        other._rollout = None
        return other

    @property
    def traces(self) -> int:
        return self._graph.traces

    @property
    def rollout_is_done(self) -> bool:
        return self._rollout is None

    def begin(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def next(self) -> RolloutPart:
        assert self._rollout is not None, "a rollout begins first"
        gradient, statistics = self._graph(*rollout_arrays(self._rollout))
        agent_steps = int(self._rollout.mask.sum())
        self._rollout = None
        return RolloutPart(as_array(gradient), self._named(statistics), agent_steps, agent_steps)

    def _gradient_graph(self, *rollout: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tensors, network = rollout_tensors(rollout), self._policy.network
        with tf.GradientTape() as tape:
            with self._policy.stored_activations():
                output = network.unroll(tensors.observations[:-1], tensors.first_state, tensors.mask)
            loss = self._policy.method.loss(network, self._target_network, tensors, output)
        return self._differentiated(tape, loss)


def rollout_signature(config: RunConfig, spec: EnvironmentSpec, state_units: Sequence[int]) -> list[tf.TensorSpec]:
    steps = (config.actor.unroll_length, config.actor.environments)
    actions = spec.actions
    return [
        tf.TensorSpec((steps[0] + 1, steps[1], *spec.row_shape), spec.observation_dtype),
        tf.TensorSpec((*steps, *actions.shape), actions.dtype),
        tf.TensorSpec(steps, tf.float32),
        tf.TensorSpec(steps, tf.float32),
        tf.TensorSpec(steps, tf.float32),
        tf.TensorSpec((steps[1], *actions.shape), actions.dtype),
        *(tf.TensorSpec((steps[1], units), tf.float32) for units in (*state_units, *state_units)),
    ]


def rollout_arrays(rollout: Rollout) -> list[npt.NDArray[np.generic]]:
    *arrays, first_state, last_state = rollout
    return [*arrays, *first_state, *last_state]


def rollout_tensors(arrays: Sequence[tf.Tensor]) -> RolloutTensors:
    # Eager graphs, for debugging, pass arrays.
    tensors = [tf.convert_to_tensor(x) for x in arrays]
    count = len(Rollout._fields) - 2
    states = tensors[count:]
    middle = len(states) // 2
    return RolloutTensors(*tensors[:count])._replace(
        first_state=tuple(states[:middle]), last_state=tuple(states[middle:])
    )
