"""SQLite's declared types and their names on the wire (Contract editor 6.3)."""

from collections.abc import Iterable

from queryserver.domain.result import ResultType

Cell = int | float | str | bytes | None

# Tried in this order; the contract gives it.
_BY_WORD = (
    (("BOOL",), ResultType.BOOLEAN),
    (("DATETIME", "TIMESTAMP"), ResultType.TIMESTAMP),
    (("DATE",), ResultType.DATE),
    (("TIME",), ResultType.STRING),
    (("INT",), ResultType.BIGINT),
    (("CHAR", "CLOB", "TEXT"), ResultType.STRING),
    (("BLOB",), ResultType.BINARY),
    (("REAL", "FLOA", "DOUB", "NUM", "DEC"), ResultType.DOUBLE),
)
_BY_STORAGE: dict[type, ResultType] = {
    int: ResultType.BIGINT,
    float: ResultType.DOUBLE,
    str: ResultType.STRING,
    bytes: ResultType.BINARY,
}


def declared_type(declared: str) -> ResultType:
    """By the words in a declared type; any that has none of them is text."""
    upper = declared.upper()
    return next((kind for words, kind in _BY_WORD if any(word in upper for word in words)), ResultType.STRING)


def type_of_first(values: Iterable[Cell]) -> ResultType:
    """The type of the first value that is not NULL: all that is known of an expression."""
    first = next((value for value in values if value is not None), None)
    return _BY_STORAGE.get(type(first), ResultType.STRING)
