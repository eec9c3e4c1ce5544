"""What starting or joining Ray does to the process that does so."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.cli import main
from launch.interrupts import Interrupts, StoppedBeforeTrainingError
from launch.on_ray import cluster
from shared.errors import ConfigurationError


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


def test_a_termination_while_ray_starts_reaches_no_handler_of_rays_and_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []

    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the one in C++ aborts this process"))
        # As Ray starts processes, which can be terminated.
        codes.append(subprocess.run(["sh", "-c", "kill $$"], preexec_fn=lambda: None, check=False).returncode)
        # To this thread: TensorFlow's threads, which a driver does not have, would take it otherwise.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    monkeypatch.setattr(cluster.ray, "init", init)
    with Interrupts(), pytest.raises(StoppedBeforeTrainingError):
        cluster.start_here(1)
    assert codes == [-signal.SIGTERM]


def test_a_termination_that_another_thread_takes_while_ray_starts_is_no_exit_of_rays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(*_: object, **__: object) -> None:
        raise SystemExit(signal.SIGTERM)

    monkeypatch.setattr(cluster.ray, "init", init)
    with Interrupts(), pytest.raises(StoppedBeforeTrainingError):
        cluster.start_here(1)


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


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where one of our own can be made. No variable names another."""
    monkeypatch.setattr(cluster, "_TEMPORARY_FOLDERS", ("/proc/none", str(tmp_path)))
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
@pytest.mark.parametrize(
    "value", ["{folder}/of/a/batch/system/with/long/names/of/jobs", "/proc/x", "{folder}/a b", "t"]
)
def test_ray_gets_a_short_folder_where_its_own_choice_will_not_do(
    variable: str, value: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value.format(folder=temporary))
    made = cluster.own_temporary_folder()
    assert Path(made).parent == temporary
    assert Path(made).is_dir()


def test_ray_keeps_its_own_choice_where_that_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setenv("TMPDIR", folder)
        assert cluster.own_temporary_folder() is None


@pytest.mark.usefixtures("temporary")
def test_no_place_for_rays_files_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_TEMPORARY_FOLDERS", ("/proc/none",))
    monkeypatch.setenv("TMPDIR", "/proc/x")
    with pytest.raises(ConfigurationError, match=r"set RAY_TMPDIR, or train without Ray: --executor inline$"):
        cluster.own_temporary_folder()


@pytest.mark.parametrize(
    "value",
    ["http://127.0.0.1:8265", "ray://127.0.0.1:1", "local", "somewhere", "127.0.0.1:1", "127.0.0.1:99999", "[::1]:1"],
)
def test_a_variable_that_names_no_cluster_is_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", value)
    with pytest.raises(ConfigurationError) as raised:
        cluster.join("auto")
    assert str(raised.value).startswith(f"--address {value}: ")


@pytest.mark.parametrize(
    ("address", "variable", "joined"),
    [
        ("auto", None, "auto"),
        ("auto", "", "auto"),
        ("auto", "{listener}", "{listener}"),
        ("{listener}", "http://127.0.0.1:1", "{listener}"),
    ],
)
def test_a_typed_address_comes_before_the_variable(
    address: str, variable: str | None, joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(cluster.ray, "init", lambda address, **_: taken.append(address))
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if variable is not None:
            monkeypatch.setenv("RAY_ADDRESS", variable.format(listener=listener))
        cluster.join(address.format(listener=listener))
        assert taken == [joined.format(listener=listener)]


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_ipv6_has_brackets() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6")
    with server:
        cluster.check_address(f"[::1]:{server.getsockname()[1]}")
