"""Gymnasium's environments: the spec, the options, the wrappers, how copies are stepped, and one autoreset rule."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import NormalizeObservation
from gymnasium.wrappers.utils import RunningMeanStd
from waiting import DEADLINE_SECONDS

from actors.environments import VectorEnvironment, adapter_of, environment_spec, measure_observation_mean
from actors.environments.gymnasium import make_env
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, EnvironmentFailedError

CARTPOLE = {"id": "CartPole-v1", "frame_skip": 1}
NATIVE, MASK = {"vectorization": "native"}, {"action_mask": "mask"}
WALK = {"id": "Walk-v0", "imports": ("vector_tasks",), **NATIVE}
PENDULUM = EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False)


gymnasium.register("Short-v0", CartPoleEnv, max_episode_steps=3)


@pytest.mark.parametrize("settings", [{"options": {"max_episode_steps": 3}}, {"id": "Short-v0"}])
def test_options_and_registered_limits_reach_the_environment_and_its_protocols(settings: dict[str, Any]) -> None:
    config = EnvironmentConfig(**CARTPOLE | settings)
    environment = VectorEnvironment(config, 2)
    environment.reset(0)
    steps = [environment.step(np.zeros(2, np.int32)) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [False, False], [True, True]]
    assert not steps[-1].lost_life.any()
    adapter = adapter_of(config)
    assert adapter.training_protocol() == {"options": config.options}
    assert adapter.score_protocol(environment.spec()) == {"frames_per_agent_step": 1, "options": config.options}


@pytest.mark.parametrize("options", [{}, {"max_episode_steps": 7}], ids=["terminated", "truncated"])
def test_rewards_of_repeated_actions_are_summed(options: dict[str, Any]) -> None:
    every, third = (make_env(EnvironmentConfig(id="CartPole-v1", frame_skip=n, options=options)) for n in (1, 3))
    for environment in (every, third):
        environment.reset(seed=0)
    rewards: list[float] = []
    ends = [False, False]
    while not any(ends):
        steps = 0
        while steps < 3 and not any(ends):
            observation, _, *ends, _ = every.step(1)
            steps += 1
        found, reward, *found_ends, _ = third.step(1)
        np.testing.assert_array_equal(found, observation)
        assert (reward, found_ends) == (steps, ends)
        rewards.append(float(reward))
    assert sum(rewards) > 6


def test_wrappers_are_put_around_with_their_arguments_and_are_told() -> None:
    # 02 is text where the type of the argument is not known.
    wrappers = ("gymnasium.wrappers:TimeLimit,max_episode_steps=02", "gymnasium.wrappers:TimeAwareObservation")
    config = EnvironmentConfig(**CARTPOLE, wrappers=wrappers)
    environment = VectorEnvironment(config, 1)
    assert environment.spec().observation_shape == (5,)
    environment.reset(0)
    assert [bool(environment.step(np.zeros(1, np.int32)).truncated[0]) for _ in range(2)] == [False, True]
    assert adapter_of(config).training_protocol() == {"options": {}, "wrappers": list(wrappers)}
    assert config.modules == ("gymnasium.wrappers",) * 2


def test_copies_before_one_that_cannot_be_made_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    open_ones = list[gymnasium.Env]()

    class Licensed(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()
            if len(open_ones) == 2:
                raise RuntimeError("no more licences")
            open_ones.append(self)

        def close(self) -> None:
            open_ones.remove(self)

    monkeypatch.setitem(gymnasium.registry, "Licensed-v0", EnvSpec("Licensed-v0", Licensed))
    with pytest.raises(EnvironmentFailedError, match="no more licences"):
        VectorEnvironment(EnvironmentConfig(id="Licensed-v0", frame_skip=1), 3)
    assert open_ones == []


def test_copies_are_not_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the batch would play it twice."""
    one = CartPoleEnv()
    monkeypatch.setitem(gymnasium.registry, "One-v0", EnvSpec("One-v0", lambda: one))
    config = EnvironmentConfig(id="One-v0", frame_skip=1)
    VectorEnvironment(config, 1).close()
    with pytest.raises(ConfigurationError, match="One-v0: gives one object for several copies"):
        VectorEnvironment(config, 2)


