"""The lock of a run's folder, between processes."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from launch.run.lock import holder_of, lock_folder
from shared.errors import ConfigurationError

HOLD = "import sys, pathlib; from launch.run.lock import lock_folder; lock = lock_folder(pathlib.Path(sys.argv[1]))"


def test_a_folder_names_the_process_that_holds_it_until_it_ends(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    command = [sys.executable, "-c", f"{HOLD}; print('held', flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        holder = holder_of(tmp_path)
        assert (holder.pid, holder.host, holder.here) == (process.pid, socket.gethostname(), True)
        with pytest.raises(ConfigurationError, match=f"in use by another process.*tributary stop {tmp_path}"):
            lock_folder(tmp_path)
        assert holder_of(tmp_path) == holder, "who is refused leaves the name of the holder"
        process.kill()
        process.wait()
    assert holder_of(tmp_path) is None
    with lock_folder(tmp_path):
        assert holder_of(tmp_path).pid == os.getpid(), "the name of the process before is gone"


def test_a_process_that_the_holder_forked_does_not_hold_it(tmp_path: Path) -> None:
    fork = "import os, time; child = os.fork(); child or time.sleep(60); print(child, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{HOLD}; {fork}", str(tmp_path)], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        process.wait()
        assert holder_of(tmp_path) is None
        os.kill(child, signal.SIGKILL)


def test_a_look_at_a_lock_does_not_keep_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_folder(tmp_path).close()
    look = (tmp_path / ".lock").open()
    fcntl.flock(look, fcntl.LOCK_SH)
    assert holder_of(tmp_path) is None, "another look is no run"
    # The first try meets the look, which is over by the second.
    monkeypatch.setattr("launch.run.lock.time.sleep", lambda _seconds: look.close())
    lock_folder(tmp_path).close()


def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre is, unless it is mounted with them."""
    no_locks = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr("launch.run.lock.fcntl.flock", Mock(side_effect=no_locks))
    with pytest.raises(ConfigurationError, match="cannot be locked and written to: Function not"):
        lock_folder(tmp_path)
    assert holder_of(tmp_path) is None
