"""Restricts statements to the database and their own session (ADR 43).

This module closes gaps in DuckDB's own lock-down (`enable_external_access`, `lock_configuration`, `allowed_configs`):

- COPY … TO '<database>.wal' can overwrite the database's own files.
- ATTACH and DETACH affect all sessions.
- SET GLOBAL changes a permitted setting for all sessions that have not set their own value.
- Some views, functions and settings reveal server paths.
- Some functions affect the database for all sessions.

Function and view names are found among the statement's tokens. The arguments of `query` and `query_table` must be
literals; the text passed to `query` is checked in the same way.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb

from queryserver.errors.statements import StatementRejected

_BLANKS = re.compile(r"[^\S\x00-\x7f]|[\u200b\u2060\ufeff]")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    `kind` is DuckDB's token type: keyword, identifier, operator, numeric_const or string_const.
    """

    kind: str
    text: str
    start: int
    """Byte offset in the statement."""

    @property
    def end(self) -> int:
        return self.start + len(self.text.encode())

    @property
    def name(self) -> str:
        """The text in lower case, without the quotes around an identifier or plain string."""
        text = self.text
        for quote in ('"', "'"):
            if len(text) > 1 and text[0] == quote == text[-1]:
                return text[1:-1].replace(quote * 2, quote).lower()
        return text.lower()

    @property
    def is_name(self) -> bool:
        """Whether the token may be the name of an object, which can also be an unreserved keyword."""
        return self.kind in {"identifier", "keyword"}

    @property
    def string(self) -> str | None:
        """The value of a string token; None for other tokens and for strings with escapes."""
        if self.kind != "string_const":
            return None
        if self.text.startswith("'"):
            return self.text[1:-1].replace("''", "'")
        if self.text.startswith("$"):
            mark = self.text[: self.text.index("$", 1) + 1]
            return self.text[len(mark) : -len(mark)]
        return None


def tokenize(statement: str) -> tuple[Token, ...]:
    """Return a statement's tokens, without comments."""
    # The parser treats these characters as blanks, but the tokenizer treats them as parts of names. Token positions
    # count bytes.
    encoded = _BLANKS.sub(lambda match: " " * len(match[0].encode()), statement).encode()
    starts = duckdb.tokenize(encoded.decode())
    if not starts:
        return ()
    ends = [start for start, _ in starts[1:]] + [len(encoded)]
    return tuple(
        Token(kind.name, encoded[start:end].decode(errors="replace").strip(), start)
        for (start, kind), end in zip(starts, ends, strict=True)
        if kind.name != "comment"
    )


SESSION_SETTINGS = frozenset({"schema", "search_path", "timezone", "calendar"})
"""Lower-case names of the settings that a statement may change, but only for its own session."""

_REFUSED_KINDS = frozenset({"ATTACH", "DETACH", "COPY", "COPY_DATABASE", "EXPORT", "LOAD", "EXTENSION"})
# These kinds contain another statement at the end of their text. A COPY that contains a PIVOT has the type MULTI.
_WRAPPER_KINDS = frozenset({"EXPLAIN", "PREPARE", "MULTI", "CREATE_FUNC", "LOGICAL_PLAN", "RELATION"})
_INNER = re.compile(r"\b(?:copy|export|attach|detach|load|install)\b", re.IGNORECASE)

