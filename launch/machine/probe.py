"""What can be said of the machine of this process: versions, memory, a real environment step, a real graph call."""

import os
import platform
import shutil
import socket
import sys
import time
from typing import Any

from launch.machine.import_path import shadowed_packages
from launch.output import machine_bytes, revision, usable_cores, versions
from shared.errors import typed_line


def reference() -> dict[str, Any]:
    """What every node has to agree with: this process."""
    return {"python": platform.python_version(), "versions": versions(), "revision": revision()}


def quick_probe() -> dict[str, Any]:
    """What can be said of the machine of this process within a moment."""
    import ale_py.roms

    return {
        **reference(),
        "host": socket.gethostname(),
        "shadowed": shadowed_packages(),
        "games": len(ale_py.roms.get_all_rom_ids()),
        "cores": usable_cores(),
        "memory_bytes": machine_bytes(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        "time": time.time(),
    }


def probe() -> dict[str, Any]:
    """All that can be said of the machine of this process: environment and graph are really run."""
    found = quick_probe()
    for name, measure in (("environment", _step_microseconds), ("graph", _graph_microseconds)):
        try:
            found[f"{name}_microseconds"] = measure()
        except Exception as error:
            # Whatever is broken there is what is looked for.
            found[f"{name}_error"] = typed_line(error, 200)
    return found


def _step_microseconds() -> float:
    import numpy as np

    from actors.environments import VectorEnvironment
    from shared.config import EnvironmentConfig

    environments = VectorEnvironment(EnvironmentConfig(), 8)
    environments.reset(0)
    steps = 50
    started = time.perf_counter()
    for _ in range(steps):
        environments.step(np.zeros(8, np.int32))
    environments.close()
    return 1e6 * (time.perf_counter() - started) / (8 * steps)


def _graph_microseconds() -> float:
    import numpy as np

    from launch.machine.tensorflow_process import prepare_tensorflow

    if "tensorflow" not in sys.modules:
        prepare_tensorflow(1, gpu=False)
    import tensorflow as tf

    from shared.graph import Graph

    weights = tf.Variable(np.eye(256, dtype=np.float32))
    graph = Graph(lambda x: tf.matmul(x, weights), [tf.TensorSpec((32, 256), tf.float32)])
    observations = np.ones((32, 256), np.float32)
    if not np.array_equal(graph(observations)[0].numpy(), observations):
        raise ArithmeticError("a product with the identity is not the identity")
    calls = 200
    started = time.perf_counter()
    for _ in range(calls):
        graph(observations)
    return 1e6 * (time.perf_counter() - started) / calls
