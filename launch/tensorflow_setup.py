"""The set-up of TensorFlow in a process: its threads, devices, memory, and the notices that it prints."""

import ctypes
import importlib
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal

from launch.machine import pretended_gpus
from launch.processes import without_collections
from shared.config import NetworkConfig, RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.registry import tensorflow_by_module
from shared.stderr import filtered_stderr

# Switches oneDNN on or off. By itself TensorFlow uses it only on CPUs with AVX-512 VNNI or AMX.
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# The value that was chosen for a process: its child processes may compute another network, and choose anew.
_CHOSEN = "TRIBUTARY_ONEDNN_OPTS"

# Set in a program of the user that has imported TensorFlow, whose devices and threads stay as they are.
_shared = threading.Event()

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare_tensorflow(*, gpu: bool, network: NetworkConfig | None = None) -> None:
    """Import TensorFlow with one thread for each of its pools and without notices, with kernels for `network`.

    Without `gpu` all GPUs are hidden: TensorFlow would otherwise reserve their memory. With it there are two threads
    between operations: with one a process was seen to hang. If TensorFlow is imported already, the process belongs to
    the user: its environment stays unchanged, and so do TensorFlow's devices and threads if they are in use.

    Raises:
        ConfigurationError: Keras is imported already, with another backend.
    """
    if _shared.is_set():
        return
    ours = "tensorflow" not in sys.modules
    if ours:
        _keep_freed_memory()
        if gpu:
            # Threads of its own launch kernels: others compete with those of emulators.
            os.environ.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with filtered_stderr():
        with _quick_imports() if ours else nullcontext():
            tf = _import_tensorflow(network)
        # RuntimeError: devices or threads are in use.
        with suppress(RuntimeError):
            if not gpu:
                tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(2 if gpu else 1)
            for device in tf.config.list_physical_devices("GPU") if gpu else ():
                tf.config.experimental.set_memory_growth(device, True)
        # The first tensor creates the devices, which log their notices then.
        tf.zeros(())


def prepare_for(section: Literal["actor", "learner"], config: RunConfig) -> None:
    """Prepare TensorFlow in a process of actors or of the learner, for the device that it computes on.

    Raises:
        ConfigurationError: the device is a GPU, and TensorFlow finds none.
    """
    gpu = getattr(config, section).device == "gpu" and not pretended_gpus()
    prepare_tensorflow(gpu=gpu, network=config.network)
    if gpu and not importlib.import_module("tensorflow").config.list_logical_devices("GPU"):
        problem = "TensorFlow finds no GPU here: pip install 'tributary-rl[gpu]'; docs/gpu.md has more"
        raise setting_error(f"{section}.device", "gpu", problem)


def prepare_to_read_weights(config: RunConfig) -> None:
    """Prepare TensorFlow in the process that starts a run, and that reads weights before its actors do."""
    if config.executor == "inline":
        prepare_for("actor", config)
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    prepare_tensorflow(gpu=False, network=config.network)
    # Ray, which this process starts next, counts GPUs by it.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def share_tensorflow() -> None:
    """Prepare TensorFlow in a program of the user, for calls on the CPU. One that has imported it stays as it is."""
    imported = "tensorflow" in sys.modules and not tensorflow_by_module.is_set()
    with filtered_stderr():
        _import_tensorflow()
    if not imported:
        prepare_tensorflow(gpu=False)
    else:
        _shared.set()


def set_tensorflow_variables(network: NetworkConfig | None = None) -> None:
    """Set the log level and the kernels of TensorFlow, which a module of the user may import first.

    The kernels are oneDNN or Eigen. TensorFlow reads the variable once, at its import. A user's value stays, and on
    ARM, where it was not measured, TensorFlow has its default.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if "tensorflow" not in sys.modules and platform.machine() == "x86_64" and _users_onednn() is None:
        os.environ[_ONEDNN] = os.environ[_CHOSEN] = _onednn_for(network)


def _import_tensorflow(network: NetworkConfig | None = None) -> Any:
    """TensorFlow, with Keras on it, also where the user's programs choose another backend for Keras."""
    set_tensorflow_variables(network)
    if not {"keras", "tensorflow"} & sys.modules.keys():
        os.environ["KERAS_BACKEND"] = "tensorflow"
        keras = importlib.import_module("keras")
        # The user's keras.json may have others.
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
    backend = importlib.import_module("keras").config.backend()
    if backend != "tensorflow":
        raise ConfigurationError(
            f"Keras has the backend {backend} in this process, and tributary-rl needs tensorflow: set "
            f"KERAS_BACKEND=tensorflow"
        )
    return importlib.import_module("tensorflow")


def _users_onednn() -> str | None:
    value = os.environ.get(_ONEDNN)
    return None if value == os.environ.get(_CHOSEN) else value


def _onednn_for(network: NetworkConfig | None) -> str:
    # Its overhead is more than it saves in the small products of an mlp of 2 x 64 units: acting for 8 environments of
    # CartPole takes 214 µs a call against 138, and a gradient of 256 agent steps as long as without.
    return "0" if network is not None and network.name == "mlp" else "1"


def kernels(network: NetworkConfig | None = None, *, in_this_process: bool = True) -> str:
    """The library of TensorFlow's convolutions and matrix products.

    Args:
        network: as for `prepare_tensorflow`.
        in_this_process: the computation is done here, not in processes that import TensorFlow themselves.
    """
    value = os.environ.get(_ONEDNN)
    if not (in_this_process and "tensorflow" in sys.modules) and platform.machine() == "x86_64":
        value = _users_onednn() or _onednn_for(network)
    return {"0": "Eigen", "1": "oneDNN"}.get(value or "", "TensorFlow's default kernels")


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Import TensorFlow in 1.9 seconds in place of 3.3.

    Keras imports Pandas, IPython and Matplotlib if it finds them, for data and drawings that no run has: a second.
    Garbage collection takes 0.4 seconds.
    """
    hidden = [name for name in ("pandas", "IPython", "matplotlib") if name not in sys.modules]
    # An import of None fails as that of a missing module.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        with without_collections():
            yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors: returned pages would be faulted in again for the next tensor.

    Whether glibc returns memory depends on its neighbours on the heap. Without this, some processes took three times
    as long to set their weights.
    """
    # TensorFlow has no wheels for Linux with another library.
    glibc = ctypes.CDLL(None)
    glibc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    glibc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
