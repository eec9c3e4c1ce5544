"""One machine without Ray: its cores and memory, import paths, signals, and the set-up of TensorFlow."""

import atexit
import ctypes
import functools
import gc
import importlib.abc
import importlib.machinery
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

# Where Linux shows processes and their open files.
PROCESSES = "/proc"
# Measured for an actor process with 32 Atari environments, rounded up.
ACTOR_BYTES = 950 * 2**20


# TensorFlow prints these before its own log level can apply. `cuInit` fails wherever there is no GPU.
_NOTICES = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|E\d{4} .*(cuInit|cuFFT|cuDNN|cuBLAS)|"
    rb"To enable the following instructions"
)

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


# ---- Cores and memory


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity and cpuset, and whole ones of its CPU quota, at least 1.

    A core more than the quota would make all processes wait for the end of each period.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = resource_limits().cores
    return cores if quota is None else max(1, min(cores, int(quota)))


def machine_bytes() -> int:
    """Memory that this process may use in bytes: the physical one, or the limit of its container or job."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        # Some builds of Python for macOS lack one of the names.
        physical = int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, check=True).stdout)
    limit = resource_limits().memory_bytes
    return physical if limit is None else min(physical, limit)


class ResourceLimits(NamedTuple):
    """Limits of the control groups of a process, as containers and batch systems set them; None: unlimited."""

    cores: float | None
    memory_bytes: int | None


def resource_limits(processes: str | None = None) -> ResourceLimits:
    """The lowest limits of this process's control groups (v1 and v2) and their parents, as far as they are visible.

    `processes` is the folder where the kernel shows processes. There is none on other systems than Linux.
    """
    cores: list[float] = []
    memory: list[int] = []
    for group in _control_groups(Path(processes or PROCESSES, "self")):
        version_1 = (_number(group / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        for quota, period in (_numbers(group / "cpu.max"), version_1):
            # Version 1 has a quota of -1 where there is none.
            if quota is not None and period and quota > 0:
                cores.append(quota / period)
        limits = (_number(group / name) for name in ("memory.max", "memory.limit_in_bytes"))
        memory += [limit for limit in limits if limit is not None]
    return ResourceLimits(min(cores, default=None), min(memory, default=None))


def _control_groups(process: Path) -> Iterator[Path]:
    """The folders of a process's control groups and their visible parents."""
    try:
        groups = (process / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        mounts = (process / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    paths: dict[str, str] = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        root, point = (_unescaped(field) for field in fields.split()[3:5])
        kind, _, options = rest.split()[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        # Version 2 has one hierarchy for all controllers, without names.
        found = {""} if kind == "cgroup2" else set(options.split(",")) & {"cpu", "memory"}
        for path in {paths[name] for name in found if name in paths}:
            # A container may see its own group as the root of the mount, and its path as on the host.
            inside = os.path.relpath(path, root)
            folder = Path(point) if inside.startswith("..") else Path(point, inside)
            yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(point))


def _unescaped(field: str) -> str:
    """A field of mountinfo, where the kernel writes spaces and newlines as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _numbers(file: Path) -> tuple[int | None, int | None]:
    """The first two numbers in a file of a control group; None for `max`, and for what is missing."""
    try:
        words = file.read_text(encoding="utf-8").split()
        first, second = (None if word == "max" else int(word) for word in [*words, "max", "max"][:2])
    except (OSError, ValueError):
        return None, None
    return first, second


def _number(file: Path) -> int | None:
    return _numbers(file)[0]


@dataclass(frozen=True)
class ThreadBudget:
    """Threads of each process. An actor has one: TensorFlow and its environments take turns."""

    cores: int
    actors: int
    learner_threads: int

    @property
    def oversubscribed(self) -> bool:
        """Whether the actors alone need more cores than the machine has."""
        return self.actors > self.cores

    def describe(self) -> str:
        """The budget in one line."""
        return (
            f"{self.actors} actor{'s' * (self.actors > 1)} x 1 + learner {self.learner_threads} threads on "
            f"{self.cores} cores"
        )

    def warning(self) -> str | None:
        """Advice for an oversubscribed machine; None for others."""
        if not self.oversubscribed:
            return None
        return (
            f"{self.actors} actors share {self.cores} cores: more actors will not be faster; "
            f"--actors auto would start {automatic_actors(self.cores)}"
        )


def automatic_actors(cores: int) -> int:
    """One actor per core. From four cores on, the learner is busy enough to need a core of its own."""
    return max(1, cores - 1 if cores >= 4 else cores)


def thread_budget(config: RunConfig) -> ThreadBudget:
    """The actors and threads of a run on this machine alone, which may be oversubscribed.

    Raises:
        ConfigurationError: the actors do not fit into its memory.
    """
    cores, places = usable_cores(), machine_bytes() // ACTOR_BYTES
    least, most = config.actor_range
    actors = min(automatic_actors(cores), max(places, 1))
    if config.executor == "inline" and config.actors == "auto":
        actors = 1
    actors = max(least, actors if most is None else min(most, actors))
    if isinstance(config.actors, int):
        actors = config.actors
    # Inline actors share the networks and graphs of one process, which are most of an actor's memory.
    if actors > places and config.executor == "ray":
        raise setting_error(
            "actors",
            actors,
            f"there is room for {places} actors of about {ACTOR_BYTES >> 20} MiB each in the "
            f"{machine_bytes() >> 30} GiB of this machine",
        )
    return budget_for(config, actors, cores)


def budget_for(config: RunConfig, actors: int, cores: int) -> ThreadBudget:
    """The threads of `actors` actors on `cores` cores."""
    return ThreadBudget(
        cores=cores,
        actors=actors,
        # The fused update is bound by memory; a second thread helps only where a core is free for it.
        learner_threads=2 if cores > actors and config.executor == "ray" else 1,
    )


@functools.cache
def machine_id() -> str | None:
    """Identity of this boot and container: process ids have one meaning where it is equal. None without `/proc`."""
    try:
        with open(f"{PROCESSES}/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink(f'{PROCESSES}/self/ns/pid')}"
    except OSError:
        return None


# ---- Import paths: the project's packages come before files with the same names


def project_folder() -> Path:
    """The folder of the project's packages."""
    return Path(__file__).resolve().parents[1]


def worker_path() -> list[str]:
    """Folders that Ray prepends to the `sys.path` of its workers, in reverse order of precedence."""
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    return [*([script] if script in sys.path else []), os.getcwd(), str(project_folder())]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the project, with `module_environment`.

    -P keeps the working directory out of `sys.path`, and `tributary_rl` finds the project's packages before others of
    the same names.
    """
    run = f"import runpy, tributary_rl; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", run, *arguments]


def module_environment() -> dict[str, str]:
    """The environment variables of such a process: PYTHONPATH begins with the project.

    It ends with the folder of this process's script, whose modules the process must be able to import, too.
    """
    project, script = str(project_folder()), os.path.dirname(os.path.realpath(sys.argv[0]))
    installed = project in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    # Installed packages keep their place, after the standard library.
    folders = [*([] if installed else [project]), *filter(None, [os.environ.get("PYTHONPATH")])]
    folders += [script] if script in sys.path else []
    return os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


# ---- Signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP when a terminal is closed


class StopRequest:
    """Shared by a run and its caller, which sets it from any thread, or from a signal handler.

    Plain attributes and no Event: setting an Event takes a lock, and a second signal in that moment would deadlock.

    Attributes:
        asked: finish the rollouts under way, save and end.
        interrupted: the request came from Ctrl-C; the next KeyboardInterrupt leaves without saving.
        at_once: end without saving, for runs in another process, which no KeyboardInterrupt of this one reaches.
    """

    def __init__(self) -> None:
        self.asked = self.interrupted = self.at_once = False

    @contextmanager
    def training(self) -> Iterator[None]:
        """The period in which a run honours `asked`. Before it there is nothing to save, after it all is saved."""
        yield


class StoppedBeforeTrainingError(KeyboardInterrupt):
    """A run was stopped before its processes were ready: there is nothing to save."""


class Interrupts(StopRequest):
    """A stop request set by signals. Use as a context, in the main thread, around the whole command.

    While training, the first signal sets `asked` and a second Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP never
    count as a second Ctrl-C, because they arrive several times: a job scheduler sends SIGTERM to each process of a job;
    a closed terminal sends SIGHUP, and its shell another one. Before training they raise KeyboardInterrupt, as Ctrl-C
    does; after training they are ignored. A process that ignores SIGHUP from its start, as under nohup, goes on
    ignoring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = self._concluding = False

    def __enter__(self) -> "Interrupts":
        self._before = {kind: signal.getsignal(kind) for kind in (signal.SIGHUP, signal.SIGTERM)}
        for kind, handler in self._before.items():
            if handler != signal.SIG_IGN:
                signal.signal(kind, self._ask_only)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._ask)
        self._training, self._concluding = True, False
        try:
            yield
        finally:
            self._training, self._concluding = False, True
            signal.signal(signal.SIGINT, before)

    def _ask(self, _signal: int, _frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.asked = self.interrupted = True

    def _ask_only(self, _signal: int, _frame: object) -> None:
        if self._training:
            self.asked = True
        elif not self._concluding:
            self._concluding = True
            raise StoppedBeforeTrainingError


@contextmanager
def children_outlive_hangups() -> Iterator[None]:
    """A closed terminal does not end the processes started here, nor theirs: they inherit that SIGHUP is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that this process was started without.

    Another file would be opened under its number, and what libraries and child processes print would go there.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def provide_home() -> None:
    """Set HOME to a private folder, until this process ends, where there is no home folder.

    Containers and clusters run users without an entry in /etc/passwd. Ray keeps a key in the home folder; Keras and
    Matplotlib keep files there, and would make a folder named ~ here.
    """
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.path.isdir(home):
        return
    with suppress(OSError):
        os.environ["HOME"] = made = tempfile.mkdtemp(prefix="tributary-home-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)


# ---- TensorFlow


def prepare_tensorflow(threads: int, *, gpu: bool) -> None:
    """Import TensorFlow with `threads` threads for each of its pools, on the CPU or with the GPU that Ray assigned.

    Without `gpu` all GPUs are hidden: TensorFlow would otherwise reserve their memory. Start-up notices of TensorFlow
    are suppressed, but not its warnings and errors.

    If TensorFlow is imported already, the process belongs to the user: its environment stays unchanged, and so do
    TensorFlow's devices and threads if they are in use.

    Raises:
        ConfigurationError: Keras is imported already, with another backend.
    """
    ours = "tensorflow" not in sys.modules
    if ours:
        _keep_freed_memory()
        # For the processes that this one starts, too.
        os.environ["KERAS_BACKEND"] = "tensorflow"
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with _without_notices():
        with _quick_imports() if ours else nullcontext():
            tf = _import_tensorflow()
        # RuntimeError: devices or threads are in use.
        with suppress(RuntimeError):
            if not gpu:
                tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
            for device in tf.config.list_physical_devices("GPU") if gpu else ():
                tf.config.experimental.set_memory_growth(device, True)
        # The first tensor creates the devices, which log their notices then.
        tf.zeros(())


def share_tensorflow() -> None:
    """Prepare TensorFlow in a program of the user, for calls on the CPU; see `prepare_tensorflow`.

    Nothing is changed in a program that has imported TensorFlow.
    """
    if "tensorflow" in sys.modules:
        _import_tensorflow()
        return
    with _without_notices():
        _import_tensorflow()
    prepare_tensorflow(1, gpu=False)


def _import_tensorflow() -> Any:
    """TensorFlow, with Keras on it, whatever backend other programs of the user have.

    Raises:
        ConfigurationError: Keras is imported already, with another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if not {"keras", "tensorflow"} & sys.modules.keys():
        users = os.environ.get("KERAS_BACKEND")
        os.environ["KERAS_BACKEND"] = "tensorflow"
        try:
            keras = importlib.import_module("keras")
        finally:
            os.environ.pop("KERAS_BACKEND") if users is None else os.environ.update(KERAS_BACKEND=users)
        # The user's keras.json may have others.
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
    backend = importlib.import_module("keras").config.backend()
    if backend != "tensorflow":
        raise ConfigurationError(
            f"Keras has the backend {backend} in this process, and tributary-rl needs tensorflow: set "
            f"KERAS_BACKEND=tensorflow"
        )
    return importlib.import_module("tensorflow")


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Import TensorFlow in 1.9 seconds in place of 3.3.

    Keras imports Pandas, IPython and Matplotlib if it finds them, for data and drawings that no run has: a second.
    Garbage collection finds nothing in modules, and takes 0.4 seconds.
    """
    hidden = [name for name in ("pandas", "IPython", "matplotlib") if name not in sys.modules]
    # An import of None fails as that of a missing module.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        for name in hidden:
            del sys.modules[name]


class _TensorflowImport(importlib.abc.MetaPathFinder):
    """A finder that filters the notices of TensorFlow's import, for modules of the user that import it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of TensorFlow, whose loader filters; None for other modules."""
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def run_filtered(module: ModuleType) -> None:
                with _without_notices():
                    run(module)

            loader.exec_module = run_filtered
        return spec


def filter_tensorflow_notices() -> None:
    """From now on, an import of TensorFlow in this process prints no notices."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if not any(isinstance(finder, _TensorflowImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TensorflowImport())


def _keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors: returned pages would be faulted in again for the next tensor.

    Whether glibc returns memory depends on its neighbours on the heap. Without this, some processes took three times
    as long to set their weights.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Filter the start-up notices from the standard error of C++ code."""
    open_standard_streams()
    _flush_stderr()
    with _unnamed_file() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush_stderr()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _NOTICES.match(line):
                    # A closed terminal must not end the process.
                    with suppress(OSError):
                        os.write(2, line)


def _unnamed_file() -> IO[bytes]:
    """A file for a moment. In memory, where the system has such files: no folder may be writable."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("tributary-stderr"), "w+b")
    return tempfile.TemporaryFile()


def _flush_stderr() -> None:
    # Programs replace it by objects with `write` alone; it is None without a terminal.
    if hasattr(sys.stderr, "flush"):
        with suppress(OSError, ValueError):
            sys.stderr.flush()
