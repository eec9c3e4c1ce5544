"""Which settings a sweep gives its trials: all of a grid, draws, or those near a better trial's. No Ray, no Optuna."""

import itertools
from collections import Counter

import numpy as np

from launch.presets import PRESETS
from launch.sweep.explore import explored
from launch.sweep.file import Pbt, Plan, Range, Settings, Space, Sweep
from launch.sweep.search import Listed


def test_settings_are_perturbed_within_their_space() -> None:
    space: Space = {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "actor.unroll_length": Range(1, 6, whole=True),
        "method.discount": [0.9, 0.95, 0.99],
        "seed": [1, 2],
    }
    pbt = Pbt(1000, mutable=("optimizer.learning_rate", "actor.unroll_length", "method.discount"))
    plan = Plan(space={}, search="random", pbt=pbt)
    found = Sweep("cartpole", PRESETS["cartpole"].config, plan, space, 4)
    own: Settings = {
        "optimizer.learning_rate": 9e-3,
        "actor.unroll_length": 5,
        "method.discount": 0.9,
        "seed": 2,
    }
    better: Settings = {
        "optimizer.learning_rate": 1e-3,
        "actor.unroll_length": 2,
        "method.discount": 0.95,
        "seed": 1,
    }
    made = [explored(found, own, better, np.random.default_rng([1, number])) for number in range(400)]
    assert all(settings["seed"] == 2 for settings in made), "what is not mutable stays its own"
    rates = Counter(float(settings["optimizer.learning_rate"]) for settings in made)
    # A quarter is drawn anew, the rest is 0.8 or 1.2 times the better trial's.
    assert {rate: 110 < count < 190 for rate, count in rates.items() if count > 1} == {8e-4: True, 1.2e-3: True}
    assert 1e-4 <= min(rates) < 8e-4 < 1.2e-3 < max(rates) <= 1e-2
    lengths = Counter(settings["actor.unroll_length"] for settings in made)
    assert set(lengths) == {1, 2, 3, 4, 5, 6}
    assert min(lengths[1], lengths[3]) > 100, "a whole number moves by one at least"
    discounts = Counter(settings["method.discount"] for settings in made)
    assert discounts[0.9] > 130 < discounts[0.99]
    assert explored(found, own, better, np.random.default_rng(7)) == explored(
        found, own, better, np.random.default_rng(7)
    )
    edge = {**better, "method.discount": 0.99, "optimizer.learning_rate": 1e-2}
    assert all(
        float(explored(found, own, edge, np.random.default_rng(n))["optimizer.learning_rate"]) <= 1e-2
        for n in range(50)
    )


def sweep(search: str, space: Space, *, seed: int = 1) -> Sweep:
    plan = Plan(space={}, search=search, seed=seed)  # type: ignore[arg-type]
    return Sweep("cartpole", PRESETS["cartpole"].config, plan, space, 6)


def test_a_grid_has_each_combination_once() -> None:
    search = Listed(sweep("grid", {"seed": [1, 2, 3], "method.discount": [0.9, 0.99]}))
    found = [tuple(search.suggest(number).values()) for number in range(6)]
    assert sorted(found) == sorted(itertools.product((1, 2, 3), (0.9, 0.99)))


def test_draws_are_in_their_ranges_and_depend_on_seed_and_number_only() -> None:
    space: Space = {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "actor.unroll_length": Range(5, 7, whole=True),
        "actor.environments": Range(1, 64, log=True, whole=True),
        "method.discount": Range(0.9, 0.99),
        "network.activation": ["tanh", "relu"],
    }
    found = [Listed(sweep("random", space)).suggest(number) for number in range(400)]
    assert found[7] == Listed(sweep("random", space)).suggest(7)
    assert found[7] != Listed(sweep("random", space, seed=2)).suggest(7)
    rates = [float(settings["optimizer.learning_rate"]) for settings in found]
    assert 1e-4 <= min(rates) < 1.2e-4 < 8e-3 < max(rates) <= 1e-2
    # Evenly in the logarithm: as many below the middle decade's boundary as above.
    assert 160 < sum(rate < 1e-3 for rate in rates) < 240
    assert {settings["actor.unroll_length"] for settings in found} == {5, 6, 7}
    assert all(isinstance(settings["actor.environments"], int) for settings in found)
    counts = [int(settings["actor.environments"]) for settings in found]
    assert (min(counts), max(counts)) == (1, 64)
    assert {settings["network.activation"] for settings in found} == {"tanh", "relu"}
