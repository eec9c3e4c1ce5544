"""Train CartPole for a long time while an actor is killed every few seconds; print whether anything grew.

    python tests/chaos/soak.py MINUTES SECONDS_BETWEEN_KILLS JSON_FILE

Actors are killed in turn, so both of two are, each at half the rate. Samples are taken just before each kill. The
first fifth of them is not compared: processes reach their working size in it.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from accounts import account_of
from waiting import UNTIL_FRAMES
from watched_processes import Watched, processes_with, rows

SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --optimizer.schedule constant --actors 2 --total-frames 1000000M --log-every-seconds 1 "
    "--supervision.max-restarts 100000"
)


def main(minutes: float, interval: float, file: Path) -> None:
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        line = f"-m launch.cli train {SETTINGS} --run-dir {run}"
        with Watched([sys.executable, *line.split()], Path(folder) / "log", {"SOAK": folder}) as driver:
            driver.wait_for(lambda: len(rows(run)) >= 10, "ten rows")
            started = time.monotonic()
            while time.monotonic() - started < 60 * minutes:
                # The interval is the load of this measurement, and no wait for a state.
                time.sleep(interval)
                assert driver.process.poll() is None, "the run ended"
                processes = processes_with(f"SOAK={folder}")
                samples.append(sample(driver.process.pid, processes, run))
                actors = sorted(pid for pid, name in processes.items() if name.startswith("ray::Actor"))
                if actors:
                    os.kill(actors[len(samples) % len(actors)], signal.SIGKILL)
            driver.process.send_signal(signal.SIGTERM)
            driver.process.wait(60)
            summary = account_of(run)
    report = {"kills": len(samples), "summary": summary, "drift": drift(samples), "samples": samples}
    file.write_text(json.dumps(report, indent=2))
    print(f"{len(samples)} kills, {summary['actor_restarts']} actors replaced, account exact")
    for name, (early, late) in report["drift"].items():
        print(f"{name:32} {early:14,.0f} -> {late:14,.0f}   {100 * (late / max(early, 1e-9) - 1):+.1f} %")


def sample(driver: int, processes: dict[int, str], run: Path) -> dict[str, float]:
    """Sizes now. Memory in bytes."""
    (learner,) = (pid for pid, name in processes.items() if name.startswith("ray::Learner"))
    of_ray = {kind: [pid for pid, name in processes.items() if kind in name] for kind in ("/raylet", "gcs_server")}
    shared = os.statvfs("/dev/shm")
    return {
        "driver_resident": resident(driver),
        "learner_resident": resident(learner),
        "driver_files": len(os.listdir(f"/proc/{driver}/fd")),
        "learner_files": len(os.listdir(f"/proc/{learner}/fd")),
        "processes": len(processes),
        "dev_shm_bytes": (shared.f_blocks - shared.f_bfree) * shared.f_frsize,
        **{f"{kind.strip('/')}_resident": sum(map(resident, pids)) for kind, pids in of_ray.items()},
        "agent_steps_per_second": statistics.median(row["agent_steps_per_second"] for row in rows(run)[-7:]),
    }


def drift(samples: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The medians of the second fifth and of the last one."""
    fifth = max(1, len(samples) // 5)
    parts = samples[fifth : 2 * fifth], samples[-fifth:]
    return {name: tuple(statistics.median(s[name] for s in part) for part in parts) for name in samples[0]}


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
