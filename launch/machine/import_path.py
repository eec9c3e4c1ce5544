"""Where Python finds the project's packages: before files of the same names, in every process of a run."""

import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from shared.errors import ConfigurationError

_PACKAGES = ("actors", "launch", "learner", "shared")


def project_folder() -> Path:
    """The folder that the project's packages are in."""
    return Path(__file__).resolve().parents[2]


def worker_path() -> list[str]:
    """Folders for the path of Ray's workers, the one to search first last: each is put before those that are there."""
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    return [*([script] if script in sys.path else []), os.getcwd(), str(project_folder())]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs one of the project's modules in a process of its own, which does not look where it stands.

    For `module_environment`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment of such a process: the project before all that PYTHONPATH names, and this process's script last.

    Modules beside a script can be imported in it, and so they can there.
    """
    project, script = str(project_folder()), os.path.dirname(os.path.realpath(sys.argv[0]))
    installed = project in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    # Installed packages come after those of the language, and stay there.
    folders = [*([] if installed else [project]), *filter(None, [os.environ.get("PYTHONPATH")])]
    folders += [script] if script in sys.path else []
    return os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


def shadowed_packages() -> dict[str, str]:
    """Packages of the project that this process finds elsewhere, and the file or folder that it finds."""
    found = {}
    for package in _PACKAGES:
        spec = PathFinder.find_spec(package)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), *filter(None, [spec.origin])]
        if places and not any(Path(place).resolve().is_relative_to(project_folder()) for place in places):
            found[package] = places[-1]
    return found


def check_packages() -> None:
    """Refuse to go on where a file takes the place of one of the project's packages.

    Raises:
        ConfigurationError: names the first such file, and what to do.
    """
    for package, file in shadowed_packages().items():
        raise ConfigurationError(
            f"{file} takes the place of the project's package {package}: rename it, or take its folder out of "
            f"PYTHONPATH"
        )


def namesakes(folder: Path) -> list[str]:
    """One line for each file or package in `folder` that has the name of one of the project's, and is not used."""
    if folder.resolve() == project_folder():
        return []
    files = [file for package in _PACKAGES for file in (folder / f"{package}.py", folder / package / "__init__.py")]
    return [
        f"note: {file} has the name of a package of this project, and is not used in its place"
        for file in files
        if file.is_file()
    ]
