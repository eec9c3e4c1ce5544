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
whole = st.sampled_from([Box(-5, 99, (), np.int64), Box(0, 1, (2,), np.int8), Box(-1, 9, (2,), np.int32)])
choices = st.one_of(
    st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 2**40)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.just(MultiDiscrete([[2, 3], [1, 4]], start=[[0, -7], [5, 2**40]])),
    st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)
actions = boxes | whole | choices
numbers = st.recursive(
    actions, lambda inner: st.builds(lambda a, b: Dict({"a": a, "b": Tuple((b, Text(4)))}), inner, inner), max_leaves=3
)
"""Spaces of observations without images."""
PICTURE, RGBA, GREY = (Box(0, 255, (40, 44, *channels), np.uint8) for channels in ((3,), (4,), ()))
BESIDE = Dict({"picture": PICTURE, "speed": Box(-np.inf, np.inf, (2,))})
pictures = st.sampled_from([PICTURE, RGBA, GREY, BESIDE, Dict({"left": RGBA, "right": GREY})])


@dataclass(frozen=True)
class Fault:
    """From step `at` on, `times` times, `value` comes in place of a part of the result, or is raised if it has none."""

    part: int | None
    value: Any
    refused: bool
    at: int
    times: int


faults = st.builds(
    lambda fault, at, times: Fault(*fault, at, times),
    st.sampled_from(
        [
            *((0, value, True) for value in (None, "text", np.zeros((4, 4, 4, 4)))),
            *((1, value, False) for value in (math.nan, math.inf, 1e300, np.float32(3e38))),
            *((1, value, True) for value in (None, np.zeros(3))),
            *((part, value, True) for part in (2, 3) for value in (None, 0.5)),
            *((None, value, True) for value in (ValueError("E17:\n stalled"), SystemExit(3), RuntimeError())),
        ]
    ),
    # A fault of the first three steps is found before training.
    st.one_of(st.integers(1, 3), *[st.integers(4, 60)] * 4),
    st.sampled_from([1, 1, 3, 10**9]),
)


@dataclass
class Plan:
    """One environment, and the settings of its run. `made` are the copies; `failed` is set by a refused fault."""

    observations: gymnasium.Space
    actions: gymnasium.Space
    fault: Fault | None
    longest: int
    settings: dict[str, Any]
    made: list["Generated"] = field(default_factory=list, repr=False)
    failed: bool = False


class Generated(gymnasium.Env):
    """Random observations and rewards, and a fault. `closes` is the number of calls of `close`.

    `course` has an entry for each vector step of a training copy: [agent steps, ended episodes]. [1, 0] in an episode,
    [1, 1] at its end, [0, 0] for a step that resets.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._skip = plan, plan.settings["environment.frame_skip"]
        self.observation_space, self.action_space = copy.deepcopy(plan.observations), plan.actions
        self.course: list[list[int]] = []
        self.closes = self._count = self._frame = 0
        self._reset_before = False
        plan.made.append(self)

    def close(self) -> None:
        self.closes += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self._frame = 0
        self._left = int(self.np_random.integers(1, self._plan.longest + 1))
        if self._reset_before:
            self.course.append([0, 0])
        self._reset_before = True
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        assert action.dtype == self.action_space.dtype
        self._count += 1
        fault = self._plan.fault
        if fault is not None and not 0 <= self._count - fault.at < fault.times:
            fault = None
        refused = fault is not None and fault.refused
        if refused:
            self._plan.failed = True
            if self._frame % self._skip:
                self.course.pop()
        elif self._frame % self._skip == 0:
            self.course.append([1, 0])
        self._frame, self._left = self._frame + 1, self._left - 1
        ended, truncates = self._left == 0, self.np_random.random() < 0.5
        reward = float(self.np_random.normal())
        result: list[Any] = [self.observation_space.sample(), reward, ended and not truncates, ended and truncates, {}]
        if fault is not None and fault.part is None:
            raise fault.value
        if fault is not None:
            result[fault.part] = fault.value
        if ended and not refused:
            self.course[-1][1] = 1
        return tuple(result)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    images, action_space = one_of(False, False, False, True), draw(actions)
    method = one_of("actor_critic", "q_learning", "sarsa") if isinstance(action_space, Discrete) else "actor_critic"
    epochs, minibatches = one_of((1, 1), (1, 1), (2, 1), (1, 2), (2, 2))
    config = {
        "actors": draw(st.integers(1, 2)),
        "network.name": "a3c_cnn" if images else "mlp",
        "network.hidden_sizes": (8,),
        "network.observation_scaling": "none" if images else one_of("none", "running", "bounds"),
        "network.recurrent": one_of("none", "none", "none", "none", "lstm"),
        "method.name": method,
        "method.standardise_advantages": draw(st.booleans()) and method == "actor_critic",
        "environment.frame_skip": draw(st.integers(1, 3)),
        "environment.clip_rewards": draw(st.booleans()),
        "environment.normalise_rewards": draw(st.booleans()),
        "environment.screen_size": 36,
        "environment.greyscale": draw(st.booleans()),
        "environment.frame_stack": draw(st.integers(1, 2)),
        "actor.environments": 2 * draw(st.integers(1, 3)),
        "actor.unroll_length": one_of(1, 3, 5, 20),
        "actor.epochs": epochs,
        "actor.minibatches": minibatches,
        "actor.fresh_gradients": draw(st.booleans()) and method == "actor_critic",
        "learner.gradients_per_update": draw(st.integers(1, 2)),
        "optimizer.name": one_of("rmsprop", "adam"),
    }
    fault = draw(st.one_of(st.none(), faults, faults))
    return Plan(draw(pictures if images else numbers), action_space, fault, one_of(1, 2, 9, 300), config)


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
    elif line.startswith("--"):
        assert line.startswith("--network.observation-scaling bounds")
        assert "has no finite bounds in observation" in line
        assert plan.settings["network.observation_scaling"] == "bounds"
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
        assert all(made.closes for made in plan.made)


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


def check_examples(check: Callable[[Plan], None], count: int, **more: Any) -> None:
    """Without shrinking: each smaller example is a run, too."""
    phases = [Phase.explicit, Phase.generate]
    quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "phases": phases}
    settings(**quiet, max_examples=count, **more)(given(plans())(check))()


@pytest.mark.usefixtures("short_random_play", "no_warm_up")
def test_some_generated_environments_are_trained_or_refused() -> None:
    def check(plan: Plan) -> None:
        check_trained(plan, 200)

    check_examples(check, 8, derandomize=True)


# In parts, of which several run at a time.
@pytest.mark.slow
@pytest.mark.usefixtures("short_random_play", "no_warm_up")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_generated_environments_are_trained_or_refused(part: int) -> None:
    @seed(part)
    def check(plan: Plan) -> None:
        check_trained(plan, 2000)

    check_examples(check, 25)
