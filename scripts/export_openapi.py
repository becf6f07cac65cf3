"""Write openapi/openapi.json, the API description as the app serves it; with --check only compare."""

import argparse
import difflib
import json
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "openapi" / "openapi.json"


def document() -> str:
    """The text of the file; the same app gives the same text."""
    from queryserver.api.application import create_application  # noqa: PLC0415 the table is read without the app

    return json.dumps(create_application().openapi(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Exit code 1 when --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the committed file differs")
    check = parser.parse_args().check
    wanted = document()
    if not check:
        TARGET.write_text(wanted, encoding="utf-8")
        return 0
    present = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    sys.stdout.writelines(
        difflib.unified_diff(present.splitlines(True), wanted.splitlines(True), "committed", "exported")
    )
    return int(present != wanted)


if __name__ == "__main__":
    sys.exit(main())
