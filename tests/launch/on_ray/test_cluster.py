"""What starting or joining Ray does to the process that does so."""

import os
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from launch.machine.interrupts import Interrupts
from launch.on_ray import cluster


@pytest.mark.parametrize("connect", [lambda: cluster.start_here(1), lambda: cluster.join("127.0.0.1:6379")])
def test_a_termination_goes_on_asking_once_ray_is_there(
    connect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: object, **__: object) -> SimpleNamespace:
        # As ray.init does it.
        signal.signal(signal.SIGTERM, lambda kind, _: sys.exit(kind))
        return SimpleNamespace(dashboard_url="")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster, "check_address", lambda _: None)
    with Interrupts() as interrupts, interrupts.training():
        connect()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked
