"""From a rollout to flat gradients of the method's loss: one over the whole rollout, or several over parts of it."""

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
from shared.methods.method import MethodLoss, RolloutTensors, Samples, TargetInputs
from shared.moments import AdvantageMoments
from shared.types import Float32Array, Rollout, WeightSnapshot

# `AdvantageMoments`.
_MOMENTS = tf.TensorSpec((3,), tf.float64)
# True if these moments include the rollout's own.
_COUNTED = tf.TensorSpec((), tf.bool)


class RolloutGradient(NamedTuple):
    """One gradient of a rollout, float32 [P], and the method's statistics over its agent steps, by name.

    The gradient is over `samples` agent steps, `agent_steps` of which are in a gradient for the first time; with
    `new_steps_follow` the next gradient has such agent steps, too. The first gradient of a rollout has
    `advantage_moments`. The fields are those of a `GradientReport`.
    """

    gradient: Float32Array
    statistics: dict[str, float]
    agent_steps: int
    samples: int
    advantage_moments: AdvantageMoments | None = None
    new_steps_follow: bool = False
    non_finite: str = ""


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
        # Lists, which the copies of `for_another_actor` share: the version of the target network, and the names of the
        # statistics, set when the graph is traced.
        self._target_version: list[int] = []
        self.recent_advantages = AdvantageMoments()
        """`WeightSnapshot.advantage_moments` of the current weights."""
        self._statistics: list[str] = []
        self._rollout: Rollout | None = None

    def assign_target(self, target: WeightSnapshot) -> None:
        """Set the target network, unless it has that version already."""
        if [target.version] != self._target_version:
            # A variable may alias the memory that it is assigned from, and shared memory is overwritten later.
            self._assign_target(target.parameters.copy())
            self._target_version[:] = [target.version]

    def for_another_actor(self, seed: int) -> Self:
        """The gradients of another actor of this process, by the same graphs."""
        other = copy(self)
        other._reset(seed)
        return other

    def _reset(self, seed: int) -> None:  # noqa: ARG002
        """Set the state that an actor has before its first rollout."""
        self._rollout = None

    @property
    def rollout_is_done(self) -> bool:
        """True if the last rollout has no gradients left."""
        return self._rollout is None

    def keep(self, t: int, acted: Acted) -> None:  # noqa: B027
        """Keep the results of acting at time `t` of the current rollout that gradients need."""

    def keep_rollout(self, values: tf.Tensor, log_probs: tf.Tensor) -> None:  # noqa: B027
        """Keep values and log-probabilities of all times at once, float32 [T, B] each."""

    @abstractmethod
    def begin(self, rollout: Rollout) -> None:
        """Begin a rollout, with the weights that acted. Its arrays do not change until it is done."""

    @abstractmethod
    def next(self) -> RolloutGradient:
        """The next gradient of the rollout, at the current weights."""

    def drop(self) -> int:
        """Drop the rest of the rollout. Returns its number of agent steps that are in no gradient yet."""
        return 0

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


