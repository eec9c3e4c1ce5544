"""A run under chaos: watched from outside, and what can be done to it and to its disk."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from waiting import UNTIL_FRAMES, wait_for
from watched_processes import processes_with

FAULTS = Path(__file__).parents[1] / "chaos" / "faults"
ENDLESS = "--total-frames", "1000M"
SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --actor.environments 4 --actor.unroll-length 10 --actor.epochs 2 --actor.minibatches 2 "
    "--log-every-seconds 0.5 --checkpoint.every-seconds 1 --supervision.max-restarts 100"
)
Fault = Callable[[], object]


class ChaosRun:
    """A run whose folder is a small disk of its own, and what can be done to it.

    `counts` are the processes of each kind that it has when nothing is wrong.
    """

    def __init__(self, folder: Path, counts: Mapping[str, int], deadline_seconds: float = 90) -> None:
        assert os.geteuid() == 0, "make chaos mounts a small disk, and so needs root"
        self.counts, self.deadline_seconds = counts, deadline_seconds
        self.requests = folder / "requests"
        self.requests.mkdir()
        self.disk = folder / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(self.disk)], check=True)
        self.path = self.disk / "run"
        self.environment = os.environ | {"CHAOS_FOLDER": str(self.requests), "PYTHONPATH": str(FAULTS)}
        self.driver: subprocess.Popen[bytes]
        self.shown = folder / "shown.txt"
        self.segments = set(Path("/dev/shm").iterdir())

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "launch.cli", "train", *arguments]
        with self.shown.open("wb") as shown:
            self.driver = subprocess.Popen(command, env=self.environment, stdout=shown, stderr=subprocess.STDOUT)

    def meet(self, faults: list[Fault], random_state: random.Random, settings: str) -> None:
        """Start with `SETTINGS` and these settings, and let it meet all faults in a random order."""
        random_state.shuffle(faults)
        self.start(*SETTINGS.split(), *settings.split(), *ENDLESS, "--run-dir", str(self.path))
        for fault in faults:
            self.wait_for_progress()
            fault()

    def output(self) -> str:
        """What the driver has shown since its last start. The log is on the small disk, this is not."""
        return self.shown.read_text(errors="replace")

    def wait_for_end(self) -> str:
        self.driver.wait(self.deadline_seconds)
        return self.output()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        def shown() -> str:
            return f"{self.log()}\n{self.output()}"

        wait_for(condition, what, process=self.driver, shown=shown, seconds=self.deadline_seconds)

    def wait_for_progress(self) -> None:
        before = self.updates()
        # Down is progress too: a learner that has died goes on from its checkpoint.
        self.wait_for(lambda: self.updates() != before, "progress")

    def log(self) -> str:
        with suppress(OSError):
            return (self.path / "log.txt").read_text()
        return ""

    def updates(self) -> int:
        lines = (self.path / "metrics.jsonl").read_text().splitlines() if (self.path / "metrics.jsonl").exists() else []
        for line in reversed(lines):
            # A row may be half written at this moment, and stays half written on a full disk.
            with suppress(ValueError):
                return json.loads(line)["updates"]
        return 0

    def end(self) -> None:
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["umount", "-l", str(self.disk)], check=True)

    def processes(self) -> dict[int, str]:
        """Every process of the run, by what it is called: they inherit the name of the folder of requests."""
        return processes_with(f"CHAOS_FOLDER={self.requests}")

    def pids(self, kind: str) -> list[int]:
        """Without those that a signal has stopped: they are at work no more, and gone as soon as that is found."""
        found = (pid for pid, command in self.processes().items() if command.startswith(f"ray::{kind}"))
        return sorted(pid for pid in found if not is_stopped(pid))

    def one_of(self, kind: str, random_state: random.Random) -> int:
        """The id of one of these processes, as soon as all are there: those that are on their way out are not meant."""
        seen: list[int] = []

        def all_are_there() -> bool:
            seen[:] = self.pids(kind)
            return len(seen) == self.counts[kind]

        self.wait_for(all_are_there, kind)
        return random_state.choice(seen)

    def signal_one(self, kind: str, number: int, random_state: random.Random) -> None:
        os.kill(self.one_of(kind, random_state), number)

    def request(self, fault: str) -> None:
        (self.requests / fault).touch()
        self.wait_for((self.requests / f"{fault}.met").exists, fault)
        (self.requests / f"{fault}.met").unlink()

    def checkpoints(self) -> list[int]:
        return sorted(int(file.stem.removeprefix("update-")) for file in (self.path / "checkpoints").glob("*.index"))

    def kill_driver(self) -> None:
        os.kill(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        wait_for(lambda: not self.processes(), "the end", shown=self.processes, seconds=self.deadline_seconds)

    def resume_without_newest_checkpoint(self, *arguments: str) -> None:
        """Kill the driver, damage the newest checkpoint, resume from the one before it, and stop by SIGTERM."""
        self.kill_driver()
        newest = self.checkpoints()[-1]
        data = self.path / "checkpoints" / f"update-{newest}.data-00000-of-00001"
        damaged = bytearray(data.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        data.write_bytes(damaged)
        self.start("--resume", str(self.path), *ENDLESS, *arguments)
        self.wait_for(lambda: f"update-{newest} is damaged and was passed over" in self.log(), "the damaged checkpoint")
        self.wait_for_progress()
        self.driver.send_signal(signal.SIGTERM)
        output = self.wait_for_end()
        assert self.driver.returncode == 130, output
        assert "Traceback" not in output


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped this process; not where it has ended."""
    with suppress(OSError):
        # "pid (name) state …"; a name may have brackets and spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def common_faults(
    run: ChaosRun, actor: str, random_state: random.Random, of_actor: Callable[..., None] | None = None
) -> list[Fault]:
    """Faults of processes called `actor`, by `of_actor` or `actor_fault`; of reports, and of the disk."""
    meet = of_actor or actor_fault
    return [
        lambda: meet(run, lambda: run.signal_one(actor, signal.SIGKILL, random_state), "process died"),
        lambda: meet(run, lambda: run.signal_one(actor, signal.SIGSTOP, random_state), "it hangs"),
        lambda: meet(run, lambda: run.request("environment_raises"), "the environment raised"),
        lambda: meet(run, lambda: run.request("environment_never_returns"), "it hangs"),
        lambda: dropped_report(run, "nan_gradient", "non_finite"),
        lambda: dropped_report(run, "wrong_layout", "wrong_layout"),
        lambda: dropped_report(run, "duplicate_report", "duplicate"),
        lambda: full_disk(run),
    ]


