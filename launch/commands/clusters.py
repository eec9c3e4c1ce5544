"""`tributary clusters [DIR]`: the cluster files for installations without a checkout."""

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launch.machine import project_folder
from launch.output import print_line
from launch.settings.parse import Operand
from shared.errors import ConfigurationError

_DISTRIBUTION = "tributary-rl"
# Parts of the files that refer to a checkout, and their replacements for a folder with a wheel in it.
_IN_A_CHECKOUT = {
    r"launch/clusters/": "",
    r"--editable (['\"]?)\.(\[[^\]]+\])?\1": r"--find-links . \1{package}\2=={version}\1",
    r"pyproject\.toml constraints\.txt README\.md LICENSE \./": "constraints.txt *.whl ./",
    r"(?m)^RUN for package in .* \\\n    && pip": "RUN pip",
}


@dataclass(frozen=True)
class ClustersArguments:
    """List the cluster files, or write them to a folder. `ray up` and `docker build` then install the versions of this
    installation. A checkout has the files in launch/clusters."""

    folder: Operand[Path | None] = None
    """Folder to write the files to. Default: only list them."""


def clusters(arguments: ClustersArguments) -> None:
    console, folder = Console(), arguments.folder
    if folder is None:
        table = Table("file", "for", box=None, pad_edge=False)
        for file in _files():
            table.add_row(file.name, _purpose(file))
        console.print(table, highlight=False)
        print_line(console, "tributary clusters DIR writes them to a folder.")
        return
    version = importlib.metadata.version(_DISTRIBUTION)
    texts = {file.name: for_a_package(file.read_text(encoding="utf-8"), version) for file in _files()}
    texts["constraints.txt"] = _constraints()
    for name in texts:
        if (folder / name).exists():
            raise ConfigurationError(f"{folder / name} exists, and is not written over; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}; name a folder that can be written to") from error
    wheel = f"{_DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"
    print_line(console, f"written to {folder}: {', '.join(texts)}")
    print_line(console, f"Put {wheel} beside them, unless the nodes find it in a package index.")
    print_line(console, "The first lines of each file list what to change, and the commands.")


def for_a_package(text: str, version: str) -> str:
    """A cluster file whose nodes install a wheel of this version, in place of a checkout."""
    for pattern, replacement in _IN_A_CHECKOUT.items():
        text = re.sub(pattern, replacement.format(package=_DISTRIBUTION, version=version), text)
    return text


def _files() -> list[Path]:
    return sorted(file for file in (project_folder() / "launch" / "clusters").iterdir() if file.is_file())


def _purpose(file: Path) -> str:
    """The beginning of the first comment of a file."""
    first = next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return first.removeprefix("# ").partition(":")[0]


def _constraints() -> str:
    """The installed packages as pip constraints: `tributary train` refuses nodes with other versions."""
    installed = {found.name: found.version for found in importlib.metadata.distributions()}
    installed.pop(_DISTRIBUTION, None)
    return "".join(f"{name}=={version}\n" for name, version in sorted(installed.items(), key=lambda i: i[0].lower()))
