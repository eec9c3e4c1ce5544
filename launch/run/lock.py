"""Who works in a folder: the process that holds its lock, so that others refuse it, and can find that process."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO, NamedTuple

from shared.errors import ConfigurationError

LOCK_FILE = ".lock"
# Whoever looks at the lock holds it for less than this.
_LOOK_SECONDS, _TRIES = 0.05, 4


class Holder(NamedTuple):
    """The process that holds a folder; `pid` None: unknown, as in folders of older versions."""

    pid: int | None
    host: str | None

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine, and known."""
        return self.pid is not None and self.host == socket.gethostname()


class FolderLock:
    """The lock of a folder that exists, held until it is released or this process ends, however it ends.

    Raises:
        ConfigurationError: another process holds it, it cannot be written to, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        try:
            # Not truncated when it is opened: what is in it is of the one that holds it.
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
        self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._file.flush()

    def release(self) -> None:
        """Let go of it."""
        self._file.close()


def holder_of(folder: Path) -> Holder | None:
    """The process that works in a folder; None if none does."""
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
                return Holder(int(values["pid"]), str(values["host"]))
            except (ValueError, KeyError, TypeError):
                return Holder(None, None)
        except OSError:
            # A file system without locks: no run has begun there.
            return None
    return None
