"""What the documents name is there."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest

from launch.cli import COMMANDS
from launch.commands.train import TrainArguments
from launch.settings.files import SHORT_NAMES
from launch.settings.parse import fields_of, parse
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


# Their pages say so.
OF_OLD_REVISIONS = {"bench lag"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=lambda file: file.name)
def test_commands_are_understood(page: Path) -> None:
    text = page.read_text()
    typed = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    typed += re.findall(r"`([^`]+)`", FENCED.sub("", text))
    for line in typed:
        # The number of a seed or of actors.
        words = shlex.split(re.sub(r"\b[NS]\b", "1", line.partition(" #")[0])) if line.startswith("tributary ") else []
        if len(words) < 2 or (words[1] == "bench" and len(words) == 2):
            continue
        command = " ".join(words[1 : 2 + (words[1] == "bench")])
        if command in OF_OLD_REVISIONS:
            continue
        assert command in COMMANDS, line
        module, _, name = COMMANDS[command][-1].partition(":")
        takes = get_type_hints(getattr(importlib.import_module(f"launch.{module}"), name))["arguments"]
        options, _, of_run = fields_of(takes)
        known = {*options, *of_run, *(SHORT_NAMES if of_run else ()), "help", "help_all"}
        for option in re.findall(r"(?<=^--)[a-z][\w.-]*", "\n".join(words), re.M):
            written = option.replace("-", "_")
            assert {written, re.sub(r"(^|\.)no_", r"\1", written)} & known, f"{line}: --{option}"
        if words[1:2] == ["train"] and not NOT_HERE.search(" ".join(words)):
            resolve_request(parse(TrainArguments, "train", words[2:]))


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    project, makefile = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"], (ROOT / "Makefile").read_text()
    least, most = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(least), int(most))]
    assert f"(3, {least}) <= sys.version_info < (3, {most})" in makefile
    assert f"Python {named[0]} to {named[-1]} is needed" in makefile
