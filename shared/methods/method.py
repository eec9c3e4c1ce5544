"""The interface of learning methods: heads, acting, targets and a loss."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, NamedTuple

import tensorflow as tf

from shared.config import RunConfig
from shared.config.task import options_of
from shared.exploration import Explorer
from shared.losses import masked_mean, standardised, standardised_by_recent
from shared.networks import Head, Network, NetworkOutput
from shared.registry import EXPLORERS, METHODS, make_registered
from shared.returns import lambda_returns
from shared.types import ActionSpec, Float32Array, Rollout

RolloutTensors = Rollout
"""A rollout inside a graph: tensors of the same shapes."""


class TargetInputs(NamedTuple):
    """A rollout and the outputs of networks for it, from which `Method.targets` computes.

    `values` and `log_probs` float32 [T, B] are those of the weights of `network`: V(s), and log π(a | s) of the actions
    taken. `behaviour_log_probs` are log π(a | s) of the weights that acted, and equal `log_probs` if these are the same
    weights. Without a density of π both are zeros. No gradient flows through them. `target_network` is None if the run
    has none, see `MethodConfig.uses_target_network`.
    """

    network: Network
    target_network: Network | None
    rollout: RolloutTensors
    values: tf.Tensor
    log_probs: tf.Tensor
    behaviour_log_probs: tf.Tensor


class Targets(NamedTuple):
    """Targets of a rollout, float32 [T, B] each. No gradient flows through them.

    `returns` are the targets of the value or of the chosen action's value; `advantages` weigh the policy's term, and
    are zeros for methods without one.
    """

    returns: tf.Tensor
    advantages: tf.Tensor


class Samples(NamedTuple):
    """Agent steps of a loss: [T, B] of a rollout, or [N] or, with a memory, [T, N] of a minibatch.

    `behaviour_log_probs` are log π(a | s) of the weights that acted; None if the weights have not changed since acting.
    """

    actions: tf.Tensor
    mask: tf.Tensor
    returns: tf.Tensor
    advantages: tf.Tensor
    behaviour_log_probs: tf.Tensor | None = None


class MethodLoss(NamedTuple):
    """`total` is the float32 scalar to minimise. `statistics` are float32 scalars, logged under their names."""

    total: tf.Tensor
    statistics: dict[str, tf.Tensor]


class Method(ABC):
    """A method of the asynchronous n-step family. Its results depend on its arguments and on the schedules only.

    Methods marked "graph code" are traced once, without AutoGraph: a branch on a tensor is `tf.where` or `tf.cond`.
    """

    preferences_are: ClassVar[str] = ""
    """Name of the quantity in `preferences`."""

    action_head: ClassVar[str] = ""
    """Name of the head with a number for each discrete action: the larger, the better. Actions that are not allowed get
    a large negative one, see `shared.distributions.masked_logits`. Empty: the method supports no masks."""

    needs_next_actions: ClassVar[bool] = False
    """True if the loss bootstraps from the action in the last observation of the rollout."""

    def __init__(self, config: RunConfig, actions: ActionSpec) -> None:
        self.config = config
        self.actions = actions

    def begin(self, frames: int) -> None:  # noqa: B027
        """Called with all new weights, with the global frames so far: for schedules of the loss."""

    @abstractmethod
    def heads(self) -> tuple[Head, ...]:
        """The heads of the network. The last hidden layer of the first one is `NetworkOutput.features`."""

    def parameters(self, features: int) -> dict[str, Float32Array]:  # noqa: ARG002
        """Initial values of trainable tensors that depend on no observation, for `features` units before the heads."""
        return {}

    @abstractmethod
    def explorer(self, environments: int, seed: int, *, training: bool) -> Explorer:
        """The explorer of an actor with `environments` environments; of an evaluator if not `training`."""

    @abstractmethod
    def greedy(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: the action int32 [B] or float32 [B, D] to take without exploring."""

    def log_prob(self, output: NetworkOutput, actions: tf.Tensor) -> tf.Tensor | None:  # noqa: ARG002
        """Graph code: log π(a | s) of actions [B] or [B, D], float32 [B]; None if π has no density."""
        return None

    @abstractmethod
    def value(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: the expected discounted return float32 [B], in units of training's rewards."""

    def preferences(self, output: NetworkOutput) -> tf.Tensor | None:  # noqa: ARG002
        """Graph code: weights of the actions, float32 [B, A], for display; None if there are none.

        Actions that are not allowed have probability 0, or no value: NaN.
        """
        return None

    @abstractmethod
    def targets(self, inputs: TargetInputs) -> Targets:
        """Graph code: the targets of a rollout, at the weights of `inputs.network`. `standardised_targets` scales them.

        These are the weights that acted, or, for the gradients of whole rollouts with `actor.fresh_gradients`, those of
        each gradient.
        """

    def standardised_targets(
        self, inputs: TargetInputs, moments: tf.Tensor | None = None, counted: bool | tf.Tensor = False
    ) -> tuple[Targets, tf.Tensor | None]:
        """Graph code: `targets` with advantages standardised as the settings say, and the moments of a rollout.

        A rollout of one of many actors is too small to be standardised by itself: with `actor.fresh_gradients` see
        `standardised_by_recent`, which takes `moments` float64 [3] and `counted`, and whose moments are returned.
        Otherwise `moments` are returned unchanged.
        """
        returns, advantages = self.targets(inputs)
        mask = inputs.rollout.mask
        if self.config.method.standardise_advantages and self.config.actor.fresh_gradients:
            assert moments is not None, "fresh gradients have the moments of their weights"
            advantages, moments = standardised_by_recent(advantages, mask, moments, counted)
        elif self.config.method.standardise_advantages:
            advantages = standardised(advantages, mask)
        return Targets(returns, advantages), moments

    def bootstrap_value(self, inputs: TargetInputs) -> tf.Tensor:
        """Graph code: the value of the last observation, float32 [B], without a gradient."""
        last = inputs.rollout.observations[-1], inputs.rollout.last_state
        return tf.stop_gradient(self.value(inputs.network(*last)))

    def _lambda_returns(self, rollout: RolloutTensors, values: tf.Tensor, bootstrap_value: tf.Tensor) -> tf.Tensor:
        tensors = rollout.rewards, rollout.discounts, values, bootstrap_value, rollout.mask
        settings = self.config.method
        return lambda_returns(*tensors, return_lambda=settings.return_lambda, n_step=settings.n_step)

    @abstractmethod
    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """Graph code: the loss over samples; `output` is the network's for their observations."""


def make_method(config: RunConfig, actions: ActionSpec) -> Method:
    name = config.method.name
    options = options_of("method.options", name, METHODS, config.method.options)
    config = replace(config, method=replace(config.method, options=options))
    return make_registered("method.name", name, METHODS, Method, config, actions)


def make_explorer(
    config: RunConfig, actions: ActionSpec, method: Method, environments: int, seed: int, *, training: bool
) -> Explorer:
    """The registered explorer of `--exploration.name`, else the method's; see `Method.explorer`."""
    name = config.exploration.name
    if name is None:
        return method.explorer(environments, seed, training=training)
    options = options_of("exploration.options", name, EXPLORERS, config.exploration.options)
    config = replace(config, exploration=replace(config.exploration, options=options))
    return make_registered(
        "exploration.name", name, EXPLORERS, Explorer, config, actions, environments, seed, training=training
    )


def explained_variance(returns: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """1 - Var(R - V) / Var(R) over agent steps, float32 scalar; 0 if the returns do not vary."""

    def variance(x: tf.Tensor) -> tf.Tensor:
        return masked_mean(tf.square(x - masked_mean(x, mask)), mask)

    total = variance(returns)
    return tf.where(total > 1e-12, 1.0 - variance(returns - values) / tf.maximum(total, 1e-12), 0.0)


def dead_units(features: tf.Tensor) -> tf.Tensor:
    """Share of the units of float [..., H] that are 0 for every observation, a scalar. 0 for tanh units."""
    dead = tf.reduce_all(tf.equal(features, 0), axis=tuple(range(len(features.shape) - 1)))
    return tf.reduce_mean(tf.cast(dead, tf.float32))
