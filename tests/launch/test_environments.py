"""Environments of a user's own: their spaces and modules, by command; and awkward ones."""

import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from sessions import quick, session
from waiting import UNTIL_FRAMES

import tributary_rl as tributary
from launch.cli import main
from launch.presets import PRESETS
from launch.run.lookup import trust_option
from launch.run.modules import check_imports
from launch.train import Result, train
from shared.errors import ConfigurationError

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

class Guess(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, what, render_mode=None):
        self.render_mode, self._what, self._t = render_mode, what, 0
        parts = {"seen": Box(0, 255, (48, 64, 3), np.uint8), "turned": Box(-9, 9, (1,)), "word": Text(9)}
        self.action_space = Discrete(2)
        if what == "choices":
            self.action_space = MultiDiscrete([3, 2], start=[1, 0])
            parts = {"seen": self.action_space, "word": Text(9)}
        self.observation_space = Dict(parts)

    def _see(self):
        self._right = self.action_space.sample()
        if self._what == "choices":
            return {"seen": self._right, "word": "word"}
        # The side that is bright is right, or the other one.
        turned = self.action_space.sample()
        seen = {"seen": self.render(), "turned": np.array([18 * turned - 9], np.float32), "word": "word"}
        self._right = self._right ^ turned
        return seen

    def render(self):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:, 32 * int(np.ravel(self._right)[0] % 2):][:, :32] = 200
        return picture

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._t = 0
        return self._see(), {}

    def step(self, action):
        reward = float(np.mean(np.asarray(action) == self._right))
        self._t += 1
        info = {"right": reward, "name": "Guess"} if self._t == 10 else {"right": -1.0}
        return self._see(), reward, False, self._t == 10, info

