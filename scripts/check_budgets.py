"""Print the sizes of files and functions in src and compare them with the budgets of docs/architecture.md.

Exit code 1 when a file has more than 600 lines, a function more than 50, a median is above its budget, or a function
lacks a return type.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SOURCE = Path(__file__).resolve().parent.parent / "src"
GENERATED = {"generated.py"}

MAX_FILE, MEDIAN_FILE = 600, 200
MAX_FUNCTION, MEDIAN_FUNCTION = 50, 12


@dataclass(frozen=True, slots=True)
class Function:
    """One function and the lines of its body, its docstring left out: explaining costs nothing."""

    place: str
    lines: int
    has_return_type: bool


def functions_of(file: Path) -> Iterator[Function]:
    """Every function and method of a file, inner ones too; not the bare signatures of Protocols."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if not body or ast.unparse(body[0]) == "...":
                continue
            lines = (node.end_lineno or body[0].lineno) - body[0].lineno + 1
            place = f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}"
            yield Function(place, lines, node.returns is not None)


def problems(files: dict[Path, int], functions: list[Function]) -> Iterator[str]:
    """What exceeds a budget, one line each."""
    yield from (
        f"{file.relative_to(SOURCE)}: {lines} lines, at most {MAX_FILE}"
        for file, lines in files.items()
        if lines > MAX_FILE
    )
    for function in functions:
        if function.lines > MAX_FUNCTION:
            yield f"{function.place}: {function.lines} lines, at most {MAX_FUNCTION}"
        if not function.has_return_type:
            yield f"{function.place}: no return type"
    if median(files.values()) > MEDIAN_FILE:
        yield f"median of the files: {median(files.values())} lines, at most {MEDIAN_FILE}"
    if median(function.lines for function in functions) > MEDIAN_FUNCTION:
        yield f"median of the functions: more than {MEDIAN_FUNCTION} lines"


def main() -> int:
    """Exit code 1 when a budget is exceeded."""
    sources = [file for file in sorted(SOURCE.rglob("*.py")) if file.name not in GENERATED]
    # A file that only says what its folder is would pull the median down.
    files = {file: lines for file in sources if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 1}
    functions = [function for file in sources for function in functions_of(file)]
    sizes = [function.lines for function in functions]
    untyped = sum(not function.has_return_type for function in functions)
    print(f"{len(files)} files: median {median(files.values()):.0f} lines, longest {max(files.values())}")
    print(f"{len(functions)} functions: median {median(sizes):.0f} lines, longest {max(sizes)}, {untyped} without type")
    found = list(problems(files, functions))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
