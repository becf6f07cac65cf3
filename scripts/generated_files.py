"""Write generated files or, with --check, compare them with the present files."""

import sys
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def refresh(wanted: Mapping[Path, str]) -> int:
    """Write each text to its file; with --check, print the differences instead. Return the exit code."""
    if "--check" not in sys.argv[1:]:
        for file, text in wanted.items():
            file.write_text(text, encoding="utf-8")
        return 0
    code = 0
    for file, text in wanted.items():
        present = file.read_text(encoding="utf-8") if file.exists() else ""
        if present != text:
            lines = present.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(unified_diff(*lines, str(file.relative_to(PROJECT)), "generated"))
            code = 1
    return code
