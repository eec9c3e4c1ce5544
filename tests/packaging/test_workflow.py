"""The workflow of GitHub runs what .ci/run does, on the Pythons that the project takes. It has never run there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]


def made(job: str) -> list[str]:
    """The targets that a job makes."""
    typed = [step["run"] for step in JOBS[job]["steps"] if "run" in step]
    (target,) = (line.removeprefix("make ") for line in typed if line.startswith("make "))
    return JOBS[job]["strategy"]["matrix"]["target"] if target == "${{ matrix.target }}" else [target]


def test_it_makes_what_ci_makes_and_make_knows_it() -> None:
    here = re.findall(r"^make (\S+)(?: ARGS=\"-k 'not noop'\")?$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [*made("lint"), *made("test"), *made("further")] == here
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*here, *made("macos")} <= set(phony[1].split())


def test_it_tests_on_each_python_and_needs_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert JOBS["test"]["strategy"]["matrix"]["python"] == named
    for job in JOBS.values():
        for step in job["steps"]:
            for asked in (step.get("with") or {}).values():
                assert asked in [*named, "${{ matrix.python }}"]
    (tools,) = (step["run"] for step in JOBS["further"]["steps"] if step.get("run", "").startswith(".ci"))
    assert (ROOT / tools).stat().st_mode & 0o100


def test_nothing_waits_for_a_mac_that_nobody_has_tried() -> None:
    assert [name for name, job in JOBS.items() if job.get("continue-on-error")] == ["macos"]
    assert not [name for name, job in JOBS.items() if "macos" in str(job.get("needs"))]
