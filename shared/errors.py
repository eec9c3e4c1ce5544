"""The one error that a user's mistake raises, and errors in words."""


class ConfigurationError(Exception):
    """A setting, or a combination of settings, that cannot work.

    The command line prints the message on one line and exits with code 2, so it names the setting as it is
    typed, the value that was given, and what to do.
    """


def setting_error(setting: str, value: object, problem: str) -> ConfigurationError:
    """Build the error for the setting `section.field_name`, shown as it is typed: `--section.field-name`."""
    return ConfigurationError(f"--{setting.replace('_', '-')} {value}: {problem}")


def one_line(error: BaseException, most: int | None = None) -> str:
    """The message of an error without line breaks, at most so many characters; its type where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__
