"""The output of commands: console, exit codes, and formatting."""

import difflib
import io
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.tensorflow_setup import set_tensorflow_variables
from shared.errors import ConfigurationError, EnvironmentFailedError, counted, escaped, typed_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_MANY_NAMES = 40


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code, None for done. An error is one line; if it is none of the user's
    settings, environment and files, the line names a file with its traceback."""
    set_tensorflow_variables()
    with resilient_stdio():
        try:
            return command() or EXIT_DONE
        except (ConfigurationError, EnvironmentFailedError) as error:
            print(f"error: {escaped(str(error))}", file=sys.stderr)
            return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED
        except Exception as error:
            print(f"error: {unexpected(error)}", file=sys.stderr)
            return EXIT_FAILED
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def unexpected(error: Exception) -> str:
    """An error that nothing else names, in one line; its traceback is in a new file that the line names."""
    text = "".join(traceback.format_exception(error))
    try:
        descriptor, file = tempfile.mkstemp(".txt", "tributary-")
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError:
        return f"{typed_line(error)}\n{text}"
    return f"{typed_line(error)}; the traceback is in {file}"


def wide_console(columns: int) -> Console:
    """A console, with a width of at least `columns` where it is no terminal: programs read its lines."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, columns)
    return console


def print_line(console: Console, line: str) -> None:
    """Print a line verbatim: without markup, and without breaks at the width of the terminal."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def resilient_stdio() -> Iterator[None]:
    """Within this context no write to `sys.stdout` or `sys.stderr` fails: a closed terminal must not end a run.

    The buffers are empty at the end, since a failure of the interpreter to flush them would change the exit code.
    Streams without a file descriptor, as in tests, are left unchanged.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams = [_resilient(stream) for stream in before]
    try:
        yield
    finally:
        # Not the streams of `sys`, which an environment may have replaced.
        for stream in streams:
            # None, or closed by an environment.
            with suppress(AttributeError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = before


def _resilient(stream: TextIO) -> TextIO:
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        # A buffer in tests, an object of a notebook, or None.
        return stream
    with suppress(OSError):
        stream.flush()
    raw = io.BufferedWriter(_LenientFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, "replace", line_buffering=getattr(stream, "line_buffering", False))


class _LenientFile(io.FileIO):
    """Writes to a file descriptor, and drops bytes that a closed terminal or a full disk refuses."""

    def write(self, data: "ReadableBuffer", /) -> int:
        written = None
        with suppress(OSError):
            written = super().write(data)
        # None: a stream that does not block takes no more.
        return memoryview(data).nbytes if written is None else written


# ---- Formatting


def duration(seconds: float | None) -> str:
    """Seconds as h:mm:ss."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def mean_return(value: float | None, episodes: int) -> str:
    """The mean of the last 100 returns; of fewer with their number, as the first ones to end are the short ones."""
    text = number(value, ".2f")
    return text if value is None or episodes >= 100 else f"{text} of {counted(episodes, 'episode')}"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plain_table(
    rows: Sequence[Mapping[str, str]], width: int, *, left: Collection[str], spare: Sequence[str] = (), gap: int = 2
) -> Table:
    """A table of cells by the headings of their columns, without a frame, `gap` spaces between two columns.

    Columns are aligned to the right, except those of `left`. Where they do not fit in `width` characters, whole columns
    of `spare` are left out, the first one first, and then cells of the first column are broken.
    """
    widths = {name: max(*map(len, name.split("\n")), *(len(row[name]) for row in rows)) for name in rows[0]}
    for name in spare:
        if sum(widths.values()) + gap * (len(widths) - 1) > width:
            widths.pop(name, None)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for i, name in enumerate(widths):
        table.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in widths))
    return table


def quoted(path: Path | str) -> str:
    """A path as it is typed in a shell, in messages that contain commands."""
    text = str(path)
    # Otherwise it would be an option.
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known one, or all of them if they are few."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    listing = list(names)
    return f"; there are {', '.join(listing)}" if len(listing) < _MANY_NAMES else ""
