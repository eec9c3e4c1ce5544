"""A network of one's own, without a change to the project: a perceptron whose every layer sees the observation again.

In this folder: `tributary train cartpole --environment.import own_network --network.name dense_mlp`.
"""

from collections.abc import Sequence

import keras

import tributary_rl as tributary
from shared.config import NetworkConfig
from shared.networks import Head, KerasNetwork, orthogonal_seeds


class DenseMLP(KerasNetwork):
    """Each layer sees the observation beside what the last one made of it (Sinha et al. 2020, arXiv 2010.09163)."""

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_mean: None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(heads)
        seeds = orthogonal_seeds(seed)

        def layer(name: str, units: int, gain: float, activation: str | None = None) -> keras.layers.Dense:
            start = keras.initializers.Orthogonal(gain, seed=next(seeds))
            return keras.layers.Dense(units, activation, kernel_initializer=start, name=name)

        seen = x = keras.Input(observation_shape, name="observations")
        for i, units in enumerate(config.hidden_sizes, start=1):
            x = layer(f"hidden{i}", units, 2**0.5, config.activation)(x)
            x = keras.layers.Concatenate(name=f"beside{i}")([x, seen])
        outputs = [layer(head.name, head.units, head.gain)(x) for head in heads]
        self.model = keras.Model(seen, (*outputs, x), name="dense_mlp")


tributary.register_network("dense_mlp", DenseMLP, images=False)
