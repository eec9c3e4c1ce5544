"""One machine without Ray: its cores and memory, import paths, signals, and the set-up of TensorFlow."""

import ctypes
import functools
import importlib
import os
import re
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launch.output import machine_bytes, usable_cores
from shared.config import RunConfig
from shared.errors import setting_error

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
    if actors > places:
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
        with open(f"{PROCESSES}/sys/kernel/random/boot_id") as file:
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

    -P keeps the working directory out of `sys.path`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


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


class Interrupts(StopRequest):
    """A stop request set by signals. Use as a context, in the main thread, around the whole command.

    While training, the first signal sets `asked` and a second Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP never
    count as a second Ctrl-C, because they arrive several times: a job scheduler sends SIGTERM to each process of a job;
    a closed terminal sends SIGHUP, and its shell another one. Before training a SIGHUP raises KeyboardInterrupt, as
    Ctrl-C does; after training it is ignored. A process that ignores SIGHUP from its start, as under nohup, goes on
    ignoring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = self._concluding = False

    def __enter__(self) -> "Interrupts":
        self._hangups_before = signal.getsignal(signal.SIGHUP)
        if self._hangups_before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._ask_only)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._hangups_before)

    @contextmanager
    def training(self) -> Iterator[None]:
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask_only}
        before = {kind: signal.signal(kind, handler) for kind, handler in handlers.items()}
        self._training, self._concluding = True, False
        try:
            yield
        finally:
            self._training, self._concluding = False, True
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _ask(self, _signal: int, _frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.asked = self.interrupted = True

    def _ask_only(self, _signal: int, _frame: object) -> None:
        if self._training:
            self.asked = True
        elif not self._concluding:
            self._concluding = True
            raise KeyboardInterrupt


@contextmanager
def children_outlive_hangups() -> Iterator[None]:
    """A closed terminal does not end the processes started here, nor theirs: they inherit that SIGHUP is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- TensorFlow


def prepare_tensorflow(threads: int, *, gpu: bool) -> None:
    """Import TensorFlow with `threads` threads for each of its pools, on the CPU or with the GPU that Ray assigned.

    Without `gpu` all GPUs are hidden: TensorFlow would otherwise reserve their memory. Start-up notices of TensorFlow
    are suppressed, but not its warnings and errors.

    If TensorFlow is imported already, the process belongs to the user: its environment stays unchanged, and so do
    TensorFlow's devices and threads if they are in use.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if "tensorflow" not in sys.modules:
        _keep_freed_memory()
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with _without_notices():
        import tensorflow as tf

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
    """Prepare TensorFlow in a program of the user, for calls on the CPU; see `prepare_tensorflow`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with _without_notices():
        importlib.import_module("tensorflow")
    prepare_tensorflow(1, gpu=False)


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
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _NOTICES.match(line):
                    # A closed terminal must not end the process.
                    with suppress(OSError):
                        os.write(2, line)
