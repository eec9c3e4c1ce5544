"""What only Linux has, switched off: memory without a name, /proc, affinity, the names of sysconf."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import machine, output
from launch.doctor import find, quick_probe, reference
from launch.machine import machine_id
from launch.on_ray import transport
from launch.on_ray.transport import ChannelAddress, LocalTransport, VectorAddress, attach, open_channel

ROOT = Path(__file__).parents[2]
_MEMORY_BYTES = 16 * 2**30


@pytest.fixture
def no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no /proc."""
    monkeypatch.setattr(machine, "PROCESSES", str(tmp_path / "proc"))
    monkeypatch.setattr(transport, "machine_id", machine_id.__wrapped__)


@pytest.fixture
def sysctl(tmp_path: Path) -> str:
    """A PATH with the program that a Mac has, which knows one name."""
    program = tmp_path / "bin" / "sysctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "-n hw.memsize" ] && echo {_MEMORY_BYTES}\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_without_memory_without_a_name_or_without_proc_ray_carries_everything(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with monkeypatch.context() as without:
        without.delattr(os, "memfd_create", raising=False)
        assert LocalTransport().offer() is None
    request.getfixturevalue("no_processes")
    assert LocalTransport().offer() is None


@pytest.mark.usefixtures("no_processes")
def test_without_proc_no_memory_and_no_channel_of_another_process_can_be_reached() -> None:
    assert machine_id.__wrapped__() is None
    for name in ("", "None", str(os.getpid())):
        assert attach(VectorAddress(name, os.getpid(), 0, 1)) is None
        assert open_channel(ChannelAddress(name, os.getpid(), 0, 1)) is None


def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert machine.usable_cores() == 12


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_without_the_names_of_sysconf_sysctl_says_how_much_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, sysctl: str, error: type[Exception]
) -> None:
    def unknown(name: str) -> int:
        raise error(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.setenv("PATH", sysctl)
    assert machine.machine_bytes() == _MEMORY_BYTES


def test_without_cpuinfo_the_processor_has_its_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(output.platform, "processor", lambda: "arm")
    assert output.hardware()["cpu"] == "arm"


def test_without_dev_shm_doctor_finds_nothing_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/dev/shm" and isdir(path))
    report: dict[str, Any] = quick_probe() | {"node": "here"}
    assert report["shared_memory_bytes"] is None
    assert not [found for found in find([report], reference()) if "shm" in found.cause]


@pytest.mark.slow
def test_a_run_on_ray_without_all_of_them(tmp_path: Path, sysctl: str) -> None:
    run = tmp_path / "run"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "launch.cli", "train", "cartpole", "--actors", "2", "--total-frames", "20000"),
            *("--stop-at-return", "None", "--stop-measure", "training", "--run-dir", str(run)),
        ],
        env=os.environ
        | {"PATH": sysctl, "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("without_linux")), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "frames_reached"
    assert summary["actor_restarts"] == 0
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    hardware = json.loads((run / "manifest.json").read_text())["hardware"]
    assert hardware["memory_gib"] == _MEMORY_BYTES / 2**30
    assert hardware["cores"] == os.cpu_count()
