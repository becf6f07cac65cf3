"""Draw the rooms of src/queryserver and their arrows into docs/architecture.md, as a Mermaid flowchart.

An arrow means: modules of this room import modules of that one. Arrows that follow from others are left out. Exit code
1 when rooms import each other in a circle, and with `--check` when the document has an old picture.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "queryserver"
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: made by scripts/draw_rooms.py -->\n", "<!-- end of rooms -->\n"


def room_of(dotted: str) -> str | None:
    """The first name below `queryserver`."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "queryserver" and len(parts) > 1 else None


def imports_of(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("queryserver"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows() -> dict[str, set[str]]:
    """For each room the rooms that it imports from."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        targets = found.setdefault(own, set())
        for name in imports_of(file):
            room = room_of(name)
            if room and room != own and room != "__version__":
                targets.add(room)
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same graph without the arrows that follow from others. Raises CycleError."""
    reach: dict[str, set[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        reach[room] = graph[room].union(*(reach[below] for below in graph[room]))
    return {
        room: {to for to in targets if not any(to in reach[other] for other in targets)}
        for room, targets in graph.items()
    }


def picture() -> str:
    """The flowchart, between the marks of the document. Raises CycleError."""
    lines = [f"    {room} --> {to}" for room, targets in sorted(reduced(arrows()).items()) for to in sorted(targets)]
    return BEGIN + "```mermaid\nflowchart TD\n" + "\n".join(lines) + "\n```\n" + END


def main() -> int:
    """Exit code 1: a circle, or `--check` found an old picture."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    try:
        new = before + picture() + rest.partition(END)[2]
    except CycleError as error:
        print("rooms import each other in a circle:", " <- ".join(error.args[1]))
        return 1
    if "--check" in sys.argv[1:]:
        if new != text:
            print("docs/architecture.md: the picture of the rooms is old; run `make docs`")
        return int(new != text)
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
