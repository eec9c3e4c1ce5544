"""Environments of a user's own: their spaces and modules, by command; and awkward ones."""

import json
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from sessions import quick
from spaces import Given
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


NORMALISED = "--total-frames 8k --environment.normalise-rewards"


@pytest.mark.usefixtures("working_folder", "short_random_play")
@pytest.mark.parametrize(
    ("what", "settings", "inputs", "action", "outputs"),
    [
        ("choices", NORMALISED, {"observations": [None, 5]}, "several discrete", 5),
        ("both", BOTH, {"image_seen": [None, 36, 36, 1], "vector": [None, 1]}, "discrete", 2),
    ],
)
def test_what_is_seen_is_learned(what: str, settings: str, inputs: Any, action: str, outputs: int, capsys) -> None:
    Path("guesses.py").write_text(MODULE)
    line = (
        f"train cartpole {SMALL} {settings} --environment.id guesses:Guess-{what}-v0 --environment.log-info right name "
        f"other --run-dir run"
    )
    assert main(line.split()) == 0
    assert "note: left out of observations, as it is text: word" in capsys.readouterr().out
    assert main(["evaluate", "run", "--episodes", "20", "--weights", "latest"]) == 0
    result = json.loads(Path("run/evaluation-training.json").read_text())
    # About 5 of 10 guesses are right by chance, and with two choices each counts half.
    assert result["mean_return"] > 7.0
    assert list(result["info"]) == ["right"]
    assert result["info"]["right"] > 0.65
    rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
    found = [row["info/right"] for row in rows if "info/right" in row]
    assert 0.0 <= min(found) <= max(found) <= 1.0
    assert main(["record", "run", "--output", "film.gif", "--overlay"]) == 0
    assert Path("film.gif").stat().st_size > 0
    assert main(["export", "run", "--output", "model"]) == 0
    described = json.loads(Path("model/model.json").read_text())
    shapes = {name: part["shape"] for name, part in described["inputs"]["tensors"].items()}
    assert (shapes, described["action"]["kind"]) == (inputs, action)
    assert described["outputs"]["policy"] == [outputs]
    if action == "several discrete":
        assert main(["train", "cartpole", *line.split()[2:-2], "--method.name", "q_learning"]) == 2
        assert "has several actions at once; use actor_critic" in capsys.readouterr().err
    assert np.isfinite(json.loads(Path("run/summary.json").read_text())["mean_return_100"])


@pytest.mark.usefixtures("working_folder")
def test_an_environment_that_is_only_a_vector_is_trained_evaluated_and_resumed() -> None:
    line = f"train Walks-v0 {SMALL} --environment.import vector_tasks --environment.action-mask allowed --run-dir run"
    line += " --environment.vectorization native --environment.log-info walk.steps"
    assert main(f"{line} --total-frames 2k".split()) == 0
    assert main(["train", "--resume", "run", "--trust-imports", "--total-frames", "6k"]) == 0
    assert main(["evaluate", "run", "--trust-imports", "--episodes", "20", "--weights", "latest"]) == 0
    result = json.loads(Path("run/evaluation-training.json").read_text())
    assert np.isfinite(result["mean_return"])
    # Each episode's at its end, of 3 to 7 agent steps.
    assert 3.0 <= result["info"]["walk.steps"] == result["mean_length_agent_steps"] <= 7.0
    agent = tributary.load("run", weights="latest", trust_imports=True)
    assert agent.act(np.zeros((3, 2), np.float32), mask=np.eye(3))[0].tolist() == [-1, 0, 1]


class Awkward(Given):
    """Changes to another folder, is bound to the thread that makes it, and cannot be closed."""

    def __init__(self, folder: str) -> None:
        super().__init__(Box(-1, 1, (2,), np.float32), Discrete(2), [np.zeros(2, np.float32)] * 10)
        os.chdir(folder)
        self._thread = threading.get_ident()

    def reset(self, **more: Any) -> tuple[Any, dict]:
        assert threading.get_ident() == self._thread
        return super().reset(**more)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert threading.get_ident() == self._thread
        return super().step(action)

    def close(self) -> None:
        raise AttributeError("no viewer")


def test_an_awkward_environment_is_trained_into_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Awkward-v0", EnvSpec("Awkward-v0", Awkward))
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
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "run", "--weights", "latest", "--episodes", "2", "--json", "score.json"]) == 0
    assert (tmp_path / "score.json").exists()
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
def module(working_folder: Path) -> Module:
    return Module(working_folder)


def test_imports_need_permission(module: Module, refused: Callable[[str], str]) -> None:
    def rewrite(**environment: Any) -> None:
        """The settings are of another process where no run of this one has them."""
        settings = json.loads(Path("run/config.json").read_text())
        settings["environment"] |= environment
        Path("run/config.json").write_text(json.dumps(settings))

    line = f"train cartpole {TINY} --environment.id their_environments:Their-v0 --executor inline --run-dir run"
    assert main(line.split()) == 0
    rewrite(reward_scale=2.0)
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
    # The run of this process needs no permission, and commands that only read numbers need none.
    module.forget()
    assert main(["evaluate", "new", "--episodes", "2"]) == 0
    assert module.imports == imports + 2
    assert main(["report", "run"]) == main(["plot", "run"]) == 0
    # Permission is for the modules that were named.
    rewrite(imports=["this"])
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
        ("--environment.id trains_itself:Own-v0", "Error: --environment.import trains_itself: starts a run"),
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
