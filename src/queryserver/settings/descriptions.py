"""The text below each key of the settings classes, for the sample file and docs/configuration.md."""

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from queryserver.settings.section import Section


@cache
def descriptions(section: type[Section]) -> Mapping[str, str]:
    """Field name to text, in one line. Read from the source: Python keeps no docstrings of attributes."""
    tree = ast.parse(inspect.getsource(section))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
