"""The packages of docs/architecture.md and the library's imports, drawn from the code."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = {
    "edgeveil": "edgeveil",
    "edgeveil_edge": "edge_client/edgeveil_edge",
    "edgeveil_cloud": "cloud_server/edgeveil_cloud",
    "edgeveil_proxy": "proxy/edgeveil_proxy",
    "edgeveil_tools": "tools/edgeveil_tools",
    "edgeveil_lab": "tools/edgeveil_lab",
}
_SPLIT = ("edgeveil", "edgeveil.parts", "edgeveil_tools", "edgeveil_lab")  # shown room by room


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package, place in PACKAGES.items():
        for path in sorted((ROOT / place).rglob("*.py")):
            parts = [package, *path.relative_to(ROOT / place).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str, rooms: set[str]) -> str:
    """The innermost of `rooms` that a module lies in."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(name for name in names if name in rooms)


def rooms(known: dict[str, Path]) -> set[str]:
    """The packages that are a row of the page."""
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    return {name for name in packages if "." not in name or name.rpartition(".")[0] in _SPLIT}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports as it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)


@cache
def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    known = modules()
    all_rooms, found = rooms(known), defaultdict[str, set[str]](set)
    for module, path in known.items():
        here = room_of(module, all_rooms)
        for other in imported(path, known):
            there = room_of(other, all_rooms)
            if there != here and not here.startswith(f"{there}."):
                found[here].add(there)
    return found


def tree() -> str:
    """A row for each room: what it is for, and its number of files."""
    known = modules()
    all_rooms = rooms(known)
    lines = ["| room | purpose | files |", "| --- | --- | --- |"]
    for room in sorted(
        all_rooms, key=lambda name: (list(PACKAGES).index(name.split(".")[0]), name)
    ):
        inside = [path for name, path in known.items() if room_of(name, all_rooms) == room]
        about = (ast.get_docstring(ast.parse(known[room].read_text("utf-8"))) or "").split("\n")[0]
        lines.append(f"| `{room}` | {about} | {len(inside)} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """The library's rooms; only arrows that no longer way makes plain."""
    to = {room: others - {"edgeveil"} for room, others in arrows().items() if "_" not in room}
    drawn = [
        f"  {_name(room)} --> {_name(other)}"
        for room in sorted(to)
        for other in sorted(to[room])
        if not any(other in _reached(between, room, to) for between in to[room] - {other})
    ]
    return "\n".join(["```mermaid", "flowchart TD", *drawn, "```"]) + "\n"


def _name(room: str) -> str:
    return room.removeprefix("edgeveil.").removeprefix("parts.") or "edgeveil"


def _reached(room: str, without: str, to: dict[str, set[str]]) -> set[str]:
    """Every room that `room` imports, through others but `without`."""
    found, ahead = set[str](), [room]
    while ahead:
        more = to.get(ahead.pop(), set()) - found - {without}
        found |= more
        ahead += more
    return found


def drawing(name: str) -> str:
    """`tree` or `picture`."""
    return {"tree": tree, "picture": picture}[name]()
