"""A filter of standard error, for lines that libraries print from C++ without a way to switch them off."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# TensorFlow prints these before its own log level can apply. `cuInit` fails wherever there is no GPU.
_NOTICES = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|E\d{4} .*(cuInit|cuFFT|cuDNN|cuBLAS)|"
    rb"To enable the following instructions"
)

# Held while standard error is another file: of two threads, the second one would restore that of the first.
_FILTERED = threading.Lock()


@contextmanager
def filtered_stderr() -> Iterator[None]:
    """Hold standard error back, and leave out TensorFlow's notices, unless it is filtered already."""
    # No wait: another thread may be importing TensorFlow, for whose import this one would wait in turn.
    if not _FILTERED.acquire(blocking=False):
        yield
        return
    _flush_stderr()
    # In memory: no folder for temporary files may be writable.
    with open(os.memfd_create("stderr"), "w+b") as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush_stderr()
            os.dup2(stderr, 2)
            os.close(stderr)
            _FILTERED.release()
            held.seek(0)
            for line in held:
                # A closed terminal must not end the process.
                with suppress(OSError):
                    if not _NOTICES.match(line):
                        os.write(2, line)


def _flush_stderr() -> None:
    # Programs replace it by objects with `write` alone; it is None without a terminal.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
