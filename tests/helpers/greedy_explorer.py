"""An explorer without random numbers: however observations are batched, each gets the same action."""

import tensorflow as tf

from shared.config import RunConfig
from shared.exploration import RandomStream
from shared.networks import NetworkOutput
from shared.registry import register_explorer
from shared.types import ActionSpec


class Greedy(RandomStream):
    def __init__(
        self,
        config: RunConfig,  # noqa: ARG002
        actions: ActionSpec,  # noqa: ARG002
        environments: int,  # noqa: ARG002
        seed: int,
        *,
        training: bool,  # noqa: ARG002
    ) -> None:
        super().__init__(seed)

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        (choice,) = (head for name, head in output.heads.items() if name in ("policy", "action_values"))
        return tf.argmax(choice, axis=-1, output_type=tf.int32)


register_explorer("greedy", Greedy)
