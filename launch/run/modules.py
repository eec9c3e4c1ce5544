"""Modules of the user that settings name: the permission to import them, and digests of their sources."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from shared.config import EnvironmentConfig
from shared.errors import setting_error

# Settings of environments that this process has written into a run folder, or had written by its child.
_written_here: list[EnvironmentConfig] = []
imported_digests: dict[str, tuple[Any, str]] = {}
"""The specs of imported modules, which are new after a reload, and their `module_digests` at the first look."""
# Modules that settings from files may name. None: every module.
_permitted: ContextVar[frozenset[str] | None] = ContextVar("permitted", default=frozenset())


def trust_environment(environment: EnvironmentConfig) -> None:
    """From now on, `check_imports` accepts these settings in this process."""
    _written_here.append(environment)
    module_digests(environment)


@contextmanager
def imports_permitted(*modules: str, every: bool = False) -> Iterator[None]:
    """Permit settings from files to name these modules, or `every` module, within this context.

    Opened by an entrance, for the words of its user: the command line and the functions of `tributary_rl`.
    """
    before = _permitted.get()
    _permitted.set(None if every or before is None else before.union(modules))
    try:
        yield
    finally:
        _permitted.set(before)


def check_imports(environment: EnvironmentConfig, setting: str, place: str) -> None:
    """Refuse settings from a file that name modules, unless they are permitted or this process wrote the settings.

    `setting` is the option that named the file or folder `place`.
    """
    permitted = _permitted.get()
    if permitted is None or environment in _written_here:
        return
    # Modules that are imported already are no exception: a wrapper is a function of a module with its arguments.
    modules = [name for name in dict.fromkeys(environment.modules) if name not in permitted]
    if modules:
        raise setting_error(
            setting, place, f"would import {', '.join(modules)}: give --trust-imports to run the code of these modules"
        )


def module_digests(environment: EnvironmentConfig) -> dict[str, str]:
    """The SHA-256 of the sources of the user's imported modules, by name; of a package that of all its files."""
    digests = {}
    for name in set(environment.modules):
        module = sys.modules.get(name)
        files = [Path(file)] if (file := getattr(module, "__file__", None)) else []
        for folder in getattr(module, "__path__", ()):
            files += Path(folder).rglob("*.py")
        sources = b"\0".join(file.read_bytes() for file in sorted(set(files)) if file.is_file())
        digests[name] = hashlib.sha256(sources).hexdigest()
        # A module may put any object in its place.
        known, spec = imported_digests.get(name), getattr(module, "__spec__", None)
        if module is not None and (known is None or known[0] is not spec):
            imported_digests[name] = spec, digests[name]
    return digests
