"""The whole method on one page: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, Algorithm S3).

Run it: two threads learn CartPole together, in plain TensorFlow. The system in this repository computes the same
numbers with processes in place of threads; a test holds the two against each other.

Shapes are time-major: T steps of B environments. `rewards[t]` follows `actions[t]`, taken in `observations[t]`."""

import threading
from collections import deque
from typing import NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, SyncVectorEnv

DISCOUNT, VALUE_COST, ENTROPY_COST = 0.99, 0.5, 0.001
LEARNING_RATE, DECAY, EPSILON, MAX_GRADIENT_NORM = 2e-3, 0.99, 1e-3, 0.5
THREADS, ENVIRONMENTS, UNROLL_LENGTH, TOTAL_STEPS, UNITS = 2, 8, 32, 400_000, 64


class Rollout(NamedTuple):
    """`observations` [T + 1, B, …]; the others [T, B]. `mask` is 0 where a step only reset the environment."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    mask: np.ndarray


def initial_weights(observation_size: int, actions: int, seed: int = 1) -> list[tf.Variable]:
    """Two perceptrons with two tanh layers each: one for the logits of the policy, one for the value."""
    hidden, weights = [(observation_size, UNITS, 2**0.5), (UNITS, UNITS, 2**0.5)], []
    for fan_in, fan_out, gain in (*hidden, (UNITS, actions, 0.01), *hidden, (UNITS, 1, 1.0)):
        start = tf.keras.initializers.Orthogonal(gain, seed=seed + len(weights))
        weights += [tf.Variable(start((fan_in, fan_out))), tf.Variable(tf.zeros(fan_out))]
    return weights


def network(weights: list, observations: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The logits [N, A] of π(· | s) and the values V(s) [N]."""

    def perceptron(w1, b1, w2, b2, w3, b3):
        return tf.tanh(tf.tanh(observations @ w1 + b1) @ w2 + b2) @ w3 + b3

    return perceptron(*weights[:6]), tf.squeeze(perceptron(*weights[6:]), axis=-1)


def n_step_returns(rewards, discounts, mask, values, bootstrap_value) -> tf.Tensor:
    """R ← r + γR, backwards from V(s_T). At a reset R is the value of the true last state: truncation bootstraps."""
    returns, following = [], bootstrap_value
    for t in reversed(range(UNROLL_LENGTH)):
        following = mask[t] * (rewards[t] + discounts[t] * following) + (1.0 - mask[t]) * values[t]
        returns.append(following)
    return tf.stack(returns[::-1])


@tf.function
def gradient(weights: list, rollout: Rollout) -> list[tf.Tensor]:
    """dθ of -log π(a | s)·(R - V(s)) + ½(R - V(s))² - βH(π(s)), with R and the advantage held constant."""
    observations = tf.reshape(rollout.observations, (-1, rollout.observations.shape[-1]))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits, values = network(weights, observations)
        log_probs = tf.reshape(tf.nn.log_softmax(logits), (UNROLL_LENGTH + 1, ENVIRONMENTS, -1))[:-1]
        values = tf.reshape(values, (UNROLL_LENGTH + 1, ENVIRONMENTS))
        fixed = tf.stop_gradient(values)
        returns = n_step_returns(rollout.rewards, rollout.discounts, rollout.mask, fixed, fixed[-1])
        log_prob = tf.gather(log_probs, rollout.actions, axis=-1, batch_dims=2)
        entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
        policy_loss = -log_prob * (returns - fixed[:-1])
        value_loss = tf.square(returns - values[:-1])
        losses = policy_loss + VALUE_COST * value_loss - ENTROPY_COST * entropy
        loss = tf.reduce_sum(rollout.mask * losses) / tf.reduce_sum(rollout.mask)
    return tape.gradient(loss, weights)


class Learner:
    """The shared weights θ and the shared mean square g of RMSProp. Threads take turns at it, and wait for no other."""

    def __init__(self, weights: list[tf.Variable]) -> None:
        self.weights, self.version, self.lock = weights, 0, threading.Lock()
        self.mean_squares = [tf.Variable(tf.zeros_like(w)) for w in weights]

    def snapshot(self) -> list[tf.Tensor]:
        """A copy of θ, which no update changes any more."""
        with self.lock:
            return [tf.identity(w) for w in self.weights]

    def apply(self, gradients: list[tf.Tensor]) -> None:
        """g ← αg + (1 - α)Δθ², θ ← θ - ηΔθ/√(g + ε): equations 8 and 9."""
        clipped, _ = tf.clip_by_global_norm(gradients, MAX_GRADIENT_NORM)
        with self.lock:
            for weight, mean_square, delta in zip(self.weights, self.mean_squares, clipped, strict=True):
                mean_square.assign(DECAY * mean_square + (1.0 - DECAY) * tf.square(delta))
                weight.assign_sub(LEARNING_RATE * delta / tf.sqrt(mean_square + EPSILON))
            self.version += 1


class Actor:
    """B environments, and the rollouts that are played in them."""

    def __init__(self, seed: int) -> None:
        self.environments = SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        self.random = tf.random.Generator.from_seed(seed)
        self.observations, _ = self.environments.reset(seed=seed)
        self.resets_next = np.zeros(ENVIRONMENTS, bool)
        self.returns, self.ended = np.zeros(ENVIRONMENTS), deque(maxlen=100)

    def play(self, weights: list[tf.Tensor]) -> Rollout:
        """T steps with fixed weights, in which actions are drawn from π."""
        steps = []
        for _ in range(UNROLL_LENGTH):
            logits, _ = network(weights, tf.constant(self.observations, tf.float32))
            gumbel = -tf.math.log(-tf.math.log(self.random.uniform(logits.shape, minval=1e-12)))
            actions = tf.argmax(logits + gumbel, axis=-1).numpy()
            before, live = self.observations, ~self.resets_next
            self.observations, rewards, terminated, truncated, _ = self.environments.step(actions)
            steps.append((before, actions, rewards, DISCOUNT * ~terminated, live))
            self.returns += rewards * live
            self.resets_next = terminated | truncated
            self.ended.extend(self.returns[self.resets_next])
            self.returns[self.resets_next] = 0.0
        observations, actions, rewards, discounts, live = (np.stack(column) for column in zip(*steps, strict=True))
        observations = np.concatenate([observations, self.observations[None]]).astype(np.float32)
        return Rollout(observations, actions, *(np.float32(x) for x in (rewards, discounts, live)))


def work(learner: Learner, actor: Actor) -> None:
    """One thread of Algorithm S3: copy θ, act for T steps, differentiate, hand the gradient over, and again."""
    while learner.version * UNROLL_LENGTH * ENVIRONMENTS < TOTAL_STEPS:
        weights = learner.snapshot()
        learner.apply(gradient(weights, actor.play(weights)))


if __name__ == "__main__":
    learner, actors = Learner(initial_weights(4, 2)), [Actor(1000 * i) for i in range(THREADS)]
    threads = [threading.Thread(target=work, args=(learner, actor), daemon=True) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(timeout=2)
            recent = [value for actor in actors for value in list(actor.ended)] or [0.0]
            updates = f"{learner.version:5d} of {TOTAL_STEPS // (UNROLL_LENGTH * ENVIRONMENTS)} updates"
            print(f"{updates}, mean return {np.mean(recent):.1f}", flush=True)
