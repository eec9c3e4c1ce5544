"""One machine without Ray: its cores, memory and GPUs, and the threads of a run on it."""

import functools
import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.config import RunConfig
from shared.errors import counted, setting_error

# Where the kernel shows processes and their open files, and the limits that containers and batch systems set.
PROCESSES = "/proc"
CONTROL_GROUPS = "/sys/fs/cgroup"
DEVICES = "/dev"
# Measured for an actor process with 32 Atari environments, rounded up.
ACTOR_BYTES = 950 * 2**20
# The learner's process, and Ray's and the driver beside it.
LEARNER_BYTES = 900 * 2**20
_LOAD_SAMPLES, _LOAD_SAMPLE_SECONDS = 10, 0.1
# Number of GPUs that this machine is taken to have. The graphs of GPU actors are then computed on the CPU, for tests.
PRETENDED_GPUS = "TRIBUTARY_PRETENDED_GPUS"
# While one actor of a GPU differentiates, the other one's environments are emulated.
ACTORS_A_GPU = 2
# Share of its cores that a measurement needs for itself. The system's own processes take some of the rest.
_NEEDED_SHARE = 0.75


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and whole cores of its CPU quota; at least 1."""
    cores: float = len(os.sched_getaffinity(0))
    for group in _control_groups():
        # The files of version 2, and of version 1, whose quota is -1 without a limit.
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            quota = [number for name in names for number in _numbers(group / name)]
            if len(quota) == 2 and quota[0] > 0:
                cores = min(cores, quota[0] / quota[1])
    return max(1, int(cores))


def machine_bytes() -> int:
    """Memory that this process may use in bytes: the physical one, or the limit of its container or job."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = [group / name for group in _control_groups() for name in ("memory.max", "memory.limit_in_bytes")]
    return min([physical, *(limit for file in files for limit in _numbers(file))])


def load_average() -> float:
    """Number of threads that compute on this machine: the mean of the last minute, or fewer if some have just ended."""
    average, running = os.getloadavg()[0], []
    # The mean of a minute still counts what ended seconds ago, such as the last measurement.
    for _ in range(_LOAD_SAMPLES):
        words = Path(PROCESSES, "loadavg").read_text(encoding="ascii").split()
        # Without this thread, which reads it.
        running.append(int(words[3].partition("/")[0]) - 1)
        time.sleep(_LOAD_SAMPLE_SECONDS)
    return min(average, sum(running) / len(running))


def busy(load: float) -> str | None:
    """A sentence where a `load_average` leaves too few cores to this process, so that measured times are too long."""
    total = os.cpu_count() or 1
    if load + _NEEDED_SHARE * usable_cores() <= total:
        return None
    return f"load average {load:.1f} on {counted(total, 'core')}"


def actors_in(memory: int, *, learner: bool) -> int:
    """Number of actors that fit into `memory` bytes. With `learner` its process takes part of the memory."""
    return max(0, memory - LEARNER_BYTES * learner) // ACTOR_BYTES


def pretended_gpus() -> int:
    return int(os.environ.get(PRETENDED_GPUS) or 0)


def usable_gpus() -> int:
    """GPUs of NVIDIA that this process may use: the device files that CUDA_VISIBLE_DEVICES names."""
    if pretended_gpus():
        return pretended_gpus()
    count = len([file for file in Path(DEVICES).glob("nvidia[0-9]*") if file.name[6:].isdecimal()])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    # CUDA ends the list at the first name that is none.
    names = itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), map(str.strip, visible.split(",")))
    return min(count, len(list(names)))


def gpu_actors(cores: float, gpus: float) -> int:
    """Number of actors on the GPUs of a machine: each has a core for the thread that launches graphs, at least."""
    return max(min(ACTORS_A_GPU * int(gpus), int(cores)), 0)


