"""A way to explore of one's own, without a change to the project: actions in proportion to exp(Q / τ).

In this folder: `tributary train cartpole-q --environment.import own_explorer --exploration.name boltzmann`.
"""

import tensorflow as tf

import tributary_rl as tributary
from shared.config import RunConfig
from shared.distributions import categorical_sample
from shared.exploration import RandomStream
from shared.networks import NetworkOutput
from shared.schedules import linear_anneal
from shared.types import ActionSpec


class Boltzmann(RandomStream):
    """Boltzmann exploration: the temperature τ falls from 1 to 0.05 by global frames, and is 0.05 in evaluations."""

    def __init__(
        self,
        config: RunConfig,
        actions: ActionSpec,  # noqa: ARG002
        environments: int,  # noqa: ARG002
        seed: int,
        *,
        training: bool,
    ) -> None:
        super().__init__(seed)
        self._annealing_frames = config.exploration.annealing_frames
        self._initial = 1.0 if training else 0.05
        self._temperature = tf.Variable(self._initial, trainable=False)

    def begin(self, frames: int) -> None:
        """Called before each rollout, with the global frames so far."""
        self._temperature.assign(linear_anneal(self._initial, 0.05, frames, self._annealing_frames))

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: an action int32 for each environment, [B]."""
        return categorical_sample(output.heads["action_values"] / self._temperature, self.generator)


tributary.register_explorer("boltzmann", Boltzmann)
