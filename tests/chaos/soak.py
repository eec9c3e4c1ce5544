"""Train CartPole for a long time while an actor is killed every few seconds; print whether anything grew.

    python tests/chaos/soak.py MINUTES SECONDS_BETWEEN_KILLS JSON_FILE
    python tests/chaos/soak.py recovery KILLS

Actors are killed in turn, so both of two are, each at half the rate. Samples are taken just before each kill. The
first fifth of them is not compared: processes reach their working size in it. The second command prints how long a run
of Pong takes to be as fast as before after one of its two actors is killed: until the first second whose agent steps/s
are above 90 % of the median before.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from accounts import account_of
from waiting import UNTIL_FRAMES, wait_for
from watched_processes import Watched, processes_with, rows

SETTINGS = "--actors 2 --total-frames 1000000M --log-every-seconds 1 --supervision.max-restarts 100000"


@contextmanager
def trained_run(preset: str) -> Iterator[tuple[str, Path, subprocess.Popen]]:
    """A run whose actors have been at work for some seconds: value of SOAK in its processes, run folder, driver."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        line = f"-m launch.cli train {preset} {SETTINGS} --run-dir {run}"
        with Watched([sys.executable, *line.split()], Path(folder) / "log", {"SOAK": folder}) as driver:
            driver.wait_for(lambda: len(rows(run)) >= 10, "ten rows")
            yield folder, run, driver.process
            driver.process.send_signal(signal.SIGTERM)
            driver.process.wait(60)


def main(minutes: float, interval: float, file: Path) -> None:
    samples: list[dict[str, Any]] = []
    with trained_run(f"cartpole {UNTIL_FRAMES} --optimizer.schedule constant") as (folder, run, driver):
        started = time.monotonic()
        while time.monotonic() - started < 60 * minutes:
            # The interval is the load of this measurement, and no wait for a state.
            time.sleep(interval)
            assert driver.poll() is None, "the run ended"
            samples.append(sample(driver.pid, folder, run))
            actors = pids(folder, "Actor")
            if actors:
                os.kill(actors[len(samples) % len(actors)], signal.SIGKILL)
        driver.send_signal(signal.SIGTERM)
        driver.wait(60)
        summary = account_of(run)
    report = {"kills": len(samples), "summary": summary, "drift": drift(samples), "samples": samples}
    file.write_text(json.dumps(report, indent=2))
    print(f"{len(samples)} kills, {summary['actor_restarts']} actors replaced, account exact")
    for name, (early, late) in report["drift"].items():
        print(f"{name:32} {early:14,.0f} -> {late:14,.0f}   {100 * (late / max(early, 1e-9) - 1):+.1f} %")


def sample(driver: int, folder: str, run: Path) -> dict[str, Any]:
    """Sizes now. Memory in bytes."""
    (learner,) = pids(folder, "Learner")
    shared = os.statvfs("/dev/shm")
    return {
        "time": time.time(),
        "driver_resident": resident(driver),
        "learner_resident": resident(learner),
        "driver_files": len(os.listdir(f"/proc/{driver}/fd")),
        "learner_files": len(os.listdir(f"/proc/{learner}/fd")),
        "processes": len(processes(folder)),
        "dev_shm_bytes": (shared.f_blocks - shared.f_bfree) * shared.f_frsize,
        "raylet_resident": sum(resident(pid) for pid, name in processes(folder).items() if "/raylet" in name),
        "gcs_resident": sum(resident(pid) for pid, name in processes(folder).items() if "gcs_server" in name),
        "agent_steps_per_second": statistics.median(row["agent_steps_per_second"] for row in rows(run)[-7:]),
    }


def drift(samples: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    fifth = max(1, len(samples) // 5)
    names = [name for name in samples[0] if name != "time"]
    return {
        name: (
            statistics.median(s[name] for s in samples[fifth : 2 * fifth]),
            statistics.median(s[name] for s in samples[-fifth:]),
        )
        for name in names
    }


def processes(folder: str) -> dict[int, str]:
    return processes_with(f"SOAK={folder}")


def pids(folder: str, kind: str) -> list[int]:
    return sorted(pid for pid, name in processes(folder).items() if name.startswith(f"ray::{kind}"))


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def recovery(kills: int) -> None:
    with trained_run("pong --stop-at-return None") as (folder, run, _):
        seconds = [_seconds_to_recover(folder, run) for _ in range(kills)]
    print(f"median {statistics.median(seconds):.1f} s of {kills}")


def _seconds_to_recover(folder: str, run: Path) -> float:
    # Rows without a fault, to compare with.
    time.sleep(15)
    before = statistics.median(row["agent_steps_per_second"] for row in rows(run)[-12:])
    killed, seen = time.monotonic(), len(rows(run))

    def recovered() -> bool:
        later = [row for row in rows(run)[seen + 2 :] if row["actors_alive"] == 2]
        return any(row["agent_steps_per_second"] >= 0.9 * before for row in later)

    os.kill(pids(folder, "Actor")[0], signal.SIGKILL)
    wait_for(recovered, "the rate before the kill")
    seconds = time.monotonic() - killed
    print(f"{before:,.0f} agent steps/s before; back above 90 % after {seconds:.1f} s", flush=True)
    return seconds


if __name__ == "__main__":
    if sys.argv[1] == "recovery":
        recovery(int(sys.argv[2]))
    else:
        main(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
