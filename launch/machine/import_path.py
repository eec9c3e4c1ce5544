"""The import path of every process of a run: the project's packages come before files with the same names."""

import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from shared.errors import ConfigurationError

_PACKAGES = ("actors", "launch", "learner", "shared")


def project_folder() -> Path:
    """The folder of the project's packages."""
    return Path(__file__).resolve().parents[2]


def worker_path() -> list[str]:
    """Folders that Ray prepends to the `sys.path` of its workers, in reverse order of precedence."""
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    return [*([script] if script in sys.path else []), os.getcwd(), str(project_folder())]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the project, with `module_environment`.

    -P keeps the working directory out of `sys.path`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment variables of such a process: PYTHONPATH begins with the project.

    It ends with the folder of this process's script, whose modules the process must be able to import, too.
    """
    project, script = str(project_folder()), os.path.dirname(os.path.realpath(sys.argv[0]))
    installed = project in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    # Installed packages keep their place, after the standard library.
    folders = [*([] if installed else [project]), *filter(None, [os.environ.get("PYTHONPATH")])]
    folders += [script] if script in sys.path else []
    return os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


def shadowed_packages() -> dict[str, str]:
    """Packages of the project that are shadowed in this process, each with the file or folder found in its place."""
    found = {}
    for package in _PACKAGES:
        spec = PathFinder.find_spec(package)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), *filter(None, [spec.origin])]
        if places and not any(Path(place).resolve().is_relative_to(project_folder()) for place in places):
            found[package] = places[-1]
    return found


def check_packages() -> None:
    """Refuse shadowed packages.

    Raises:
        ConfigurationError: a file takes the place of one of the project's packages.
    """
    for package, file in shadowed_packages().items():
        raise ConfigurationError(
            f"{file} takes the place of the project's package {package}: rename it, or take its folder out of "
            f"PYTHONPATH"
        )


def namesakes(folder: Path) -> list[str]:
    """One line for each file or package in `folder` with the name of one of the project's, which is not imported."""
    if folder.resolve() == project_folder():
        return []
    files = [file for package in _PACKAGES for file in (folder / f"{package}.py", folder / package / "__init__.py")]
    return [
        f"note: {file} has the name of a package of this project, and is not used in its place"
        for file in files
        if file.is_file()
    ]
