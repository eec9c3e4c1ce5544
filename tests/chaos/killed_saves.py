"""Save checkpoints without end in a child, kill it, see what is left; again and again. Prints the number of violations.

usage: killed_saves.py FOLDER POINTS SEED

The parent imports TensorFlow and runs nothing in it, so that children can be forked, at no cost.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from learner.checkpoint import Checkpoints, checkpoint_paths, read_checkpoint
from shared.errors import ConfigurationError
from shared.layout import ParameterLayout

_PARAMETERS = 200_000
_LAYOUT = ParameterLayout(("parameters",), ((_PARAMETERS,),))


def save_without_end(folder: Path, report: int) -> None:
    """Go on from the newest checkpoint; write the number of each that is complete to `report`."""
    version = 0

    def restore(state: dict) -> None:
        nonlocal version
        version = state["ledger"]["updates"]

    def state() -> dict:
        return {"layout_fingerprint": _LAYOUT.fingerprint, "ledger": {"updates": version}}

    parameters = tf.Variable(np.zeros(_PARAMETERS, np.float32))
    checkpoints = Checkpoints(folder, 3, {"parameters": parameters}, state, restore)
    if checkpoint_paths(folder):
        checkpoints.restore()
    while True:
        version += 1
        parameters.assign(tf.fill((_PARAMETERS,), float(version)))
        checkpoints.save(version)
        os.write(report, version.to_bytes(8, "little"))


def newest_whole(folder: Path) -> int:
    """The number of the newest checkpoint that can be read; 0 if there is none."""
    try:
        return read_checkpoint(folder, _LAYOUT)[0]
    except ConfigurationError:
        return 0


def main(folder: Path, points: int, seed: int) -> int:
    """Kill `points` children. Returns how often a complete checkpoint was lost."""
    random_state = random.Random(seed)
    complete = violations = unfinished = 0
    for _ in range(points):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            save_without_end(folder, write)
        os.close(write)
        # It saves from here on; a save takes some milliseconds.
        reported = os.read(read, 8)
        assert len(reported) == 8, "it has ended by itself"
        # The moment of the kill, at random within a save.
        time.sleep(random_state.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(read, 8):
            reported = more
        os.close(read)
        complete = max(complete, int.from_bytes(reported, "little"))
        found = newest_whole(folder)
        violations += found < complete
        unfinished += bool(list(folder.glob("*temp*")))
    print(f"{violations} of {points} kills lost a complete checkpoint; {unfinished} left an unfinished one")
    return violations


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])) > 0)
