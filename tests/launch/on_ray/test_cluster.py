"""What starting or joining Ray does to the process that does so."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.cli import main
from launch.machine import Interrupts
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


def test_a_ray_that_does_not_start_in_time_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(cluster.ray, "init", init)
    assert main(["train", "cartpole", "--run-dir", str(tmp_path / "run")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "Ray did not start within its 30 seconds" in line
    assert "--executor inline" in line
