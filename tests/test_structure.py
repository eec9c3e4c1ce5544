"""Imports go one way: launch -> actors, learner -> shared; only launch imports ray."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "shared": {"shared"},
    "actors": {"actors", "shared"},
    "learner": {"learner", "shared"},
    "launch": {"launch", "actors", "learner", "shared", "ray"},
}


def imported_packages(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    forbidden = {"shared", "actors", "learner", "launch", "ray"} - ALLOWED[package]
    for file in files:
        assert not imported_packages(file.read_text()) & forbidden, file


def test_ray_is_imported_in_its_room_only() -> None:
    launch = ROOT / "launch"
    users = {f.relative_to(launch) for f in launch.rglob("*.py") if "ray" in imported_packages(f.read_text())}
    outside = {str(file) for file in users if file.parts[0] != "on_ray"}
    assert outside == {"bench/learner.py", "commands/train.py"}


def test_the_command_line_starts_without_what_is_slow_to_import() -> None:
    script = (
        "import sys, launch.cli; slow = {'tensorflow', 'keras', 'ray', 'matplotlib', 'av'} & set(sys.modules); "
        "sys.exit(', '.join(slow) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_table_of_the_readme_has_a_heading() -> None:
    """A blank line in the midst of a table ends it, and shows the rest as plain text."""
    blocks = "\n".join(line if line.startswith("|") else "" for line in (ROOT / "README.md").read_text().splitlines())
    tables = [block.strip().splitlines() for block in blocks.split("\n\n") if block.strip()]
    assert tables
    for rows in tables:
        assert len(rows) > 2, rows
        assert set(rows[1]) <= set("|-: "), rows[0]
