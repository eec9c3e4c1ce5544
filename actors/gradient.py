"""From a rollout to flat gradients of the method's loss: one over the whole rollout, or several over parts of it.

A gradient is at its own weights, those of the call that returns it. With E `actor.epochs` and M `actor.minibatches`:

| settings                    | a gradient is over  | returns and advantages are at     | policy's term |
| --------------------------- | ------------------- | --------------------------------- | ------------- |
| E = M = 1                   | the whole rollout   | its own weights, which also acted | plain         |
| M = 1, `fresh_gradients`    | the whole rollout   | its own weights                   | clipped ratio |
| M > 1, or E > 1 without it  | one of M parts      | the weights that acted            | clipped ratio |
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from actors.policy import Policy, PolicyOutput, assign_graph, build_network
from shared.config import RunConfig
from shared.graph import Graph, as_array
from shared.methods.method import MethodLoss, RolloutTensors, Samples, TargetInputs
from shared.moments import AdvantageMoments
from shared.types import Float32Array, Rollout, WeightSnapshot

_NO_ADVANTAGES = AdvantageMoments()


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


class GradientGraphs:
    """The graphs of gradients and the target network, which all actors of a process share.

    A graph returns a gradient and updates nothing: a `tf.function` that also applied it could read weights that were
    already updated.

    Attributes:
        whole: True for gradients of whole rollouts, by `of_rollout`. Others are by `targets` and `of_minibatch`.
        index_count: number of agent steps of a rollout; with a memory of environments, whose times belong together.
        reports_moments: True if rollouts have `AdvantageMoments`.
        statistics: their names, in the order of the tensor that gradients come with; known once a graph is traced.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> None:
        actor = self.actor = config.actor
        self._policy, self.has_memory = policy, bool(policy.network.state_units)
        self.whole = actor.minibatches == 1 and (actor.fresh_gradients or actor.epochs == 1)
        self.index_count = actor.environments if self.has_memory else actor.agent_steps_in_flight
        self.reports_moments = config.method.standardise_advantages and actor.fresh_gradients
        self.statistics: list[str] = []
        self._target_network, self._target_version = None, -1
        if config.method.uses_target_network:
            self._target_network = build_network(config, spec, policy.method)
            self._assign_target = assign_graph(self._target_network, policy.layout)
        rollout = _rollout_signature(config, spec, policy.network.state_units)
        floats, moments = rollout.mask, tf.TensorSpec([3], tf.float64)
        acting = (floats, moments, tf.TensorSpec([], tf.bool)) if actor.needs_behaviour else ()
        indices = tf.TensorSpec([self.index_count // actor.minibatches], tf.int32)
        samples = Samples(rollout.actions, floats, floats, floats, floats)
        minibatch = [indices, rollout.observations, samples, rollout.first_state]
        self.of_rollout = Graph(self._rollout_graph, [acting, rollout], compiled=policy.compiled)
        self.targets = Graph(self._targets_graph, [floats, floats, moments, rollout], compiled=policy.compiled)
        self.of_minibatch = Graph(self._minibatch_graph, minibatch, compiled=policy.compiled)

    def assign_target(self, target: WeightSnapshot | None) -> None:
        """Set the target network, unless it has that version already or, with None, it is not sent again."""
        if target is not None and target.version != self._target_version:
            # A variable may alias the memory that it is assigned from, and shared memory is overwritten later.
            self._assign_target(target.parameters.copy())
            self._target_version = target.version

    def _rollout_graph(self, acting: tuple[tf.Tensor, ...], rollout: RolloutTensors) -> tuple[tf.Tensor | None, ...]:
        """The gradient over a whole rollout with targets at its own weights, its statistics, and the rollout's moments.

        `acting`: log π of acting, and the two other arguments of `Method.standardised_targets`; empty if the weights of
        the gradient acted.

        With values of acting, the learning of values would lag by one rollout of all actors. The forward pass of the
        gradient gives newer ones at no cost (Andrychowicz et al. 2021, arXiv 2006.05990, section 3.5, recompute
        advantages for each pass over the data). With a memory, the value after the rollout is from the state of acting.
        """
        method, network = self._policy.method, self._policy.network
        behaviour, moments, counted = acting or (None, None, False)
        with tf.GradientTape() as tape:
            with self._policy.stored_activations():
                output = network.unroll(rollout.observations[:-1], rollout.first_state, rollout.mask)
            values, log_probs = tf.stop_gradient(method.value(output)), method.log_prob(output, rollout.actions)
            log_probs = tf.zeros_like(values) if log_probs is None else tf.stop_gradient(log_probs)
            before = log_probs if behaviour is None else behaviour
            inputs = TargetInputs(network, self._target_network, rollout, values, log_probs, before)
            targets, moments = method.standardised_targets(inputs, moments, counted)
            loss = method.sample_loss(output, Samples(rollout.actions, rollout.mask, *targets, behaviour))
        return *self._differentiated(tape, loss), moments

    def _targets_graph(
        self, values: tf.Tensor, log_probs: tf.Tensor, moments: tf.Tensor, rollout: RolloutTensors
    ) -> tuple[tf.Tensor, ...]:
        """Returns and advantages at the weights that acted, by its values and log π, and the rollout's moments."""
        networks = self._policy.network, self._target_network
        inputs = TargetInputs(*networks, rollout, values, log_probs, log_probs)
        targets, moments = self._policy.method.standardised_targets(inputs, moments)
        return *targets, moments

    def _minibatch_graph(
        self, indices: tf.Tensor, observations: tf.Tensor, samples: Samples, state: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradient over a minibatch of the samples of a rollout, and its statistics. `state`: at time 0."""
        method, network = self._policy.method, self._policy.network

        def draw(x: tf.Tensor) -> tf.Tensor:
            if self.has_memory:
                return tf.gather(x, indices, axis=1)
            return tf.gather(tf.reshape(x, (x.shape[:2].num_elements(), *x.shape[2:])), indices)

        observations, samples = draw(observations), Samples(*map(draw, samples))
        with tf.GradientTape() as tape:
            if self.has_memory:
                state = tuple(tf.gather(part, indices) for part in state)
                output = network.unroll(observations[:-1], state, samples.mask)
            else:
                output = network(observations)
            loss = method.sample_loss(output, samples)
        return self._differentiated(tape, loss)

    def _differentiated(self, tape: tf.GradientTape, loss: MethodLoss) -> tuple[tf.Tensor, tf.Tensor]:
        gradients = tape.gradient(loss.total, self._policy.network.trainable_variables)
        # A weight that the loss does not depend on has gradient 0. So have running moments, the last in the layout,
        # which are not trained.
        gradients += [None] * (len(self._policy.layout.sizes) - len(gradients))
        pieces = zip(gradients, self._policy.layout.sizes, strict=True)
        flat = tf.concat([tf.zeros(size) if g is None else tf.reshape(g, [-1]) for g, size in pieces], axis=0)
        self.statistics = list(loss.statistics)
        return flat, tf.stack(list(loss.statistics.values()))


class Gradients:
    """The gradients of one actor's rollouts: E epochs, each over M minibatches of agent steps drawn at random.

    The weights may change between two gradients of a rollout. For methods with probabilities the clipped ratio to the
    behaviour policy (Schulman et al. 2017, arXiv 1707.06347, eq. 7) corrects for all updates in between, also by other
    actors.

    If the network has a memory, a minibatch consists of random environments with all their times, from the state that
    acting had at time 0. `seed` and the numbers of the rollout and the epoch determine the order of agent steps.

    `recent`: the `WeightSnapshot.advantage_moments` of the current weights.
    """

    def __init__(self, graphs: GradientGraphs, seed: int) -> None:
        self.graphs, self._seed = graphs, seed
        self._epochs, self._minibatches = graphs.actor.epochs, graphs.actor.minibatches
        # `recent` of the rollout's first gradient.
        self._first_recent = _NO_ADVANTAGES
        self._rollout: Rollout | None = None
        # Of acting: arrays of a rollout on the host, or tensors of one on a device.
        shape = (graphs.actor.unroll_length, graphs.actor.environments)
        self._values: Float32Array | tf.Tensor = np.zeros(shape, np.float32)
        self._log_probs: Float32Array | tf.Tensor = np.zeros(shape, np.float32)
        # The results of `GradientGraphs.targets`.
        self._targets: list[tf.Tensor] = []
        self._rollouts = self._reported = 0
        # Indices of agent steps, time-major, or of environments: the minibatches of the current epoch.
        self._parts: list[npt.NDArray[np.int32]] = []

    @property
    def rollout_is_done(self) -> bool:
        """True if the last rollout has no gradients left."""
        return self._rollout is None

    def keep(self, t: int, output: PolicyOutput) -> None:
        """Keep value and log π of acting at time `t` of the current rollout, where the policy gives them."""
        if output.values is not None:
            self._values[t] = output.values
        if output.log_probs is not None:
            self._log_probs[t] = output.log_probs

    def keep_rollout(self, values: tf.Tensor, log_probs: tf.Tensor) -> None:
        """Keep values and log-probabilities of all times at once, float32 [T, B] each."""
        self._values, self._log_probs = values, log_probs

    def begin(self, rollout: Rollout, recent: AdvantageMoments = _NO_ADVANTAGES) -> None:
        """Begin a rollout, with the weights that acted. Its arrays do not change until it is done."""
        self._rollout, self._reported = rollout, 0
        self._rollouts += 1
        if not self.graphs.whole:
            self._targets = self.graphs.targets(self._values, self._log_probs, np.array(recent, np.float64), rollout)

    def next(self, recent: AdvantageMoments = _NO_ADVANTAGES) -> RolloutGradient:
        """The next gradient of the rollout, at the current weights."""
        rollout = self._rollout
        assert rollout is not None, "a rollout begins first"
        epoch, minibatch = divmod(self._reported, self._minibatches)
        if minibatch == 0:
            self._parts = np.split(self._order_of(epoch), self._minibatches)
        indices = self._parts[minibatch]
        if self._reported == 0:
            self._first_recent = recent
        if self.graphs.whole:
            gradient, statistics, *moments = self.graphs.of_rollout(self._acting(recent), rollout)
        else:
            returns, advantages, *moments = self._targets
            samples = Samples(rollout.actions, rollout.mask, returns, advantages, self._log_probs)
            arguments = indices, rollout.observations, samples, rollout.first_state
            gradient, statistics = self.graphs.of_minibatch(*arguments)
        reports_moments = self.graphs.reports_moments and self._reported == 0
        count = self._count(rollout, indices)
        self._reported += 1
        if self._reported == self._epochs * self._minibatches:
            self._rollout = None
        return RolloutGradient(
            as_array(gradient),
            dict(zip(self.graphs.statistics, statistics.numpy().tolist(), strict=True)),
            agent_steps=count if epoch == 0 else 0,
            samples=count,
            advantage_moments=AdvantageMoments(*moments[0].numpy().tolist()) if reports_moments else None,
            new_steps_follow=self._reported < self._minibatches,
        )

    def _acting(self, recent: AdvantageMoments) -> tuple[npt.NDArray[np.generic] | tf.Tensor, ...]:
        """What `GradientGraphs.of_rollout` needs where the weights that acted may be others."""
        if not self.graphs.actor.needs_behaviour:
            return ()
        # After an update, the moments of the weights include this rollout's own. With K > 1 they may still be older.
        return self._log_probs, np.array(recent, np.float64), np.bool_(recent != self._first_recent)

    def drop(self) -> int:
        """Drop the rest of the rollout. Returns its number of agent steps that are in no gradient yet."""
        rollout, self._rollout = self._rollout, None
        rest = self._parts[self._reported :]
        return 0 if rollout is None else sum(self._count(rollout, indices) for indices in rest)

    def _count(self, rollout: Rollout, indices: npt.NDArray[np.int32]) -> int:
        """Number of unmasked agent steps of a rollout at these indices."""
        mask = rollout.mask if self.graphs.has_memory else rollout.mask.reshape(1, -1)
        return int(mask[:, indices].sum())

    def _order_of(self, epoch: int) -> npt.NDArray[np.int32]:
        """Indices of agent steps, time-major, or of environments, in the order of an epoch."""
        if self._minibatches == 1:
            return np.arange(self.graphs.index_count, dtype=np.int32)
        random = np.random.default_rng((self._seed, self._rollouts, epoch))
        return random.permutation(self.graphs.index_count).astype(np.int32)


def _rollout_signature(config: RunConfig, spec: EnvironmentSpec, state_units: Sequence[int]) -> Rollout:
    unroll_length, count = config.actor.unroll_length, config.actor.environments
    floats, actions = tf.TensorSpec([unroll_length, count], tf.float32), spec.actions
    state = tuple(tf.TensorSpec([count, units], tf.float32) for units in state_units)
    return Rollout(
        observations=tf.TensorSpec([unroll_length + 1, count, *spec.row_shape], spec.observation_dtype),
        actions=tf.TensorSpec([unroll_length, count, *actions.shape], actions.dtype),
        rewards=floats,
        discounts=floats,
        mask=floats,
        next_actions=tf.TensorSpec([count, *actions.shape], actions.dtype),
        first_state=state,
        last_state=state,
    )
