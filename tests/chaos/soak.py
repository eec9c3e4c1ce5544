"""Train CartPole for a long time while an actor is killed every few seconds; print whether anything grew.

    python tests/chaos/soak.py MINUTES SECONDS_BETWEEN_KILLS

Actors are killed in turn, so both of two are, each at half the rate. Samples are taken just before each kill. The
first fifth of them is not compared: processes reach their working size in it.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from accounts import account_of
from waiting import UNTIL_FRAMES
from watched_processes import Watched, processes_with, rows

SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --optimizer.schedule constant --actors 2 --total-frames 1000000M --log-every-seconds 1 "
    "--supervision.max-restarts 100000"
)
KINDS = {"driver": "launch.cli", "learner": "ray::Learner", "raylet": "/raylet/raylet\0", "GCS server": "/gcs_server\0"}


def main(minutes: float, interval: float) -> None:
    samples: list[dict[str, float]] = []
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
                samples.append(sample(processes, run))
                actors = sorted(pid for pid, name in processes.items() if name.startswith("ray::Actor"))
                if actors:
                    os.kill(actors[len(samples) % len(actors)], signal.SIGKILL)
            driver.process.send_signal(signal.SIGTERM)
            driver.end(130)
            print(f"{len(samples)} kills, {account_of(run)['actor_restarts']} actors replaced, account exact")
    # The medians of the second fifth and of the last one.
    fifth = max(1, len(samples) // 5)
    for name in samples[0]:
        early, late = (
            statistics.median(one[name] for one in part) for part in (samples[fifth : 2 * fifth], samples[-fifth:])
        )
        print(f"{name:32} {early:14,.0f} -> {late:14,.0f}   {100 * (late / max(early, 1e-9) - 1):+.1f} %")


def sample(processes: dict[int, str], run: Path) -> dict[str, float]:
    """Sizes now. Memory in bytes."""
    shared = os.statvfs("/dev/shm")
    values = {"processes": len(processes), "/dev/shm, used": (shared.f_blocks - shared.f_bfree) * shared.f_frsize}
    for kind, part in KINDS.items():
        for pid in (pid for pid, name in processes.items() if part in name):
            with suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                values[f"{kind}, resident"] = pages * os.sysconf("SC_PAGE_SIZE")
                values[f"{kind}, files"] = len(os.listdir(f"/proc/{pid}/fd"))
    return values | {"agent steps per second": statistics.median(r["agent_steps_per_second"] for r in rows(run)[-7:])}


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
