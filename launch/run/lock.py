"""The lock of a folder: at most one process works in it, and others can find that process."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO, NamedTuple

from launch.machine.shared_memory import available, machine_id
from shared.errors import ConfigurationError

LOCK_FILE = ".lock"
# `holder_of` holds the lock for less than this.
_LOOK_SECONDS, _TRIES = 0.05, 4


class Holder(NamedTuple):
    """The process that holds a folder; `pid` None: unknown, as in folders of older versions.

    `machine` names the boot and the process namespace in which `pid` is valid. A host name would not do: containers
    share one, and it changes with the network of a laptop.
    """

    pid: int | None
    host: str | None
    machine: str | None = None

    @property
    def here(self) -> bool:
        """Whether the process is known, and its id is valid here."""
        if self.machine is None:
            # Written by version 0.1.
            return self.pid is not None and self.host == socket.gethostname()
        return self.pid is not None and self.machine == _this_machine()


class FolderLock:
    """The lock of an existing folder, held until it is released or this process ends.

    Raises:
        ConfigurationError: another process holds it, it cannot be written to, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        try:
            # Not truncated when it is opened: its content belongs to the process that holds the lock.
            self._file: IO[str] = (folder / LOCK_FILE).open("a+")
        except OSError as error:
            raise ConfigurationError(f"folder {folder} cannot be written to: {error.strerror}") from error
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _TRIES - 1:
                    self._file.close()
                    raise ConfigurationError(
                        f"folder {folder} is in use by another process; stop that first: tributary stop {folder}"
                    ) from None
                time.sleep(_LOOK_SECONDS)
            except OSError as error:
                self._file.close()
                raise ConfigurationError(
                    f"folder {folder} cannot be locked ({error.strerror}), so two runs could write to it: name one "
                    f"on a file system with locks (for Lustre: mounted with flock)"
                ) from error
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "machine": _this_machine()}))
        self._file.flush()

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def holder_of(folder: Path) -> Holder | None:
    """The process that holds a folder; None if none does."""
    try:
        file = (folder / LOCK_FILE).open()
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                values = json.loads(file.read())
                return Holder(int(values["pid"]), str(values["host"]), values.get("machine"))
            except (ValueError, KeyError, TypeError, AttributeError):
                return Holder(None, None)
        except OSError:
            # A file system without locks, on which no run can have begun.
            return None
    return None


def _this_machine() -> str:
    # Systems without /proc have no boot id to read, and no process namespaces.
    return machine_id() if available() else socket.gethostname()