class SingleGradient(Gradients):
    """One gradient of each whole rollout, with the weights that acted."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> None:
        super().__init__(config, spec, policy)
        signature = rollout_signature(config, spec, policy.network.state_units)
        self._graph = Graph(self._gradient_graph, signature, compiled=policy.compiled)

    def begin(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def next(self) -> RolloutGradient:
        assert self._rollout is not None, "a rollout begins first"
        gradient, statistics = self._graph(*rollout_arrays(self._rollout))
        agent_steps = int(self._rollout.mask.sum())
        self._rollout = None
        return RolloutGradient(as_array(gradient), self._named(statistics), agent_steps, agent_steps)

    def _gradient_graph(self, *rollout: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tensors, network = rollout_tensors(rollout), self._policy.network
        with tf.GradientTape() as tape:
            with self._policy.stored_activations():
                output = network.unroll(tensors.observations[:-1], tensors.first_state, tensors.mask)
            loss = self._policy.method.loss(network, self._target_network, tensors, output)
        return self._differentiated(tape, loss)


class Minibatches(Gradients):
    """E x M gradients of each rollout: E epochs, each over M minibatches of agent steps drawn at random.

    Values and log-probabilities come from acting; returns and advantages are computed once, with the weights that
    acted. For methods with probabilities the loss uses the clipped ratio (Schulman et al. 2017, arXiv 1707.06347, eq.
    7) to the behaviour policy, which corrects for all updates in between, also by other actors.

    If the network has a memory, a minibatch consists of random environments with all their times, from the state that
    acting had at time 0. `seed` and the numbers of the rollout and the epoch determine the order of agent steps.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy, seed: int) -> None:
        super().__init__(config, spec, policy)
        self._epochs, self._minibatches = config.actor.epochs, config.actor.minibatches
        self._reports_moments = config.method.standardise_advantages and config.actor.fresh_gradients
        self._shape = shape = (config.actor.unroll_length, config.actor.environments)
        self._reset(seed)
        units = policy.network.state_units
        # Minibatches are drawn from environments if their times belong together, else from agent steps.
        self._drawable = shape[1] if units else shape[0] * shape[1]
        signature = rollout_signature(config, spec, units)
        a_float = tf.TensorSpec(shape, tf.float32)
        minibatch = tf.TensorSpec((self._drawable // self._minibatches,), tf.int32)
        states = [tf.TensorSpec((shape[1], n), tf.float32) for n in units]
        drawn_from = [minibatch, *signature[:2], a_float, a_float, a_float, a_float, *states]
        self._targets = Graph(self._targets_graph, [_MOMENTS, a_float, a_float, *signature], compiled=policy.compiled)
        self._gradient = Graph(self._gradient_graph, drawn_from, compiled=policy.compiled)

    def _reset(self, seed: int) -> None:
        super()._reset(seed)
        self._seed = seed
        # Arrays of a rollout on the host, or tensors of one on a device.
        self._values: Float32Array | tf.Tensor = np.zeros(self._shape, np.float32)
        self._log_probs: Float32Array | tf.Tensor = np.zeros(self._shape, np.float32)
        self._returns = self._advantages = tf.zeros(self._shape)
        self._moments: AdvantageMoments | None = None
        # The moments of all actors' advantages, from the snapshot of the rollout's first gradient.
        self._before = AdvantageMoments()
        self._rollouts = self._reported = 0
        self._order: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def keep(self, t: int, acted: Acted) -> None:
        assert acted.values is not None, "the policy gives values where rollouts are differentiated again"
        self._values[t] = acted.values
        if acted.log_probs is not None:
            self._log_probs[t] = acted.log_probs

    def keep_rollout(self, values: tf.Tensor, log_probs: tf.Tensor) -> None:
        self._values, self._log_probs = values, log_probs

    def begin(self, rollout: Rollout) -> None:
        moments = np.array(self.recent_advantages, np.float64)
        results = self._targets(moments, self._values, self._log_probs, *rollout_arrays(rollout))
        self._returns, self._advantages, rollout_moments = results
        self._moments = AdvantageMoments(*rollout_moments.numpy().tolist()) if self._reports_moments else None
        self._rollout, self._reported = rollout, 0
        self._rollouts += 1

    def next(self) -> RolloutGradient:
        rollout = self._rollout
        assert rollout is not None, "a rollout begins first"
        epoch, minibatch = divmod(self._reported, self._minibatches)
        if minibatch == 0:
            self._order = self._order_of(epoch)
        indices = np.split(self._order, self._minibatches)[minibatch]
        gradient, statistics = self._differentiate(rollout, indices)
        samples = self._samples(rollout, indices)
        self._reported += 1
        if self._reported == self._epochs * self._minibatches:
            self._rollout = None
        moments, self._moments = self._moments, None
        new, follow = samples if epoch == 0 else 0, self._reported < self._minibatches
        return RolloutGradient(as_array(gradient), self._named(statistics), new, samples, moments, follow)

    def _differentiate(self, rollout: Rollout, indices: npt.NDArray[np.int32]) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradient over a minibatch, and its statistics."""
        samples = rollout.actions, rollout.mask, self._returns, self._advantages, self._log_probs
        gradient, statistics = self._gradient(indices, rollout.observations, *samples, *rollout.first_state)
        return gradient, statistics

    def drop(self) -> int:
        rollout, self._rollout = self._rollout, None
        if rollout is None or self._reported >= self._minibatches:
            return 0
        rest = np.split(self._order, self._minibatches)[self._reported :]
        return self._samples(rollout, np.concatenate(rest))

    def _samples(self, rollout: Rollout, indices: npt.NDArray[np.int32]) -> int:
        """Number of unmasked agent steps of a rollout at these indices."""
        mask = rollout.mask if self._policy.network.state_units else rollout.mask.reshape(1, -1)
        return int(mask[:, indices].sum())

    def _order_of(self, epoch: int) -> npt.NDArray[np.int32]:
        """Indices of agent steps, time-major, or of environments, in the order of an epoch."""
        if self._minibatches == 1:
            return np.arange(self._drawable, dtype=np.int32)
        random = np.random.default_rng((self._seed, self._rollouts, epoch))
        return random.permutation(self._drawable).astype(np.int32)

    def _targets_graph(self, moments: tf.Tensor, *acted: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """`acted`: values and log-probabilities of acting, and the rollout."""
        # Eager graphs pass arrays here, too.
        values, log_probs, *rollout = map(tf.convert_to_tensor, acted)
        networks = self._policy.network, self._target_network
        inputs = TargetInputs(*networks, rollout_tensors(rollout), values, log_probs, log_probs)
        targets, moments = self._policy.method.standardised_targets(inputs, tf.convert_to_tensor(moments))
        return *targets, moments

    def _gradient_graph(self, indices: tf.Tensor, *rollout: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`rollout`: the observations, the fields of `Samples`, and the state at time 0."""
        method, network = self._policy.method, self._policy.network
        count = 1 + len(Samples._fields)

        def draw(x: tf.Tensor) -> tf.Tensor:
            if network.state_units:
                return tf.gather(x, indices, axis=1)
            return tf.gather(tf.reshape(x, (x.shape[:2].num_elements(), *x.shape[2:])), indices)

        observations, *fields = (draw(tf.convert_to_tensor(x)) for x in rollout[:count])
        samples = Samples(*fields)
        with tf.GradientTape() as tape:
            if network.state_units:
                state = [tf.gather(part, indices) for part in rollout[count:]]
                output = network.unroll(observations[:-1], state, samples.mask)
            else:
                output = network(observations)
            loss = method.sample_loss(output, samples)
        return self._differentiated(tape, loss)


class WholeRollouts(Minibatches):
    """E gradients of each whole rollout, each with returns and advantages at its own weights.

    For `actor.fresh_gradients` where a rollout is one minibatch. With values of acting, the learning of values would
    lag by one rollout of all actors. The forward pass of the gradient gives newer ones at no cost (Andrychowicz et al.
    2021, arXiv 2006.05990, section 3.5, recompute advantages for each pass over the data). With a memory, the value
    after the rollout is from the state of acting.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy, seed: int) -> None:
        super().__init__(config, spec, policy, seed)
        signature = rollout_signature(config, spec, policy.network.state_units)
        log_probs = tf.TensorSpec(self._shape, tf.float32)
        self._gradient = Graph(
            self._whole_gradient_graph, [_MOMENTS, _COUNTED, log_probs, *signature], compiled=policy.compiled
        )

    def begin(self, rollout: Rollout) -> None:
        self._rollout, self._reported = rollout, 0

    def _differentiate(self, rollout: Rollout, indices: npt.NDArray[np.int32]) -> tuple[tf.Tensor, tf.Tensor]:  # noqa: ARG002
        if self._reported == 0:
            self._before = self.recent_advantages
        # After an update, the moments of the weights include this rollout's own. With K > 1 they may still be older.
        counted = self.recent_advantages != self._before
        moments = np.array(self.recent_advantages, np.float64)
        arrays = moments, np.bool_(counted), self._log_probs, *rollout_arrays(rollout)
        gradient, statistics, rollout_moments = self._gradient(*arrays)
        if self._reports_moments and self._reported == 0:
            self._moments = AdvantageMoments(*rollout_moments.numpy().tolist())
        return gradient, statistics

    def _whole_gradient_graph(
        self, moments: tf.Tensor, counted: tf.Tensor, log_probs: tf.Tensor, *rollout: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        tensors, network, method = rollout_tensors(rollout), self._policy.network, self._policy.method
        with tf.GradientTape() as tape:
            output = network.unroll(tensors.observations[:-1], tensors.first_state, tensors.mask)
            log_probs = tf.convert_to_tensor(log_probs)
            inputs = method.target_inputs(network, self._target_network, tensors, output, log_probs)
            targets, moments = method.standardised_targets(inputs, tf.convert_to_tensor(moments), counted)
            loss = method.sample_loss(output, Samples(tensors.actions, tensors.mask, *targets, log_probs))
        return *self._differentiated(tape, loss), moments


def gradients_of(config: RunConfig, spec: EnvironmentSpec, policy: Policy, seed: int) -> Gradients:
    """The gradients that the settings choose, of the first actor of a process."""
    if not config.actor.needs_behaviour:
        return SingleGradient(config, spec, policy)
    whole = config.actor.fresh_gradients and config.actor.minibatches == 1
    return (WholeRollouts if whole else Minibatches)(config, spec, policy, seed)


def rollout_signature(config: RunConfig, spec: EnvironmentSpec, state_units: Sequence[int]) -> list[tf.TensorSpec]:
    steps = (config.actor.unroll_length, config.actor.environments)
    actions = spec.actions
    return [
        tf.TensorSpec((steps[0] + 1, steps[1], *spec.row_shape), spec.observation_dtype),
        tf.TensorSpec((*steps, *actions.shape), actions.dtype),
        *[tf.TensorSpec(steps, tf.float32)] * 3,
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
    middle = (count + len(tensors)) // 2
    first, last = tuple(tensors[count:middle]), tuple(tensors[middle:])
    return RolloutTensors(*tensors[:count])._replace(first_state=first, last_state=last)
