"""A network of one's own for images: they come as uint8 from 0 to 255, and it scales them itself.

In this folder: `tributary train my_package:MyEnv-v0 --environment.import own_images --network.name small_cnn`.
"""

from collections.abc import Sequence

import keras
import numpy as np

import tributary_rl as tributary
from shared.config import NetworkConfig
from shared.networks import Head, KerasNetwork, orthogonal_seeds


class SmallCNN(KerasNetwork):
    """Two convolutions and a layer of 128 units, for images of 16 pixels a side or more."""

    def __init__(
        self,
        config: NetworkConfig,  # noqa: ARG002
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_mean: np.ndarray | None = None,
    ) -> None:
        super().__init__(heads)
        seeds = orthogonal_seeds(seed)

        def start(gain: float = 2**0.5) -> keras.initializers.Initializer:
            return keras.initializers.Orthogonal(gain, seed=next(seeds))

        images = keras.Input(observation_shape, dtype="uint8", name="images")
        # With --network.centre-observations the mean image of random play comes, in 0 to 255 as well.
        mean = 0.0 if observation_mean is None else observation_mean
        x = keras.layers.Rescaling(1 / 255, offset=-mean / 255, name="scaled")(images)
        for i, (filters, size, stride) in enumerate(((16, 5, 3), (32, 3, 2)), start=1):
            x = keras.layers.Conv2D(filters, size, stride, "same", activation="relu", kernel_initializer=start(),
                                    name=f"convolution{i}")(x)  # fmt: skip
        x = keras.layers.Flatten(name="flat")(x)
        x = keras.layers.Dense(128, "relu", kernel_initializer=start(), name="hidden")(x)
        outputs = [keras.layers.Dense(h.units, kernel_initializer=start(h.gain), name=h.name)(x) for h in heads]
        self.model = keras.Model(images, (*outputs, x), name="small_cnn")


tributary.register_network("small_cnn", SmallCNN, images=True)
