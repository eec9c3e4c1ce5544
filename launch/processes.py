"""Python processes of this project: import paths, garbage collection while they import, what forks must not hold."""

import gc
import os
import re
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

_PROJECT = str(Path(__file__).resolve().parents[1])
# Workers would prefer such a folder, and with it other versions of packages.
_INSTALLED = re.compile(r"/(site|dist)-packages(/|$)")
# Folders that only the program that started this process searches for modules.
_of_caller: list[str] = []


class _Closable(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)
_OF_THIS_PROCESS = weakref.WeakSet[_Closable]()


def of_this_process(resource: _T) -> _T:
    """A lock or a connection whose end tells others of the death of this process.

    It is closed in a process that this one forks, as an environment or a user's program may: that one can live longer.
    """
    _OF_THIS_PROCESS.add(resource)
    return resource


def _close_in_fork() -> None:
    for resource in _OF_THIS_PROCESS:
        resource.close()


os.register_at_fork(after_in_child=_close_in_fork)


@contextmanager
def without_collections(*, freeze: bool = False) -> Iterator[None]:
    """Suspend garbage collection, which finds nothing while modules are imported and costs a fifth of that time.

    With `freeze`, later collections pass over all objects of now: with TensorFlow, a full one takes 0.15 seconds
    otherwise. Only for processes of this project: garbage of before is never freed.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if collects:
            gc.enable()


def _script_folder() -> list[str]:
    """The folder of this process's script, if modules are imported from it and are no installed ones."""
    folder = os.path.dirname(os.path.realpath(sys.argv[0]))
    return [folder] if folder in sys.path and not _INSTALLED.search(folder) else []


def searched_folders() -> list[str]:
    """The places where this process finds modules that are not installed, for a process that it starts."""
    # A program may put a `Path` there.
    places = [os.path.abspath(os.fsdecode(place)) for place in sys.path if place]
    return [place for place in places if os.path.exists(place) and not _INSTALLED.search(place)]


def search_also(folders: list[str]) -> None:
    """Find modules in these folders of the caller too: last here, and in workers before the standard library."""
    _of_caller[:] = [folder for folder in folders if folder not in sys.path]
    sys.path += _of_caller


def worker_path() -> list[str]:
    """Folders that Ray prepends to the `sys.path` of its workers, in reverse order of precedence."""
    return [*reversed(_of_caller), *_script_folder(), os.getcwd(), _PROJECT]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the project, with `module_environment`.

    -P keeps the working directory out of `sys.path`, and `tributary_rl` finds the project's packages before others of
    the same names.
    """
    run = f"import runpy, tributary_rl; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", run, *arguments]


def module_environment() -> dict[str, str]:
    """The environment variables of such a process: PYTHONPATH begins with the project, and ends with this script."""
    # Installed packages keep their place, after the standard library.
    installed = _PROJECT in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    folders = [*([] if installed else [_PROJECT]), *filter(None, [os.environ.get("PYTHONPATH")]), *_script_folder()]
    return os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})
