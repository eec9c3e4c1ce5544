"""The set-up of a process before TensorFlow is imported: threads, device and log output."""

import ctypes
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# TensorFlow prints these before its own log level can apply. `cuInit` fails wherever there is no GPU.
_NOTICES = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|E\d{4} .*(cuInit|cuFFT|cuDNN|cuBLAS)|"
    rb"To enable the following instructions"
)

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare_tensorflow(threads: int, *, gpu: bool) -> None:
    """Import TensorFlow with `threads` threads for each of its pools, on the CPU or with the GPU that Ray assigned.

    Without `gpu` all GPUs are hidden: TensorFlow would otherwise reserve their memory. Start-up notices of TensorFlow
    are suppressed, but not its warnings and errors.

    If TensorFlow is imported already, the process belongs to the user: its environment stays unchanged, and so do
    TensorFlow's devices and threads if they are in use.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if "tensorflow" not in sys.modules:
        _keep_freed_memory()
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with _without_notices():
        import tensorflow as tf

        # RuntimeError: devices or threads are in use.
        with suppress(RuntimeError):
            if not gpu:
                tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
            for device in tf.config.list_physical_devices("GPU") if gpu else ():
                tf.config.experimental.set_memory_growth(device, True)
        # The first tensor creates the devices, which log their notices then.
        tf.zeros(())


def share_tensorflow() -> None:
    """Prepare TensorFlow in a program of the user, for calls on the CPU; see `prepare_tensorflow`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with _without_notices():
        importlib.import_module("tensorflow")
    prepare_tensorflow(1, gpu=False)


def _keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors: returned pages would be faulted in again for the next tensor.

    Whether glibc returns memory depends on its neighbours on the heap. Without this, some processes took three times
    as long to set their weights.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Filter the start-up notices from the standard error of C++ code."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _NOTICES.match(line):
                    # A closed terminal must not end the process.
                    with suppress(OSError):
                        os.write(2, line)
