"""Imports go one way: launch -> actors, learner -> shared; in launch, from room to room; only launch imports ray."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "shared": {"shared"},
    "actors": {"actors", "shared"},
    "learner": {"learner", "shared"},
    "launch": {"launch", "actors", "learner", "shared", "ray"},
}
# The project's modules by name.
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in ALLOWED
    for file in (ROOT / package).rglob("*.py")
}


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports, at its top, in a function, or for its types only."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` imports the module.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & MODULES.keys() or {node.module}
    return names


IMPORTS = {name: imports_of(file) for name, file in MODULES.items()}


def test_imports_go_one_way() -> None:
    assert {name.partition(".")[0] for name in MODULES} == ALLOWED.keys()
    for name, imports in IMPORTS.items():
        forbidden = {*ALLOWED, "ray"} - ALLOWED[name.partition(".")[0]]
        assert not {imported.partition(".")[0] for imported in imports} & forbidden, name


# Each imports only those before it.
ROOMS = [
    "machine", "processes", "interrupts", "tensorflow_setup", "files", "provenance", "output", "doctor", "presets",
    "zoo", "loop", "run", "settings", "results", "film", "on_ray", "train", "driver", "commands", "python", "bench",
    "cli",
]  # fmt: skip


def test_rooms_import_only_rooms_before_them() -> None:
    rooms = {name: ROOMS.index(name.split(".")[1]) for name in MODULES if name.startswith("launch.")}
    assert set(rooms.values()) == set(range(len(ROOMS))), "a room of its own has its place in the order"
    for name, room in rooms.items():
        for imported in IMPORTS[name] & rooms.keys():
            assert rooms[imported] <= room, f"{name} imports {imported}"


def test_the_document_has_the_rooms_in_their_order() -> None:
    told = re.findall(r"^\| \[launch/(\w+)\]", (ROOT / "docs" / "how-it-works.md").read_text(), re.MULTILINE)
    assert told == [room for room in ROOMS if room != "cli"]


def test_no_imports_run_in_a_circle() -> None:
    left = {name: imports & MODULES.keys() - {name} for name, imports in IMPORTS.items()}
    while left:
        # A module that imports nothing that is left is in no circle.
        free = {name for name, imported in left.items() if not imported & left.keys()}
        assert free, f"in a circle, or behind one: {sorted(left)}"
        left = {name: imported for name, imported in left.items() if name not in free}


def test_ray_is_imported_in_its_room_only() -> None:
    users = {name for name, imports in IMPORTS.items() if any(imported.split(".")[0] == "ray" for imported in imports)}
    assert all(name.startswith("launch.on_ray.") for name in users)
