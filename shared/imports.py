"""Modules of the user's own, imported by name: what they register is there afterwards."""

import importlib
import os
import sys
from collections.abc import Iterable

from shared.errors import setting_error, typed_line


def import_modules(names: Iterable[str]) -> None:
    """Import each module, once. The folder that the process stands in is searched last.

    Raises:
        ConfigurationError: there is no such module, or it cannot be imported.
    """
    for name in names:
        if name in sys.modules:
            continue
        # Python has put the folder of the command there instead. Last, so that it takes nothing's place.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                raise _not_imported(name, error) from error
            raise setting_error(
                "environment.import",
                name,
                f"there is no such module: install it, on every node, or go to the folder that it is in (this is "
                f"{os.getcwd()})",
            ) from error
        except Exception as error:
            raise _not_imported(name, error) from error


def _not_imported(name: str, error: Exception) -> Exception:
    return setting_error("environment.import", name, f"cannot be imported: {typed_line(error)}")
