"""Environments of the user's own modules: trained and played by name; a run folder needs permission to import them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest
from waiting import UNTIL_FRAMES

from launch.cli import main

MODULE = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

with Path(__file__).with_name("imports.txt").open("a") as imports:
    imports.write("imported\\n")
gymnasium.register("Their-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""
SMALL = f"--actors 1 --total-frames 400 {UNTIL_FRAMES}"


class Module:
    """A module `their_environments` in the folder that commands are typed in."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "imports.txt"
        self._log.touch()
        (folder / "their_environments.py").write_text(MODULE)

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


def train(environment: str) -> None:
    assert main(["train", "cartpole", *SMALL.split(), *environment.split(), "--executor", "inline"]) == 0


@pytest.mark.parametrize(
    "environment",
    [
        "--environment.id their_environments:Their-v0",
        "--environment.id Their-v0 --environment.import their_environments",
    ],
)
def test_the_process_that_made_a_run_imports_its_module_again(environment: str, module: Module) -> None:
    train(f"{environment} --run-dir run")
    assert module.imports == 1
    for command in ("evaluate {} --episodes 2", "export {}"):
        module.forget()
        assert main(command.format("run").split()) == 0
    assert module.imports == 3
    assert json.loads(Path("run/evaluation-training.json").read_text())["episodes"] == 2


@pytest.fixture
def run_of_another_process(module: Module, tmp_path: Path) -> Path:
    """The folder of a run that another process trained, whose settings name `their_environments`."""
    # Settings that no run of this process has.
    environment = "--environment.id their_environments:Their-v0 --environment.reward-scale 2"
    line = f"train cartpole {SMALL} {environment} --executor inline --run-dir run"
    command = [sys.executable, "-P", "-m", "launch.cli", *line.split()]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert module.imports == 1
    return tmp_path / "run"


def test_a_run_folder_imports_nothing_without_permission(
    module: Module, run_of_another_process: Path, refused: Callable[[str], str]
) -> None:
    start = f"train cartpole {SMALL} --executor inline --run-dir new"
    commands = {
        "record run": "",
        "train --config run/config.json --run-dir new": "",
        "evaluate run --episodes 2": "--trust-imports",
        "export run": "--trust-imports",
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
    assert main(["report", "run"]) == 0
    assert main(["plot", "run"]) == 0
    # Permission is for the modules that were named.
    file = run_of_another_process / "config.json"
    settings = json.loads(file.read_text())
    settings["environment"]["imports"] = ["this"]
    file.write_text(json.dumps(settings))
    line = "train --resume run --total-frames 600 --environment.id their_environments:Their-v0"
    assert "run: would import this: give --trust-imports" in refused(line)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ("--environment.import no_such_module", "--environment.import no_such_module: there is no such module"),
        ("--environment.import not-a-name", "--environment.import not-a-name: is no module's name"),
        ("--environment.import=broken", "--environment.import broken: cannot be imported: ZeroDivisionError"),
        ("--environment.import lacks", "--environment.import lacks: cannot be imported: ModuleNotFoundError"),
        ("--environment.id Their-v0", "or name the module that registers it: --environment.import MODULE"),
        ("--environment.id their_environments:Other-v0", "--environment.id their_environments:Other-v0: no such"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_imported_is_one_line(environment: str, line: str, refused: Callable[[str], str]) -> None:
    Path("broken.py").write_text("1 / 0")
    Path("lacks.py").write_text("import no_such_module")
    assert line in refused(f"train cartpole {environment}")


@pytest.mark.slow
def test_workers_of_ray_import_it_too(module: Module, tmp_path: Path) -> None:
    module.forget()
    command = [sys.executable, "-P", "-m", "launch.cli", "train", "cartpole", *SMALL.split()]
    line = "--environment.id Their-v0 --environment.import their_environments --evaluation.every-frames 200"
    ended = subprocess.run(
        [*command, *line.split(), "--run-dir", "run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # The driver, the actor and the evaluator.
    assert module.imports >= 3
