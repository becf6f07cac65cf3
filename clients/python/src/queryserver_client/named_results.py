"""Earlier results as tables of a statement: `{orders}` in its text (Contract editor 6.5)."""

import re
from collections.abc import Mapping
from typing import Protocol
from uuid import UUID


class HasOperation(Protocol):
    """A Result or a Statement, of either face."""

    @property
    def operation_id(self) -> str: ...


NamedResults = Mapping[str, "HasOperation | str"]
"""Results, statements or ids of operations, by the names that a text has for them."""

_PIECES = re.compile(
    r"""
    (?<!\w)[eE]'(?:\\.|''|[^'\\])*' | '(?:''|[^'])*' | "(?:""|[^"])*"
    | --[^\n]* | /\*.*?\*/ | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)
    | \{(?P<name>[A-Za-z_]\w*)\}
    """,
    re.VERBOSE | re.DOTALL,
)


def with_results(sql: str, results: "NamedResults | None") -> str:
    """The text with the address of its result in the place of each `{name}` outside of quotes and comments.

    Other braces stay, as DuckDB writes structs with them. Raises ValueError for a result that the text does not name,
    and for an id that is none; what a result raises when rows of it are missing that its caller did not cut off.
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
            message = f"results: {name} is no id of an operation"
            raise ValueError(message) from None
    core = getattr(given, "core", given)
    if (require_readable := getattr(core, "require_readable", None)) is not None:
        require_readable()
    return given.operation_id
