"""The wheel, built, installed into a new environment, and used from another folder.

The environment sees the packages that the tests have, by a .pth file, so that TensorFlow and Ray are not installed once
more for each try. In a folder that is on the path that way no .pth file is read. The editable install of this checkout
is one, so it is not seen: only the wheel is.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from environments import ROOT, see_packages, tracked
from waiting import UNTIL_FRAMES
from watched_processes import output_of

from launch.provenance import source_digest

pytestmark = pytest.mark.wheel

_PACKAGES = ("actors", "launch", "learner", "shared")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Elsewhere, as setuptools leaves folders behind, and puts what an earlier build left there into the next wheel.
    for name in tracked():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", folder, folder / "source"], check=True)
    (made,) = folder.glob("*.whl")
    return made


class Installed:
    """An environment with the wheel, and a folder to type commands in."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder, self.programs = folder / "elsewhere", folder / "venv" / "bin"
        self.folder.mkdir()
        venv.create(folder / "venv", symlinks=True)
        self.packages = see_packages(folder / "venv")
        # What runs here finds nothing by PYTHONPATH that its user would not find.
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)
        )

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        return output_of(self.programs / program, *arguments, cwd=self.folder, env=self.environment | variables)

    def tributary(self, line: str) -> str:
        return self.run("tributary", *line.split())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert files == {*tracked(*_PACKAGES), "tributary_rl.py"} - {*tracked("launch/clusters")}
    licence = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/LICENSE")]
    assert len(licence) == 1


def test_commands_find_what_they_read(installed: Installed) -> None:
    assert "commands:" in installed.tributary("--help")
    assert f"revision {source_digest()}" in installed.tributary("--version")
    assert "halfcheetah" in installed.tributary("presets")
    assert "zoo:pong" in installed.tributary("zoo")
    installed.tributary("evaluate zoo:cartpole --episodes 2 --json evaluation.json")
    result = json.loads((installed.folder / "evaluation.json").read_text())
    assert (result["episodes"], result["mean_return"]) == (2, 500.0)


def test_python_imports_what_is_installed(installed: Installed) -> None:
    script = "import tributary_rl, launch; print(tributary_rl.__file__); print(launch.__file__)"
    for file in installed.run("python", "-c", script).splitlines():
        assert Path(file).is_relative_to(installed.packages)


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_run_trains_and_is_reported(executor: str, installed: Installed) -> None:
    run = installed.folder / executor
    installed.tributary(
        f"train cartpole --executor {executor} --actors 1 --total-frames 4000 {UNTIL_FRAMES} --run-dir {run}"
    )
    assert json.loads((run / "summary.json").read_text())["status"] == "frames_reached"
    assert json.loads((run / "manifest.json").read_text())["revision"] == source_digest()
    installed.tributary(f"report {run}")
    assert "<style>" in (run / "report.html").read_text()
