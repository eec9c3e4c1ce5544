"""How long a run takes to be as fast as before after one of its two actors is killed.

    python tests/chaos/recovery.py KILLS

Prints seconds from each kill to the first second whose agent steps/s are above 90 % of the median before it.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from soak import pids, wait_until_trained

SETTINGS = (
    "--actors 2 --stop-at-return None --total-frames 1000000M --log-every-seconds 1 --supervision.max-restarts 100000"
)
_BASELINE_SECONDS = 15.0
_SHARE = 0.9


def main(kills: int) -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "launch.cli", "train", "pong", *SETTINGS.split(), "--run-dir", str(run)]
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"SOAK": folder})
        seconds = []
        try:
            wait_until_trained(run, driver)
            for _ in range(kills):
                time.sleep(_BASELINE_SECONDS)
                before = statistics.median(row["agent_steps_per_second"] for row in rows(run)[-12:])
                killed, seen = time.monotonic(), len(rows(run))
                os.kill(pids(folder, "Actor")[0], signal.SIGKILL)
                while not any(_recovered(row, before) for row in rows(run)[seen + 2 :]):
                    time.sleep(0.1)
                seconds.append(time.monotonic() - killed)
                print(f"{before:,.0f} agent steps/s before; back above 90 % after {seconds[-1]:.1f} s", flush=True)
        finally:
            driver.send_signal(signal.SIGTERM)
            driver.wait(60)
    print(f"median {statistics.median(seconds):.1f} s of {kills}")


def rows(run: Path) -> list[dict]:
    """Whole rows of metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]


def _recovered(row: dict, before: float) -> bool:
    return row["actors_alive"] == 2 and row["agent_steps_per_second"] >= _SHARE * before


if __name__ == "__main__":
    main(int(sys.argv[1]))
