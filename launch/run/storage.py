"""The copy of a run's folder in remote storage."""

import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from uuid import uuid4

from launch.output import quoted
from launch.run.folder import RunFolder, object_of, read_object
from launch.run.lock import LOCK_FILE
from shared.errors import ConfigurationError, one_line, setting_error, typed_line

if TYPE_CHECKING:
    import fsspec

# Temporary names of files under way: of this program, of TensorFlow's checkpoints, and of the file `checkpoint`. Those
# of a checkpoint are also in a folder update-N_temp.
_UNFINISHED_FOLDER = re.compile(r"update-\d+_temp")
_UNFINISHED = re.compile(r".*(\.part(-\d+)?(\.\w+)?|\.tempstate\d+|\.tmp[0-9a-f]*)")


def stamps_of(folder: Path, skip: Callable[[str], None]) -> dict[str, tuple[int, int, int]]:
    """The finished files of a folder by relative path: time, size, and inode, which is new in a replaced file.

    `skip` is called with the path of a folder that cannot be read, unless it has checkpoints.
    """
    stamps, checkpoints = {}, RunFolder(folder).checkpoints

    def on_error(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return
        # Those of a folder that cannot be read for a moment would be removed from the copy.
        if Path(error.filename) in (folder, checkpoints):
            raise error
        skip(os.path.relpath(error.filename, folder))

    for parent, _, names in os.walk(folder, onerror=on_error):
        for name in names:
            path = Path(parent, name)
            if name == LOCK_FILE or _UNFINISHED.fullmatch(name) or _UNFINISHED_FOLDER.fullmatch(path.parent.name):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                # An old checkpoint may be deleted meanwhile.
                continue
            except PermissionError:
                # Its folder may be listed and not entered.
                if path.parent == checkpoints:
                    raise
                skip(os.path.relpath(path, folder))
                continue
            stamps[path.relative_to(folder).as_posix()] = status.st_mtime_ns, status.st_size, status.st_ino
    return stamps


_CHECKPOINT = re.compile(r"/update-(\d+)\.index$")
_CHECKPOINT_FILE = re.compile(r"checkpoints/update-(\d+)\.")
_GROWING = re.compile(r"events\.out\..*|metrics\.jsonl|log\.txt")
# Larger ones are copied at this interval, and not with each checkpoint.
_LARGE_BYTES, _GROWING_SECONDS = 2**20, 600.0
# Without an end so long, an update is slow or hangs.
_SLOW_SECONDS = 600.0


def _is_large_and_grows(name: str, stamp: tuple[int, int, int]) -> bool:
    return stamp[1] > _LARGE_BYTES and _GROWING.fullmatch(name) is not None


def _order_of_copy(name: str) -> tuple[int, int, bool, str]:
    """Sort key. First the manifest, which names the run, and the settings, then the newest checkpoint, which the folder
    keeps longest, its index last, as an interrupted update must refer to no missing file; then files that grow, and
    those that tell of the last one."""
    if name == "manifest.json":
        return -1, 0, False, name
    if found := _CHECKPOINT_FILE.match(name):
        return 1, -int(found[1]), name.endswith(".index"), name
    is_last = name in ("checkpoints/checkpoint", "summary.json")
    return 3 if is_last else 2 if _GROWING.fullmatch(name) else 0, 0, False, name


# Storage without folders. The first name of a path is a bucket, and `makedirs` would make one for a mistyped name.
_WITH_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}


