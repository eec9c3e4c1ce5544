"""How long a run takes to be as fast as before after one of its two actors is killed.

    python tests/chaos/recovery.py KILLS

Prints seconds from each kill to the first second whose agent steps/s are above 90 % of the median before it.
"""

import os
import signal
import statistics
import sys
import time
from pathlib import Path

from soak import pids, rows, trained_run, wait_for

_BASELINE_SECONDS = 15.0
_SHARE = 0.9


def main(kills: int) -> None:
    """Run and print."""
    with trained_run("pong --stop-at-return None") as (folder, run, _):
        seconds = [_seconds_to_recover(folder, run) for _ in range(kills)]
    print(f"median {statistics.median(seconds):.1f} s of {kills}")


def _seconds_to_recover(folder: str, run: Path) -> float:
    # Rows without a fault, to compare with.
    time.sleep(_BASELINE_SECONDS)
    before = statistics.median(row["agent_steps_per_second"] for row in rows(run)[-12:])
    killed, seen = time.monotonic(), len(rows(run))

    def recovered() -> bool:
        later = [row for row in rows(run)[seen + 2 :] if row["actors_alive"] == 2]
        return any(row["agent_steps_per_second"] >= _SHARE * before for row in later)

    os.kill(pids(folder, "Actor")[0], signal.SIGKILL)
    wait_for(recovered, "the rate before the kill")
    seconds = time.monotonic() - killed
    print(f"{before:,.0f} agent steps/s before; back above 90 % after {seconds:.1f} s", flush=True)
    return seconds


if __name__ == "__main__":
    main(int(sys.argv[1]))
