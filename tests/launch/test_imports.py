"""Environments of the user's own modules: trained and played by name, and imported from nobody else's run folder."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from launch.cli import main

MODULE = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

with Path(__file__).with_name("imports.txt").open("a") as imports:
    imports.write("imported\\n")
gymnasium.register("Their-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""
SMALL = "--actors 1 --total-frames 400 --stop-at-return None --stop-measure training --evaluation.every-frames 0"
COMMANDS = ("evaluate {} --episodes 2", "record {}", "export {}", "train --resume {} --total-frames 500")


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
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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
def test_a_run_of_ones_own_imports_its_module_in_every_command(
    environment: str, module: Module, tmp_path: Path
) -> None:
    train(f"{environment} --run-dir run")
    assert module.imports == 1
    for command in COMMANDS[:1] + COMMANDS[2:]:
        module.forget()
        assert main(command.format("run").split()) == 0
    assert module.imports == 4
    assert json.loads(Path("run/evaluation-training.json").read_text())["episodes"] == 2
    key = tmp_path / "state" / "tributary" / "key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_the_run_of_somebody_else_imports_nothing_unless_it_is_trusted(
    module: Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train("--environment.id their_environments:Their-v0 --run-dir run")
    imports = 1
    for number, command in enumerate((*COMMANDS, "train cartpole --start-from {} --executor inline")):
        shutil.copytree("run", f"run-{number}")
        # To another user the signature says nothing, and none has signed what he trusted once.
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"other-{number}"))
        module.forget()
        capsys.readouterr()
        typed = command.format(f"run-{number}").split()
        assert main(typed) == 2, command
        line = capsys.readouterr().err
        assert f"run-{number}: would import their_environments, and was not made by you on this machine" in line
        assert line.count("\n") == 1
        assert module.imports == imports, command
        if not command.startswith("record"):
            small = f"{SMALL} --environment.id their_environments:Their-v0" if "--start-from" in command else ""
            assert main([*typed, *small.split(), "--trust-imports"]) == 0, command
            imports += 1
            assert module.imports == imports, command


def test_settings_that_somebody_changed_are_not_ones_own_any_more(
    module: Module, capsys: pytest.CaptureFixture
) -> None:
    train("--environment.id their_environments:Their-v0 --run-dir run")
    shutil.copytree("run", "copied")
    module.forget()
    assert main(["evaluate", "copied", "--episodes", "1"]) == 0
    settings = json.loads(Path("copied/config.json").read_text())
    settings["environment"]["imports"] = ["this"]
    Path("copied/config.json").write_text(json.dumps(settings))
    module.forget()
    capsys.readouterr()
    assert main(["evaluate", "copied", "--episodes", "1"]) == 2
    assert "copied: would import this, their_environments" in capsys.readouterr().err
    assert "this" not in sys.modules
    # Nor may a file of other settings beside those that were signed.
    Path("run/other.json").write_text(json.dumps(settings))
    assert main(["train", "--config", "run/other.json", "--executor", "inline"]) == 2
    assert "run: would import this, their_environments" in capsys.readouterr().err
    assert "this" not in sys.modules
    # What only shows a run needs none of its code.
    assert main(["report", "copied"]) == 0
    assert main(["plot", "copied"]) == 0


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
def test_what_cannot_be_imported_is_one_line(environment: str, line: str, capsys: pytest.CaptureFixture) -> None:
    Path("broken.py").write_text("1 / 0")
    Path("lacks.py").write_text("import no_such_module")
    assert main(["train", "cartpole", *environment.split()]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


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
