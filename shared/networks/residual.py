"""The residual network of IMPALA, for images."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt

from shared.config import NetworkConfig
from shared.networks import Head, KerasNetwork, orthogonal_seeds
from shared.networks.layers import EPSILON

_FILTERS = (16, 32, 32)
_BLOCKS = 2
_UNITS = 256


class ResidualNetwork(KerasNetwork):
    """The large network of IMPALA (Espeholt et al. 2018, arXiv 1802.01561, Fig. 3, without its LSTM).

    Three stages: a convolution, a max-pooling that halves each side, and two residual blocks of ReLU, convolution,
    ReLU, convolution. Then ReLU, a fully connected layer and ReLU. All convolutions are 3 x 3 and keep the size. With
    layer norm, the input of each ReLU is normalised, over positions and channels.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_mean: npt.NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(heads)
        seeds = orthogonal_seeds(seed)
        self._layer_norm = config.layer_norm
        inputs = keras.Input(tuple(observation_shape), dtype="uint8", name="observations")
        # Centred images vary by at most a quarter of their range.
        scale = (1.0 if observation_mean is None else 4.0) / 255.0
        offset = 0.0 if observation_mean is None else (-scale * observation_mean).tolist()
        x = keras.layers.Rescaling(scale, offset, name="scale")(inputs)
        for stage, filters in enumerate(_FILTERS, start=1):
            x = _convolution(f"stage{stage}_conv", filters, seeds)(x)
            x = keras.layers.MaxPooling2D(3, 2, "same", name=f"stage{stage}_pool")(x)
            for block in range(1, _BLOCKS + 1):
                name, before = f"stage{stage}_block{block}", x
                for half in (1, 2):
                    x = self._activated(f"{name}_{half}", x)
                    x = _convolution(f"{name}_conv{half}", filters, seeds)(x)
                x = keras.layers.Add(name=f"{name}_add")([before, x])
        x = keras.layers.Flatten(name="flat")(self._activated("trunk", x))
        x = self._activated("hidden", _dense("hidden", _UNITS, 2**0.5, seeds)(x))
        outputs = [_dense(head.name, head.units, head.gain, seeds)(x) for head in self._heads]
        self.model = keras.Model(inputs, (*outputs, x), name="impala_resnet")

    def _activated(self, name: str, x: keras.KerasTensor) -> keras.KerasTensor:
        if self._layer_norm:
            axes = list(range(1, len(x.shape)))
            x = keras.layers.LayerNormalization(axes, EPSILON, name=f"{name}_norm")(x)
        return keras.layers.ReLU(name=f"{name}_relu")(x)


def _convolution(name: str, filters: int, seeds: Iterator[int]) -> keras.layers.Conv2D:
    start = keras.initializers.Orthogonal(2**0.5, seed=next(seeds))
    return keras.layers.Conv2D(filters, 3, padding="same", kernel_initializer=start, name=name)


def _dense(name: str, units: int, gain: float, seeds: Iterator[int]) -> keras.layers.Dense:
    start = keras.initializers.Orthogonal(gain, seed=next(seeds))
    return keras.layers.Dense(units, kernel_initializer=start, name=name)
