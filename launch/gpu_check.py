"""A check of a machine's GPUs for `tributary doctor`: a process of its own computes with one, as others hide them."""

import json
import os
import re
import subprocess
import time
from typing import Any

from launch.machine import module_command, module_environment, pretended_gpus, usable_gpus
from shared.errors import typed_line

_SECONDS = 300.0
_LIBRARY = re.compile(r"Could not load dynamic library '(lib\w+\.so[.\d]*)'")
_ADVICE = "run there: pip install 'tributary-rl[gpu]'; docs/gpu.md has more"


def probe_gpus() -> dict[str, Any] | None:
    """What TensorFlow finds and computes on the GPUs of this machine; None without one."""
    count = usable_gpus()
    if not count:
        return None
    found: dict[str, Any] = {"gpus": count, "cards": _cards(), "ld_library_path": os.environ.get("LD_LIBRARY_PATH")}
    # TensorFlow names the libraries that it cannot load in these notices alone.
    environment = module_environment() | {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    command = module_command("launch.gpu_check")
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return found | {"error": f"TensorFlow did not finish a convolution in {_SECONDS:.0f} s"}
    found["missing_libraries"] = sorted(set(_LIBRARY.findall(ended.stderr)))
    if ended.returncode:
        ending = ended.stderr.strip().splitlines() or [f"its process ended with {ended.returncode}"]
        return found | {"error": ending[-1][:200]}
    return found | json.loads(ended.stdout.splitlines()[-1])


def _cards() -> list[str]:
    """Name, driver and memory of each card, as the driver's own program writes them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def shortages(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Cause and advice for each fault of the GPUs that `probe_gpus` describes."""
    libraries = ", ".join(found.get("missing_libraries", ()))
    path = found["ld_library_path"]
    advice = f"{_ADVICE}; LD_LIBRARY_PATH={path} is searched first: try without it" if path else _ADVICE
    causes = []
    if "error" in found:
        causes.append(f"the GPU does not compute: {found['error']}")
    elif not found["devices"]:
        causes.append("TensorFlow finds no GPU" + (f": it cannot load {libraries}" if libraries else ""))
    for key, what in (("convolution_error", "a convolution"), ("xla_error", "a convolution with XLA")):
        if key in found:
            causes.append(f"{what} fails on the GPU: {found[key]}")
    return [(cause, advice) for cause in causes]


def gpu_line(found: dict[str, Any]) -> str:
    """One line about GPUs that compute."""
    cards = "; ".join(found["cards"]) or "an unnamed card"
    plain, compiled = found["convolution_milliseconds"], found["xla_milliseconds"]
    return (
        f"GPU: {cards}; TensorFlow is built for CUDA {found['cuda']} and cuDNN {found['cudnn']}; a convolution of 64 "
        f"images {plain:.1f} ms, with XLA {compiled:.1f} ms after {found['xla_seconds']:.1f} s of compilation"
    )


def _compute() -> dict[str, Any]:
    """The devices of TensorFlow, and times of a convolution and its gradient with and without XLA."""
    # Not by `prepare_tensorflow`, which suppresses the notices.
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    built = tf.sysconfig.get_build_info()
    devices = tf.config.list_logical_devices("CPU" if pretended_gpus() else "GPU")
    found: dict[str, Any] = {"devices": len(devices)}
    found |= {name: built.get(f"{name}_version") for name in ("cuda", "cudnn")}
    images, kernel = tf.ones((64, 84, 84, 4)), tf.Variable(tf.ones((8, 8, 4, 16)))

    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.conv2d(images, kernel, 4, "VALID") ** 2)
        return tape.gradient(loss, kernel)

    for name, compiled in (("convolution", False), ("xla", True)) if devices else ():
        graph = tf.function(gradient, jit_compile=compiled)
        try:
            first, again = _seconds(graph), _seconds(graph)
            found |= {f"{name}_milliseconds": 1e3 * again} | ({"xla_seconds": first} if compiled else {})
        except Exception as error:
            # Any failure is a result of the check.
            found[f"{name}_error"] = typed_line(error, 200)
    return found


def _seconds(graph: Any) -> float:
    started = time.perf_counter()
    graph().numpy()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_compute()))
