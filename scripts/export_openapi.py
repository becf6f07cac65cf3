"""Write openapi/openapi.json, the API description that the server returns. With --check, only compare it."""

import json
import sys

from scripts.describe_api import described_application
from scripts.generated_files import PROJECT, refresh

TARGET = PROJECT / "openapi" / "openapi.json"


def document() -> str:
    """Return the content of the file. The same code and texts give the same content."""
    return json.dumps(described_application().openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(refresh({TARGET: document()}))