class Shell(gymnasium.Env):
    """No wrapper of Gymnasium's, with statistics by name."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env, self.statistics = env, {"x": RunningMeanStd(shape=())}
        self.observation_space, self.action_space = env.observation_space, env.action_space


class Listed(gymnasium.Wrapper):
    """Statistics of two parts, in a list."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._parts = [RunningMeanStd(shape=()), RunningMeanStd(shape=())]


def _scaled() -> gymnasium.Env:
    return NormalizeObservation(gymnasium.make("CartPole-v1"))


gymnasium.register("Scaled-v0", _scaled)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"wrappers": ("a:B,c",)}, "is not of the form module:Wrapper,argument=value"),
        ({"wrappers": ("gymnasium.wrappers:NoSuch",)}, "gymnasium.wrappers has no NoSuch"),
        ({"wrappers": ("gymnasium.wrappers:TimeLimit",)}, "cannot be made: TypeError"),
        ({"wrappers": ("gymnasium.wrappers:NormalizeObservation",)}, "--network.observation-scaling running"),
        ({"wrappers": ("gymnasium.wrappers:NormalizeReward,gamma=0.9",)}, "--environment.normalise-rewards"),
        ({"wrappers": (f"{__name__}:Shell",)}, "Shell has running statistics"),
        ({"wrappers": (f"{__name__}:Listed",)}, "Listed has running statistics"),
        ({"id": f"{__name__}:Scaled-v0"}, "NormalizeObservation has running statistics"),
        ({"wrappers": ("gymnasium.wrappers.vector:NormalizeReward",)}, "those of single environments are in gymnasium"),
        ({"wrappers": ("builtins:type",)}, "gives type, and no environment"),
        ({"id": "ALE/Pong-v5", "wrappers": ("gymnasium.wrappers:TimeLimit",)}, "ale-py plays Atari"),
        ({"id": "ALE/Pong-v5", "screen_size": None}, "--environment.screen-size None: Atari is seen in a square"),
        ({"sticky_action_probability": 0.25}, "is for Atari; for others --environment.wrappers "),
        ({"options": {"frameskip": 4}, "frame_skip": 4}, "skip frames twice"),
        ({**NATIVE, "frame_skip": 2}, "frame-skip 2: .*; set it to 1, or use --environment.vectorization sync"),
        ({**NATIVE, "wrappers": ("gymnasium.wrappers:TimeLimit",)}, "are of single copies, and .*; leave them out"),
        ({**NATIVE, "options": {"length": 1}}, "length 1: CartPole-v1 takes no such option; it takes num_envs"),
        ({**NATIVE, "id": "ALE/Pong-v5"}, "--environment.vectorization native: ale-py plays Atari"),
        ({**NATIVE, "id": "Pendulum-v1"}, "native: .* registered without a vector_entry_point; use sync"),
        ({**WALK, "options": {"mode": "SameStep"}}, "native: .* SameStep, where AutoresetMode.NEXT_STEP is exp"),
        ({**WALK, "options": {"mode": ""}}, "native: .* is None, where AutoresetMode.NEXT_STEP is expected; use sync"),
        ({**WALK, "options": {"images": True}}, "native: .* its images would be neither resized nor stacked; use sync"),
        ({**WALK, "options": {"copies": 8}}, "native: .* it has 8 copies, where an actor asked for 1; use sync"),
        ({**WALK, "id": "Limited-v0"}, "native: .* takes no max_episode_steps, and the id has 7; use sync"),
        ({**WALK, "id": "Walks-v0", "vectorization": "sync"}, "sync: .* with a vector_entry_point only; use native"),
        ({**WALK, "action_mask": "masks"}, "masks: the observation has no keys, and info has 'allowed'"),
        ({**MASK, "id": "Pendulum-v1"}, "mask: the actions of Pendulum-v1 are continuous .*; masks are for choices"),
        ({**MASK, "id": "ALE/Pong-v5"}, "--environment.action-mask mask: Atari games have no masks"),
        ({**MASK, "frame_skip": 2}, "action-mask mask: --environment.frame-skip 2 would repeat actions"),
        (MASK, "--environment.action-mask mask: the observation has no keys, and info has no keys"),
    ],
)
def test_what_cannot_be_made_is_one_line(settings: dict, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line) as error:
        environment_spec(EnvironmentConfig(**{**CARTPOLE, **settings}), trial=True)
    assert str(error.value).count("--environment.") <= 2


