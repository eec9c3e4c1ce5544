"""From a rollout to flat gradients of the method's loss: one of it all, or several over parts of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from actors.policy import Acted, Policy, assign_graph, build_network
from shared.config import RunConfig
from shared.graph import Graph, as_array
from shared.methods.method import MethodLoss, RolloutTensors, Samples
from shared.types import Float32Array, Rollout, WeightSnapshot

# The agent steps of a rollout of the presets for images, in which one actor's advantages are standardised.
_STANDARDISED_STEPS = 1024


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
    """One gradient of each whole rollout, with the weights that acted."""

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


class RecentAdvantages:
    """Moments of the advantages of an actor's last rollouts, of about 1,024 agent steps together.

    For the small rollouts of many actors. Within 64 consecutive steps of one environment all advantages may be of one
    sign, and standardised among themselves half of them would change it: in LunarLander, a crash would be praised.
    """

    def __init__(self) -> None:
        # The number of advantages, their sum and that of their squares.
        self._sums = np.zeros(3)

    def standardised(self, advantages: Float32Array, mask: Float32Array) -> Float32Array:
        """Take in the advantages [T, B] of a rollout. Returns them by the moments; 0 where masked."""
        live = mask > 0.5
        taken = advantages[live].astype(np.float64)
        sums = np.array([len(taken), taken.sum(), np.square(taken).sum()])
        # One that is not finite would stay for good. Its gradient is dropped.
        if np.isfinite(sums).all():
            self._sums = max(0.0, 1.0 - len(taken) / _STANDARDISED_STEPS) * self._sums + sums
        number, total, squares = self._sums
        mean = total / max(number, 1.0)
        deviation = np.sqrt(max(squares / max(number, 1.0) - mean * mean, 0.0) + 1e-8)
        return np.where(live, (advantages - mean) / deviation, 0.0).astype(np.float32)


class Minibatches(Gradients):
    """E x M gradients of each rollout: E epochs, each over M minibatches of agent steps drawn at random.

    Also for E = M = 1 with `actor.fresh_gradients`, whose only gradient uses newer weights than those that acted.
    Values and log-probabilities are those of acting; returns and advantages are computed once, with the weights that
    acted. For methods with probabilities the loss uses the clipped ratio (Schulman et al. 2017, arXiv 1707.06347, eq.
    7) to the behaviour policy, which corrects for all updates in between, those of other actors included.

    If the network has a memory, a minibatch consists of random environments with all their times, from the state that
    acting had at time 0. `seed` and the numbers of the rollout and the epoch determine the order of agent steps, so
    that no random state has to be saved.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy, seed: int) -> None:
        super().__init__(config, spec, policy)
        self._epochs, self._minibatches = config.actor.epochs, config.actor.minibatches
        # Otherwise the graph of the targets does.
        self._standardises = config.method.standardise_advantages and config.actor.fresh_gradients
        shape = (config.actor.unroll_length, config.actor.environments)
        self._begin_first(shape, seed)
        units = policy.network.state_units
        # Minibatches are drawn from environments if their times belong together, else from agent steps.
        self._drawable = shape[1] if units else shape[0] * shape[1]
        signature = rollout_signature(config, spec, units)
        a_float = tf.TensorSpec(shape, tf.float32)
        minibatch = tf.TensorSpec((self._drawable // self._minibatches,), tf.int32)
        states = [tf.TensorSpec((shape[1], n), tf.float32) for n in units]
        self._targets = Graph(self._targets_graph, [a_float, *signature])
        self._gradient = Graph(
            self._gradient_graph, [*signature[:2], a_float, a_float, a_float, a_float, minibatch, *states]
        )

    def _begin_first(self, shape: tuple[int, int], seed: int) -> None:
        self._seed = seed
        self._values: Float32Array = np.zeros(shape, np.float32)
        self._log_probs: Float32Array = np.zeros(shape, np.float32)
        self._returns: Float32Array = np.zeros(shape, np.float32)
        self._advantages: Float32Array = np.zeros(shape, np.float32)
        self._recent = RecentAdvantages() if self._standardises else None
        self._rollout: Rollout | None = None
        self._rollouts = self._reported = 0
        self._order: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def for_another_actor(self, seed: int) -> Self:
        other = copy(self)
        other._begin_first(self._values.shape, seed)
        return other

    @property
    def traces(self) -> int:
        return self._targets.traces + self._gradient.traces

    @property
    def rollout_is_done(self) -> bool:
        return self._rollout is None

    def keep(self, t: int, acted: Acted) -> None:
        assert acted.values is not None, "the policy gives values where rollouts are differentiated again"
        self._values[t] = acted.values
        if acted.log_probs is not None:
            self._log_probs[t] = acted.log_probs

    def begin(self, rollout: Rollout) -> None:
        returns, advantages = self._targets(self._values, *rollout_arrays(rollout))
        self._returns, self._advantages = returns.numpy(), advantages.numpy()
        if self._recent is not None:
            self._advantages = self._recent.standardised(self._advantages, rollout.mask)
        self._rollout, self._reported = rollout, 0
        self._rollouts += 1

    def next(self) -> RolloutPart:
        rollout = self._rollout
        assert rollout is not None, "a rollout begins first"
        epoch, part = divmod(self._reported, self._minibatches)
        if part == 0:
            self._order = self._order_of(epoch)
        indices = np.split(self._order, self._minibatches)[part]
        gradient, statistics = self._gradient(
            rollout.observations, rollout.actions, rollout.mask, self._returns, self._advantages, self._log_probs,
            indices, *rollout.first_state,
        )  # fmt: skip
        samples = self._samples(rollout, indices)
        self._reported += 1
        if self._reported == self._epochs * self._minibatches:
            self._rollout = None
        return RolloutPart(as_array(gradient), self._named(statistics), samples if epoch == 0 else 0, samples)

    def drop(self) -> int:
        rollout, self._rollout = self._rollout, None
        if rollout is None or self._reported >= self._minibatches:
            return 0
        left = np.split(self._order, self._minibatches)[self._reported :]
        return self._samples(rollout, np.concatenate(left))

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        return {
            "rollouts": np.array(self._rollouts),
            "reported": np.array(0 if self._rollout is None else self._reported),
            "log_probs": self._log_probs.copy(),
            "returns": self._returns,
            "advantages": self._advantages,
            **({} if self._rollout is None else _numbered(self._rollout.first_state)),
        }

    def restore(self, rollout: Rollout, state: dict[str, npt.NDArray[np.generic]]) -> None:
        self._rollout = None
        self._rollouts, self._reported = int(state["rollouts"]), int(state["reported"])
        self._log_probs[...] = state["log_probs"]
        self._returns, self._advantages = (state[name].astype(np.float32) for name in ("returns", "advantages"))
        if self._reported:
            first_state = (state[name] for name in _numbered(self._policy.network.state_units))
            self._rollout = rollout._replace(first_state=tuple(part.astype(np.float32) for part in first_state))
            self._order = self._order_of(self._reported // self._minibatches)

    def _samples(self, rollout: Rollout, indices: npt.NDArray[np.int32]) -> int:
        """Number of agent steps of a rollout at these indices, without those that are masked."""
        mask = rollout.mask if self._policy.network.state_units else rollout.mask.reshape(1, -1)
        return int(mask[:, indices].sum())

    def _order_of(self, epoch: int) -> npt.NDArray[np.int32]:
        """Indices of agent steps, time-major, or of environments, in the order of an epoch."""
        if self._minibatches == 1:
            return np.arange(self._drawable, dtype=np.int32)
        random = np.random.default_rng((self._seed, self._rollouts, epoch))
        return random.permutation(self._drawable).astype(np.int32)

    def _targets_graph(self, values: tf.Tensor, *rollout: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        network = self._policy.network
        return self._policy.method.targets(
            network, self._target_network, rollout_tensors(rollout), tf.convert_to_tensor(values)
        )

    def _gradient_graph(
        self,
        observations: tf.Tensor,
        actions: tf.Tensor,
        mask: tf.Tensor,
        returns: tf.Tensor,
        advantages: tf.Tensor,
        log_probs: tf.Tensor,
        indices: tf.Tensor,
        *first_state: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        method, network = self._policy.method, self._policy.network

        def drawn(x: tf.Tensor) -> tf.Tensor:
            if network.state_units:
                return tf.gather(x, indices, axis=1)
            return tf.gather(tf.reshape(x, (x.shape[:2].num_elements(), *x.shape[2:])), indices)

        samples = Samples(*(drawn(tf.convert_to_tensor(x)) for x in (actions, mask, returns, advantages, log_probs)))
        observations = drawn(tf.convert_to_tensor(observations))
        with tf.GradientTape() as tape:
            if network.state_units:
                state = [tf.gather(part, indices) for part in first_state]
                output = network.unroll(observations[:-1], state, samples.mask)
            else:
                output = network(observations)
            loss = method.sample_loss(output, samples)
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


def _numbered(state: Iterable[object]) -> dict[str, Any]:
    return {f"first_state_{i}": part for i, part in enumerate(state)}
