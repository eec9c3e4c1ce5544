"""What pyproject.toml says of the package, against the files that there are. `make wheel-test` builds and tries it."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ROOT, tracked

from launch.cli import main
from launch.commands.clusters import for_a_package

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    least, most = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    named = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(least), int(most))]
    makefile = (ROOT / "Makefile").read_text()
    assert f"(3, {least}) <= sys.version_info < (3, {most})" in makefile
    assert f"Python {named[0]} to {named[-1]} is needed" in makefile


def test_clusters_writes_its_files_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[[str], str]
) -> None:
    files = {Path(name).name for name in tracked("launch/clusters")}
    assert main(["clusters"]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^{name} +\w", listed, re.MULTILINE) for name in files)
    folder = tmp_path / "cluster"
    assert main(["clusters", str(folder)]) == 0
    assert {file.name for file in folder.iterdir()} == files | {"constraints.txt"}
    assert "\nray==2." in (folder / "constraints.txt").read_text()
    (folder / "onprem.yaml").write_text("changed")
    for taken in (folder, "/proc/cluster"):
        refused(f"clusters {taken}")
    assert (folder / "onprem.yaml").read_text() == "changed"


@pytest.mark.parametrize("file", sorted((ROOT / "launch" / "clusters").iterdir()), ids=lambda file: file.name)
def test_a_file_for_a_package_names_nothing_of_a_checkout(file: Path) -> None:
    before = file.read_text()
    after = for_a_package(before, "1.2.3")
    assert not re.search(r"editable|launch/|pyproject|\.py\b", after)
    assert after.count("tributary-rl") - before.count("tributary-rl") == before.count("--editable")
    assert before.count("--constraint constraints.txt") == after.count("--constraint constraints.txt --find-links . ")
