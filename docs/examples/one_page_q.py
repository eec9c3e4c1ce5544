"""Asynchronous n-step Q-learning and Sarsa on one page (Mnih et al. 2016, arXiv 1602.01783, Algorithm S2).

Run it: two threads learn CartPole together, in plain TensorFlow; `sarsa` as an argument bootstraps from the action that
follows. The system in this repository computes the same numbers; a test holds the two against each other. Without
replay memory, the threads' ε differ, and a target network θ⁻ follows θ every I_target agent steps.

Shapes are time-major: T steps of B environments. `rewards[t]` follows `actions[t]`, taken in `observations[t]`."""

import sys
import threading
from collections import deque
from typing import NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, SyncVectorEnv

DISCOUNT, TARGET_INTERVAL, ANNEALING_STEPS, FINAL_EPSILONS = 0.99, 1_000, 50_000, (0.1, 0.01, 0.5)
LEARNING_RATE, DECAY, EPSILON, MAX_GRADIENT_NORM = 2e-3, 0.99, 1e-3, 10.0
THREADS, ENVIRONMENTS, UNROLL_LENGTH, TOTAL_STEPS, UNITS = 2, 16, 5, 400_000, 64


class Rollout(NamedTuple):
    """`observations` [T + 1, B, …], `next_actions` [B], those in the last ones; the others [T, B].

    `mask` is 0 where a step only reset the environment."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    mask: np.ndarray
    next_actions: np.ndarray


def initial_weights(observation_size: int, actions: int, seed: int = 1) -> list[tf.Variable]:
    """A perceptron with two tanh layers, for a value Q(s, a) of each action."""
    weights = []
    for fan_in, fan_out, gain in ((observation_size, UNITS, 2**0.5), (UNITS, UNITS, 2**0.5), (UNITS, actions, 0.01)):
        start = tf.keras.initializers.Orthogonal(gain, seed=seed + len(weights))
        weights += [tf.Variable(start((fan_in, fan_out))), tf.Variable(tf.zeros(fan_out))]
    return weights


def action_values(weights: list, observations: tf.Tensor) -> tf.Tensor:
    """Q(s, ·) [..., A]."""
    w1, b1, w2, b2, w3, b3 = weights
    hidden = tf.tanh(tf.tensordot(tf.tanh(tf.tensordot(observations, w1, 1) + b1), w2, 1) + b2)
    return tf.tensordot(hidden, w3, 1) + b3


def n_step_returns(rewards, discounts, mask, bootstrap_values) -> tf.Tensor:
    """R ← r + γR, backwards from the last state. At a reset R is the value of the true last state of the episode."""
    returns, following = [], bootstrap_values[-1]
    for t in reversed(range(UNROLL_LENGTH)):
        following = mask[t] * (rewards[t] + discounts[t] * following) + (1.0 - mask[t]) * bootstrap_values[t]
        returns.append(following)
    return tf.stack(returns[::-1])


@tf.function
def gradient(weights: list, target_weights: list, rollout: Rollout, sarsa: bool) -> list[tf.Tensor]:
    """dθ of Σ (R - Q(s, a; θ))², where R begins with max_a Q(s, a; θ⁻), or with Q(s, a; θ⁻) of the action taken."""
    targets = action_values(target_weights, rollout.observations)
    actions = tf.concat([rollout.actions, rollout.next_actions[None]], axis=0)
    of_actions = tf.gather(targets, actions, axis=-1, batch_dims=2)
    bootstrap_values = of_actions if sarsa else tf.reduce_max(targets, axis=-1)
    returns = n_step_returns(rollout.rewards, rollout.discounts, rollout.mask, bootstrap_values)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        values = action_values(weights, rollout.observations[:-1])
        errors = returns - tf.gather(values, rollout.actions, axis=-1, batch_dims=2)
        loss = tf.reduce_sum(rollout.mask * tf.square(errors))
    return tape.gradient(loss, weights)


class Learner:
    """The shared weights θ, the target weights θ⁻ and the shared mean square g of RMSProp."""

    def __init__(self, weights: list[tf.Variable]) -> None:
        self.weights, self.steps, self.lock = weights, 0, threading.Lock()
        self.target_weights = [tf.identity(w) for w in weights]
        self.mean_squares = [tf.Variable(tf.zeros_like(w)) for w in weights]

    def snapshot(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Copies of θ and θ⁻, which no update changes any more."""
        with self.lock:
            return [tf.identity(w) for w in self.weights], self.target_weights

    def apply(self, gradients: list[tf.Tensor], steps: int) -> None:
        """One update by RMSProp, and θ⁻ ← θ if the agent steps of all threads have crossed a multiple of I_target."""
        clipped, _ = tf.clip_by_global_norm(gradients, MAX_GRADIENT_NORM)
        with self.lock:
            for weight, mean_square, delta in zip(self.weights, self.mean_squares, clipped, strict=True):
                mean_square.assign(DECAY * mean_square + (1.0 - DECAY) * tf.square(delta))
                weight.assign_sub(LEARNING_RATE * delta / tf.sqrt(mean_square + EPSILON))
            before, self.steps = self.steps, self.steps + steps
            if self.steps // TARGET_INTERVAL > before // TARGET_INTERVAL:
                self.target_weights = [tf.identity(w) for w in self.weights]


