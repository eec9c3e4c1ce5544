"""A copy of the run folder in remote storage: what is left when the machine of a run is not."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import fsspec

from launch.run.folder_copy import Stamp, changes_since, path_within
from shared.errors import ConfigurationError, one_line, setting_error, typed_line

# Storage whose first name is a bucket. A file needs no folder there, and fsspec, asked for one, would make the bucket
# of somebody's typing mistake.
_WITH_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}


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
            _make_folder(self._files, path.rpartition("/")[0])
            self._files.pipe_file(path, changes.files[name])
        for name in (self._stamps.keys() or self._checkpoints_there()) - changes.stamps.keys():
            # An attempt that failed at a later file has removed it.
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")
        self._stamps = changes.stamps

    def _checkpoints_there(self) -> set[str]:
        """Of the process that wrote to this copy before: some may be older than all that the folder still has."""
        self._files.invalidate_cache()
        return {name.removeprefix(f"{self._root}/") for name in self._files.find(f"{self._root}/checkpoints")}


def check_storage(url: str, *, new: bool) -> None:
    """Refuse storage that cannot be written to, or, for a new run, that holds another one.

    Raises:
        ConfigurationError: names the URL and what is wrong.
    """
    files, root = _open(url)
    try:
        files.invalidate_cache()
        if new and files.exists(f"{root}/config.json"):
            raise setting_error("storage", url, f"holds a run: train --resume {url} goes on with it, or name another")
        _make_folder(files, root)
        files.pipe_file(f"{root}/.tributary", b"")
        files.rm_file(f"{root}/.tributary")
    except ConfigurationError:
        raise
    except Exception as error:
        # Each kind of storage has errors of its own.
        raise setting_error("storage", url, f"cannot be written: {one_line(error)}") from error


def fetch(url: str, folder: Path, setting: str = "resume") -> None:
    """Copy a run from remote storage into a folder. `setting` is what named the URL.

    Raises:
        ConfigurationError: there is no run at the URL, a key would be a file outside of the folder, or a file could not
            be read. A folder that was not there before is not there then.
    """
    files, root = _open(url, setting)
    new = not folder.exists()
    try:
        # Of a run that goes on, other files than when this process last looked.
        files.invalidate_cache()
        names = files.find(root)
        if f"{root}/config.json" not in names:
            raise setting_error(setting, url, "holds no run: it has no config.json")
        paths = [path_within(folder, name.removeprefix(root).lstrip("/")) for name in names]
        for parent in {path.parent for path in paths}:
            parent.mkdir(parents=True, exist_ok=True)
        files.get(names, [str(path) for path in paths])
    except ConfigurationError:
        raise
    except Exception as error:
        # Each kind of storage has errors of its own.
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise setting_error(setting, url, f"cannot be read: {one_line(error)}") from error


def _open(url: str, setting: str = "storage") -> tuple[fsspec.AbstractFileSystem, str]:
    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        advice = f"{one_line(error)} (s3:// needs pip install 'tributary-rl[s3]', gs:// needs pip install gcsfs)"
        raise setting_error(setting, url, advice) from error
    return files, str(root).rstrip("/")


def _make_folder(files: fsspec.AbstractFileSystem, path: str) -> None:
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if not protocols & _WITH_BUCKETS:
        files.makedirs(path, exist_ok=True)
