"""Write openapi/openapi.json, the API description that the app serves; with --check only compare."""

import argparse
import difflib
import json
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TARGET = PROJECT / "openapi" / "openapi.json"
sys.path.insert(0, str(PROJECT))

from scripts.describe_api import described_application  # noqa: E402 the project is no installed package


def document() -> str:
    """The text of the file; the same app gives the same text."""
    return json.dumps(described_application().openapi(), indent=2, ensure_ascii=False) + "\n"


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
