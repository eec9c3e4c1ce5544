"""Optimizers over one flat vector: RMSProp in the form of the A3C paper, Adam and SGD, each one fused operation."""

from abc import ABC, abstractmethod

import tensorflow as tf

from shared.config import OptimizerConfig
from shared.layout import ParameterLayout


class Optimizer(ABC):
    """The update of all parameters, one vector float32 [P]. `layout` has the place of each tensor in it.

    `variables` are slots and step counters by name, which a checkpoint has.
    """

    def __init__(self, layout: ParameterLayout, config: OptimizerConfig) -> None:
        self.layout, self.config = layout, config
        self.variables: dict[str, tf.Variable] = {}

    @abstractmethod
    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update `parameters` float32 [P] in place by `gradient` float32 [P] and η, a float32 scalar. Graph code."""


class SGD(Optimizer):
    """Stochastic gradient descent: θ ← θ - ηΔθ."""

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=parameters.handle, alpha=learning_rate, delta=gradient)


class RMSProp(Optimizer):
    """Shared RMSProp (Mnih et al. 2016, arXiv 1602.01783, eq. 8 and 9).

        g ← αg + (1-α)Δθ²        θ ← θ - η Δθ / √(g + ε)

    g starts at 0, as in the paper; TensorFlow 1 starts it at 1. ε is inside the root, as in the paper and in Keras;
    PyTorch puts it outside.

    With bias correction g is divided by 1 - α^t at update t, as in Adam. Without it and with a small ε, the first
    update moves every weight by η/√(1-α): ten times η for α = 0.99. On Pong that killed most ReLU units of the hidden
    layer within 70 updates.
    """

    def __init__(self, layout: ParameterLayout, config: OptimizerConfig) -> None:
        super().__init__(layout, config)
        size = layout.size
        self.variables = {
            "mean_square": tf.Variable(tf.zeros([size]), name="mean_square"),
            # The fused operation needs it, and multiplies it by 0.
            "momentum": tf.Variable(tf.zeros([size]), name="momentum"),
            # α^t as a running product: a checkpoint then needs no step counter.
            "decay_power": tf.Variable(1.0, dtype=tf.float64, name="decay_power"),
        }

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        decay, epsilon = self.config.decay, tf.constant(self.config.epsilon)
        if self.config.bias_correction:
            power = self.variables["decay_power"]
            correction = tf.cast(1.0 - power.assign(power * decay), tf.float32)
            # With c = 1 - α^t: Δθ/√(g/c + ε) = √c · Δθ/√(g + cε), which the fused operation can compute.
            learning_rate = learning_rate * tf.sqrt(correction)
            epsilon = epsilon * correction
        tf.raw_ops.ResourceApplyRMSProp(
            var=parameters.handle,
            ms=self.variables["mean_square"].handle,
            mom=self.variables["momentum"].handle,
            lr=learning_rate,
            rho=tf.constant(decay),
            momentum=tf.constant(0.0),
            epsilon=epsilon,
            grad=gradient,
        )


# Decay of the mean and of the mean square: the values of the paper, of TensorFlow and of PyTorch.
_BETA_1, _BETA_2 = 0.9, 0.999


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arXiv 1412.6980) in the efficient form of its section 2, as in TensorFlow and Keras.

        m ← β₁m + (1-β₁)Δθ    v ← β₂v + (1-β₂)Δθ²    θ ← θ - η √(1-β₂^t)/(1-β₁^t) · m / (√v + ε̂)

    ε̂ is outside the root and not corrected; PyTorch corrects v first, which makes the same ε larger at the start.
    """

    def __init__(self, layout: ParameterLayout, config: OptimizerConfig) -> None:
        super().__init__(layout, config)
        size = layout.size
        self.variables = {
            "mean": tf.Variable(tf.zeros([size]), name="mean"),
            "mean_square": tf.Variable(tf.zeros([size]), name="mean_square"),
            # β₁^t and β₂^t as running products: a checkpoint then needs no step counter.
            "decay_powers": tf.Variable([1.0, 1.0], dtype=tf.float64, name="decay_powers"),
        }

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        powers = self.variables["decay_powers"]
        corrections = tf.cast(powers.assign(powers * tf.constant([_BETA_1, _BETA_2], tf.float64)), tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=self.variables["mean"].handle,
            v=self.variables["mean_square"].handle,
            beta1_power=corrections[0],
            beta2_power=corrections[1],
            lr=learning_rate,
            beta1=tf.constant(_BETA_1),
            beta2=tf.constant(_BETA_2),
            epsilon=tf.constant(self.config.epsilon),
            grad=gradient,
        )
