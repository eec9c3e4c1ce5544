"""Takes away what only Linux has, in every process that has this folder on its path: much of what a Mac is without."""

import ctypes
import os
import sys

_sysconf = os.sysconf


class _WithoutMallopt(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "mallopt":
            raise AttributeError(name)
        return super().__getattr__(name)


def _without_names(name):
    """Other packages go on with what they know of this system."""
    if sys._getframe(1).f_globals.get("__name__", "").startswith("launch."):
        raise ValueError("unrecognized configuration name")
    return _sysconf(name)


ctypes.CDLL = _WithoutMallopt
os.sysconf = _without_names
del os.memfd_create, os.sched_getaffinity
