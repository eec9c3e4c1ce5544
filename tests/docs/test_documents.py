"""What the documents name is there."""

import re
from pathlib import Path

import pytest

from launch.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def anchors(file: Path) -> set[str]:
    """The anchors of a document's headings, as its readers' browsers have them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def commands_of(document: Path) -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", document.read_text(), re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("tributary ")]


def test_commands_in_readme_are_commands() -> None:
    named = {command.split()[1] for command in commands_of(ROOT / "README.md")}
    assert len(named) >= 6
    assert named <= COMMANDS.keys()
