"""The bound of the values of a result, kept inside of DuckDB, before its rows are turned into Arrow (ADR 43).

A vector of 2048 rows that hold one constant is one value for DuckDB, and `memory_limit` counts it once. Its readers
copy it for each row, without a limit: 2048 rows of a constant of 10 MB are 20 GB. So a text above a few KiB is copied
by an expression of the query, where `memory_limit` holds; nested values are counted over the rows of a vector; and a
value above the limit of a cell ends the statement.
"""

import re
from collections.abc import Sequence

import duckdb
from duckdb.sqltypes import DuckDBPyType

from queryserver.domain.errors.statements import EngineError, StatementRejected, cell_too_large
from queryserver.engines.duckdb.types import as_carried, children_of, is_text_on_the_wire
from queryserver.engines.quoting import literal

_VECTOR_ROWS = 2048
_CONSTANTS_BYTES = 64 * 1024 * 1024
"""What the constants of one vector may take when they are copied for each of its rows."""

_NESTED_BYTES = 64 * 1024 * 1024
"""What the large nested values of neighbouring rows may take together."""

_MOST_BOUNDED = 300
"""Above so many columns without a size of their own, the row is bounded, not each value: the planner's memory grows
with each expression."""

_WIDE_ROW_BYTES = 256 * 1024
_MARK = "queryserver: value above the limit of a cell in column "
_MARKED = re.compile(re.escape(_MARK) + r"(\d+)")
_ROW_MARK = "queryserver: row above the limit of many columns"
_NESTED_MARK = "queryserver: nested values above the limit of neighbouring rows"

_WIDE_TEXTS = frozenset({"bignum", "variant", "geometry"})
_STRINGS = frozenset({"varchar", "blob"})
_ELEMENT_BYTES = 16
# Empty, and unknown to the planner: what depends on it is made for each row.
_EMPTY_TEXT = "left(CAST(random() AS VARCHAR), 0)"


def bounded(relation: duckdb.DuckDBPyRelation, cell_max_bytes: int) -> duckdb.DuckDBPyRelation:
    """The same rows in types that Arrow can carry; reading them fails at what is above the limits."""
    types = relation.types
    wide = [is_wide(native) for native in types]
    shown = [_shown(number, native) for number, native in enumerate(types, start=1)]
    if not any(wide) and all(text == f"#{number}" for number, text in enumerate(shown, start=1)):
        return relation
    if sum(wide) > _MOST_BOUNDED:
        return relation.project(_row_bounded(shown, wide))
    kept_bytes = _CONSTANTS_BYTES // _VECTOR_ROWS // max(sum(wide), 1)
    sizes = [
        _counted(number, text, native) if is_bounded else ""
        for number, (text, native, is_bounded) in enumerate(zip(shown, types, wide, strict=True), start=1)
    ]
    nested = [size for size, native in zip(sizes, types, strict=True) if size and not _is_text(native)]
    if nested:
        relation = _with_nested_bytes(relation, len(types), nested, kept_bytes)
    columns = (
        f"{_bounded(number, text, size, native, kept_bytes, cell_max_bytes) if size else text} AS c{number}"
        for number, (text, size, native) in enumerate(zip(shown, sizes, types, strict=True), start=1)
    )
    if not nested:
        return relation.project(", ".join(columns))
    checked = f"#{len(types) + 1} <= {_NESTED_BYTES} OR error('{_NESTED_MARK}') IS NULL"
    return relation.filter(checked).project(", ".join(columns))


def cell_error(text: str, columns: Sequence[str], cell_max_bytes: int) -> EngineError | None:
    """What a driver's message means when it comes from the expressions above."""
    if _ROW_MARK in text:
        return StatementRejected(
            f"A row of more than {_MOST_BOUNDED} columns of text or nested values is larger than"
            f" {_WIDE_ROW_BYTES} bytes: select fewer columns."
        )
    if _NESTED_MARK in text:
        return StatementRejected(
            f"The lists, maps and structs of {_VECTOR_ROWS} neighbouring rows are larger than {_NESTED_BYTES} bytes:"
            " select parts of them."
        )
    found = _MARKED.search(text)
    if found is None:
        return None
    place = int(found[1]) - 1
    return cell_too_large(limit_bytes=cell_max_bytes, column=columns[place] if place < len(columns) else None)


def is_wide(native: DuckDBPyType) -> bool:
    """Whether values of the type have no size of their own."""
    if native.id in {"list", "map", "array"} | _STRINGS | _WIDE_TEXTS:
        return True
    return any(is_wide(child) for _, child in children_of(native))


