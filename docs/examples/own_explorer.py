"""A way to explore of one's own, without a change to the project: actions in proportion to exp(Q / τ).

In this folder: `tributary train cartpole-q --environment.import own_explorer --exploration.name boltzmann`.
"""

from typing import ClassVar

import tensorflow as tf

import tributary_rl as tributary
from shared.config import RunConfig
from shared.distributions import categorical_sample
from shared.exploration import Explorer
from shared.networks import NetworkOutput
from shared.schedules import linear_anneal
from shared.types import ActionSpec


class Boltzmann(Explorer):
    """Boltzmann exploration: the temperature τ falls from 1 to its final value by global frames.

    Evaluations have the final one, which `--exploration.options final_temperature 0.1` sets.
    """

    options: ClassVar = {"final_temperature": 0.05}

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
        self._final = config.exploration.options["final_temperature"]
        self._initial = 1.0 if training else self._final
        self._temperature = tf.Variable(self._initial, trainable=False)

    def begin(self, frames: int) -> None:
        """Called before each rollout, with the global frames so far."""
        self._temperature.assign(linear_anneal(self._initial, self._final, frames, self._annealing_frames))

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: an action int32 for each environment, [B]."""
        return categorical_sample(output.heads["action_values"] / self._temperature, self.generator)


tributary.register_explorer("boltzmann", Boltzmann)
