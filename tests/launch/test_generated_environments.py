"""Environments that Hypothesis draws are trained: each run ends well or with one line, and its account is exact."""

import copy
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from accounts import account_of, check_finite
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from untrained_runs import policy_of

from launch.settings.files import with_settings
from launch.train import train
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

_LARGEST = float(np.finfo(np.float32).max)
bounds = st.sampled_from(
    [
        (-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.3), (-math.inf, math.inf), (-1e300, 1e300), (0.1, 2 * math.pi),
        (-_LARGEST, _LARGEST), (0.0, 1e-30), (1e6, 1e6 + 1), (0.0, 0.0),
    ]
)  # fmt: skip


def _box(ends: tuple[float, float], shape: tuple[int, ...], dtype: type) -> Box:
    least, most = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    low, high = (end if math.isinf(end) else min(max(end, least), most) for end in ends)
    # One dimension without the bounds that the others have.
    lows, highs = np.full(shape, low, dtype), np.full(shape, high, dtype)
    if shape == (3,):
        lows[0], highs[0] = -np.inf, np.inf
    return Box(lows, highs, shape, dtype)


boxes = st.builds(
    _box, bounds, st.sampled_from([(), (1,), (3,), (2, 3)]), st.sampled_from([np.float32, np.float64, np.float16])
)
whole = st.builds(
    Box,
    st.integers(-5, 0),
    st.integers(1, 99),
    st.sampled_from([(), (2,)]),
    st.sampled_from([np.int64, np.int8, np.int32]),
)
choices = st.one_of(
    st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 2**40)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.just(MultiDiscrete([[2, 3], [1, 4]], start=[[0, -7], [5, 2**40]])),
    st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)
actions = boxes | whole | choices
"""Spaces of actions that can be trained."""
# A board of bytes, and whole numbers that float32 cannot tell apart.
_UNLIKE_ACTIONS = [
    Box(0, 2, (19, 19), np.uint8),
    Box(0, 10**12, (2,), np.int64),
    Box(2**24, 2**24 + 9, (2,), np.int64),
    Box(1e15, 1e15 + 1, (), np.float64),
    Box(0, 2**64 - 1, (1,), np.uint64),
    Box(-np.inf, np.inf, (1,), np.float64),
]
numbers = st.recursive(
    actions | st.sampled_from(_UNLIKE_ACTIONS),
    lambda inner: st.builds(lambda a, b: Dict({"a": a, "b": Tuple((b, Text(4)))}), inner, inner),
    max_leaves=3,
)
"""Spaces of observations without images."""
PICTURE, RGBA, GREY = (Box(0, 255, (40, 44, *channels), np.uint8) for channels in ((3,), (4,), ()))
pictures = st.sampled_from(
    [
        PICTURE, RGBA, GREY, Box(0, 255, (40, 44, 1), np.uint8),
        Dict({"picture": PICTURE, "speed": Box(-np.inf, np.inf, (2,))}), Dict({"left": RGBA, "right": GREY}),
    ]
) | st.builds(
    lambda keys: Dict(dict.fromkeys(keys, GREY)),
    st.lists(st.sampled_from(["a b", "a_b", "a_b_1", "a.b", "画像", "é"]), min_size=1, max_size=4, unique=True),
)  # fmt: skip
no_actions = st.sampled_from([Tuple((Discrete(2), Discrete(2))), Dict({"a": Discrete(2)}), Text(3)])
"""Spaces of actions that cannot be trained."""


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """An observation whose arrays and numbers are changed."""
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(change, part) for part in value)
    return change(value) if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True)
class Fault:
    """From step `at` on, `times` times, `value` is returned in place of a part of the result, or raised.

    `part` is an index, "step" for the whole result, "reset" for that of a reset, "raise" in `step`, or "make" in the
    constructor of copy `at`.
    """

    part: int | str
    value: Any = None
    refused: bool = True
    at: int = 1
    times: int = 1


