"""Print the sizes of the server's and the client's files and functions, and check the limits in docs/architecture.md.

Exits with 1 if a file has more than 600 lines, a function has more than 50 (120 where services are built), the median
file has fewer than 150, the median function has more than 12, or more than 6 % of the files have fewer than 40 lines.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PROJECT = Path(__file__).resolve().parent.parent
SOURCES = (PROJECT / "src", PROJECT / "clients" / "python" / "src")
GENERATED = {"generated.py"}

MAX_FILE, MEDIAN_FILE = 600, 150
SMALL_FILE, SMALL_SHARE = 40, 0.06
UNCOUNTED_BYTES = 200
"""Smaller files, such as an `__init__.py` that contains only a docstring, are not counted."""
MAX_FUNCTION, MEDIAN_FUNCTION = 50, 12
MAX_BUILD = 120
"""Maximum lines of a function that builds services; such a function is a list of constructor calls."""
BUILDING = {"build.py", "wiring.py"}


@dataclass(frozen=True, slots=True)
class CodeSize:
    """The size of a file or function. The docstring of a function is not counted."""

    place: str
    lines: int
    maximum: int


def functions_of(file: Path) -> Iterator[CodeSize]:
    """Yield all functions and methods of a file, including nested ones, but not the bodiless methods of Protocols."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if not body or ast.unparse(body[0]) == "...":
                continue
            lines = (node.end_lineno or body[0].lineno) - body[0].lineno + 1
            place = f"{file.relative_to(PROJECT)}:{node.lineno} {node.name}"
            maximum = MAX_BUILD if file.name in BUILDING else MAX_FUNCTION
            yield CodeSize(place, lines, maximum)


def problems(files: dict[Path, int], functions: list[CodeSize]) -> Iterator[str]:
    """Yield a message for each exceeded limit."""
    whole = [CodeSize(str(file.relative_to(PROJECT)), lines, MAX_FILE) for file, lines in files.items()]
    for one in whole + functions:
        if one.lines > one.maximum:
            yield f"{one.place}: {one.lines} lines, at most {one.maximum}"
    if median(files.values()) < MEDIAN_FILE:
        yield f"median of the files: {median(files.values())} lines, at least {MEDIAN_FILE}"
    if (share := small_share(files)) > SMALL_SHARE:
        yield f"files under {SMALL_FILE} lines: {share:.1%}, at most {SMALL_SHARE:.0%}"
    if median(function.lines for function in functions) > MEDIAN_FUNCTION:
        yield f"median of the functions: more than {MEDIAN_FUNCTION} lines"


def small_share(files: dict[Path, int]) -> float:
    """Return the share of small files, from 0 to 1."""
    return sum(lines < SMALL_FILE for lines in files.values()) / len(files)


def main() -> int:
    """Print the sizes and the exceeded limits. Return exit code 1 if a limit is exceeded."""
    sources = [file for source in SOURCES for file in sorted(source.rglob("*.py")) if file.name not in GENERATED]
    files = {
        file: len(file.read_text(encoding="utf-8").splitlines())
        for file in sources
        if file.stat().st_size > UNCOUNTED_BYTES
    }
    functions = [function for file in sources for function in functions_of(file)]
    sizes = [function.lines for function in functions]
    print(
        f"{len(files)} files of {sum(files.values())} lines: median {median(files.values()):.0f},"
        f" longest {max(files.values())}, {small_share(files):.1%} under {SMALL_FILE}"
    )
    print(f"{len(functions)} functions: median {median(sizes):.0f} lines, longest {max(sizes)}")
    found = list(problems(files, functions))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