class Actor:
    """B environments, and the rollouts that are played in them."""

    def __init__(self, seed: int) -> None:
        self.environments = SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        self.random = np.random.default_rng(seed)
        self.final = self.random.choice(FINAL_EPSILONS, ENVIRONMENTS, p=(0.4, 0.3, 0.3))
        self.observations, _ = self.environments.reset(seed=seed)
        self.resets_next, self.actions = np.zeros(ENVIRONMENTS, bool), None
        self.returns, self.ended = np.zeros(ENVIRONMENTS), deque(maxlen=100)

    def choose(self, weights: list[tf.Tensor], steps: int) -> np.ndarray:
        """ε-greedy actions; ε falls from 1 to its final value."""
        epsilons = 1.0 + min(1.0, steps / ANNEALING_STEPS) * (self.final - 1.0)
        values = action_values(weights, tf.constant(self.observations, tf.float32)).numpy()
        anything = self.random.integers(0, values.shape[-1], ENVIRONMENTS)
        return np.where(self.random.random(ENVIRONMENTS) < epsilons, anything, values.argmax(axis=-1))

    def play(self, weights: list[tf.Tensor], steps: int) -> Rollout:
        """T steps with fixed weights. The first action is chosen already, with the last rollout's: Sarsa needs it."""
        taken = []
        actions = self.choose(weights, steps) if self.actions is None else self.actions
        for _ in range(UNROLL_LENGTH):
            before, live = self.observations, ~self.resets_next
            self.observations, rewards, terminated, truncated, _ = self.environments.step(actions)
            taken.append((before, actions, rewards, DISCOUNT * ~terminated, live))
            self.returns += rewards * live
            self.resets_next = terminated | truncated
            self.ended.extend(self.returns[self.resets_next])
            self.returns[self.resets_next] = 0.0
            actions = self.choose(weights, steps)
        self.actions = actions
        observations, played, rewards, discounts, live = (np.stack(column) for column in zip(*taken, strict=True))
        observations = np.concatenate([observations, self.observations[None]]).astype(np.float32)
        return Rollout(observations, played, *(np.float32(x) for x in (rewards, discounts, live)), actions)


def work(learner: Learner, actor: Actor, sarsa: bool) -> None:
    """One thread of Algorithm S2: copy θ, act for T steps, differentiate, hand the gradient over, and again."""
    while learner.steps < TOTAL_STEPS:
        weights, target_weights = learner.snapshot()
        rollout = actor.play(weights, learner.steps)
        learner.apply(gradient(weights, target_weights, rollout, sarsa), int(rollout.mask.sum()))


if __name__ == "__main__":
    learner, actors = Learner(initial_weights(4, 2)), [Actor(1000 * i) for i in range(THREADS)]
    method = sys.argv[1:] == ["sarsa"]
    threads = [threading.Thread(target=work, args=(learner, actor, method), daemon=True) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(timeout=2)
            recent = [value for actor in actors for value in list(actor.ended)] or [0.0]
            print(f"{learner.steps:,} of {TOTAL_STEPS:,} agent steps, mean return {np.mean(recent):.1f}", flush=True)
