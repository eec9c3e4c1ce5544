"""RMSProp over one flat vector, in the form of the A3C paper."""

import tensorflow as tf

from shared.config import OptimizerConfig


class RMSProp:
    """Shared RMSProp without centring (Mnih et al. 2016, arXiv 1602.01783, eq. 8 and 9).

        g ← αg + (1-α)Δθ²        θ ← θ - η Δθ / √(g + ε)

    ε is inside the root, as in the paper and in Keras; PyTorch puts it outside. With momentum μ the step is
    m ← μm + ηΔθ/√(g + ε), θ ← θ - m.

    With bias correction g is divided by 1 - α^t at update t, as in Adam. Without it, and with g starting at 0 and
    ε small, the first update moves every weight by η/√(1-α), ten times η for α = 0.99; on Pong that has been seen
    to kill most of the ReLU units of the hidden layer within 70 updates.

    Args:
        size: P.
        config: α, ε, μ, the initial g and whether it is corrected.
    """

    def __init__(self, size: int, config: OptimizerConfig) -> None:
        self._config = config
        self.mean_square = tf.Variable(tf.fill([size], float(config.initial_mean_square)), name="mean_square")
        self.momentum = tf.Variable(tf.zeros([size]), name="momentum")
        # α^t, kept as a running product so that it is saved and restored with the rest.
        self.decay_power = tf.Variable(1.0, dtype=tf.float64, name="decay_power")

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update `parameters` float32 [P] in place by `gradient` float32 [P] and η, a float32 scalar. Graph code."""
        decay, epsilon = self._config.decay, tf.constant(self._config.epsilon)
        if self._config.bias_correction:
            correction = tf.cast(1.0 - self.decay_power.assign(self.decay_power * decay), tf.float32)
            # Δθ/√(g/c + ε) = √c · Δθ/√(g + cε): the fused operation takes the corrected form as it is.
            learning_rate = learning_rate * tf.sqrt(correction)
            epsilon = epsilon * correction
        tf.raw_ops.ResourceApplyRMSProp(
            var=parameters.handle,
            ms=self.mean_square.handle,
            mom=self.momentum.handle,
            lr=learning_rate,
            rho=tf.constant(decay),
            momentum=tf.constant(self._config.momentum),
            epsilon=epsilon,
            grad=gradient,
        )
