"""A network whose observations come with a mask of the allowed actions."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from shared.distributions import MASKED, masked_logits
from shared.networks import Network, NetworkOutput
from shared.types import ActionSpec


class MaskedNetwork(Network):
    """Another network with a mask for its head `head`, see `shared.distributions.masked_logits`.

    This is the only place where logits and action values are masked: what acts, what is greedy, what bootstraps, what
    learns and what is exported reads this head.
    """

    def __init__(self, network: Network, observation_shape: Sequence[int], actions: ActionSpec, head: str) -> None:
        super().__init__(())
        self._network, self._head = network, head
        self._observation_shape, self._actions = tuple(observation_shape), actions.size

    @property
    def feature_size(self) -> int:
        return self._network.feature_size

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return self._network.trainable_variables

    @property
    def untrained_variables(self) -> list[keras.Variable]:
        return self._network.untrained_variables

    @property
    def state_units(self) -> tuple[int, ...]:
        return self._network.state_units

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        """Evaluate rows [N, size + A]: an observation, flat, and its mask, in one dtype."""
        observations, mask = self._split(observations)
        return self._masked(self._network(observations, state), mask)

    def unroll(self, observations: tf.Tensor, state: Sequence[tf.Tensor], mask: tf.Tensor) -> NetworkOutput:
        observations, allowed = self._split(observations)
        return self._masked(self._network.unroll(observations, state, mask), allowed)

    def as_keras(self) -> keras.Model:
        """See `Network.as_keras`. The input is a dict with the mask, bool, as `action_mask`."""
        model = self._network.as_keras()
        inputs = dict(model.input) if isinstance(model.input, dict) else {"observations": model.input}
        mask = keras.Input((self._actions,), dtype="bool", name="action_mask")
        outputs = {**model.output, self._head: keras.ops.where(mask, model.output[self._head], MASKED)}
        return keras.Model({**inputs, "action_mask": mask}, outputs, name=model.name)

    def _split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        observations, mask = rows[..., : -self._actions], rows[..., -self._actions :]
        leading = [-1 if size is None else size for size in rows.shape[:-1]]
        return tf.reshape(observations, (*leading, *self._observation_shape)), tf.not_equal(mask, 0)

    def _masked(self, output: NetworkOutput, mask: tf.Tensor) -> NetworkOutput:
        return output._replace(heads={**output.heads, self._head: masked_logits(output.heads[self._head], mask)})
