"""What a learning method is: heads, a way to act, and a loss."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import RunConfig
from shared.losses import masked_mean
from shared.networks import Head, Network, NetworkOutput
from shared.registry import EXPLORERS, METHODS, class_of
from shared.types import ActionSpec, Float32Array


class RolloutTensors(NamedTuple):
    """A `shared.types.Rollout` inside a graph, with the same shapes."""

    observations: tf.Tensor
    actions: tf.Tensor
    rewards: tf.Tensor
    discounts: tf.Tensor
    mask: tf.Tensor
    next_actions: tf.Tensor
    first_state: tuple[tf.Tensor, ...] = ()
    last_state: tuple[tf.Tensor, ...] = ()


class Targets(NamedTuple):
    """What a rollout teaches, float32 [T, B] each, held constant however often the rollout is differentiated.

    `returns` are the targets of the value or of the chosen action's value; `advantages` weigh the policy's term, and
    are zeros for methods without one.
    """

    returns: tf.Tensor
    advantages: tf.Tensor


class Samples(NamedTuple):
    """Agent steps that a loss is over: [T, B] of a rollout, or of one minibatch of it, [N] or [T, N] by what it draws.

    `log_probs` are log π(a | s) as the actions were drawn; None where the weights are still those that drew them.
    """

    actions: tf.Tensor
    mask: tf.Tensor
    returns: tf.Tensor
    advantages: tf.Tensor
    log_probs: tf.Tensor | None = None


class MethodLoss(NamedTuple):
    """`total` is the float32 scalar to minimise. `statistics` are float32 scalars, logged under their names."""

    total: tf.Tensor
    statistics: dict[str, tf.Tensor]


class Explorer(Protocol):
    """Chooses an actor's actions. It may hold variables: a schedule's ε, or noise that persists."""

    def begin(self, frames: int) -> None:
        """Called before each rollout, with the global frames so far."""

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """The state of the random stream, for `restore`: all later samples follow from it."""
        ...

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Go on from a saved state. Comes before the first sample."""

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: one action per environment, int32 [B] or float32 [B, D], from the output for a batch of B."""


class Method(ABC):
    """A method of the asynchronous n-step family. What it computes depends on its arguments, and on the time, alone.

    What says "graph code" is traced once, without AutoGraph: a choice by a tensor's value is `tf.where` or `tf.cond`.

    Args:
        config: of the run.
        actions: what one action is.
    """

    preferences_are: ClassVar[str] = ""
    """What one of `preferences` is."""

    needs_next_actions: ClassVar[bool] = False
    """Whether the loss bootstraps from the action that is taken in the last observation of the rollout."""

    def __init__(self, config: RunConfig, actions: ActionSpec) -> None:
        self.config = config
        self.actions = actions

    def begin(self, frames: int) -> None:  # noqa: B027
        """Called with each new weights, with the global frames so far: for a loss that changes with them."""

    @abstractmethod
    def heads(self) -> tuple[Head, ...]:
        """The heads of the network. The last hidden layer of the first one is `NetworkOutput.features`."""

    def parameters(self, features: int) -> dict[str, Float32Array]:  # noqa: ARG002
        """Initial values of trainable tensors that no observation enters, for `features` units before the heads."""
        return {}

    @abstractmethod
    def explorer(self, environments: int, seed: int, *, training: bool) -> Explorer:
        """How an actor with so many environments samples actions; or an evaluator, which does not train."""

    @abstractmethod
    def greedy(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: the action int32 [B] or float32 [B, D] to take without exploring."""

    def log_prob(self, output: NetworkOutput, actions: tf.Tensor) -> tf.Tensor | None:  # noqa: ARG002
        """Graph code: log π(a | s) of drawn actions [B] or [B, D], float32 [B]; None where π has no density."""
        return None

    @abstractmethod
    def value(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: the discounted return float32 [B] that is expected, in units of training's rewards."""

    def preferences(self, output: NetworkOutput) -> tf.Tensor | None:  # noqa: ARG002
        """Graph code: how the method weighs its actions, float32 [B, A], for who watches; None where nothing does."""
        return None

    @abstractmethod
    def targets(
        self, network: Network, target_network: Network | None, rollout: RolloutTensors, values: tf.Tensor
    ) -> Targets:
        """Graph code: what a rollout teaches, with the weights that acted.

        `target_network` is None where the run has none, see `MethodConfig.uses_target_network`. `values` float32
        [T, B] are `value` at times 0 … T-1, as it was acted.
        """

    @abstractmethod
    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """Graph code: the loss over samples, whose observations gave `output`."""

    def loss(
        self,
        network: Network,
        target_network: Network | None,
        rollout: RolloutTensors,
        output: NetworkOutput | None = None,
    ) -> MethodLoss:
        """Graph code: the loss over a whole rollout, at the weights that acted.

        `output` is that of `network.unroll` at times 0 … T-1, if it is known.
        """
        if output is None:
            output = network.unroll(rollout.observations[:-1], rollout.first_state, rollout.mask)
        targets = self.targets(network, target_network, rollout, tf.stop_gradient(self.value(output)))
        return self.sample_loss(output, Samples(rollout.actions, rollout.mask, *targets))


def method_class(name: str) -> type[Method]:
    """The class of the method `name`."""
    return class_of(METHODS[name])


def make_explorer(
    config: RunConfig, actions: ActionSpec, method: Method, environments: int, seed: int, *, training: bool
) -> Explorer:
    """The explorer of a user's own that the settings name, else the method's; see `Method.explorer`."""
    name = config.exploration.name
    if name is None:
        return method.explorer(environments, seed, training=training)
    return class_of(EXPLORERS[name])(config, actions, environments, seed, training=training)


def explained_variance(returns: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """1 - Var(R - V) / Var(R) over agent steps, float32 scalar; 0 where the returns do not vary."""

    def variance(x: tf.Tensor) -> tf.Tensor:
        return masked_mean(tf.square(x - masked_mean(x, mask)), mask)

    total = variance(returns)
    return tf.where(total > 1e-12, 1.0 - variance(returns - values) / tf.maximum(total, 1e-12), 0.0)


def dead_units(features: tf.Tensor) -> tf.Tensor:
    """Share of the units of float [..., H] that are 0 for every observation, a scalar. Tanh units never count."""
    dead = tf.reduce_all(tf.equal(features, 0), axis=tuple(range(len(features.shape) - 1)))
    return tf.reduce_mean(tf.cast(dead, tf.float32))
