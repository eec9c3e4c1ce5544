"""Double-buffered sampling on a GPU (Petrenko et al. 2020, arXiv 2006.11751): the network plays one vector of
environments while the other is emulated.

    vector 0, emulated   ███████    ███████    ███████
    vector 1, emulated        ███████    ███████    ███████
    network plays        0    1    0    1    0    1    0

The host has the small results of environments; the device has the observations and the network's results.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import AtariAdapter, EnvironmentSpec, NonFinite, StepResult, VectorEnvironment, adapter_of
from actors.gradient import Gradients
from actors.player import PlayedRollout
from actors.policy import Policy
from actors.rollout import RolloutBuilder
from shared.config import RunConfig
from shared.config.training import VECTORS
from shared.errors import setting_error
from shared.graph import Graph, has_gpu

_T = TypeVar("_T")


class DevicePlayer:
    """A `Player` whose observations are on the device that TensorFlow computes with.

    Each observation is uploaded once: for Atari its newest frame, which the device stacks; otherwise the whole
    observation, with its action mask if there is one. One graph call stores the observations in the ring of the
    rollout, and samples the actions. Values and log π of the actions stay in rings of their own. Rewards and ends are
    collected on the host, see `RolloutBuilder`, and follow with the gradient.

    Row 2t + v of a ring has the values of vector v at time t: reshaped to [T, B, …] it is the same memory. Both vectors
    take their random numbers from the stream of the policy, in turn. So actions depend on the number of environments,
    and differ from those of the CPU's `Player`, which draws for all environments at once.

    `gradients` read the rings. For `seeds` see `Player`. `emulator_threads` step one of the vectors.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        policy: Policy,
        gradients: Gradients,
        seeds: npt.NDArray[np.int64],
        emulator_threads: int = 1,
    ) -> None:
        if policy.method.needs_next_actions:
            raise setting_error("method.name", config.method.name, "does not run with --actor.device gpu; use cpu")
        actor = config.actor
        self._policy, self._gradients, self._unroll_length = policy, gradients, actor.unroll_length
        self._stacks_frames = isinstance(adapter_of(config.environment), AtariAdapter)
        # One vector after another: ale-py's constructor is not meant for several threads at once.
        self._vectors = [
            EmulatedVector(config, of_one, emulator_threads, newest_frame=self._stacks_frames)
            for of_one in np.split(seeds, VECTORS)
        ]
        # Numbers replaced in the first observations, until the first rollout begins.
        self._first_non_finite = _joined_non_finite([vector.reset_non_finite for vector in self._vectors])
        self.builder = RolloutBuilder(config, (0,), spec.observation_dtype, spec.actions)
        count = actor.environments // VECTORS
        self._times = [tf.constant(t) for t in range(actor.unroll_length + 1)]
        self._observations = self._ring(actor.unroll_length + 1, (count, *spec.row_shape), spec.observation_dtype)
        self._output_rings = [self._ring(actor.unroll_length, (count,), "float32") for _ in ("values", "log_probs")]
        number = tf.TensorSpec((), tf.int32)
        shape = spec.row_shape[:-1] if self._stacks_frames else spec.row_shape
        images, restarted = tf.TensorSpec((count, *shape), spec.observation_dtype), tf.TensorSpec((count,), tf.bool)
        signature = [number, number, images, restarted]
        self._act = Graph(self._act_graph, signature, compiled=policy.compiled)
        self._store = Graph(self._store_graph, signature, compiled=policy.compiled)
        self._store_newest(actor.unroll_length)

    @staticmethod
    def make_policy(config: RunConfig, spec: EnvironmentSpec, seed: int) -> Policy:
        """A policy that acts for one of the vectors, compiled where there is a GPU.

        A prototype on an H100 made 12,600 agent steps a second with XLA and 7,500 without, where TensorFlow has no
        kernel that gathers the uint8 images of a minibatch. A CPU computes these convolutions 1.4 to 2 times slower
        with it.
        """
        return Policy(config, spec, environments=config.actor.environments // VECTORS, seed=seed, compiled=has_gpu())

    def play(self) -> PlayedRollout:
        """Play T vector steps with the current weights."""
        clock = time.perf_counter
        environment = acting = 0.0
        last = self._unroll_length
        last_actions: list[npt.NDArray[np.generic]] = []
        self.builder.begin(non_finite=self._first_non_finite)
        self._first_non_finite = None
        for t in range(last + 1):
            results: list[StepResult] = []
            next_actions: list[npt.NDArray[np.generic]] = []
            for index, vector in enumerate(self._vectors):
                before = clock()
                if t > 0:
                    results.append(vector.end_step())
                stepped = clock()
                if t < last:
                    (actions,) = self._act(self._times[t], self._times[index], vector.shown, vector.restarted)
                    next_actions.append(actions.numpy())
                    vector.begin_step(next_actions[-1])
                environment += stepped - before
                acting += clock() - stepped
            if t > 0:
                # Both vectors are emulated meanwhile.
                self.builder.add(np.concatenate(last_actions), _joined(results))
            last_actions = next_actions
        before = clock()
        self._store_newest(last)
        self._gradients.keep_rollout(*(self._time_major(ring) for ring in self._output_rings))
        rollout = self.builder.finish()._replace(observations=self._time_major(self._observations))
        return PlayedRollout(rollout, environment, acting + clock() - before)

    def _store_newest(self, t: int) -> None:
        for index, vector in enumerate(self._vectors):
            self._store(self._times[t], self._times[index], vector.shown, vector.restarted)

    def _act_graph(self, t: tf.Tensor, vector: tf.Tensor, images: tf.Tensor, restarted: tf.Tensor) -> tf.Tensor:
        """Actions [B / 2, …] of a vector at time `t`, from its observations then."""
        observations = images
        if self._stacks_frames:
            last, stacked = self._stacks(t, vector, images, restarted)
            # At the beginning the newest frame is in the stack already: it ended the rollout before.
            observations = tf.where(t > 0, stacked, last)
        _write(self._observations, t, vector, observations)
        actions, *outputs = self._policy.sampled(observations)
        for ring, tensor in zip(self._output_rings, outputs, strict=False):
            if tensor is not None:
                _write(ring, t, vector, tensor)
        return actions

    def _store_graph(self, t: tf.Tensor, vector: tf.Tensor, images: tf.Tensor, restarted: tf.Tensor) -> None:
        observations = self._stacks(t, vector, images, restarted)[1] if self._stacks_frames else images
        _write(self._observations, t, vector, observations)

    def _stacks(
        self, t: tf.Tensor, vector: tf.Tensor, frames: tf.Tensor, restarted: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The stacks of a vector before time `t`, and with its new `frames`, uint8 [B / 2, height, width, stack].

        As ale-py's are, they are black before the first frame of an episode, which environments show that `restarted`.
        """
        last = tf.gather(self._observations, _row((t - 1) % (self._unroll_length + 1), vector))
        older = tf.where(restarted[:, None, None, None], tf.zeros((), last.dtype), last[..., 1:])
        return last, tf.concat([older, frames[..., None]], axis=-1)

    @staticmethod
    def _ring(times: int, shape: tuple[int, ...], dtype: str) -> tf.Variable:
        return tf.Variable(tf.zeros((times * VECTORS, *shape), dtype), trainable=False, name="ring")

    @staticmethod
    def _time_major(ring: tf.Variable) -> tf.Tensor:
        """A ring as [T, B, …]. Without XLA this is a copy, because rows are written in place; with XLA it is none, and
        later writes copy the ring if this tensor still exists.
        """
        rows, count, *rest = ring.shape
        return tf.reshape(ring, (rows // VECTORS, VECTORS * count, *rest))

    def close(self) -> None:
        for vector in self._vectors:
            vector.close()


def _row(t: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    return t * VECTORS + vector


def _write(ring: tf.Variable, t: tf.Tensor, vector: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=ring.handle, indices=_row(t, vector), updates=values)


class EmulatedVector:
    """Environments that a thread steps while the network plays others.

    `shown` are their observations [B, *row_shape], or, with `newest_frame`, uint8 [B, height, width]. `restarted` bool
    [B] marks environments that only reset in the last step.
    """

    def __init__(self, config: RunConfig, seeds: npt.NDArray[np.int64], threads: int, *, newest_frame: bool) -> None:
        self._newest_frame = newest_frame
        settings = replace(config.environment, frame_stack=1) if newest_frame else config.environment
        # The thread also makes and closes them: the renderer of their images may belong to one thread, as OpenGL does.
        self._thread = ThreadPoolExecutor(1, "emulator")
        self._environments = self._in_thread(lambda: VectorEnvironment(settings, len(seeds), threads))
        self.shown = self._newest_of(self._in_thread(lambda: self._environments.reset(seeds)))
        self.reset_non_finite = self._environments.reset_non_finite
        self.restarted = np.ones(len(seeds), bool)
        self._ended = np.zeros(len(seeds), bool)
        self._step: Future[StepResult] | None = None

    def begin_step(self, actions: npt.NDArray[np.generic]) -> None:
        self._step = self._thread.submit(self._environments.step, actions)

    def end_step(self) -> StepResult:
        assert self._step is not None, "a step begins first"
        result, self._step = self._step.result(), None
        self.shown = self._newest_of(result.observations)
        self.restarted, self._ended = self._ended, result.terminated | result.truncated
        return result

    def close(self) -> None:
        # A step under way ends first.
        self._in_thread(self._environments.close)
        self._thread.shutdown()

    def _in_thread(self, function: Callable[[], _T]) -> _T:
        return self._thread.submit(function).result()

    def _newest_of(self, observations: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return observations[..., 0] if self._newest_frame else observations


def _joined(results: Sequence[StepResult]) -> StepResult:
    """One result of the steps of all vectors, without observations, which are on the device."""
    _, *columns, infos, faults = zip(*results, strict=True)
    rewards, terminated, truncated, lost_life = map(np.concatenate, columns)
    info = {name: np.concatenate([info[name] for info in infos]) for name in infos[0]}
    unseen = np.empty((len(rewards), 0), np.uint8)
    return StepResult(unseen, rewards, terminated, truncated, lost_life, info, _joined_non_finite(faults))


def _joined_non_finite(parts: Sequence[NonFinite | None]) -> NonFinite | None:
    """The numbers replaced in the observations of all vectors."""
    faults = [part for part in parts if part is not None]
    if not faults:
        return None
    none = np.zeros_like(faults[0].environments)
    return NonFinite(np.concatenate([none if part is None else part.environments for part in parts]), faults[0].number)
