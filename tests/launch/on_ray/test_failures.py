"""What Ray raises, in one line."""

from pathlib import Path
from typing import Any

import pytest
import ray

from launch.cli import main
from launch.on_ray import cluster
from launch.on_ray.failures import failure_reason


def test_an_error_in_the_users_code_is_told_with_its_place(tmp_path: Path) -> None:
    """As it comes from a process: the message is the traceback there."""
    traceback = f"""ray::ActorProcess.run() (pid=1, ip=10.0.0.1)
  File "{tmp_path}/actors/rollout.py", line 90, in collect
    result = environment.step(actions)
  File "{tmp_path}/my_package.py", line 15, in step
    self.t.foo
AttributeError: 'int' object has no attribute 'foo'
"""
    error = ray.exceptions.RayTaskError("run", traceback, AttributeError())
    assert failure_reason(error) == (
        "its rollout raised: AttributeError: 'int' object has no attribute 'foo' (my_package.py:15, in step)"
    )
    assert failure_reason(ray.exceptions.RayTaskError("run", "ValueError: no", ValueError())) == (
        "its rollout raised: ValueError: no"
    )


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
