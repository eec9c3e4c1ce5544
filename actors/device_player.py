"""Plays rollouts on a GPU: the network plays one vector of environments while the other one is emulated.

    vector 0, emulated   ███████    ███████    ███████
    vector 1, emulated        ███████    ███████    ███████
    network plays        0    1    0    1    0    1    0

The host has what environments give and is small; the device has the frames, and what the network makes of them.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec, StepResult, VectorEnvironment
from actors.gradient import Gradients
from actors.player import PlayedRollout
from actors.policy import Policy
from actors.rollout import RolloutBuilder
from shared.config import RunConfig
from shared.config.training import VECTORS
from shared.errors import setting_error
from shared.graph import Graph, has_gpu


class DevicePlayer:
    """A `Player` for Atari games whose observations are on the device that TensorFlow computes with.

    The newest frame of each environment is uploaded once. One graph call shifts it into the stack of frames, stores
    that in the ring of the rollout, and samples the actions. Values and log π of the actions stay in rings of their
    own. Rewards and ends are collected on the host, see `RolloutBuilder`, and follow with the gradient.

    A ring has the rows of a rollout one time after another, and of one time those of both vectors: as [T, B, …] it is
    the same memory. Both vectors take their random numbers from the stream of the policy, in turn. So another number of
    environments gives other actions, and the CPU's `Player`, which draws those of all environments at once, too.

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
            raise setting_error("method.name", config.method.name, "is not carried with --actor.device gpu")
        actor = config.actor
        self._policy, self._gradients, self._unroll_length = policy, gradients, actor.unroll_length
        # One vector after another: ale-py's constructor is not meant for several threads at once.
        self._vectors = [_EmulatedVector(config, of_one, emulator_threads) for of_one in np.split(seeds, VECTORS)]
        self.builder = RolloutBuilder(config, (0,), spec.observation_dtype, spec.actions)
        count = actor.environments // VECTORS
        self._times = [tf.constant(t) for t in range(actor.unroll_length + 1)]
        self._observations = self._ring(
            actor.unroll_length + 1, (count, *spec.observation_shape), spec.observation_dtype
        )
        self._acted = [self._ring(actor.unroll_length, (count,), "float32") for _ in ("values", "log_probs")]
        number = tf.TensorSpec((), tf.int32)
        frames = tf.TensorSpec((count, *spec.observation_shape[:-1]), spec.observation_dtype)
        signature = [number, number, frames, tf.TensorSpec((count,), tf.bool)]
        self._act = Graph(self._act_graph, signature, compiled=policy.compiled)
        self._see = Graph(self._see_graph, signature, compiled=policy.compiled)
        self._see_newest(actor.unroll_length)

    @staticmethod
    def make_policy(config: RunConfig, spec: EnvironmentSpec, seed: int) -> Policy:
        """A policy that acts for one of the vectors, compiled where there is a GPU.

        A prototype on an H100 made 12,600 agent steps a second with XLA and 7,500 without, where TensorFlow has no
        kernel that gathers the uint8 images of a minibatch. A CPU computes these convolutions 1.4 to 2 times slower
        with it.
        """
        return Policy(config, spec, environments=config.actor.environments // VECTORS, seed=seed, compiled=has_gpu())

    def play(self) -> PlayedRollout:
        clock = time.perf_counter
        environment = acting = 0.0
        last = self._unroll_length
        taken: list[npt.NDArray[np.generic]] = []
        self.builder.begin()
        for t in range(last + 1):
            results: list[StepResult] = []
            chosen: list[npt.NDArray[np.generic]] = []
            for index, vector in enumerate(self._vectors):
                before = clock()
                if t > 0:
                    results.append(vector.end_step())
                stepped = clock()
                if t < last:
                    (actions,) = self._act(self._times[t], self._times[index], vector.frames, vector.restarted)
                    chosen.append(actions.numpy())
                    vector.begin_step(chosen[-1])
                environment += stepped - before
                acting += clock() - stepped
            if t > 0:
                # Both vectors are emulated meanwhile.
                self.builder.add(np.concatenate(taken), _joined(results))
            taken = chosen
        before = clock()
        self._see_newest(last)
        self._gradients.keep_rollout(*(self._time_major(ring) for ring in self._acted))
        rollout = self.builder.finish()._replace(observations=self._time_major(self._observations))
        return PlayedRollout(rollout, environment, acting + clock() - before)

    def _see_newest(self, t: int) -> None:
        for index, vector in enumerate(self._vectors):
            self._see(self._times[t], self._times[index], vector.frames, vector.restarted)

    def _act_graph(self, t: tf.Tensor, vector: tf.Tensor, frames: tf.Tensor, restarted: tf.Tensor) -> tf.Tensor:
        """Actions int32 [B / 2] of a vector at time `t`, at which it shows `frames`."""
        last, stacked = self._stacks(t, vector, frames, restarted)
        # At the beginning the newest frame is in the stack already: it ended the rollout before.
        observations = tf.where(t > 0, stacked, last)
        _write(self._observations, t, vector, observations)
        actions, *kept = self._policy.sampled(observations)
        for ring, tensor in zip(self._acted, kept, strict=False):
            if tensor is not None:
                _write(ring, t, vector, tensor)
        return actions

    def _see_graph(self, t: tf.Tensor, vector: tf.Tensor, frames: tf.Tensor, restarted: tf.Tensor) -> None:
        _, stacked = self._stacks(t, vector, frames, restarted)
        _write(self._observations, t, vector, stacked)

    def _stacks(
        self, t: tf.Tensor, vector: tf.Tensor, frames: tf.Tensor, restarted: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The stacks of a vector before time `t`, and those with its new `frames`, uint8 [B / 2, height, width, stack].

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
        """A ring as [T, B, …], without a copy. Later writes copy the ring if this tensor still exists."""
        rows, count, *rest = ring.shape
        return tf.reshape(ring, (rows // VECTORS, VECTORS * count, *rest))

    @property
    def traces(self) -> int:
        return self._act.traces + self._see.traces

    def close(self) -> None:
        for vector in self._vectors:
            vector.close()


def _row(t: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    return t * VECTORS + vector


def _write(ring: tf.Variable, t: tf.Tensor, vector: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=ring.handle, indices=_row(t, vector), updates=values)


class _EmulatedVector:
    """Environments that a thread steps while the network plays others.

    `frames` uint8 [B, height, width] are the newest ones. `restarted` bool [B] marks those of environments that only
    reset in the last step.
    """

    def __init__(self, config: RunConfig, seeds: npt.NDArray[np.int64], threads: int) -> None:
        # The device stacks frames.
        self._environments = VectorEnvironment(replace(config.environment, frame_stack=1), len(seeds), threads)
        self.frames = self._environments.reset(seeds)[..., 0]
        self.restarted = np.ones(len(seeds), bool)
        self._ended = np.zeros(len(seeds), bool)
        self._thread = ThreadPoolExecutor(1, "emulator")
        self._step: Future[StepResult] | None = None

    def begin_step(self, actions: npt.NDArray[np.generic]) -> None:
        self._step = self._thread.submit(self._environments.step, actions)

    def end_step(self) -> StepResult:
        assert self._step is not None, "a step begins first"
        result, self._step = self._step.result(), None
        self.frames = result.observations[..., 0]
        self.restarted, self._ended = self._ended, result.terminated | result.truncated
        return result

    def close(self) -> None:
        # A step under way ends first.
        self._thread.shutdown()
        self._environments.close()


def _joined(results: Sequence[StepResult]) -> StepResult:
    """One result of the steps of all vectors, without observations, which are on the device."""
    rewards, terminated, truncated, lost_life = (
        np.concatenate([getattr(result, name) for result in results])
        for name in ("rewards", "terminated", "truncated", "lost_life")
    )
    info = {name: np.concatenate([result.info[name] for result in results]) for name in results[0].info}
    return StepResult(np.empty((len(rewards), 0), np.uint8), rewards, terminated, truncated, lost_life, info)
