"""Ports of this machine."""

import random
import socket

# Below the system's ephemeral ports and above those of Ray's workers, so that a drawn port stays free until it is
# used.
_PORTS = range(20_000, 32_000)
_drawn: set[int] = set()


def free_port() -> int:
    """A port that nobody listens at, and that this process has not drawn before."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _drawn:
            _drawn.add(port)
            return port
    raise RuntimeError(f"no port of {_PORTS} is free")
