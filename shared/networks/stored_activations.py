"""Activations of acting that replace the forward pass of the gradient.

The weights do not change while a rollout is played: the forward pass of a rollout's only gradient would repeat the
computation of the hidden layers for the actions. With oneDNN on a Zen 4, agent steps per CPU second of environments,
acting and gradient together are 9 to 11 % more for a3c_cnn and 15 to 19 % more for nature_cnn, as in the preset
impala-shallow (docs/studies/throughput.md). With several gradients per rollout they would serve the first one only, and
nothing is stored.

Networks are written as plain forward passes. Their hidden layers call `hidden`. While a network is traced for acting,
`StoredActivations.recording` stores the output of each layer; while it is traced for the gradient, `replaying` returns
these tensors instead, with the gradient of the layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

Tensors = tuple[tf.Tensor, ...]

# Where a layer's outputs go to, or come from, while a network is traced; None for a plain forward pass.
_RECORDED: ContextVar[list[Tensors] | None] = ContextVar("recorded", default=None)
_REPLAYED: ContextVar[Iterator[Tensors] | None] = ContextVar("replayed", default=None)


def hidden(
    inputs: Tensors, forward: Callable[[], Tensors], gradient: Callable[[tf.Tensor, Tensors], tuple]
) -> tf.Tensor:
    """The output of a hidden layer: computed, or known from acting.

    Gradients flow into `inputs`. `forward` computes what the gradient needs of the layer, [N, …] each, the output
    first. `gradient` gives the gradients by `inputs`, from the gradient by the output and the tensors of `forward`.
    """
    replayed = _REPLAYED.get()
    if replayed is None:
        tensors = forward()
        recorded = _RECORDED.get()
        if recorded is not None:
            recorded.append(tensors)
        return tensors[0]
    activations = next(replayed)

    @tf.custom_gradient
    def layer(*inputs: tf.Tensor) -> tuple:  # noqa: ARG001
        return tf.identity(activations[0]), lambda grad_output: gradient(grad_output, activations)

    return layer(*inputs)


class StoredActivations:
    """Outputs of the hidden layers of a network from playing a rollout, [T, B, …] each."""

    def __init__(self, unroll_length: int) -> None:
        self._unroll_length = unroll_length
        self._variables: list[tuple[tf.Variable, ...]] = []

    @contextmanager
    def recording(self, t: tf.Tensor) -> Iterator[None]:
        """Graph code: store the outputs of hidden layers within the block as time `t`, an int32 scalar."""
        # What each layer keeps, the output first.
        layers: list[Tensors] = []
        token = _RECORDED.set(layers)
        try:
            yield
        finally:
            _RECORDED.reset(token)
        if not self._variables:
            # Shapes are known only now, while the graph is traced: the variables are made outside of it.
            with tf.init_scope():
                self._variables = [tuple(map(self._variable, layer)) for layer in layers]
        for variables, layer in zip(self._variables, layers, strict=True):
            for variable, tensor in zip(variables, layer, strict=True):
                tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=t, updates=tensor)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Graph code: within the block the network's hidden layers return the stored outputs, [T · B, …]."""
        token = _REPLAYED.set(tuple(map(_merged, layer)) for layer in self._variables)
        try:
            yield
        finally:
            _REPLAYED.reset(token)

    def _variable(self, tensor: tf.Tensor) -> tf.Variable:
        zeros = tf.zeros((self._unroll_length, *tensor.shape), tensor.dtype)
        return tf.Variable(zeros, trainable=False, name="activations")


def _merged(variable: tf.Variable) -> tf.Tensor:
    return tf.reshape(variable, (variable.shape[:2].num_elements(), *variable.shape[2:]))
