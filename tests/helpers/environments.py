"""The files of the project, and virtual environments with packages that the one that runs the tests is without."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def environment(folder: Path, *packages: str, beside: bool = False) -> Path:
    """A virtual environment's programs, installed once. With `beside` it sees the packages that the tests have, too."""
    done = folder / ".installed"
    if not done.is_file() or done.read_text() != " ".join(packages):
        venv.create(folder, clear=True, symlinks=True)
        if beside:
            see_packages(folder)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", *packages], cwd=ROOT, check=True)
        done.write_text(" ".join(packages))
    return folder / "bin"


def with_extras(folder: Path, extras: str) -> Path:
    """Programs of the project with extras, which are no part of the environment that runs the tests."""
    return environment(folder, "--constraint", "constraints.txt", "--editable", f".[{extras}]", beside=True)


def see_packages(folder: Path) -> Path:
    """Let a virtual environment see the packages that the tests have. Returns the folder of its own packages."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return packages