def emulator_threads(cores: float, actors: int) -> int:
    """Threads that emulate a vector of environments of one of `actors` GPU actors, whose other one launches graphs."""
    return max(1, int(cores) // max(actors, 1) - 1)


def _control_groups() -> Iterator[Path]:
    """The folders of this process's control groups, of version 2 and 1, and of their parents. Some may not exist."""
    try:
        lines = Path(PROCESSES, "self", "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        # A kernel without control groups.
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 1 has a hierarchy for each controller, version 2 one without a name. Where controllers share one, its
        # folder may have their names in another order, but each has a link.
        for name in {controllers, *controllers.split(",")}:
            top = Path(CONTROL_GROUPS, name)
            # A container may see its own group as the top, and its path as on the host: then only the top exists.
            group = Path(top, path.lstrip("/"))
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _numbers(file: Path) -> list[int]:
    """The numbers in a file of a control group; none where it is missing or begins with `max`."""
    try:
        return [int(word) for word in file.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


@dataclass(frozen=True)
class ThreadBudget:
    """Each process has one thread at work. In an actor TensorFlow and the environments take turns; the learner's fused
    update is bound by memory: with a second thread one of 0.7 M parameters takes 0.6 to 1.7 ms in place of 0.7."""

    cores: int
    actors: int
    emulator_threads: int = 0
    """Threads of each GPU actor that step a vector of environments; 0 for actors on CPUs."""

    def describe(self, executor: str) -> str:
        threads = "one thread each" if executor == "ray" else "in one thread"
        if self.emulator_threads:
            threads += f", and {self.emulator_threads} of an actor for its emulators"
        return f"{counted(self.actors, 'actor')} and the learner, {threads}, on {counted(self.cores, 'core')}"

    def warning(self) -> str | None:
        """Advice where the actors alone need more cores than there are; None elsewhere."""
        if self.emulator_threads or self.actors <= self.cores:
            return None
        return (
            f"{self.actors} actors share {self.cores} cores: more actors will not be faster; "
            f"--actors auto would start {automatic_actors(self.cores)}"
        )


def automatic_actors(cores: int) -> int:
    """One actor per core. From four cores on, the learner is busy enough to need a core of its own.

    GPU actors share the same cores.
    """
    return max(1, cores - 1 if cores >= 4 else cores)


def thread_budget(config: RunConfig) -> ThreadBudget:
    """The actors and threads of a run on this machine alone, which may be oversubscribed.

    Raises:
        ConfigurationError: the actors do not fit into its memory, or on its GPUs, or there is none for the learner.
    """
    on_gpu, cores = config.actor.device == "gpu", usable_cores()
    gpus, automatic = usable_gpus() - (config.learner.device == "gpu"), automatic_actors(cores)
    if gpus < 0:
        raise setting_error("learner.device", "gpu", "there is no GPU; use cpu")
    places = gpu_actors(automatic, gpus) if on_gpu else actors_in(machine_bytes(), learner=True)
    actors = places if on_gpu else min(automatic, max(places, 1))
    if config.executor == "inline" and config.actors == "auto":
        actors = 1
    least, most = config.actor_range
    actors = max(least, actors if most is None else min(most, actors))
    # Inline actors share the networks and graphs of one process, which are most of an actor's memory.
    if actors > places and config.executor == "ray":
        room = f"{places} GPU actors, {ACTORS_A_GPU} on each of {counted(gpus, 'GPU')}, with a core each"
        if not on_gpu:
            room = f"{places} actors of about {ACTOR_BYTES >> 20} MiB each, beside {LEARNER_BYTES >> 20} MiB of the "
            room += f"learner, in the {machine_bytes() / 2**30:.1f} GiB of this machine"
        raise setting_error("actors", actors, f"there is room for {room}; start fewer actors")
    return ThreadBudget(cores, actors, emulator_threads(automatic, actors) if on_gpu else 0)


@functools.cache
def machine_id() -> str:
    """Identity of this boot and container: process ids have one meaning where it is equal."""
    try:
        with open(f"{PROCESSES}/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink(f'{PROCESSES}/self/ns/pid')}"
    except OSError:
        # A sandbox does not show it.
        return socket.gethostname()
