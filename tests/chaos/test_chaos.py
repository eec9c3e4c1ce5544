"""One run that meets every fault there is, from a seeded schedule, and finishes with an exact account."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.chaos

FAULTS = Path(__file__).parent / "faults"
SETTINGS = (
    "--actors 3 --actor.environments 4 --actor.unroll-length 10 --actor.epochs 2 --actor.minibatches 2 "
    "--evaluation.every-frames 0 --stop-at-return None "
    "--stop-measure training --log-every-seconds 0.5 --checkpoint.every-seconds 1 --learner.max-policy-lag 100000 "
    "--supervision.hang-seconds 4 --supervision.start-seconds 25 --supervision.max-restarts 100"
)
_PROCESSES = {"Actor": 3, "Learner": 1, "Slice": 2}
_DEADLINE_SECONDS = 90
_SEED = 11


class ChaosRun:
    """A run whose folder is a small disk of its own, and what can be done to it."""

    def __init__(self, folder: Path) -> None:
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

    def output(self) -> str:
        """What the driver has shown since its last start. The log is on the small disk, this is not."""
        return self.shown.read_text(errors="replace")

    def wait_for_end(self) -> str:
        """The whole output."""
        self.driver.wait(_DEADLINE_SECONDS)
        return self.output()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not condition():
            assert self.driver.poll() is None, f"{what}: the run ended\n{self.output()}"
            assert time.monotonic() < deadline, f"{what} was not seen\n{self.log()}"
            time.sleep(0.05)

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

    def processes(self) -> dict[int, str]:
        """Every process of the run, by what it is called: they inherit the name of the folder of requests."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                mine = f"CHAOS_FOLDER={self.requests}\0".encode() in (entry / "environ").read_bytes()
                if entry.name.isdigit() and mine and (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        return found

    def pids(self, kind: str) -> list[int]:
        return sorted(pid for pid, command in self.processes().items() if command.startswith(f"ray::{kind}"))

    def signal_one(self, kind: str, number: int, random_state: random.Random) -> None:
        # Those that are on their way out are not meant.
        self.wait_for(lambda: len(self.pids(kind)) == _PROCESSES[kind], kind)
        os.kill(random_state.choice(self.pids(kind)), number)

    def request(self, fault: str) -> None:
        (self.requests / fault).touch()
        self.wait_for((self.requests / f"{fault}.met").exists, fault)
        (self.requests / f"{fault}.met").unlink()

    def checkpoints(self) -> list[int]:
        return sorted(int(file.stem.removeprefix("update-")) for file in (self.path / "checkpoints").glob("*.index"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ChaosRun]:
    assert os.geteuid() == 0, "make chaos mounts a small disk, and so needs root"
    made = ChaosRun(tmp_path)
    yield made
    for pid in made.processes():
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["umount", "-l", str(made.disk)], check=True)


def actor_fault(run: ChaosRun, act: Callable[[], object], line: str) -> None:
    """Do something to an actor; see its line in the log, and a replacement."""
    lines, replaced = run.log().count(line), run.log().count(" replaces actor ")
    act()
    run.wait_for(lambda: run.log().count(line) > lines, line)
    run.wait_for(lambda: run.log().count(" replaces actor ") > replaced, "a replacement")


def dropped_report(run: ChaosRun, fault: str, reason: str) -> None:
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
    fill(filler)
    kept, failed = run.checkpoints()[-1], failed_saves(run)

    def two_more_have_failed() -> bool:
        # A save that fails clears away what it has written: room for the next one.
        fill(filler)
        return failed_saves(run) >= failed + 2

    run.wait_for(two_more_have_failed, "checkpoints that fail")
    assert kept in run.checkpoints()
    newest = max(run.checkpoints())
    filler.unlink()
    run.wait_for(lambda: max(run.checkpoints()) > newest, "a checkpoint after the disk has room again")


def lost_slice(run: ChaosRun, random_state: random.Random) -> None:
    line = "goes on from its checkpoint"
    learners = run.log().count(line)
    run.signal_one("Slice", signal.SIGKILL, random_state)
    run.wait_for(lambda: run.log().count(line) > learners, "another learner")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_run_meets_every_fault_and_finishes_with_an_exact_account(shards: int, run: ChaosRun) -> None:
    random_state = random.Random(_SEED)
    faults: list[Callable[[], object]] = [
        *[lambda: actor_fault(run, lambda: run.signal_one("Actor", signal.SIGKILL, random_state), "process died")] * 3,
        lambda: actor_fault(run, lambda: run.signal_one("Actor", signal.SIGSTOP, random_state), "it hangs"),
        lambda: actor_fault(run, lambda: run.request("environment_raises"), "the environment raised"),
        lambda: actor_fault(run, lambda: run.request("environment_never_returns"), "it hangs"),
        lambda: dropped_report(run, "nan_gradient", "non_finite"),
        lambda: dropped_report(run, "wrong_layout", "wrong_layout"),
        lambda: dropped_report(run, "duplicate_report", "duplicate"),
        lambda: dropped_report(run, "stale_report", "too_old"),
        lambda: run.signal_one("Learner", signal.SIGKILL, random_state),
        lambda: full_disk(run),
        *[lambda: lost_slice(run, random_state)] * (shards - 1),
    ]
    random_state.shuffle(faults)
    slices = ["--learner.shards", str(shards)]
    run.start("cartpole", *SETTINGS.split(), *slices, "--total-frames", "1000M", "--run-dir", str(run.path))
    for fault in faults:
        run.wait_for_progress()
        fault()
    run.wait_for(lambda: "learner: " in run.log(), "the learner's line")

    # Without its driver everything ends; the newest checkpoint is damaged then, and the one before it used.
    run.wait_for(lambda: len(run.checkpoints()) >= 2, "two checkpoints")
    os.kill(run.driver.pid, signal.SIGKILL)
    run.driver.wait()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while run.processes():
        assert time.monotonic() < deadline, run.processes()
        time.sleep(0.1)
    newest = run.checkpoints()[-1]
    data = run.path / "checkpoints" / f"update-{newest}.data-00000-of-00001"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    data.write_bytes(damaged)
    run.start("--resume", str(run.path), "--total-frames", "1000M")
    run.wait_for(lambda: f"update-{newest} is damaged and was passed over" in run.log(), "the damaged checkpoint")
    run.wait_for_progress()
    run.driver.send_signal(signal.SIGTERM)
    output = run.wait_for_end()
    assert run.driver.returncode == 130, output
    summary = json.loads((run.path / "summary.json").read_text())
    # And in another number of slices.
    frames = str(summary["frames"] + 20_000)
    run.start("--resume", str(run.path), "--total-frames", frames, "--learner.shards", str(3 - shards))
    output = run.wait_for_end()
    assert run.driver.returncode == 0, output
    assert "Traceback" not in output

    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["status"] == "frames_reached"
    dropped = summary["agent_steps_dropped"]
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + sum(dropped.values())
    assert summary["rollouts_lost_with_actors"] >= 1
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while left := run.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert set(Path("/dev/shm").iterdir()) <= run.segments


def test_a_kill_during_a_save_never_costs_a_complete_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, str(script), str(tmp_path), "200", str(_SEED)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("0 of 200 kills lost a complete checkpoint")
    # Kills that met no save under way would show nothing.
    assert int(result.stdout.split("; ")[1].split()[0]) > 20
