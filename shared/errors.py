"""The error of a user's mistake, and one-line forms of errors."""


class ConfigurationError(Exception):
    """A setting, or a combination of settings, that cannot work.

    The command line prints the message on one line and exits with code 2. The message contains the option, the value
    and the remedy.
    """


def setting_error(setting: str, value: object, problem: str) -> ConfigurationError:
    """The error of the setting `section.field_name`, in the form `--section.field-name VALUE: problem`.

    `run` stands for the positional argument RUN.
    """
    name = "RUN" if setting == "run" else f"--{setting.replace('_', '-')}"
    return ConfigurationError(f"{name} {value}: {problem}")


def one_line(error: BaseException, most: int | None = None) -> str:
    """The message of an error on one line, cut to `most` characters; the type of an error without a message."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def typed_line(error: BaseException, most: int | None = None) -> str:
    """As `one_line`, with the type of the error before the message."""
    name, line = type(error).__name__, one_line(error, most)
    return line if line == name else f"{name}: {line}"


def last_line(error: BaseException) -> str:
    """The last line of an error's message, which in a traceback is what was raised; its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
