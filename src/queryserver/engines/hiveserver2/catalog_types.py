"""Type texts of Hive's family: what their trees (domain.sql_types) do not tell by themselves."""

import re

from queryserver.domain.sql_types import SqlType

_LINE_BREAKS = re.compile(r"\s*\n\s*")


def one_line(text: str) -> str:
    """The text without the line breaks and indents that Impala writes into long type texts."""
    return _LINE_BREAKS.sub("", text.strip())


def is_complex(kind: SqlType) -> bool:
    """Whether it has parts."""
    return kind.item is not None or kind.key is not None or bool(kind.fields)


def has_map(kind: SqlType) -> bool:
    """Whether a map is anywhere in the type."""
    parts = [part for part in (kind.item, kind.value, *(field.type for field in kind.fields)) if part is not None]
    return kind.key is not None or any(has_map(part) for part in parts)
