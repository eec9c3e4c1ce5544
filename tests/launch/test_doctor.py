"""`tributary doctor`: what it finds on this machine and in the reports of others, and what a run is refused for."""

import json
from pathlib import Path
from typing import Any

import pytest
from namesakes import write_namesakes

from launch import machine
from launch.cli import main
from launch.doctor import check_reports, find, quick_probe
from shared.errors import ConfigurationError


def report(**wrong: Any) -> dict[str, Any]:
    # This machine may be a container with little memory.
    return quick_probe() | {"node": "10.0.0.7", "memory_bytes": 2**34, "shared_memory_bytes": 2**31} | wrong


GPU = {"devices": 1, "gpus": 1}


@pytest.mark.skipif(bool(machine.usable_gpus()), reason="TensorFlow finds the GPU of this machine")
def test_a_gpu_that_tensorflow_cannot_use_is_found(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(machine, "DEVICES", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia0").touch()
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "TensorFlow finds 0 of 1 GPUs; run there: pip install" in printed
    # In one line, although it is longer than 80 characters.
    assert quick_probe()["revision"] in printed.splitlines()[0]


def test_this_machine_is_well(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU that the CPU stands for, in a folder whose modules have the names of ours."""
    monkeypatch.setenv(machine.PRETENDED_GPUS, "1")
    write_namesakes(working_folder)
    code = main(["doctor", "--json", "doctor.json"])
    found = json.loads(Path("doctor.json").read_text())
    # It may be well and have little memory.
    assert [finding for finding in found["findings"] if "MiB" not in finding["cause"]] == []
    assert code == bool(found["findings"])
    (node,) = found["nodes"]
    assert node["gpu"]["xla_milliseconds"] > 0


@pytest.mark.parametrize(
    ("wrong", "cause", "advice"),
    [
        ({"python": "3.10.4"}, "Python 3.10.4 there, and 3.1", "install Python 3.1"),
        ({"versions": quick_probe()["versions"] | {"ray": "2.1.0"}}, "ray 2.1.0 there, and", "pip install ray=="),
        ({"revision": "0" * 12}, "sources 000000000000 of the project", "check out the same commit"),
        ({"memory_bytes": 2**30}, "1024 MiB of memory", "about 2 GiB"),
        ({"shared_memory_bytes": 64 * 2**20}, "/dev/shm holds 64 MiB", "--shm-size"),
        ({"gpu": GPU | {"gpus": 2}}, "TensorFlow finds 1 of 2 GPUs", "docs/gpu.md"),
        ({"gpu": GPU | {"error": "killed"}}, "the GPU does not compute: killed", "docs/gpu.md"),
        ({"error": "shared cannot be imported there", "advice": "copy"}, "cannot be imported", "copy"),
    ],
)
def test_one_thing_wrong_is_one_finding_with_its_remedy(wrong: dict[str, Any], cause: str, advice: str) -> None:
    assert find([report()]) == []
    (finding,) = find([report(), report(**wrong)])
    assert finding.node == "10.0.0.7"
    assert cause in finding.cause
    assert advice in finding.advice


def test_train_refuses_in_one_line() -> None:
    check_reports([report()])
    with pytest.raises(ConfigurationError) as raised:
        check_reports([report(revision="0" * 12, memory_bytes=0)])
    assert str(raised.value).startswith("node 10.0.0.7: sources")
    assert "1 more: tributary doctor" in str(raised.value)
