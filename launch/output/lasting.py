"""Standard output and error that outlive whoever reads them."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _LenientFile(io.RawIOBase):
    """Writes to a file descriptor, and leaves out what it does not take: the terminal is gone, the disk full."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def lasting_output() -> Iterator[None]:
    """While this holds, no write to `sys.stdout` or `sys.stderr` fails, whoever writes: rich, Ray, `print`.

    Nothing is left in a buffer for the interpreter to write when it ends, which would change the exit code. Characters
    that the terminal's encoding does not have are replaced. A stream that is not written to a file descriptor, as in
    tests, stays what it is.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_lasting(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO) -> TextIO:
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        # None, where the process was started without it, or what a test reads.
        return stream
    with suppress(OSError):
        stream.flush()
    errors = "replace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(
        io.BufferedWriter(_LenientFile(descriptor)),
        encoding=stream.encoding,
        errors=errors,
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )
