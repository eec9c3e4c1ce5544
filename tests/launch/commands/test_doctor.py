"""The findings of the doctor, from reports with one fault each, and a real probe of this machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from namesakes import write_namesakes

from launch.cli import main
from launch.doctor import check_reports, find, quick_probe, reference
from shared.errors import ConfigurationError


def report(**wrong: Any) -> dict[str, Any]:
    return quick_probe() | {"node": "10.0.0.7", "environment_microseconds": 250.0, "graph_microseconds": 50.0} | wrong


def test_this_machine_is_well(working_folder: Path) -> None:
    write_namesakes(working_folder)
    file = working_folder / "doctor.json"
    assert main(["doctor", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["findings"] == []
    (node,) = found["nodes"]
    assert node["environment_microseconds"] > 0
    assert node["games"] > 50


@pytest.mark.parametrize(
    ("wrong", "cause", "advice"),
    [
        ({"python": "3.10.4"}, "Python 3.10.4 is too old", "install Python 3.11"),
        ({"python": "3.99.0"}, "Python 3.99.0, and", "install Python"),
        ({"versions": reference()["versions"] | {"ray": "2.1.0"}}, "ray 2.1.0, and", "pip install ray=="),
        ({"versions": reference()["versions"] | {"ale-py": None}}, "ale-py is missing", "pip install ale-py=="),
        ({"revision": "0" * 12}, "revision 000000000000 of the project", "check out the same commit"),
        ({"games": 0}, "no game files", "force-reinstall ale-py"),
        ({"environment_error": "OSError: x"}, "the environment does not run: OSError: x", "run there"),
        ({"graph_error": "ImportError: y"}, "the graph does not run: ImportError: y", "import tensorflow"),
        ({"memory_bytes": 2**30}, "1024 MiB of memory", "about 2 GiB"),
        ({"shared_memory_bytes": 64 * 2**20}, "/dev/shm holds 64 MiB", "--shm-size"),
        ({"error": "shared cannot be imported there", "advice": "copy"}, "cannot be imported", "copy"),
    ],
)
def test_one_thing_wrong_is_one_finding_with_its_remedy(wrong: dict[str, Any], cause: str, advice: str) -> None:
    assert find([report()], reference()) == []
    (finding,) = find([report(), report(**wrong)], reference())
    assert finding.node == "10.0.0.7"
    assert cause in finding.cause
    assert advice in finding.advice


def test_train_refuses_in_one_line() -> None:
    check_reports([report()])
    with pytest.raises(ConfigurationError) as raised:
        check_reports([report(revision="0" * 12, games=0)])
    assert str(raised.value).startswith("node 10.0.0.7: revision")
    assert "1 more: tributary doctor" in str(raised.value)