def test_a_missing_library_is_an_extra_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EnvironmentFailedError, match=r"install it by run pip install 'tributary-rl\[box2d\]'$"):
        VectorEnvironment(EnvironmentConfig(id="LunarLander-v3", frame_skip=1), 1)


@pytest.mark.usefixtures("capfd")
def test_a_copy_that_cannot_be_made_in_its_process_is_one_line(working_folder: Path, monkeypatch) -> None:
    (working_folder / "alone.py").write_text(
        "import gymnasium, multiprocessing\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Alone(CartPoleEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        assert multiprocessing.parent_process() is None\n"
        "gymnasium.register('Alone-v0', Alone)\n"
    )
    monkeypatch.syspath_prepend(working_folder)
    config = EnvironmentConfig(id="alone:Alone-v0", frame_skip=1, vectorization="async")
    with pytest.raises(EnvironmentFailedError, match=r"cannot be made: the process of a copy died; its output has the"):
        VectorEnvironment(config, 2)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_simulator_that_cannot_be_reached_is_named(vectorization: Any, working_folder: Path, monkeypatch) -> None:
    (working_folder / "remote.py").write_text(
        "import gymnasium\n"
        "def make(**_):\n"
        "    raise ConnectionRefusedError(111, 'no simulator at port 5000')\n"
        "gymnasium.register('Remote-v0', make)\n"
    )
    monkeypatch.syspath_prepend(working_folder)
    config = EnvironmentConfig(id="remote:Remote-v0", frame_skip=1, vectorization=vectorization)
    with pytest.raises(EnvironmentFailedError, match=r"no simulator at port 5000 \(remote\.py:3, in make\)"):
        VectorEnvironment(config, 2)


def test_environments_in_processes_of_their_own_play_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asynchronous.py").write_text(
        "import gymnasium, os\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        f"open(r'{tmp_path}/' + str(os.getpid()), 'w').close()\n"
        "gymnasium.register('Asynchronous-v0', CartPoleEnv, max_episode_steps=12)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:of the user")
    settings = {"id": "asynchronous:Asynchronous-v0", "frame_skip": 1}
    one, other = (VectorEnvironment(EnvironmentConfig(**settings, vectorization=v), 2) for v in ("sync", "async"))
    assert os.environ["PYTHONWARNINGS"] == "ignore:of the user"
    try:
        np.testing.assert_array_equal(one.reset(5), other.reset(5))
        for t in range(30):
            actions = np.array([t % 2, t // 2 % 2], np.int32)
            for a, b in zip(one.step(actions), other.step(actions), strict=True):
                np.testing.assert_array_equal(a, b)
        copies = other.unwrapped.processes
        copies[0].kill()
        copies[0].join()
    finally:
        other.close()
    # The close fails because a copy died. Gymnasium would repeat it when the object is deleted.
    assert other.unwrapped.closed
    assert len({int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()} - {os.getpid()}) == 2


def test_copies_end_in_silence_after_their_parent() -> None:
    script = (
        "import numpy as np, os, signal\n"
        "from actors.environments import VectorEnvironment\n"
        "from shared.config import EnvironmentConfig\n"
        "environment = VectorEnvironment(EnvironmentConfig(id='CartPole-v1', frame_skip=1, vectorization='async'), 2)\n"
        "environment.reset(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    killed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_SECONDS)
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, "")


def test_a_vector_environment_of_its_own_plays_as_copies_do() -> None:
    config = EnvironmentConfig(frame_skip=1, log_info=("walk.steps",), **WALK)
    native, sync = (VectorEnvironment(replace(config, vectorization=v), 8) for v in ("native", "sync"))
    assert native.spec() == sync.spec()
    np.testing.assert_array_equal(native.reset(np.arange(5, 13)), sync.reset(np.arange(5, 13)))
    assert native.unwrapped.seed == 5
    ends, new = np.zeros((2, 8), bool), np.zeros(8, bool)
    for actions in np.random.default_rng(0).integers(0, 3, (60, 8), np.int32):
        one, other = native.step(actions), sync.step(actions)
        # The reward of a step that resets enters nothing.
        np.testing.assert_equal(one._replace(rewards=np.where(new, 0.0, one.rewards)), other)
        ends |= one.terminated, one.truncated
        new = one.terminated | one.truncated
    assert ends.all()


def test_a_vector_environment_of_its_own_may_use_its_memory_again() -> None:
    native = VectorEnvironment(EnvironmentConfig(frame_skip=1, **WALK), 3)
    assert native.reset(4)[:, 0].tolist() == [0, 0, 0]
    assert native.unwrapped.seed == 4
    results = [native.step(np.int32([2, 0, 1])) for _ in range(4)]
    assert [result.observations[:, 0].tolist() for result in results] == [[1, -1, 0], [2, -2, 0], [3, -3, 0], [0, 0, 0]]
    assert [result.terminated.tolist() for result in results] == [[False] * 3] * 2 + [[True, True, False], [False] * 3]
    assert results[1].rewards.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (
            {0: np.zeros((2, 3))},
            r"the batch of observations is an array .* \[2, 3\], where float32 \[2, 2\] is expected",
        ),
        ({1: np.zeros((2, 1))}, r"the batch of rewards is .* \[2, 1\], where an array of numbers \[2\] is expected"),
        ({2: [0.5, 0]}, r"terminated is an array .* with 0.5, where an array of truth values \[2\] is expected"),
        ({3: None}, r"truncated is None, where an array of truth values \[2\] is expected"),
    ],
)
def test_batches_that_do_not_fit_are_one_line(returned: dict[int, Any], line: str) -> None:
    config = EnvironmentConfig(frame_skip=1, **WALK)
    environment = VectorEnvironment(config, 2)
    environment.reset(0)
    environment.unwrapped.returned = returned
    with pytest.raises(EnvironmentFailedError, match=rf"^Walk-v0: step\(\): {line} \(vector_tasks.py:\d+, in step\)$"):
        environment.step(np.zeros(2, np.int32))


