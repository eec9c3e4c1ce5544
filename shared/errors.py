"""The one error that a user's mistake raises, and errors in words."""


class ConfigurationError(Exception):
    """A setting, or a combination of settings, that cannot work.

    The command line prints the message on one line and exits with code 2, so it names the setting as it is
    typed, the value that was given, and what to do.
    """


def setting_error(setting: str, value: object, problem: str) -> ConfigurationError:
    """Build the error for the setting `section.field_name`, shown as it is typed: `--section.field-name`.

    `run` is the one that is typed without its name, as RUN.
    """
    name = "RUN" if setting == "run" else f"--{setting.replace('_', '-')}"
    return ConfigurationError(f"{name} {value}: {problem}")


def one_line(error: BaseException, most: int | None = None) -> str:
    """The message of an error without line breaks, at most so many characters; its type where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def typed_line(error: BaseException, most: int | None = None) -> str:
    """As `one_line`, with the type of the error before its message."""
    name, line = type(error).__name__, one_line(error, most)
    return line if line == name else f"{name}: {line}"


def last_line(error: BaseException) -> str:
    """The last line of an error's message, which in a traceback is what was raised; its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