_NUMBER = [math.nan, math.inf, -math.inf, 1e300, np.float32(3e38)]
_WRONG = [None, "text", np.zeros((4, 4, 4, 4)), 1j, object()]
_ERRORS = [ValueError("E17:\n stalled"), SystemExit(3), RuntimeError(), OSError(2, "gone")]
faults = st.builds(
    lambda fault, at, times: Fault(*fault, at, times),
    st.one_of(
        st.sampled_from([(0, value, True) for value in _WRONG]),
        st.just((0, math.nan, False)),
        st.sampled_from([(1, value, False) for value in _NUMBER]),
        st.sampled_from([(1, value, True) for value in (*_WRONG, np.zeros(3), "1.0", [1, 2])]),
        st.tuples(st.sampled_from([2, 3]), st.sampled_from([*_WRONG, 0.5, 2, math.nan, np.zeros(2)]), st.just(True)),
        st.tuples(st.sampled_from([2, 3]), st.sampled_from([1, np.array([True]), np.True_, 0.0]), st.just(False)),
        st.sampled_from([("step", value, True) for value in (None, (1, 2), (None, 1.0, False, {}), {})]),
        st.sampled_from([("reset", value, True) for value in (None, np.zeros(2), (None, {}), (1, 2, 3))]),
        st.tuples(st.sampled_from(["raise", "raise", "make"]), st.sampled_from(_ERRORS), st.just(True)),
    ),
    # A fault of the first three steps is found before training.
    st.one_of(st.integers(1, 3), *[st.integers(4, 60)] * 4),
    st.sampled_from([1, 1, 3, 10**9]),
)


@dataclass
class Plan:
    """One environment, and the settings of its run.

    `made` are the copies; `failed` is set by a refused fault.
    """

    observations: gymnasium.Space
    actions: gymnasium.Space
    fault: Fault | None
    reward: Callable[[float], Any]
    info: Any
    seen: str
    longest: int
    settings: dict[str, Any]
    made: list["Generated"] = field(default_factory=list, repr=False)
    failed: bool = False


