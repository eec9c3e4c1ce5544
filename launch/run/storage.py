"""A copy of the run folder in remote storage: what is left when the machine of a run is not."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import fsspec

from launch.run.folder_copy import Stamp, changes_since
from shared.errors import one_line, setting_error, typed_line


class RemoteCopy:
    """Keeps a folder at an fsspec URL (s3://…, gs://…, file://…) as a run folder is, in a thread of its own.

    Args:
        folder: of the run.
        url: of the copy.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._files, self._root = _open(url)
        self._stamps: dict[str, Stamp] = {}
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None

    def start(self) -> str | None:
        """Copy what has changed, unless a copy is under way. Returns what went wrong with the one before, if it did."""
        if self._under_way is not None and not self._under_way.done():
            return None
        failure = self._failure()
        self._under_way = self._thread.submit(self._push)
        return failure

    def finish(self) -> str | None:
        """Copy what has changed since, and wait for it. Returns what went wrong, if anything did."""
        self._failure()
        self._under_way = self._thread.submit(self._push)
        failure = self._failure()
        self._thread.shutdown()
        return failure

    def _failure(self) -> str | None:
        """Wait for the copy under way."""
        if self._under_way is None:
            return None
        error = self._under_way.exception()
        return None if error is None else typed_line(error)

    def _push(self) -> None:
        changes = changes_since(self._folder, self._stamps)
        # What refers to others comes last: an interrupted copy refers to nothing that is missing.
        for name in sorted(changes.files, key=lambda name: (name.endswith((".index", "checkpoint")), name)):
            path = f"{self._root}/{name}"
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, changes.files[name])
        for name in self._stamps.keys() - changes.stamps.keys():
            self._files.rm_file(f"{self._root}/{name}")
        self._stamps = changes.stamps


def check_storage(url: str) -> None:
    """Refuse storage that cannot be written to.

    Raises:
        ConfigurationError: names the URL and what went wrong.
    """
    files, root = _open(url)
    try:
        files.makedirs(root, exist_ok=True)
        files.pipe_file(f"{root}/.tributary", b"")
        files.rm_file(f"{root}/.tributary")
    except Exception as error:
        # Each kind of storage has errors of its own.
        raise setting_error("storage", url, f"cannot be written: {one_line(error)}") from error


def fetch(url: str, folder: Path, setting: str = "resume") -> None:
    """Copy a run from remote storage into a folder. `setting` is what named the URL.

    Raises:
        ConfigurationError: there is no run at the URL.
    """
    files, root = _open(url, setting)
    try:
        names = files.find(root)
        if not any(name.endswith("config.json") for name in names):
            raise setting_error(setting, url, "holds no run: it has no config.json")
        for name in names:
            path = folder / name.removeprefix(root).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.cat_file(name))
    except OSError as error:
        raise setting_error(setting, url, f"cannot be read: {error}") from error


def _open(url: str, setting: str = "storage") -> tuple[fsspec.AbstractFileSystem, str]:
    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        advice = f"{one_line(error)} (s3:// needs pip install s3fs, gs:// needs gcsfs)"
        raise setting_error(setting, url, advice) from error
    return files, str(root).rstrip("/")
