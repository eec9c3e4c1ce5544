"""The extra that Ray Tune comes with: what of it is missing is one line."""

from importlib.util import find_spec

from shared.errors import ConfigurationError

# Ray's own modules are there without it, and cannot be imported.
_OF_TUNE = ("pandas", "pyarrow", "tensorboardX")


def check_tune(purpose: str, *others: str) -> None:
    """Refuse to go on without Ray Tune, and the `others` that `purpose` needs.

    Raises:
        ConfigurationError: one is not installed.
    """
    for package in (*_OF_TUNE, *others):
        if find_spec(package) is None:
            raise ConfigurationError(f"{purpose} needs {package}: pip install 'tributary-rl[tune]'")
