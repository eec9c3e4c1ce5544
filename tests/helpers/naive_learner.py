"""What the learner does with old gradients, in NumPy: five parameters, one kind of staleness at a time."""

from typing import Any

import numpy as np

from shared.config import OptimizerConfig

P, RATE, RHO, EPSILON, CLIP = 5, 0.02, 0.9, 1e-3, 2.5
START = np.linspace(-1.0, 1.0, P)
RMSPROP = OptimizerConfig(learning_rate=RATE, decay=RHO, epsilon=EPSILON, max_gradient_norm=CLIP)
SGD = OptimizerConfig(name="sgd", learning_rate=RATE, max_gradient_norm=CLIP)
KINDS: dict[str, dict[str, Any]] = {
    "inverse": {"staleness": "inverse"},
    "gap": {"staleness": "gap"},
    "adaptive": {"staleness": "delay_compensated", "compensation": 0.7, "compensation_decay": 0.8},
    "constant": {"staleness": "delay_compensated", "compensation": 0.7, "compensation_decay": None},
}


class Naive:
    """The learner in NumPy: gradients one by one, in float64, with RMSProp or SGD."""

    def __init__(self, kind: str, k: int, accumulation: str, optimizer: OptimizerConfig) -> None:
        self.kind, self.k, self.accumulation, self.optimizer = kind, k, accumulation, optimizer
        self.theta, self.versions = START.copy(), [START.copy()]
        self.g = np.zeros(P)
        self.pending: list[np.ndarray] = []
        self.weights: list[float] = []
        self.mean_square = np.zeros(P)
        self.step_squares: list[float] = []

    def push(self, gradient: np.ndarray, lag: int, rate: float) -> float:
        moved = self.theta - self.versions[-1 - lag]
        weight = 1.0
        if self.kind == "inverse":
            weight = 1.0 / max(1, lag)
        elif self.kind == "gap" and self.step_squares:
            # The mean of a decay of 0.999, corrected for its start at 0.
            ages = 0.999 ** np.arange(len(self.step_squares))[::-1]
            average = RATE * np.sqrt((ages * self.step_squares).sum() / ages.sum())
            weight = 1.0 / (1.0 + np.linalg.norm(moved) / average)
        elif self.kind == "adaptive":
            self.mean_square = 0.8 * self.mean_square + 0.2 * gradient**2
            gradient = gradient + 0.7 / np.sqrt(self.mean_square + 1e-7) * gradient**2 * moved
        elif self.kind == "constant":
            gradient = gradient + 0.7 * gradient**2 * moved
        self.pending.append(weight * gradient)
        self.weights.append(weight)
        if len(self.pending) == self.k:
            self.update(rate)
        return weight

    def update(self, rate: float) -> None:
        gradient = sum(self.pending) / sum(self.weights) * (self.k if self.accumulation == "sum" else 1)
        gradient *= min(1.0, CLIP / np.linalg.norm(gradient))
        step = rate * np.mean(self.weights) * gradient
        if self.optimizer.name == "rmsprop":
            self.g = RHO * self.g + (1 - RHO) * gradient**2
            step /= np.sqrt(self.g + EPSILON)
        self.theta = self.theta - step
        self.versions.append(self.theta.copy())
        if rate:
            self.step_squares.append(float(step @ step) / (rate * np.mean(self.weights)) ** 2)
        self.pending, self.weights = [], []