def actor_fault(run: ChaosRun, act: Fault, line: str) -> None:
    lines, replaced = run.log().count(line), run.log().count(" replaces actor ")
    act()
    run.wait_for(lambda: run.log().count(line) > lines, line)
    run.wait_for(lambda: run.log().count(" replaces actor ") > replaced, "a replacement")


def dropped_report(run: ChaosRun, fault: str, reason: str) -> None:
    assert f"for the reason {reason}" not in run.log()
    run.request(fault)
    run.wait_for(lambda: f"for the reason {reason}" in run.log(), reason)


def failed_saves(run: ChaosRun) -> int:
    return len(re.findall(r"checkpoint of update \d+ could not be written", run.output()))


def fill(file: Path) -> None:
    """Let a file grow until not a byte of its disk is left; what others wrote before stays."""
    with suppress(OSError), file.open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 12))


def full_disk(run: ChaosRun) -> None:
    filler = run.disk / "filler"
    kept = run.checkpoints()[-1]
    fill(filler)
    failed = failed_saves(run)

    def two_more_have_failed() -> bool:
        # A save that fails clears away what it has written: room for the next one.
        fill(filler)
        return failed_saves(run) >= failed + 2

    run.wait_for(two_more_have_failed, "checkpoints that fail")
    assert kept in run.checkpoints()
    newest = max(run.checkpoints())
    filler.unlink()
    run.wait_for(lambda: max(run.checkpoints()) > newest, "a checkpoint after the disk has room again")
