"""Each method trains, and so does the one that CONTRIBUTING.md tells how to add: every parameter is reached."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rollouts import make_policy
from sessions import train_inline

from shared.config import EnvironmentConfig, MethodConfig, RunConfig
from shared.methods.method import Method, method_class
from shared.registry import METHODS, MethodEntry


def untrained(config: RunConfig, updates: int) -> set[str]:
    """The names of the parameters that are as they were after some updates: no gradient reaches them."""
    learner = train_inline(config, lambda learner: learner.version == updates, actors=2)
    policy = make_policy(config)
    before, after = policy.initial_parameters(), learner.snapshot().parameters
    assert np.isfinite(after).all()
    ledger = learner.account.ledger
    assert (ledger.dropped, ledger.applied) == ({}, ledger.sampled)
    parts = {name: policy.layout.range_of(name) for name in policy.layout.names}
    return {name for name, part in parts.items() if np.array_equal(before[part], after[part])}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_cartpole_inline(name: str, cartpole: RunConfig) -> None:
    assert untrained(replace(cartpole, method=MethodConfig(name=name, n_step=2)), updates=20) == set()


@pytest.mark.parametrize(("noise", "scaling"), [("independent", "running"), ("state_dependent", "bounds")])
def test_gaussian_policies_train_pendulum_inline(noise: str, scaling: str, cartpole: RunConfig) -> None:
    config = replace(
        cartpole,
        environment=EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False),
        exploration=replace(cartpole.exploration, noise=noise),
        network=replace(cartpole.network, observation_scaling=scaling),
    )
    assert untrained(config, updates=20) == set()


CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_method_in_contributing_is_one_file_and_one_entry(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = CONTRIBUTING.read_text().split("## Add a method")[1]
    source, entry = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    module = ModuleType("shared.methods.luck")
    exec(compile(source, "luck.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "shared.methods.luck", module)
    for name, value in eval(f"{{{entry}}}", {"MethodEntry": MethodEntry}).items():
        monkeypatch.setitem(METHODS, name, value)
    untouched = untrained(replace(cartpole, method=MethodConfig(name="luck")), updates=10)
    assert all(name.startswith("value") for name in untouched)
    assert issubclass(method_class("luck"), Method)
