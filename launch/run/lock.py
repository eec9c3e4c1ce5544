"""The lock of a run's folder, and the process that holds it."""

import fcntl
import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import msgspec

from launch.machine import machine_id
from launch.output import quoted
from launch.processes import of_this_process
from shared.errors import ConfigurationError

LOCK_FILE = ".lock"
# The look of `holder_of` at a lock takes less than this.
_LOOK_SECONDS, _TRIES = 0.05, 4


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a folder; `pid` None: unknown, while the process writes it.

    `machine` names the boot and the process namespace in which `pid` is valid: containers may share a host name.
    """

    pid: int | None = None
    host: str | None = None
    machine: str | None = None

    @property
    def here(self) -> bool:
        """True if the process is known, and its id is valid here."""
        return self.pid is not None and self.machine == machine_id()


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock an existing folder until the returned file is closed, by its context for example, or this process ends.

    A folder that another process holds, or that cannot be written to or locked, is a ConfigurationError. The file of a
    lock stays: after its removal two processes could lock two files of this name.
    """
    with ExitStack() as undo:
        try:
            # Not truncated when it is opened: its content belongs to the process that holds the lock.
            file = undo.enter_context((folder / LOCK_FILE).open("a+b", buffering=0))
            _lock(file)
            file.truncate(0)
            file.write(msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), machine_id())))
            # The file stays open, and NFS shows other machines what was written when it is closed or synchronised.
            os.fsync(file.fileno())
        except BlockingIOError as error:
            advice = f"stop that first: tributary stop {quoted(folder)}"
            raise ConfigurationError(f"folder {folder} is in use by another process; {advice}") from error
        except OSError as error:
            raise ConfigurationError(f"folder {folder} cannot be locked and written to: {error.strerror}") from error
        undo.pop_all()
        return of_this_process(file)


def _lock(file: IO[bytes]) -> None:
    # `holder_of` holds the lock for a moment. flock has no time limit, and to wait for a run could take days.
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOOK_SECONDS)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder_of(folder: Path) -> Holder | None:
    """The process that holds a folder; None if none does."""
    try:
        # Shared: two readers at once do not take each other for a run.
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(msgspec.DecodeError, OSError):
            return msgspec.json.decode((folder / LOCK_FILE).read_bytes(), type=Holder)
        return Holder()
    except OSError:
        # No such file, or a file system without locks, on which no run can have begun.
        pass
    return None
