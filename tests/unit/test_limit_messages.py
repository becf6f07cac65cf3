"""Settings that messages name exist under that name, so that an operator can find them."""

import ast
import re
from pathlib import Path

from pydantic import BaseModel

import queryserver
from queryserver.platform.settings.tree import Settings

_SOURCE = Path(queryserver.__file__).parent
_NAME = re.compile(r"[`(]((?:desktop|editor|limits|importer|filebrowser)(?:\.[a-z_]+)+)[`)]")


def _named_settings() -> dict[str, str]:
    """Return the settings that string literals outside docstrings name, each with one of the files."""
    named = dict[str, str]()
    for file in _SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node not in docstrings and isinstance(node.value, str):
                named.update((name, file.name) for name in _NAME.findall(node.value))
    return named


def _exists(name: str) -> bool:
    model: object = Settings
    for key in name.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return False
        field = model.model_fields.get(key)
        if field is None:
            return False
        model = field.annotation
    return True


def test_named_settings_exist() -> None:
    named = _named_settings()
    assert {"editor.result_max_rows", "editor.cell_max_bytes", "importer.max_bytes_per_user"} <= named.keys()
    assert {name: file for name, file in named.items() if not _exists(name)} == {}
