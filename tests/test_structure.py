"""Imports go one way: launch -> actors, learner -> shared; in launch, from room to room; only launch imports ray."""

import ast
import re
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


# Each imports only those before it.
ROOMS = (
    "machine",
    "interrupts",
    "tensorflow_setup",
    "output",
    "doctor",
    "presets",
    "arguments",
    "zoo",
    "loop",
    "run",
    "results",
    "film",
    "on_ray",
    "checks",
    "request",
    "train",
    "driver",
    "commands",
    "python",
    "sweep",
    "bench",
    "cli",
)


def modules() -> dict[str, Path]:
    """The project's modules by name."""
    files = [file for package in ALLOWED for file in (ROOT / package).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return dict(zip(names, files, strict=True))


def imported_modules(file: Path, known: dict[str, Path]) -> set[str]:
    """The project's modules that a file imports, at its top, in a function, or for its types only."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` imports the module.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & known.keys() or {node.module}
    return names & known.keys()


def test_rooms_import_only_rooms_before_them() -> None:
    known = modules()
    found = {name.split(".")[1] for name in known if name.startswith("launch.")}
    assert found == set(ROOMS), "a room of its own has its place in the order"
    for name, file in known.items():
        if not name.startswith("launch."):
            continue
        room = ROOMS.index(name.split(".")[1])
        for imported in imported_modules(file, known):
            if imported.startswith("launch."):
                assert ROOMS.index(imported.split(".")[1]) <= room, f"{name} imports {imported}"


def test_the_document_has_the_rooms_in_their_order() -> None:
    told = re.findall(r"^\| \[launch/(\w+)\]", (ROOT / "docs" / "how-it-works.md").read_text(), re.MULTILINE)
    assert told == [room for room in ROOMS if room != "cli"]


def test_no_imports_run_in_a_circle() -> None:
    known = modules()
    left = {name: imported_modules(file, known) - {name} for name, file in known.items()}
    while left:
        # A module that imports nothing that is left is in no circle.
        free = {name for name, imported in left.items() if not imported & left.keys()}
        assert free, f"in a circle, or behind one: {sorted(left)}"
        left = {name: imported for name, imported in left.items() if name not in free}


def test_ray_is_imported_in_its_room_only() -> None:
    launch = ROOT / "launch"
    users = {f.relative_to(launch) for f in launch.rglob("*.py") if "ray" in imported_packages(f.read_text())}
    outside = {str(file) for file in users if file.parts[0] != "on_ray"}
    assert outside == {"bench/learner.py", "sweep/trainable.py", "sweep/tune.py", "train.py"}


def test_text_files_are_utf_8_in_every_locale() -> None:
    for package in ALLOWED:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and opens_text(node):
                    assert any(word.arg == "encoding" for word in node.keywords), f"{file}:{node.lineno}"


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text by its name: `open`, `Path.open`, `read_text` or `write_text`."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in ("read_text", "write_text"):
        return True
    # Others have a function of this name: os.open, av.open, Image.open.
    owner = getattr(getattr(function, "value", None), "id", "")
    binary = any(isinstance(word, ast.Constant) and "b" in str(word.value) for word in call.args[-1:])
    return name == "open" and owner not in ("os", "av", "Image", "tracker") and not binary
