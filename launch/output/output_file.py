"""Files and folders that a command's options name."""

from collections.abc import Sequence
from pathlib import Path

from launch.output.whole_file import check_can_be_written
from shared.errors import setting_error


def check_output(path: Path | None, suffixes: Sequence[str]) -> None:
    """Refuse an `--output` file that could not be written when its time comes. None is a file that is not asked for.

    Args:
        path: what is typed.
        suffixes: with their points, like (".png", ".svg").

    Raises:
        ConfigurationError: it has none of the suffixes, or its folder does not exist or cannot be written to.
    """
    if path is None:
        return
    if path.suffix not in suffixes or not path.absolute().parent.is_dir():
        raise setting_error("output", path, f"must end in {' or '.join(suffixes)}, in a folder that exists")
    check_can_be_written(path, "output")


def make_folder(folder: Path, setting: str) -> None:
    """Make a folder, with those above it, unless it is there. `setting` is the option that named it.

    Raises:
        ConfigurationError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise setting_error(setting, folder, f"cannot be made: {error.strerror}") from error