_PERMITTED_PRAGMAS = frozenset({
    "collations", "database_size", "functions", "metadata_info", "platform", "show", "show_databases", "show_tables",
    "show_tables_expanded", "storage_info", "table_info", "user_agent", "version",
})  # fmt: skip
_PATH_VIEWS = frozenset({"duckdb_databases", "pragma_database_list", "pg_settings"})
_HIDDEN_VIEWS = _PATH_VIEWS | {
    "duckdb_extensions", "duckdb_external_file_cache", "duckdb_log_contexts", "duckdb_logs",
    "duckdb_profiling_settings", "duckdb_secrets", "duckdb_settings", "duckdb_temporary_files",
}  # fmt: skip
_PATH_SETTINGS = frozenset({"allowed_directories", "allowed_paths", "temp_directory"})
_READABLE_SETTINGS = SESSION_SETTINGS | {
    "access_mode", "default_collation", "default_null_order", "default_order", "max_memory", "max_temp_directory_size",
    "memory_limit", "threads", "worker_threads",
}  # fmt: skip
_DISABLED_FUNCTIONS = frozenset({
    "create_external_resource", "deregister_external_resource", "destroy_external_resource", "disable_logging",
    "disable_profiling", "enable_logging", "enable_profiling", "force_checkpoint", "json_execute_serialized_sql",
    "register_external_resource", "register_external_resource_type", "truncate_duckdb_logs", "write_log",
    # These functions open files that no statement has listed before (ADR 76).
    "read_single_csv_file", "read_single_json_file", "read_single_parquet_file",
})  # fmt: skip
_BEFORE_TABLES = frozenset({"into", "table", "exists"})
"""A name after these words and before a parenthesis is a table, not a function call."""


def refuse_outside_access(
    connection: duckdb.DuckDBPyConnection,
    statement: duckdb.Statement,
    tokens: Sequence[Token],
    *,
    copies_files: bool = False,
) -> None:
    """Reject a statement that would affect other files, databases or sessions, or reveal paths.

    `tokens` come from SQL text that contains only the statement and comments. `copies_files` permits COPY from or to
    store files. Raises StatementRejected.
    """
    kind, query = statement_kind(statement), statement.query
    if kind == "COPY" and copies_files:
        _refuse_names(tokens)
        return
    if kind in _REFUSED_KINDS:
        raise _kind_refusal(kind)
    if kind in _WRAPPER_KINDS:
        for word in _INNER.finditer(query):
            if (inner := _text_kind(connection, query[word.start() :])) in _REFUSED_KINDS or (
                inner == "MULTI" and word[0].upper() == "COPY"
            ):
                raise _kind_refusal(word[0].upper())
    _refuse_settings(tokens)
    _refuse_names(tokens)


def statement_kind(statement: duckdb.Statement) -> str:
    """Return the name of the statement's type. Raises StatementRejected if the driver does not know the type."""
    try:
        return statement.type.name
    except ValueError:
        raise StatementRejected("Not implemented Error: this server does not support this kind of statement.") from None


def _refuse_settings(tokens: Sequence[Token]) -> None:
    """Reject forbidden SET, RESET and PRAGMA statements, FORCE CHECKPOINT, and COPY FROM DATABASE.

    These statements may start the text or follow EXPLAIN.
    """
    words = list(without_explain(tokens))
    first = words[0].name if words else ""
    if first in {"copy", "force"}:
        raise _kind_refusal(first.upper())
    if first in {"set", "reset"}:
        _refuse_setting(words[1:])
    elif first == "pragma" and len(words) > 1:
        if any(word.text == "=" for word in words[2:3]):
            _refuse_setting(words[1:])
        elif words[1].name not in _PERMITTED_PRAGMAS:
            raise StatementRejected(f"Permission Error: PRAGMA {words[1].name[:60]} is disabled on this server.")


def without_explain(tokens: Sequence[Token]) -> Iterator[Token]:
    """Skip EXPLAIN prefixes with their options and ANALYZE, and yield the remaining tokens."""
    position = 0
    while position < len(tokens) and tokens[position].name == "explain":
        position += 1
        if position < len(tokens) and tokens[position].text == "(":
            depth = 0
            for token in tokens[position:]:
                position += 1
                depth += (token.text == "(") - (token.text == ")")
                if depth == 0:
                    break
        if position < len(tokens) and tokens[position].name in {"analyze", "analyse"}:
            position += 1
    yield from tokens[position:]


def _refuse_setting(words: Sequence[Token]) -> None:
    scope = words[0].name if words else ""
    if scope == "global":
        raise StatementRejected("Permission Error: SET GLOBAL is disabled: settings apply to a single session.")
    if scope == "variable":
        return
    name = words[1].name if scope in {"session", "local"} and len(words) > 1 else scope
    if name == "time":
        name = "timezone"
    if name not in SESSION_SETTINGS:
        raise StatementRejected(f"Permission Error: the setting {name[:60]} is locked on this server.")