gymnasium.register("Guess-choices-v0", Guess, kwargs={"what": "choices"})
gymnasium.register("Guess-both-v0", Guess, kwargs={"what": "both"})
"""
SMALL = f"--executor inline --actors 1 {UNTIL_FRAMES} --optimizer.schedule constant --log-every-seconds 0.5"
CNN = "--network.name a3c_cnn --environment.screen-size 36 --environment.frame-stack 1 --total-frames 3k"
# What a picture means turns with a number: a sum of what is seen in each cannot be right.
BOTH = (
    f"{CNN} --optimizer.name adam --optimizer.epsilon 1e-5 --optimizer.learning-rate 6e-4 --method.discount 0 "
    "--method.entropy-cost 0.01 --actor.epochs 2 --actor.minibatches 4 --network.observation-scaling bounds"
)


@pytest.mark.usefixtures("working_folder", "short_random_play")
@pytest.mark.parametrize(
    ("what", "settings", "inputs", "action", "outputs"),
    [
        ("choices", "--total-frames 8k --environment.normalise-rewards", [None, 5], "several discrete", 5),
        ("both", BOTH, {"image_seen": [None, 36, 36, 1], "vector": [None, 1]}, "discrete", 2),
    ],
)
def test_what_is_seen_is_learned(
    what: str, settings: str, inputs: Any, action: str, outputs: int, monkeypatch: Any, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("guesses.py").write_text(MODULE)
    line = (
        f"train cartpole {SMALL} {settings} --environment.id guesses:Guess-{what}-v0 --environment.log-info right name "
        f"other --run-dir run"
    )
    try:
        assert main(line.split()) == 0
        assert "note: left out of observations, as it is text: word" in capsys.readouterr().out
        assert main(["evaluate", "run", "--episodes", "20", "--weights", "latest"]) == 0
        result = json.loads(Path("run/evaluation-training.json").read_text())
        # About 5 of 10 guesses are right by chance, and with two choices each counts half.
        assert result["mean_return"] > 9.0
        assert list(result["info"]) == ["right"]
        assert result["info"]["right"] > 0.8
        rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
        found = [row["info/right"] for row in rows if "info/right" in row]
        assert 0.0 <= min(found) <= max(found) <= 1.0
        assert main(["record", "run", "--output", "film.gif", "--overlay"]) == 0
        assert Path("film.gif").stat().st_size > 0
        assert main(["export", "run", "--output", "model"]) == 0
        described = json.loads(Path("model/model.json").read_text())
        seen = described["inputs"]
        shapes = {name: part["shape"] for name, part in seen["named"].items()} if "named" in seen else seen["shape"]
        assert (shapes, described["action"]["kind"]) == (inputs, action)
        assert described["outputs"]["policy"] == [outputs]
        if action == "several discrete":
            assert main(["train", "cartpole", *line.split()[2:-2], "--method.name", "q_learning"]) == 2
            assert "has several actions at once; use actor_critic" in capsys.readouterr().err
    finally:
        sys.modules.pop("guesses", None)
        for name in ("choices", "both"):
            gymnasium.registry.pop(f"Guess-{name}-v0", None)
    assert np.isfinite(json.loads(Path("run/summary.json").read_text())["mean_return_100"])


def test_a_vector_environment_of_its_own_trains_as_copies_do(tmp_path: Path) -> None:
    """To the bit, with its masks, its numbers in info, both kinds of ends, and evaluations."""
    environment = {"id": "Walk-v0", "imports": ("vector_tasks",), "action_mask": "allowed", "log_info": ("walk.steps",)}
    actor = {"environments": 5, "unroll_length": 6, "total_environments": None}
    common = {"actor": actor, "log_every_seconds": 1e9, "total_frames": 1_500, "evaluation.every_frames": 700}
    runs = []
    for vectorization in ("sync", "native"):
        config = quick(environment={**environment, "vectorization": vectorization}, **common)
        folder = tmp_path / vectorization
        run = session(config, folder, actors=2)
        summary = run.run()
        rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
        names = "agent_steps", "episodes", "mean_return_100", "policy_loss"
        counted = [[row.get(name) for name in names] for row in rows]
        steps = [row["info/walk.steps"] for row in rows if "info/walk.steps" in row]
        found = summary["agent_steps_applied"], summary["evaluation"]["mean_return"], counted, steps
        runs.append((found, run.learner.snapshot().parameters))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])
    assert 3.0 <= np.mean(steps) <= 7.0


@pytest.mark.usefixtures("working_folder")
def test_an_environment_that_is_only_a_vector_is_trained_evaluated_and_resumed() -> None:
    line = f"train Walks-v0 {SMALL} --environment.import vector_tasks --environment.action-mask allowed --run-dir run"
    assert main(f"{line} --environment.vectorization native --total-frames 2k".split()) == 0
    assert main(["train", "--resume", "run", "--trust-imports", "--total-frames", "6k"]) == 0
    assert main(["evaluate", "run", "--trust-imports", "--episodes", "20", "--weights", "latest"]) == 0
    assert np.isfinite(json.loads(Path("run/evaluation-training.json").read_text())["mean_return"])
    agent = tributary.load("run", weights="latest", trust_imports=True)
    assert agent.act(np.zeros((3, 2), np.float32), mask=np.eye(3))[0].tolist() == [-1, 0, 1]


class Awkward(gymnasium.Env):
    """Changes to another folder, is bound to the thread that makes it, and cannot be closed."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self._thread = threading.get_ident()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        assert threading.get_ident() == self._thread
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:  # noqa: ARG002
        assert threading.get_ident() == self._thread
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 10, False, {}

    def close(self) -> None:
        raise AttributeError("no viewer")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Awkward-v0", Awkward)
    yield
    gymnasium.registry.pop("Awkward-v0")


def test_an_awkward_environment_is_trained_into_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "simulator").mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"folder": str(tmp_path / "simulator")}
    config = quick(environment={"id": "Awkward-v0", "options": options}, total_frames=200)
    result: Result = train(config, Path("run"), lambda _: None)
    assert Path.cwd() == tmp_path / "simulator", "the copies of training have changed it"
    # Written after its environments were closed, which raised an error.
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == result.summary
    assert summary["status"] == "frames_reached"
    assert list((tmp_path / "run" / "checkpoints").glob(f"update-{summary['updates']}.index"))
    assert not list((tmp_path / "simulator").iterdir())


THEIRS = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

with Path(__file__).with_name("imports.txt").open("a") as imports:
    imports.write("imported\\n")
