"""A network of each kind and observations for it; and one whose outputs are looked up in a table."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from shared.config import NetworkConfig
from shared.methods.method import Method, MethodLoss, RolloutTensors, Samples, TargetInputs, Targets
from shared.networks import Head, Network, NetworkOutput
from shared.networks.composed import MultiInputNetwork
from shared.networks.recurrent import RecurrentNetwork
from shared.registry import NETWORKS, class_of
from shared.types import ImagePart, ObservationParts

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
# Rows of 12 + 2,592 + 1,369 bytes, which four does not divide.
PARTS = ObservationParts(
    (("speed", 1), ("gear", 2)), (ImagePart("image_left", (36, 36, 2)), ImagePart("image_right", (37, 37, 1)))
)
_SHAPES = {"mlp": (5,), "impala_resnet": (20, 20, 2), "multi_input": (PARTS.row_size,)}


def network(
    kind: str,
    *,
    shape: tuple[int, ...] | None = None,
    mean: np.ndarray | None = None,
    recurrent: bool = False,
    trained: bool = True,
    **settings: object,
) -> Network:
    """A network by its name in the settings, or `multi_input`, for `PARTS`; with `recurrent`, an LSTM over it.

    As if `trained` for a while: at 0 and 1, biases, gains and moments would hide what is wrong about them.
    """
    name = "a3c_cnn" if kind == "multi_input" else kind
    config = NetworkConfig(**{"name": name, "hidden_sizes": (8, 6)} | settings)
    heads, class_ = () if recurrent else HEADS, class_of(NETWORKS[name])
    made: Network
    if kind == "multi_input":
        made = MultiInputNetwork(config, PARTS, heads, 1, class_, mean)
    else:
        made = class_(config, shape or shape_of(kind), heads, 1, mean)
    if recurrent:
        made = RecurrentNetwork(made, HEADS, 7, 1)
    random = np.random.default_rng(1)
    for variable in made.variables if trained else ():
        if "norm" in variable.path or "bias" in variable.path:
            variable.assign(variable.numpy() + random.normal(0.0, 0.3, variable.shape))
        if "observation_scaling" in variable.path:
            variable.assign(np.linspace(0.5, 2, variable.shape[0]))
    return made


def shape_of(kind: str) -> tuple[int, ...]:
    return _SHAPES.get(kind, (36, 36, 4))


def observations(kind: str, *leading: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if kind == "mlp":
        return random.normal(size=(*leading, *shape_of(kind))).astype(np.float32)
    rows = random.integers(0, 256, (*leading, *shape_of(kind)), np.uint8)
    if kind == "multi_input":
        PARTS.vectors(rows)[...] = random.normal(0, 3, (*leading, PARTS.vector_size))
    return rows


class Scripted:
    """A network whose head is `table[observation]`, with the value last if `value`. Counts the observations it gets."""

    state_units = ()
    unroll = Network.unroll

    def __init__(self, table: np.ndarray, head: str = "action_values", *, value: bool = False) -> None:
        self.table, self._head, self._value = tf.Variable(table), head, value
        self.asked = 0

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:  # noqa: ARG002
        self.asked += observations.shape[0]
        rows = tf.gather(self.table, tf.cast(observations[:, 0], tf.int32))
        heads = {self._head: rows[:, :-1], "value": rows[:, -1:]} if self._value else {self._head: rows}
        return NetworkOutput(heads, tf.ones((observations.shape[0], 2)), {})


def targets_of(
    method: Method, network: Network, target_network: Network | None, rollout: RolloutTensors, values: tf.Tensor
) -> Targets:
    """The targets with these values, at the weights that acted."""
    zeros = tf.zeros_like(values)
    return method.targets(TargetInputs(network, target_network, rollout, values, zeros, zeros))


def loss_of(method: Method, network: Network, target_network: Network | None, rollout: RolloutTensors) -> MethodLoss:
    output = network.unroll(rollout.observations[:-1], rollout.first_state, rollout.mask)
    values, log_probs = method.value(output), method.log_prob(output, rollout.actions)
    log_probs = tf.zeros_like(values) if log_probs is None else log_probs
    inputs = TargetInputs(network, target_network, rollout, tf.stop_gradient(values), log_probs, log_probs)
    targets, _ = method.standardised_targets(inputs)
    return method.sample_loss(output, Samples(rollout.actions, rollout.mask, *targets))