def _refuse_names(tokens: Sequence[Token]) -> None:
    for name, opening in function_calls(tokens):
        _refuse_call(name, tokens, opening)
    for position, token in enumerate(tokens):
        name = token.name
        if token.is_name:
            if name in _HIDDEN_VIEWS:
                raise _hidden_error(name)
            if name == "show" and position + 1 < len(tokens) and tokens[position + 1].name in _PATH_SETTINGS:
                # SHOW can show settings as well as tables.
                raise _hidden_error(tokens[position + 1].name)
        elif token.kind == "string_const":
            # FROM 'name' reads a view, just as FROM name does.
            parts = (token.string or "").lower().split(".")
            if not _PATH_VIEWS.isdisjoint(part.strip().strip('"') for part in parts):
                raise _hidden_error(name)


def function_calls(tokens: Sequence[Token]) -> Iterator[tuple[str, int]]:
    """Yield the name of each called function and the index of its opening parenthesis."""
    for position, token in enumerate(tokens[:-1]):
        if token.is_name and tokens[position + 1].text.startswith("("):
            before = tokens[position - 1] if position else None
            if before is None or before.kind != "keyword" or before.name not in _BEFORE_TABLES:
                yield token.name, position + 1


def called_functions(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the name of each called function, also of those in the literal texts of `query`."""
    for name, opening in function_calls(tokens):
        yield name
        if name == "query" and (text := _single_string(_arguments(tokens, opening))) is not None:
            yield from called_functions(tokenize(text))


def _refuse_call(name: str, tokens: Sequence[Token], opening: int) -> None:
    if name in _DISABLED_FUNCTIONS:
        raise StatementRejected(f"Permission Error: the function {name} is disabled on this server.")
    if name == "current_setting":
        setting = _single_string(_arguments(tokens, opening))
        if setting is None or setting.lower() not in _READABLE_SETTINGS:
            raise StatementRejected("Permission Error: this setting cannot be read on this server.")
    if name == "query":
        text = _single_string(_arguments(tokens, opening))
        if text is None:
            raise StatementRejected("Permission Error: the text of query() must be a literal.")
        inner = tokenize(text)
        _refuse_settings(inner)
        _refuse_names(inner)
    if name == "query_table":
        for token in (token for argument in _arguments(tokens, opening) for token in argument):
            is_sign = token.text in {"[", "]", ","} or token.name in {"true", "false"}
            if token.kind != "string_const" and not is_sign:
                raise StatementRejected("Permission Error: the names of query_table() must be literals.")


def _arguments(tokens: Sequence[Token], opening: int) -> list[list[Token]]:
    """Return the tokens of each argument of the call whose parenthesis opens at `opening`."""
    arguments, depth = [list[Token]()], 0
    for position in range(opening, len(tokens)):
        token = tokens[position]
        depth += sum(map(token.text.count, "([{")) if token.kind == "operator" else 0
        closing = sum(map(token.text.count, ")]}")) if token.kind == "operator" else 0
        if depth == closing and closing:
            break
        if depth == 1 and token.text == ",":
            arguments.append([])
        elif depth > 1 or token.text != "(":
            arguments[-1].append(token)
        depth -= closing
    return arguments


def _single_string(arguments: Sequence[Sequence[Token]]) -> str | None:
    if len(arguments) != 1 or len(arguments[0]) != 1:
        return None
    return arguments[0][0].string


def _text_kind(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return None
    return statement_kind(statements[0]) if statements else None


def _hidden_error(name: str) -> StatementRejected:
    return StatementRejected(f"Permission Error: {name[:60]} cannot be read on this server.")


def _kind_refusal(kind: str) -> StatementRejected:
    words = kind.replace("_", " ")
    return StatementRejected(f"Permission Error: {words} is disabled: statements can access only this database.")