def test_spaces_of_users_come_from_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "missions.py").write_text(
        "import gymnasium\n"
        "from gymnasium.spaces import Dict, Discrete, Space\n"
        "class Mission(Space):\n"
        "    def sample(self, mask=None, probability=None): return 'go'\n"
        "    def contains(self, x): return isinstance(x, str)\n"
        "    def __eq__(self, other): return isinstance(other, Mission)\n"
        "class Told(gymnasium.Env):\n"
        "    action_space, observation_space = Discrete(2), Dict(mission=Mission(), t=Discrete(9))\n"
        "    def reset(self, seed=None, options=None): self.t = 0; return self.seen(), {}\n"
        "    def step(self, action): self.t += 1; return self.seen(), 1.0, False, False, {}\n"
        "    def seen(self): return {'mission': 'go', 't': self.t}\n"
        "gymnasium.register('Told-v0', Told, disable_env_checker=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = EnvironmentConfig(id="missions:Told-v0", frame_skip=1, vectorization="async")
    environment = VectorEnvironment(config, 1)
    try:
        assert environment.spec().left_out == ("mission",)
        environment.reset(0)
        np.testing.assert_array_equal(environment.step(np.zeros(1, np.int32)).observations, np.eye(9)[[1]])
    finally:
        environment.close()


@pytest.mark.usefixtures("short_random_play")
def test_the_mean_observation_follows_from_the_seed() -> None:
    first, second, other = (measure_observation_mean(EnvironmentConfig(), seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_copy_in_a_process_of_its_own_ignores_the_signals_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run gets them too, and needs its copies for the rollouts under way."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGHUP)}
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    try:
        make_env(EnvironmentConfig(**CARTPOLE, vectorization="async"))
        assert [signal.getsignal(kind) for kind in before] == [signal.SIG_IGN] * 2
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def test_the_first_wrapper_is_the_innermost() -> None:
    timed = "gymnasium.wrappers:TimeAwareObservation"
    stacked = "gymnasium.wrappers:FrameStackObservation,stack_size=2"
    orders = (timed, stacked), (stacked, timed)
    specs = [environment_spec(EnvironmentConfig(**CARTPOLE, wrappers=order)) for order in orders]
    # The time is stacked, or it is beside the stack.
    assert [spec.observation_shape for spec in specs] == [(2 * (4 + 1),), (2 * 4 + 1,)]
