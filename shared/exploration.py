"""Exploration of actors. Each explorer has its own state: a random stream, ε, or noise that persists."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import ExplorationConfig
from shared.distributions import allowed_actions, categorical_sample, masked_logits
from shared.networks import NetworkOutput
from shared.schedules import linear_anneal


class Explorer(ABC):
    """Samples actions with exploration. Has a random stream, and may have other variables, such as ε or noise that
    persists."""

    def __init__(self, seed: int) -> None:
        self.generator = tf.random.Generator.from_seed(seed)

    def begin(self, frames: int) -> None:  # noqa: B027
        """Called with all new weights, with the global frames so far, for schedules."""

    @abstractmethod
    def sample(self, output: NetworkOutput) -> tf.Tensor:
        """Graph code: one action per environment, int32 [B(, C)] or float32 [B, D], from the output for a batch."""

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """The variables as arrays by name: the exploration of one actor."""
        return {"generator": self.generator.state.numpy()}

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Continue from a `state`, so that several actors share one explorer's graphs."""
        self.generator.state.assign(state["generator"])


class CategoricalSampler(Explorer):
    """Samples the head "policy" as logits of one choice, or of several at once with `choices` values each."""

    def __init__(self, seed: int, choices: tuple[int, ...] = ()) -> None:
        super().__init__(seed)
        self._choices = choices

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        return categorical_sample(output.heads["policy"], self.generator, self._choices)


class EpsilonGreedy(Explorer):
    """A random action with probability ε, else the one of highest value. Each environment has its own ε.

    Mnih et al. 2016 (arXiv 1602.01783, section 5.1): ε falls linearly from 1 to a value that is drawn once, 0.1, 0.01
    or 0.5 with probabilities 0.4, 0.3 and 0.3, so that some environments explore and others exploit at any time. The
    paper samples that value again during training. An evaluator has the smallest final value from the start. With
    `masked` random actions are drawn from the allowed ones.
    """

    def __init__(
        self, config: ExplorationConfig, environments: int, actions: int, seed: int, *, training: bool, masked: bool
    ) -> None:
        super().__init__(seed)
        self._config = config
        self._actions = actions
        self._masked = masked
        if training:
            self.final = final_epsilons(config, environments, seed)
            initial = np.ones(environments)
        else:
            self.final = initial = np.full(environments, min(config.final_epsilons))
        self._initial = initial
        self.epsilon = tf.Variable(initial.astype(np.float32), trainable=False, name="epsilon")

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        return super().state() | {"final": np.asarray(self.final)}

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        super().restore(state)
        self.final = np.asarray(state["final"])

    def begin(self, frames: int) -> None:
        annealing = self._config.annealing_frames
        values = [linear_anneal(*pair, frames, annealing) for pair in zip(self._initial, self.final, strict=True)]
        self.epsilon.assign(np.array(values, np.float32))

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        values = output.heads["action_values"]
        greedy = tf.argmax(values, axis=-1, output_type=tf.int32)
        if self._masked:
            anything = categorical_sample(masked_logits(tf.zeros_like(values), allowed_actions(values)), self.generator)
        else:
            anything = self.generator.uniform(tf.shape(greedy), 0, self._actions, tf.int32)
        return tf.where(self.generator.uniform(tf.shape(greedy)) < self.epsilon, anything, greedy)


# Mnih et al. 2016 (arXiv 1602.01783, section 5.1), of the final values 0.1, 0.01 and 0.5.
_PROBABILITIES = (0.4, 0.3, 0.3)


def final_epsilons(config: ExplorationConfig, environments: int, seed: int) -> np.ndarray:
    """Draw a final ε for each environment: float64 [B].

    The probabilities are the paper's for three values, else equal. Systematic sampling keeps the shares as close to
    them as a small batch allows.
    """
    points = (np.random.default_rng(seed).random() + np.arange(environments)) / environments
    count = len(config.final_epsilons)
    probabilities = _PROBABILITIES if count == len(_PROBABILITIES) else (1.0 / count,) * count
    choice = np.searchsorted(np.cumsum(probabilities), points, side="right")
    return np.array(config.final_epsilons)[np.minimum(choice, count - 1)]


class GaussianNoise(Explorer):
    """Samples N(μ, σ²) independently at each step; `gaussian` gives μ and log σ of an output."""

    def __init__(self, seed: int, gaussian: Callable[[NetworkOutput], tuple[tf.Tensor, tf.Tensor]]) -> None:
        super().__init__(seed)
        self._gaussian = gaussian

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        mean, log_std = self._gaussian(output)
        return mean + tf.exp(log_std) * self.generator.normal(tf.shape(mean))


class StateDependentNoise(Explorer):
    """a = μ(s) + Wᵀz(s), with W kept for several steps: exploration that persists in time.

    Raffin et al. 2022 (arXiv 2005.05719). W_hd = σ_hd · ξ_hd with ξ standard normal. An environment draws its ξ anew
    with probability 1 / `persistence` at each step; over the draws the action is N(μ(s), σ(s)²) as in the loss.
    """

    def __init__(self, environments: int, dimensions: int, seed: int, persistence: int) -> None:
        super().__init__(seed)
        self._shape = (environments, dimensions)
        self._renewal = 1.0 / persistence
        self._noise: tf.Variable | None = None

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        noise = {} if self._noise is None else {"noise": self._noise.numpy()}
        return super().state() | noise

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        super().restore(state)
        if self._noise is not None:
            # A state of before the first sample has none: it is drawn then.
            shape = self._noise.shape
            self._noise.assign(state["noise"] if "noise" in state else self.generator.normal(shape))

    def sample(self, output: NetworkOutput) -> tf.Tensor:
        environments, dimensions = self._shape
        features = tf.cast(output.features, tf.float32)
        shape = (environments, features.shape[-1], dimensions)
        if self._noise is None:
            # The number of features is known only while the graph is traced: the variable is made outside of it.
            with tf.init_scope():
                self._noise = tf.Variable(self.generator.normal(shape), trainable=False, name="noise")
        renewed = self.generator.uniform((environments, 1, 1)) < self._renewal
        noise = self._noise.assign(tf.where(renewed, self.generator.normal(shape), self._noise))
        weights = noise * tf.exp(output.parameters["log_std"])
        return output.heads["policy"] + tf.einsum("bh,bhd->bd", features, weights)
