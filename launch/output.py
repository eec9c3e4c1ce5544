"""The output of commands: console, exit codes, files that are replaced as a whole, and the provenance of each file."""

import difflib
import errno
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.machine import machine_bytes, usable_cores
from launch.tensorflow_setup import set_tensorflow_variables
from shared.errors import ConfigurationError, EnvironmentFailedError, escaped, setting_error, typed_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_MANY_NAMES = 40
_ROOT = Path(__file__).parents[1]
_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("tributary-rl", "tensorflow", "keras", "ray", "gymnasium", "ale-py", "numpy")
_SOURCES = ("actors", "learner", "shared", "launch")


# ---- Console


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
        except OSError as error:
            if error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT):
                line = f"{error.filename or 'a file'} cannot be read or written: {error.strerror}"
            else:
                line = unexpected(error)
            print(f"error: {escaped(line)}", file=sys.stderr)
            return EXIT_FAILED
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
    return io.TextIOWrapper(
        io.BufferedWriter(_LenientFile(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )


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
    shown = number(value, ".2f")
    return shown if value is None or episodes >= 100 else f"{shown} of {episodes} episodes"


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


def typed_path(text: str) -> Path:
    """A path as it was typed. A leading ~ is the home folder: a shell does not replace that of --run-dir=~/runs."""
    path = Path(os.path.expanduser(text))
    try:
        path.exists()
    except OSError as error:
        # Too long a name, or a folder that may not be read.
        raise ValueError(f"cannot be reached: {error.strerror}") from error
    return path


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known one, or all of them if they are few."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f", did you mean {near[0]}?"
    known = list(names)
    return f", there are {', '.join(known)}" if len(known) < _MANY_NAMES else ""


# ---- Files


def unfinished(path: Path) -> Path:
    """The name of a file until `finish`. Each process has its own: several may write the same file at once."""
    folder = Path(tempfile.gettempdir()) if _is_stream(path) else Path(os.path.realpath(path)).parent
    return folder / f"{path.stem}.part-{os.getpid()}{path.suffix}"


def finish(part: Path, path: Path) -> None:
    """Let a complete file replace `path`, or the target of a link. A pipe or a device receives its content."""
    if _is_stream(path):
        path.write_bytes(part.read_bytes())
    else:
        part.replace(os.path.realpath(path))


def _is_stream(path: Path) -> bool:
    """True for pipes and devices, and for links to them, like /dev/stdout."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """The name of a file that replaces `path` as a whole when the block ends without an error.

    An OSError without a file, as of a full disk, or of the unfinished file, gets the name of this one.
    """
    part = unfinished(path)
    try:
        yield part
        finish(part, path)
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A text file that replaces `path` as a whole when the block ends without an error."""
    with replacement(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        yield file


def write_json(path: Path | None, values: Any) -> None:
    """Replace a JSON file as a whole; see `to_json`. None: the user gave no `--json`."""
    if path is not None:
        with whole_file(path) as file:
            file.write(to_json(values, indent=2) + "\n")


def to_json(values: Any, indent: int | None = None) -> str:
    """Plain values as JSON, which has no NaN and no infinities: they are null."""
    return json.dumps(finite(values), indent=indent, allow_nan=False)


def finite(values: Any) -> Any:
    """Plain values with None in place of each NaN and infinity, in new dicts and lists."""
    if isinstance(values, Mapping):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def drop_half_line(file: Path) -> None:
    """Truncate a file of JSON lines after its last whole line. A killed process may have left part of one."""
    if file.is_file():
        os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


def make_folder(folder: Path, setting: str) -> None:
    """Make a folder and its parents, or raise a ConfigurationError about the option `setting` that named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise setting_error(setting, folder, f"cannot be made: {error.strerror}") from error


def replace_folder(made: Path, path: Path) -> None:
    """Rename the folder `made`, on the same file system, to `path`, whose old folder is left beside `made`."""
    old = made.with_name(f"{made.name}.old")
    if path.exists():
        path.rename(old)
    try:
        made.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise


def check_can_be_written(path: Path | None, setting: str, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, or has none of these suffixes, like `.png`, before hours of work for it.

    `setting` is the option that named it; None: it did not.
    """
    if path is None:
        return
    try:
        if path.is_dir() or not path.absolute().parent.is_dir() or (suffixes and path.suffix not in suffixes):
            kind = f"must end in {' or '.join(suffixes)}," if suffixes else "must be a file"
            raise setting_error(setting, path, f"{kind} in a folder that exists")
        # A file without a name, which no other process can be writing.
        tempfile.TemporaryFile(dir=unfinished(path).parent).close()
    except OSError as error:
        raise setting_error(setting, path, f"cannot be written: {error.strerror}") from error


# ---- Provenance


def provenance() -> dict[str, Any]:
    """Command, time, revision of the project, versions and hardware: part of every file that a command writes."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name.replace("cli.py", "tributary"), *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "versions": versions(),
        "hardware": hardware(),
    }


def provenance_text(runs: Sequence[str] = (), **more: Any) -> str:
    """The provenance and `more` as one line of JSON, for the metadata of pictures and videos.

    Pictures and videos are passed on, and absolute paths have names of users and of machines. So `runs`, and paths in
    the command, are relative to the working directory, or a name alone where they lie elsewhere.
    """
    made = provenance()
    made["command"] = shlex.join(map(_without_folders, shlex.split(made["command"])))
    named = {"runs": [_without_folders(run) for run in runs]} if runs else {}
    return to_json({**named, **more, **made})


def _without_folders(word: str) -> str:
    """A word of a command, PATH or --option=PATH, without the folders of an absolute path."""
    option, equals, text = word.rpartition("=")
    path = Path(text)
    if not path.is_absolute():
        return word
    here = Path.cwd()
    return option + equals + str(path.relative_to(here) if path.is_relative_to(here) else path.name)


@cache
def revision() -> str:
    """The project's commit, with -dirty where files differ from it; outside of a git checkout the `source_digest`."""
    if (_ROOT / ".git").exists():
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        # A hook of another repository sets GIT_DIR.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        # Without git, or in a checkout of another user, there is no commit to be had.
        with suppress(OSError, subprocess.SubprocessError):
            described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
            return described.stdout.strip()
    return source_digest()


@cache
def source_digest() -> str:
    """12 hexadecimal digits of a digest of the source files, the same in a checkout and where it is installed."""
    digest = hashlib.sha256()
    files = (file for package in _SOURCES for file in (_ROOT / package).rglob("*"))
    for file in sorted(file for file in files if file.suffix in (".py", ".toml")):
        digest.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that affect the numbers; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), **dict.fromkeys(_PACKAGES)}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and system of this machine."""
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    models = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return {
        # On ARM there is no such line.
        "cpu": next(models, platform.machine()),
        "cores": usable_cores(),
        "memory_gib": round(machine_bytes() / 2**30, 1),
        "system": sys.platform,
    }


def hardware_line(made: dict[str, Any]) -> str:
    """The hardware of a provenance in one line."""
    machine = made["hardware"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    return f"{cores} of {machine['cpu']}, {machine['memory_gib']:g} GiB"