class RemoteCopy:
    """The copy of a run folder at an fsspec URL (s3://…, gs://…, file://…), updated in a thread of its own.

    fsspec's `rsync` compares sizes by default, and so misses a file of the same size with other content. An update that
    fails is logged as a warning.
    """

    def __init__(self, folder: Path, url: str, log: Callable[[str], None]) -> None:
        self._folder, self._url, self._log = folder, url, log
        self._files, self._root = _open(url)
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._skipped = set[str]()
        self._grown = self._began = -math.inf
        self._is_refused = False
        self._thread = threading.Thread()

    def start(self) -> None:
        """Start an update, unless one is under way."""
        now = time.monotonic()
        if not self._thread.is_alive():
            self._began = now
            self._thread = threading.Thread(target=self._update, daemon=True)
            self._thread.start()
        elif now - self._began > _SLOW_SECONDS:
            self._began = math.inf
            self._log(f"warning: a copy to {self._url} takes longer than {_SLOW_SECONDS / 60:.0f} minutes")

    def finish(self, seconds: float | None = None) -> None:
        """Update the copy once more: an update under way may be older than the last changes. Waits for `seconds`."""
        thread = threading.Thread(target=self._finish, args=(self._thread,), daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._log(f"warning: the copy at {self._url} may miss the end of the run: a resume completes it")

    def _finish(self, update: threading.Thread) -> None:
        if update.is_alive():
            update.join()
        self._update(last=True)

    def complete(self) -> None:
        """Update the copy of a run that has ended, unless it has the summary, which is copied last."""
        # Storage that cannot be read: the update says so.
        with suppress(Exception):
            if self._files.cat_file(f"{self._root}/summary.json") == RunFolder(self._folder).summary.read_bytes():
                return
        self._update(last=True)

    def _update(self, *, last: bool = False) -> None:
        try:
            if self._is_refused:
                return
            # Each time: two runs may begin at once, and the later manifest stays.
            self._is_refused = _of_another_run(self._files, self._root, RunFolder(self._folder))
            if self._is_refused:
                self._log(f"warning: {self._url} holds another run: nothing is copied there any more")
                return
            stamps = stamps_of(self._folder, self._skip)
            if not last:
                stamps.pop("summary.json", None)
            if last or time.monotonic() - self._grown >= _GROWING_SECONDS:
                self._grown = time.monotonic()
            else:
                # They are sent whole, and of a long run they are larger than a checkpoint.
                stamps |= {name: stamp for name, stamp in self._stamps.items() if _is_large_and_grows(name, stamp)}
            changed = [name for name, stamp in stamps.items() if stamp != self._stamps.get(name)]
            deleted, unread = self._send(sorted(changed, key=_order_of_copy))
            if RunFolder(self._folder).was_removed:
                # The copy is all that is left of the run.
                return
            self._remove_checkpoints(stamps.keys(), deleted)
            self._stamps = {name: stamp for name, stamp in stamps.items() if name not in unread}
        # Each kind of storage has its own errors, which have no class in common.
        except Exception as error:
            self._log(f"warning: the copy at {self._url} could not be brought up to date: {typed_line(error)}")

    def _send(self, names: Iterable[str]) -> tuple[set[str], set[str]]:
        """Copy files. Returns those of old checkpoints that were deleted meanwhile, and those that cannot be read."""
        deleted, unread = set[str](), set[str]()
        for name in names:
            try:
                content = (self._folder / name).read_bytes()
            except FileNotFoundError:
                deleted.add(name)
                continue
            except PermissionError:
                if _CHECKPOINT_FILE.match(name):
                    raise
                self._skip(name)
                unread.add(name)
                continue
            path = f"{self._root}/{name}"
            _make_folder(self._files, path.rpartition("/")[0])
            self._files.pipe_file(path, content)
        return deleted, unread

    def _skip(self, name: str) -> None:
        if name not in self._skipped:
            self._skipped.add(name)
            self._log(f"warning: {name} cannot be read, and is not in the copy at {self._url}")

    def _remove_checkpoints(self, names: Collection[str], deleted: Collection[str]) -> None:
        """Remove checkpoints that the folder lacks, some of an earlier process that made the copy. Other files stay."""
        incomplete = {found[1] for name in deleted if (found := _CHECKPOINT_FILE.match(name))}
        whole = {found[1] for name in names if (found := _CHECKPOINT.search(name))} - incomplete
        if not whole:
            # Otherwise the copy would be left without any.
            if incomplete:
                self._log(
                    f"warning: checkpoints were replaced before they reached {self._url}, which is slow: raise "
                    f"--checkpoint.every-seconds, --evaluation.every-frames or --checkpoint.keep"
                )
            return
        self._files.invalidate_cache()
        for path in self._files.find(f"{self._root}/checkpoints"):
            if path.removeprefix(f"{self._root}/") not in names:
                self._files.rm_file(path)


def check_storage(url: str, folder: RunFolder, *, resume: bool) -> None:
    """Refuse storage that is the run's own folder, that cannot be written to, or that has another or a later run."""
    files, root = _open(url)
    # A user who has lost the folder may resume in its copy. One within the folder would be copied into itself.
    if "file" in _protocols(files) and Path(os.path.realpath(root)).is_relative_to(os.path.realpath(folder.path)):
        raise setting_error("storage", url, "is the folder of the run, or within it; name another one, or None")
    try:
        files.invalidate_cache()
        in_use = files.exists(f"{root}/config.json")
        if resume:
            in_use = _of_another_run(files, root, folder)
        if in_use:
            raise setting_error("storage", url, f"holds another run: train --resume {quoted(url)} goes on with it")
        newest = _newest(files.find(f"{root}/checkpoints")) if resume else -1
        if newest > _newest(map(str, folder.checkpoints.glob("*"))):
            # The first update would remove the checkpoints that this folder lacks.
            problem = f"has a later checkpoint than {folder.path}: train --resume {quoted(url)} goes on from it"
            raise setting_error("storage", url, f"{problem}; with --storage None the folder goes on alone")
        _make_folder(files, root)
        # A user who may list a bucket may still not write to it. Two runs that try at once have a file each.
        probe = f"{root}/.tributary-{uuid4().hex}"
        files.pipe_file(probe, b"")
        files.rm_file(probe)
    except ConfigurationError:
        raise
    except Exception as error:
        # Each kind of storage has its own errors, which have no class in common.
        raise setting_error("storage", url, f"cannot be written: {one_line(error)}") from error


def _of_another_run(files: "fsspec.AbstractFileSystem", root: str, folder: RunFolder) -> bool:
    """True if the copy has the manifest of another run."""
    # It is written once, with the time of the run's beginning. A full disk or a crash leaves a part of one.
    manifest, path = read_object(folder.manifest), f"{root}/{folder.manifest.name}"
    copy = object_of(files.cat_file(path)) if files.exists(path) else {}
    return bool(manifest and copy and copy != manifest)


def _newest(checkpoints: Iterable[str]) -> int:
    """The number of updates of the newest whole checkpoint among these files."""
    return max((int(found[1]) for name in checkpoints if (found := _CHECKPOINT.search(name))), default=-1)


def fetch(url: str, folder: Path) -> None:
    """Copy a run from remote storage into a new folder, which is removed again after a ConfigurationError."""
    try:
        files, root = _open(url, "run")
        # fsspec caches listings, and a run at work has new files.
        files.invalidate_cache()
        names = files.find(root)
        if f"{root}/config.json" not in names:
            raise setting_error("run", url, "holds no run: it has no config.json")
        paths = [PurePosixPath(name.removeprefix(root).lstrip("/")) for name in names]
        if outside := [str(path) for path in paths if ".." in path.parts]:
            raise ValueError(f"the file {outside[0]!r} is outside of the run's folder")
        for parent in {folder / path.parent for path in paths}:
            parent.mkdir(parents=True, exist_ok=True)
        files.get(names, [str(folder / path) for path in paths])
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        # An interrupt, too: part of a run must not be taken for one.
        if isinstance(error, ConfigurationError) or not isinstance(error, Exception):
            raise
        raise setting_error("run", url, f"cannot be read: {one_line(error)}") from error


def _open(url: str, setting: str = "storage") -> tuple["fsspec.AbstractFileSystem", str]:
    # With asyncio, a fifth of what `tributary COMMAND --help` imports.
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        advice = f"{one_line(error)} (s3:// needs pip install 'tributary-rl[s3]', gs:// needs pip install gcsfs)"
        raise setting_error(setting, url, advice) from error
    return files, str(root).rstrip("/")


def _make_folder(files: "fsspec.AbstractFileSystem", path: str) -> None:
    if not _protocols(files) & _WITH_BUCKETS:
        files.makedirs(path, exist_ok=True)


def _protocols(files: "fsspec.AbstractFileSystem") -> set[str]:
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