def _is_text(native: DuckDBPyType) -> bool:
    return native.id in _STRINGS or is_text_on_the_wire(native)


def _shown(number: int, native: DuckDBPyType) -> str:
    carried = as_carried(native)
    return f"#{number}" if carried == str(native) else f"CAST(#{number} AS {carried})"


def _row_bounded(shown: Sequence[str], wide: Sequence[bool]) -> str:
    """The first wide column carries the check of the row."""
    first = wide.index(True)
    row = ", ".join(text for text, is_bounded in zip(shown, wide, strict=True) if is_bounded)
    checked = f"CASE WHEN strlen(concat({row})) > {_WIDE_ROW_BYTES} THEN error('{_ROW_MARK}') ELSE {shown[first]} END"
    return ", ".join(
        f"{checked if place == first else text} AS c{place}" if place == first or not text.startswith("#") else text
        for place, text in enumerate(shown)
    )


def _with_nested_bytes(
    relation: duckdb.DuckDBPyRelation, columns: int, sizes: Sequence[str], kept_bytes: int
) -> duckdb.DuckDBPyRelation:
    """One more column: the bytes of large nested values in this row and the rows of a vector before it.

    Both windows are of the kind that DuckDB computes while the rows pass.
    """
    every = ", ".join(f"#{number}" for number in range(1, columns + 1))
    large = " + ".join(f"CASE WHEN {size} > {kept_bytes} THEN {size} ELSE 0 END" for size in sizes)
    so_far = f"sum({large}) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    total = f"#{columns + 1}"
    before = f"coalesce(lag({total}, {_VECTOR_ROWS - 1}) OVER (), 0)"
    return relation.project(f"{every}, {so_far}").project(f"{every}, {total} - {before}")


def _counted(number: int, shown: str, native: DuckDBPyType) -> str:
    return f"coalesce({_size(shown if is_text_on_the_wire(native) else f'#{number}', native)}, 0)"


def _bounded(number: int, shown: str, size: str, native: DuckDBPyType, kept_bytes: int, cell_max_bytes: int) -> str:
    too_large = f"WHEN {size} > {cell_max_bytes} THEN error('{_MARK}{number}')"
    if not _is_text(native):
        return f"CASE {too_large} ELSE {shown} END"
    empty = f"CAST({_EMPTY_TEXT} AS BLOB)" if native.id == "blob" else _EMPTY_TEXT
    return f"CASE WHEN {size} <= {kept_bytes} THEN {shown} {too_large} ELSE {shown} || {empty} END"


def _size(value: str, native: DuckDBPyType, level: int = 0) -> str:
    """An expression for about how many bytes a value takes; NULL for no value."""
    children = children_of(native)
    match native.id:
        case "varchar":
            return f"strlen({value})"
        case "bignum" | "variant" | "geometry":
            return f"strlen(CAST({value} AS VARCHAR))"
        case "blob":
            return f"octet_length({value})"
        case "list" | "array":
            return _list_size(value, children[0][1], level)
        case "map":
            keys, values = (child for _, child in children)
            return _sum(
                _list_size(f"map_keys({value})", keys, level),
                _list_size(f"map_values({value})", values, level),
            )
        case "struct":
            return _sum(*(_size(f"struct_extract({value}, {literal(name)})", child, level) for name, child in children))
        case "tuple":
            return _sum(*(_size(f"({value})[{place}]", child, level) for place, (_, child) in enumerate(children, 1)))
        case "union":
            members = children[1:]  # the first child is the tag
            return _sum(*(_size(f"union_extract({value}, {literal(name)})", child, level) for name, child in members))
        case _:
            return str(_ELEMENT_BYTES)


def _list_size(value: str, child: DuckDBPyType, level: int) -> str:
    if not is_wide(child):
        return f"len({value}) * {_width(child)}"
    one = f"e{level}"
    item = f"coalesce({_size(one, child, level + 1)}, 0) + {_ELEMENT_BYTES}"
    return f"list_sum(list_transform({value}, lambda {one}: {item}))"


def _width(native: DuckDBPyType) -> int:
    """Bytes of a value of a type that has a size, about."""
    return max(sum(_width(child) for _, child in children_of(native)), _ELEMENT_BYTES)


def _sum(*sizes: str) -> str:
    return " + ".join(f"coalesce({size}, 0)" for size in sizes) or "0"
