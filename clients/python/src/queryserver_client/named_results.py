"""Lets a statement read earlier results as tables, written as `{orders}` in the SQL (Contract editor 6.5)."""

import re
from collections.abc import Mapping
from typing import Protocol
from uuid import UUID


class HasOperation(Protocol):
    """Anything with an operation id: the async and sync classes Result and Statement."""

    @property
    def operation_id(self) -> str: ...


NamedResults = Mapping[str, "HasOperation | str"]
"""Results, statements or operation ids, by their names in the SQL."""

_PIECES = re.compile(
    r"""
    (?<!\w)[eE]'(?:\\.|''|[^'\\])*' | '(?:''|[^'])*' | "(?:""|[^"])*"
    | --[^\n]* | /\*.*?\*/ | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)
    | \{(?P<name>[A-Za-z_]\w*)\}
    """,
    re.VERBOSE | re.DOTALL,
)


def with_results(sql: str, results: "NamedResults | None") -> str:
    """Replace each `{name}` outside quotes and comments with the address of the result of this name.

    Other braces are kept, because DuckDB uses them for structs. Raises ValueError for an unused name or an invalid id,
    NoResultSet if a result has no rows to read, and Truncated if the server truncated it unexpectedly.
    """
    if not results:
        return sql
    used: set[str] = set()

    def put(found: "re.Match[str]") -> str:
        name = found["name"]
        if name is None or name not in results:
            return found[0]
        used.add(name)
        return f'"result://{_id_of(name, results[name])}"'

    made = _PIECES.sub(put, sql)
    if unused := [name for name in results if name not in used]:
        message = f"results: the statement has no {', '.join(f'{{{name}}}' for name in unused)}"
        raise ValueError(message)
    return made


def _id_of(name: str, given: "HasOperation | str") -> str:
    if isinstance(given, str):
        try:
            return str(UUID(given))
        except ValueError:
            message = f"results: {name} is not an operation id"
            raise ValueError(message) from None
    core = getattr(given, "core", given)
    if (require_readable := getattr(core, "require_readable", None)) is not None:
        require_readable()
    return given.operation_id