gymnasium.register("Their-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""
TRAINS_ITSELF = """
from pathlib import Path
import tributary_rl

with Path("imports.txt").open("a") as imports:
    imports.write("imported\\n")
if Path("imports.txt").read_text().count("imported") < 5:
    tributary_rl.train("trains_itself:Own-v0")
"""
TINY = f"--actors 1 --total-frames 400 {UNTIL_FRAMES}"


class Module:
    """A module `their_environments` in the folder that commands are typed in."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "imports.txt"
        self._log.touch()
        (folder / "their_environments.py").write_text(THEIRS)

    def forget(self) -> None:
        """As in a new process."""
        sys.modules.pop("their_environments", None)
        gymnasium.registry.pop("Their-v0", None)

    @property
    def imports(self) -> int:
        return len(self._log.read_text().splitlines())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = Module(tmp_path)
    yield module
    module.forget()


def test_the_process_that_made_a_run_imports_its_module_again(module: Module) -> None:
    environment = "--environment.id Their-v0 --environment.import their_environments"
    assert main(f"train cartpole {TINY} {environment} --executor inline --run-dir run".split()) == 0
    assert module.imports == 1
    module.forget()
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    assert module.imports == 2
    assert json.loads(Path("run/evaluation-training.json").read_text())["episodes"] == 2


@pytest.fixture
def run_of_another_process(module: Module, tmp_path: Path) -> Path:
    """The folder of a run that another process trained, whose settings name `their_environments`."""
    # Settings that no run of this process has.
    environment = "--environment.id their_environments:Their-v0 --environment.reward-scale 2"
    line = f"train cartpole {TINY} {environment} --executor inline --run-dir run"
    command = [sys.executable, "-P", "-m", "launch.cli", *line.split()]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert module.imports == 1
    return tmp_path / "run"


def test_imports_need_permission(module: Module, run_of_another_process: Path, refused: Callable[[str], str]) -> None:
    start = f"train cartpole {TINY} --executor inline --run-dir new"
    commands = {
        "train --config run/config.json --run-dir new": "",
        "evaluate run --episodes 2": "--trust-imports",
        f"{start} --start-from run": "--environment.id their_environments:Their-v0 --environment.reward-scale 2",
        "train --resume run --total-frames 500": "--environment.import their_environments",
    }
    module.forget()
    for command in commands:
        assert "would import their_environments: give --trust-imports" in refused(command)
        assert module.imports == 1, command
    for command, permission in commands.items():
        if permission:
            module.forget()
            imports = module.imports
            assert main([*command.split(), *permission.split()]) == 0, command
            assert module.imports == imports + 1, command
    # Commands that only read numbers need no permission.
    assert main(["report", "run"]) == main(["plot", "run"]) == 0
    # Permission is for the modules that were named.
    file = run_of_another_process / "config.json"
    settings = json.loads(file.read_text())
    settings["environment"]["imports"] = ["this"]
    file.write_text(json.dumps(settings))
    line = "train --resume run --total-frames 600 --environment.id their_environments:Their-v0"
    assert "run: would import this: give --trust-imports" in refused(line)
    assert "this" not in sys.modules


def test_a_wrapper_of_others_needs_permission() -> None:
    config = PRESETS["cartpole"].config
    check_imports(config.environment, "run", "run")
    assert trust_option(config) == ""
    own = replace(config.environment, wrappers=("theirs:Wrapper",))
    assert trust_option(replace(config, environment=own)) == " --trust-imports"
    with pytest.raises(ConfigurationError, match="would import theirs: give --trust-imports"):
        check_imports(own, "run", "run")


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ("--environment.import no_such_module", "--environment.import no_such_module: there is no such module"),
        ("--environment.import not-a-name", "--environment.import not-a-name: is no module's name"),
        ("--environment.import lacks", "--environment.import lacks: cannot be imported: ModuleNotFoundError"),
        ("--environment.import shared.envs", "shared is a package of tributary-rl: rename yours, if it has this name"),
        ("--environment.import mine", "No module named 'shared.helpers'; shared is a package of tributary-rl"),
        ("--environment.import lacks.py", "there is no such module: a module is named without .py: lacks"),
        ("--environment.id types:Their-v0", f"types is {types.__file__}"),
        (
            "--environment.id trains_itself:Own-v0",
            "ConfigurationError: --environment.import trains_itself: starts a run",
        ),
        ("--environment.id Their-v0", "or name the module that registers it: --environment.import MODULE"),
        ("--environment.id their_environments:Other-v0", "--environment.id their_environments:Other-v0: no such"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_imported_is_one_line(environment: str, line: str, refused: Callable[[str], str]) -> None:
    Path("lacks.py").write_text("import no_such_module" if environment.endswith("lacks") else "")
    Path("mine.py").write_text("import shared.helpers")
    Path("trains_itself.py").write_text(TRAINS_ITSELF)
    assert line in refused(f"train cartpole {environment}")