class Generated(gymnasium.Env):
    """Random observations and rewards, and a fault. `closes` are the calls of `close`.

    `course` has an entry for each vector step of a training copy: [agent steps, ended episodes]. [1, 0] in an episode,
    [1, 1] at its end, [0, 0] for a step that resets.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._skip = plan, plan.settings["environment.frame_skip"]
        self.observation_space, self.action_space = copy.deepcopy(plan.observations), plan.actions
        self.course: list[list[int]] = []
        self.closes: int | None = None
        self._count, self._frame, self._reset_before = len(plan.made), 0, False
        plan.made.append(self)
        fault = self._fault("make")
        if fault is not None:
            raise fault.value
        self._count = self.closes = 0

    def close(self) -> None:
        self.closes = (self.closes or 0) + 1

    def _fault(self, *parts: int | str) -> Fault | None:
        fault = self._plan.fault
        if fault is None or fault.part not in parts or not 0 <= self._count - fault.at < fault.times:
            return None
        if fault.refused:
            self._plan.failed = True
            if self._frame % self._skip:
                self.course.pop()
        return fault

    def _see(self) -> Any:
        space = self.observation_space
        value = space.sample()
        if self._plan.seen == "edges" and isinstance(space, Box):
            return (space.low, space.high)[self._count % 2].copy()
        return _mapped(lambda part: part.tolist(), value) if self._plan.seen == "lists" else value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self._frame = 0
        fault = self._fault("reset")
        if fault is not None:
            return fault.value
        self._left = int(self.np_random.integers(1, self._plan.longest + 1))
        if self._reset_before:
            self.course.append([0, 0])
        self._reset_before = True
        return self._see(), copy.copy(self._plan.info)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        assert action.dtype == self.action_space.dtype
        self._count += 1
        fault = self._fault("raise", "step", 0, 1, 2, 3)
        if fault is not None and fault.part == "raise":
            raise fault.value
        refused = fault is not None and fault.refused
        if self._frame % self._skip == 0 and not refused:
            self.course.append([1, 0])
        self._frame += 1
        self._left -= 1
        ended, truncates = self._left == 0, self.np_random.random() < 0.5
        reward = self._plan.reward(float(self.np_random.normal()))
        result: list[Any] = [self._see(), reward, ended and not truncates, ended and truncates, self._plan.info]
        if fault is not None:
            if fault.part == "step":
                return fault.value
            result[int(fault.part)] = fault.value
            if fault.part == 0 and fault.value is math.nan:
                sample = self.observation_space.sample()
                result[0] = _mapped(lambda part: part * math.nan if part.dtype.kind == "f" else part, sample)
        if not refused and (result[2] or result[3]):
            self.course[-1][1] = 1
        return tuple(result)


_WRAPPERS = [
    *(f"gymnasium.wrappers:Normalize{kind}" for kind in ("Reward", "Observation")),
    *(f"running_wrappers:{kind}" for kind in ("Listed", "Nested", "Plain")),
]

_REWARDS: list[Callable[[float], Any]] = [
    float, np.float32, round, np.array, lambda r: [r], lambda r: r > 0, lambda r: 1e4 * r, lambda r: 1e-30 * r
]  # fmt: skip


@st.composite
def run_settings(draw: st.DrawFn, *, images: bool, one_choice: bool) -> dict[str, Any]:
    """Settings of a small run. Actions of `one_choice` can be trained by each method, others by one."""
    epochs, minibatches = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)]))
    others = ["q_learning", "sarsa"] if one_choice else ["actor_critic"] * 9 + ["q_learning"]
    method = draw(st.sampled_from(["actor_critic", *others]))
    return {
        "actors": draw(st.integers(1, 2)),
        "network.name": "a3c_cnn" if images else "mlp",
        "network.hidden_sizes": (8,),
        "network.observation_scaling": "none" if images else draw(st.sampled_from(["none", "running", "bounds"])),
        "network.recurrent": draw(st.sampled_from(["none", "none", "none", "none", "lstm"])),
        "method.name": method,
        "method.standardise_advantages": draw(st.booleans()) and method == "actor_critic",
        "environment.frame_skip": draw(st.integers(1, 3)),
        "environment.clip_rewards": draw(st.booleans()),
        "environment.normalise_rewards": draw(st.booleans()),
        "environment.log_info": draw(st.sampled_from([(), ("score", "deep.score", "path")])),
        "environment.screen_size": draw(st.sampled_from([36, None])),
        "environment.greyscale": draw(st.booleans()),
        "environment.wrappers": draw(st.sampled_from([()] * 20 + [(wrapper,) for wrapper in _WRAPPERS])),
        "environment.frame_stack": draw(st.integers(1, 2)),
        "actor.environments": 2 * draw(st.integers(1, 3)),
        "actor.unroll_length": draw(st.sampled_from([1, 3, 5, 20])),
        "actor.epochs": epochs,
        "actor.minibatches": minibatches,
        "actor.fresh_gradients": draw(st.booleans()) and method == "actor_critic",
        "learner.gradients_per_update": draw(st.integers(1, 2)),
        "optimizer.name": draw(st.sampled_from(["rmsprop", "adam"])),
    }


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    images = draw(st.sampled_from([False, False, False, True]))
    action_space = draw(st.one_of(choices, *[actions] * 8, no_actions))
    return Plan(
        observations=draw(pictures if images else numbers),
        actions=action_space,
        fault=draw(st.one_of(st.none(), faults, faults)),
        reward=draw(st.sampled_from(_REWARDS)),
        info=draw(st.sampled_from([None, {}, {"score": 1, "deep": {"score": "x"}}, {"path": np.zeros(3)}, {1: print}])),
        seen=draw(st.sampled_from(["arrays", "lists", "edges"])),
        longest=draw(st.sampled_from([1, 2, 9, 300])),
        settings=draw(run_settings(images=images, one_choice=isinstance(action_space, Discrete))),
    )


def played(plan: Plan) -> tuple[int, int]:
    """Agent steps and episodes of the rollouts that the training copies have completed."""
    actors, copies, steps = (plan.settings[name] for name in ("actors", "actor.environments", "actor.unroll_length"))
    of_training = plan.made[-actors * copies :]
    counts = np.zeros(2, int)
    for first in range(0, len(of_training), copies):
        courses = [made.course for made in of_training[first : first + copies]]
        complete = min(map(len, courses)) // steps * steps
        counts += np.sum([course[:complete] for course in courses], axis=(0, 1), dtype=int)
    return int(counts[0]), int(counts[1])


def check_outcome(plan: Plan, line: str) -> None:
    """One line if the environment failed or cannot be trained, and none otherwise."""
    assert "\n" not in line
    assert "Traceback" not in line
    if plan.failed:
        assert line.startswith(("Generated-v0: ", "--environment.id Generated-v0: "))
    elif line.startswith("--environment.wrappers "):
        assert plan.settings["environment.wrappers"] not in ((), ("running_wrappers:Plain",))
        # Some of Gymnasium's take no Dict.
        assert "--environment.normalise-rewards" in line or "cannot be made: ValueError" in line
    elif line.startswith("--environment.id Generated-v0: "):
        assert isinstance(plan.actions, Dict | Tuple | Text), line
    elif line.startswith("--network.observation-scaling bounds"):
        assert "has no finite bounds in observation" in line
        assert plan.settings["network.observation_scaling"] == "bounds"
    elif line.startswith("--method.name "):
        assert plan.settings["method.name"] != "actor_critic", line
        assert not isinstance(plan.actions, Discrete), line
    elif line:
        assert "rollouts in a row were not finite" in line


def check_trained(plan: Plan, agent_steps: int) -> None:
    """Train, and check the outcome: a run that ended well, or one line; numbers that are finite; an exact account."""
    skip, line = plan.settings["environment.frame_skip"], ""
    more = {"environment.id": "Generated-v0", "executor": "inline", "log_every_seconds": 0.05}
    config = with_settings(RunConfig(), plan.settings | more | {"total_frames": agent_steps * skip})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setitem(gymnasium.registry, "Generated-v0", EnvSpec("Generated-v0", lambda: Generated(plan)))
        run = Path(folder) / "run"
        try:
            train(config, run, lambda _: None)
        except (ConfigurationError, TrainingFailedError) as error:
            line = str(error)
        check_outcome(plan, line)
        if line.startswith("--"):
            assert not run.exists()
            return
        check_account(plan, line, account_of(run), agent_steps)
        check_finite(run)
        assert all(made.closes is None or made.closes > 0 for made in plan.made)
        if isinstance(plan.observations, Dict) and plan.settings["network.name"] == "a3c_cnn":
            # The names of its inputs.
            policy_of(run, "latest")[0].network.as_keras()


def check_account(plan: Plan, line: str, summary: dict[str, Any], agent_steps: int) -> None:
    """Every agent step and episode that was played is in the account."""
    skip = plan.settings["environment.frame_skip"]
    sampled, (steps, episodes) = summary["agent_steps_sampled"], played(plan)
    assert summary["frames"] == skip * sampled
    assert line or sampled >= agent_steps
    most = math.prod(plan.settings[name] for name in ("actors", "actor.environments", "actor.unroll_length"))
    # A rollout that was played for a fresh gradient is not reported if another actor's error ends the run before. Nor
    # may all minibatches of the last rollouts be differentiated when a run ends.
    unreported = most if line and plan.settings["actor.fresh_gradients"] else 0
    assert 0 <= episodes - summary["episodes"] <= unreported
    assert 0 <= steps - sampled <= (most if plan.settings["actor.minibatches"] > 1 else unreported)


# Without shrinking: each smaller example is a run, too.
common = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip


@pytest.mark.usefixtures("short_random_play", "none_ahead")
@settings(common, max_examples=8)
@given(plans())
def test_some_generated_environments_are_trained_or_refused(plan: Plan) -> None:
    check_trained(plan, 200)


# In parts, of which several run at a time.
@pytest.mark.slow
@pytest.mark.usefixtures("short_random_play", "none_ahead")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_generated_environments_are_trained_or_refused(part: int) -> None:
    def check(plan: Plan) -> None:
        check_trained(plan, 2000)

    seed(part)(settings(common, derandomize=False, max_examples=25)(given(plans())(check)))()
