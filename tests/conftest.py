"""One thread for TensorFlow, so that sums are added in one order, and small configurations that tests share."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import hypothesis
import pytest

from launch.cli import main
from launch.presets import PRESETS
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import ActorConfig, EnvironmentConfig, EvaluationConfig, NetworkConfig, OptimizerConfig, RunConfig
from shared.registry import EXPLORERS, METHODS, NETWORKS, OPTIMIZERS

prepare_tensorflow(gpu=False)
# The same examples in each run: one that fails fails again.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")
# Modules of tests are in their folders, and here.
_OF_TESTS = (Path(__file__).parent / "helpers", Path(__file__).parents[1] / "docs" / "examples")
# Ray runs its workers at niceness 15: other load on the machine would delay the tests that wait for them.
os.environ.setdefault("RAY_worker_niceness", "0")
# As continuous integration sets them: output that is compared would have colours.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True, scope="session")
def children_take_signals() -> Iterator[None]:
    """Started by nohup, or in the background of a script, pytest ignores signals, and so would what tests start."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGHUP, signal.SIGINT)}
    # A handler is reset in a child, where an ignored signal stays ignored.
    for kind in (kind for kind, handler in before.items() if handler is signal.SIG_IGN):
        signal.signal(kind, lambda *_: None)
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.fixture
def signals_end() -> Iterator[None]:
    """SIGINT and SIGTERM do what they do in a new process: Ray leaves a handler of SIGTERM after tests with it."""
    ends = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {kind: signal.signal(kind, handler) for kind, handler in ends.items()}
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.fixture
def short_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean observation is of 40 agent steps of random play, in place of 800, which take half a second."""
    monkeypatch.setattr("actors.environments.vector._STEPS", 40)


@pytest.fixture
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors with fresh gradients play no agent steps before their first rollouts: those are in no account."""
    monkeypatch.setattr("shared.config.training._MAX_WARM_UP_AGENT_STEPS", 0)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new folder, in which the test stands. What modules that it imports have entered is forgotten, and they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tables: tuple[dict, ...] = (METHODS, NETWORKS, EXPLORERS, OPTIMIZERS)
    before, games, modules = [dict(table) for table in tables], set(gymnasium.registry), set(sys.modules)
    yield tmp_path
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    # Libraries, which stay, have their environments registered by names of classes.
    for name in gymnasium.registry.keys() - games:
        if not isinstance(gymnasium.registry[name].entry_point, str):
            del gymnasium.registry[name]
    for name in sys.modules.keys() - modules:
        # Not by `getattr`, which would import lazy modules.
        file = Path(getattr(sys.modules[name], "__dict__", {}).get("__file__") or "/")
        if file.parent in (tmp_path, *_OF_TESTS):
            del sys.modules[name]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[str | list[str]], str]:
    """Gives a command that has to be refused, and returns its one line of error."""

    def refuse(command: str | list[str]) -> str:
        capsys.readouterr()
        assert main(command.split() if isinstance(command, str) else command) == 2
        out, error = capsys.readouterr()
        # An environment that is named without a preset has the preset named first.
        assert not out or (out.startswith("preset: ") and out.count("\n") == 1)
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error.removeprefix("error: ").rstrip("\n")

    return refuse


@pytest.fixture
def cartpole() -> RunConfig:
    """CartPole with a network and rollouts small enough for hundreds of updates a second."""
    return RunConfig(
        actors=1,
        total_frames=100_000,
        environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1, clip_rewards=False),
        network=NetworkConfig(name="mlp", hidden_sizes=(16,)),
        optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-5, bias_correction=True, max_gradient_norm=0.5),
        actor=ActorConfig(environments=3, unroll_length=5),
        evaluation=EvaluationConfig(episodes=4, environments=2),
        log_every_seconds=0.2,
    )


@pytest.fixture
def pong() -> RunConfig:
    """Pong as preset, in rollouts short enough for 200 updates in a test."""
    return replace(PRESETS["pong"].config, actor=ActorConfig(environments=2, unroll_length=4))
