"""The errors of a user's mistake and of a user's environment, and one-line forms of errors."""

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path


class ConfigurationError(Exception):
    """A setting, or a combination of settings, that cannot work.

    The command line prints the message on one line and exits with code 2. The message contains the option, the value
    and the remedy.
    """


def setting_error(setting: str, value: object, problem: str) -> ConfigurationError:
    """The error of the setting `section.field_name`, in the form `--section.field-name VALUE: problem`.

    `run` and `preset` stand for the positional arguments RUN and PRESET.
    """
    name = setting.upper() if setting in ("run", "preset") else f"--{setting.replace('_', '-')}"
    return ConfigurationError(f"{name} {value}: {problem}")


class TrainingFailedError(Exception):
    """Training ended with an error. The message has the reason and, outside of `launch.train`, the run's folder."""


END_ADVICE = (
    "An environment without an end gets one by --environment.wrappers gymnasium.wrappers:TimeLimit,max_episode_steps=N"
)
"""The remedy where episodes do not end."""


def alternatives(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def counted(count: int, noun: str) -> str:
    """1 episode, 1,000 episodes."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


# Errors of libraries may contain a whole file, such as a model of MuJoCo.
_LONGEST = 2_000
# With it TensorFlow begins the messages of its operations: a name and a device, longer than the reason after them.
_GRAPH_NODE = re.compile(r"\{\{function_node [^}]*\}\} ?")


def one_line(error: BaseException, most: int = _LONGEST) -> str:
    """The message of an error on one line, cut to `most` characters; the type of an error without a message."""
    try:
        text = str(error)
    # A class of a user, whose text raises an error of its own.
    except Exception:
        text = ""
    return escaped(" ".join(_GRAPH_NODE.sub("", text).split()))[:most] or type(error).__name__


def typed_line(error: BaseException) -> str:
    name, line = type(error).__name__, one_line(error)
    return line if line == name else f"{name}: {line}"


def escaped(text: str) -> str:
    """`text` with Python's escapes for characters that a terminal does not print: colours, and lines of other text."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def last_line(error: BaseException) -> str:
    """The last line of an error's message, in a traceback the raised error; its type without a message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return escaped(lines[-1])[:_LONGEST] if lines else type(error).__name__


class EnvironmentFailedError(Exception):
    """An environment raised an error, or returned a value outside its spaces.

    The message is one line with the environment's id, the received and the expected value, and the place in the user's
    code. It has a single text, so that it can be pickled: exceptions of users often cannot.
    """


PACKAGES = ("actors", "launch", "learner", "shared")
"""The packages of this project."""
# Files of this project, and of the libraries between it and an environment.
_PROJECT = Path(__file__).parents[1]
_OWN = tuple(f"{_PROJECT / package}{os.sep}" for package in PACKAGES)
_STANDARD = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_BETWEEN = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:gymnasium|numpy|ray|cloudpickle)[/\\]|^<")


def raised_at(error: BaseException) -> str:
    """Place of an error, as " (file.py:12, in step)": the innermost frame of the user's code.

    The user's code is a file that is not installed; else an installed file that is not Gymnasium's or NumPy's. Empty
    without either.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    installed = [frame for frame in frames if _INSTALLED.search(frame.filename) and not _BETWEEN.search(frame.filename)]
    others = (*_STANDARD, "<")
    users = [f for f in frames if not _INSTALLED.search(f.filename) and not f.filename.startswith(others)]
    for frame in (users or installed)[-1:]:
        return f" ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
    return ""
