"""Probes of a machine, and the failures that `tributary doctor` and `tributary train` find in their results."""

import os
import platform
import shutil
import socket
from collections.abc import Iterator, Sequence
from timeit import repeat
from typing import Any, NamedTuple

from launch.machine import actors_in, machine_bytes, pretended_gpus, usable_cores, usable_gpus
from launch.provenance import source_digest, versions
from launch.tensorflow_setup import kernels, prepare_tensorflow
from shared.errors import ConfigurationError, typed_line

_MIN_SHARED_BYTES = 512 * 2**20
_MAX_ERROR_CHARACTERS = 200
_ADVICE = "run there: pip install 'tributary-rl[gpu]'; docs/gpu.md has more"


def quick_probe() -> dict[str, Any]:
    """Versions of this process, on which all nodes must agree, and the capacity of this machine."""
    return {
        "python": platform.python_version(),
        "versions": versions(),
        "revision": source_digest(),
        "host": socket.gethostname(),
        "kernels": kernels(),
        "cores": usable_cores(),
        "memory_bytes": machine_bytes(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
    }


def probe() -> dict[str, Any]:
    """The same with the GPUs."""
    return quick_probe() | {"gpu": probe_gpus()}


class Finding(NamedTuple):
    """A failure of a node, with the command or change that repairs it."""

    node: str
    cause: str
    advice: str


def find(reports: Sequence[dict[str, Any]]) -> list[Finding]:
    """The failures of all nodes, and their differences from this process."""
    here = quick_probe()
    return [Finding(report["node"], *failure) for report in reports for failure in _failures(report, here)]


def _failures(report: dict[str, Any], here: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Cause and advice for each failure of a node."""
    if "error" in report:
        yield report["error"], report["advice"]
        return
    if report["python"].split(".")[:2] != here["python"].split(".")[:2]:
        yield f"Python {report['python']} there, and {here['python']} here", f"install Python {here['python']} there"
    for package, version in here["versions"].items():
        installed = report["versions"].get(package)
        if package != "python" and installed != version:
            cause = f"{package} {installed} there, and {version} here"
            advice = f"run there: pip install {package}=={version}"
            if installed is None:
                cause = f"{package} is missing there, and is {version} here"
            elif version is None:
                cause = f"{package} is missing here, and is {installed} there"
                advice = f"run here: pip install {package}=={installed}"
            yield cause, advice
    if report["revision"] != here["revision"]:
        cause = f"sources {report['revision']} of the project there, and {here['revision']} here"
        yield cause, "copy this folder there, or check out the same commit, and run: pip install --editable ."
    if not actors_in(report["memory_bytes"], learner=True):
        yield f"{report['memory_bytes'] >> 20} MiB of memory are too little", "learner and one actor need about 2 GiB"
    shared = report["shared_memory_bytes"]
    if shared is not None and shared < _MIN_SHARED_BYTES:
        advice = "start the container with --shm-size=2g, or mount a larger tmpfs there"
        yield f"/dev/shm holds {shared >> 20} MiB", advice
    if report.get("gpu"):
        yield from gpu_shortages(report["gpu"])


def check_reports(reports: Sequence[dict[str, Any]]) -> None:
    """Refuse a cluster with a failing node: a ConfigurationError has the first failure and its advice."""
    findings = find(reports)
    if findings:
        first = findings[0]
        more = f" ({len(findings) - 1} more: tributary doctor --address …)" if len(findings) > 1 else ""
        raise ConfigurationError(f"node {first.node}: {first.cause}; {first.advice}{more}")


# ---- GPUs


def probe_gpus() -> dict[str, Any] | None:
    """TensorFlow's results on the GPUs of this machine; None without one. Imports TensorFlow."""
    count = usable_gpus()
    try:
        return {"gpus": count, **_compute_on_gpus()} if count else None
    except Exception as error:
        # Any failure is a result of the probe.
        return {"gpus": count, "error": typed_line(error)[:_MAX_ERROR_CHARACTERS]}


def gpu_shortages(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Cause and advice for each fault of the GPUs that `probe_gpus` describes."""
    if "error" in report:
        yield f"the GPU does not compute: {report['error']}", _ADVICE
    elif report["devices"] < report["gpus"]:
        yield f"TensorFlow finds {report['devices']} of {report['gpus']} GPUs", _ADVICE


def gpu_line(report: dict[str, Any]) -> str:
    cards, milliseconds = "; ".join(report["cards"]) or "an unnamed card", report["xla_milliseconds"]
    built = f"TensorFlow is built for CUDA {report['cuda']} and cuDNN {report['cudnn']}"
    return f"GPU: {cards}; {built}; a convolution of 64 images with XLA {milliseconds:.1f} ms"


def _compute_on_gpus() -> dict[str, Any]:
    """The devices of TensorFlow, and the time of a convolution and its gradient, which XLA compiles."""
    prepare_tensorflow(gpu=True)
    import tensorflow as tf

    cards = tf.config.list_physical_devices("GPU")
    built = tf.sysconfig.get_build_info()
    report: dict[str, Any] = {"devices": pretended_gpus() or len(tf.config.list_logical_devices("GPU"))}
    report["cards"] = [tf.config.experimental.get_device_details(device).get("device_name", "") for device in cards]
    report |= {name: built.get(f"{name}_version") for name in ("cuda", "cudnn")}
    images, kernel = tf.ones((64, 84, 84, 4)), tf.Variable(tf.ones((8, 8, 4, 16)))

    @tf.function(jit_compile=True)
    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.conv2d(images, kernel, 4, "VALID") ** 2)
        return tape.gradient(loss, kernel)

    if report["devices"]:
        # The first call compiles.
        report["xla_milliseconds"] = 1e3 * repeat(lambda: gradient().numpy(), repeat=2, number=1)[1]
    return report
