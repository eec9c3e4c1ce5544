"""What pyproject.toml says of the package, against the files that there are. `make wheel-test` builds and tries it."""

import re
import tomllib

from environments import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    least, most = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    named = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(least), int(most))]
    makefile = (ROOT / "Makefile").read_text()
    assert f"(3, {least}) <= sys.version_info < (3, {most})" in makefile
    assert f"Python {named[0]} to {named[-1]} is needed" in makefile
