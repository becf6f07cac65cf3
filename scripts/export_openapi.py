"""Write openapi/openapi.json, the API description that the app serves; with --check only compare."""

import json
import sys

from scripts.describe_api import described_application
from scripts.generated_files import PROJECT, refresh

TARGET = PROJECT / "openapi" / "openapi.json"


def document() -> str:
    """The text of the file; the same app gives the same text."""
    return json.dumps(described_application().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(refresh({TARGET: document()}))
