"""What the documents name is there."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from launch.cli import COMMANDS
from launch.commands.train import TrainArguments
from launch.settings.parse import parse
from launch.settings.resolve import resolve_request

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(document: Path) -> None:
    found = re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", document.read_text())
    links = [link for link in map("".join, found) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


# Placeholders, modules of users, and runs and files that are not here.
NOT_HERE = re.compile(r"[A-Z]{3,}(?!/)|…|_|corridor|--resume|--config|--start-from$")


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=lambda file: file.name)
def test_commands_are_understood(page: Path) -> None:
    text = page.read_text()
    typed = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    typed += re.findall(r"`([^`]+)`", FENCED.sub("", text))
    for line in typed:
        # The number of a seed or of actors.
        words = shlex.split(re.sub(r"\b[NS]\b", "1", line.partition(" #")[0])) if line.startswith("tributary ") else []
        assert len(words) < 2 or words[1] in {name.split()[0] for name in COMMANDS}, line
        if words[1:2] == ["train"] and not NOT_HERE.search(" ".join(words)):
            resolve_request(parse(TrainArguments, "train", words[2:]))


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    project, makefile = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"], (ROOT / "Makefile").read_text()
    least, most = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(least), int(most))]
    assert f"(3, {least}) <= sys.version_info < (3, {most})" in makefile
    assert f"Python {named[0]} to {named[-1]} is needed" in makefile
