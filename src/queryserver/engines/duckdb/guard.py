"""What statements may do: anything within the database and their own session, nothing beyond (ADR 43).

DuckDB's own lock-down (`enable_external_access`, `lock_configuration`, `allowed_configs`) leaves gaps, closed here:

- COPY … TO '<database>.wal' may write the files of the database itself and destroy them.
- ATTACH is seen by all sessions, and DETACH takes a database away from all of them.
- SET GLOBAL of a permitted setting changes it for all sessions without a value of their own.
- Some views, functions and settings show paths of the server.
- Some functions, and casts to VARIANT, end the process on deeply nested values (DuckDB 2.0.0), or act on the database
  of all sessions. More of what ends the process is in defects.py.

Names of functions and views are tokens of the text; texts that `query` and `query_table` run must be literals, and are
checked likewise.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb

from queryserver.engines.duckdb.defects import BEFORE_TABLES, arguments, refuse_defects
from queryserver.errors.statements import StatementRejected

MOST_TOKENS = 75_000
"""Words and signs of one statement; 190 MB of parser and planner at most."""

MOST_BRACKETS = 400
"""Brackets inside each other; 30 MB and 80 ms."""

MOST_SET_OPERATIONS = 1_000
"""UNION, INTERSECT and EXCEPT in one statement: the planner takes time by their square, 0.2 s for these."""

_FIRST_SCAN_BYTES = 64 * 1024
_BLANKS = re.compile(r"[^\S\x00-\x7f]|[\u200b\u2060\ufeff]")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_SET_OPERATIONS = frozenset({"union", "intersect", "except"})


@dataclass(frozen=True, slots=True)
class Token:
    """One word or sign. `kind` is DuckDB's: keyword, identifier, operator, numeric_const, string_const."""

    kind: str
    text: str
    start: int
    """In bytes of the statement."""

    @property
    def end(self) -> int:
        return self.start + len(self.text.encode())

    @property
    def name(self) -> str:
        """The text in lower case, without the quotes of an identifier or of a plain string."""
        text = self.text
        for quote in ('"', "'"):
            if len(text) > 1 and text[0] == quote == text[-1]:
                return text[1:-1].replace(quote * 2, quote).lower()
        return text.lower()

    @property
    def is_name(self) -> bool:
        """Whether it may name an object: a keyword that is not reserved may, too."""
        return self.kind in {"identifier", "keyword"}

    @property
    def string(self) -> str | None:
        """The value of a string; None for other tokens and for strings with escapes."""
        if self.kind != "string_const":
            return None
        if self.text.startswith("'"):
            return self.text[1:-1].replace("''", "'")
        if self.text.startswith("$"):
            mark = self.text[: self.text.index("$", 1) + 1]
            return self.text[len(mark) : -len(mark)]
        return None


def tokens_of(statement: str) -> tuple[Token, ...]:
    """The tokens without comments. Raises StatementRejected for a statement above a bound."""
    # The parser takes these as blanks, the scanner as parts of names. The places of tokens count bytes.
    encoded = _BLANKS.sub(lambda found: " " * len(found[0].encode()), statement).encode()
    found = _scanned(encoded)
    if not found:
        return ()
    ends = [place for place, _ in found[1:]] + [len(encoded)]
    tokens = tuple(
        Token(kind.name, encoded[place:end].decode(errors="replace").strip(), place)
        for (place, kind), end in zip(found, ends, strict=True)
        if kind.name != "comment"
    )
    depth = 0
    for sign in (sign for token in tokens if token.kind == "operator" for sign in token.text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth > MOST_BRACKETS:
            raise StatementRejected(
                f"Parser Error: the statement has more than {MOST_BRACKETS} brackets inside each other."
            )
    if sum(token.kind == "keyword" and token.name in _SET_OPERATIONS for token in tokens) > MOST_SET_OPERATIONS:
        raise StatementRejected(f"Parser Error: more than {MOST_SET_OPERATIONS} set operations in one statement.")
    return tokens


def _scanned(encoded: bytes) -> list[tuple[int, duckdb.token_type]]:
    """The scanner holds the interpreter, so a long text is scanned whole only when its beginning is within bounds."""
    size = _FIRST_SCAN_BYTES
    while True:
        found = duckdb.tokenize(encoded[:size].decode(errors="ignore"))
        if len(found) > MOST_TOKENS:
            raise StatementRejected(
                f"Parser Error: the statement has more than {MOST_TOKENS} words and signs; divide it."
            )
        if size >= len(encoded):
            return found
        size *= 2


MOST_PARSED, _MOST_PARSED_BYTES = 200_000, 16 * 1024 * 1024
"""Words and signs, and bytes, that are parsed again for all that is called VARIANT in one statement: about a second."""

_ANY_TYPE = b"STRUCT(a INT)"
"""A type that is no name, and that every suffix of a type may follow."""


def refuse_variants(connection: duckdb.DuckDBPyConnection, text: str, tokens: Sequence[Token]) -> None:
    """Raises StatementRejected where VARIANT is a type: where DuckDB can parse the text with another type instead."""
    encoded = text.encode()
    places = [place for place, token in enumerate(tokens) if token.is_name and token.name == "variant"]
    if len(places) * len(tokens) > MOST_PARSED or len(places) * len(encoded) > _MOST_PARSED_BYTES:
        raise StatementRejected("Parser Error: the name variant stands too often in one statement; divide it.")
    for place in places:
        first = place
        while first > 1 and tokens[first - 1].text == ".":  # a qualified name
            first -= 2
        is_literal = any(token.kind == "string_const" for token in tokens[place + 1 : place + 2])
        if is_literal and first and tokens[first - 1].name == "as":  # an alias before a text
            is_literal = False
        changed = encoded[: tokens[first].start] + _ANY_TYPE + encoded[tokens[place].end :]
        if is_literal or _kind_of_text(connection, changed.decode(errors="replace")) is not None:
            raise StatementRejected("Permission Error: the type VARIANT is switched off on this server.")


SESSION_SETTINGS = frozenset({"schema", "search_path", "timezone", "calendar"})
"""In lower case. What a statement may set, for its own session only."""

_REFUSED = frozenset({"ATTACH", "DETACH", "COPY", "COPY_DATABASE", "EXPORT", "LOAD", "EXTENSION"})
# These hold another statement; its text is a suffix of theirs. A PIVOT inside COPY makes it MULTI.
_WRAPPERS = frozenset({"EXPLAIN", "PREPARE", "MULTI", "CREATE_FUNC", "LOGICAL_PLAN", "RELATION"})
_INNER = re.compile(r"\b(?:copy|export|attach|detach|load|install)\b", re.IGNORECASE)

_PRAGMAS = frozenset({
    "collations", "database_size", "functions", "metadata_info", "platform", "show", "show_databases", "show_tables",
    "show_tables_expanded", "storage_info", "table_info", "user_agent", "version",
})  # fmt: skip
_PATH_VIEWS = frozenset({"duckdb_databases", "pragma_database_list", "pg_settings"})
_HIDDEN = _PATH_VIEWS | {
    "duckdb_extensions", "duckdb_external_file_cache", "duckdb_log_contexts", "duckdb_logs",
    "duckdb_profiling_settings", "duckdb_secrets", "duckdb_settings", "duckdb_temporary_files",
}  # fmt: skip
_PATH_SETTINGS = frozenset({"allowed_directories", "allowed_paths", "temp_directory"})
_READABLE_SETTINGS = SESSION_SETTINGS | {
    "access_mode", "default_collation", "default_null_order", "default_order", "max_memory", "max_temp_directory_size",
    "memory_limit", "threads", "worker_threads",
}  # fmt: skip
_SWITCHED_OFF = frozenset({
    "create_external_resource", "deregister_external_resource", "destroy_external_resource", "disable_logging",
    "disable_profiling", "enable_logging", "enable_profiling", "force_checkpoint", "json_execute_serialized_sql",
    "register_external_resource", "register_external_resource_type", "truncate_duckdb_logs", "write_log",
    "json_contains",  # recursion without a limit: values nested 100,000 deep end the process
    # Values nested 129 deep are an internal error, which ends the database of all sessions.
    "json_group_structure", "json_structure",
    "variant_bytes_to_variant", "variant_group_array",  # casts to VARIANT
})  # fmt: skip
# As `json_contains`, by the depth of their second argument.
_BY_STRUCTURE = frozenset({"from_json", "from_json_strict", "json_transform", "json_transform_strict"})
_MOST_STRUCTURE = 100


class StoredDefinitions:
    """The views, macros and tables of an open database. Those that an older program stored may hold refused calls."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._refused = self._read()

    def refuse(self, tokens: Sequence[Token]) -> None:
        """Raises StatementRejected where one of them is named, unless that is to drop it."""
        if not self._refused or (tokens and tokens[0].name == "drop") or not self._named(tokens):
            return
        self._refused = self._read()  # it may have been dropped since
        for name in sorted(self._named(tokens)):
            raise StatementRejected(
                f"Permission Error: the definition of {name[:60]} has a call that is switched off on this server; "
                "drop it."
            )

    def _named(self, tokens: Sequence[Token]) -> frozenset[str]:
        return self._refused & _names_in(tokens)

    def _read(self) -> frozenset[str]:
        refused, names = set[str](), dict[str, frozenset[str]]()
        with self._database.cursor() as connection:
            for name, text in connection.execute(_DEFINITIONS).fetchall():
                try:
                    tokens = tokens_of(text)
                    names[name] = names.get(name, frozenset()) | _names_in(tokens)
                    refuse_defects(tokens)
                    for called, opening in _calls(tokens):
                        _refuse_call(connection, called, arguments(tokens, opening))
                except StatementRejected:
                    refused.add(name)
        while more := {name for name, inner in names.items() if name not in refused and inner & refused}:
            refused |= more
        return frozenset(refused)


_DEFINITIONS = """
    SELECT lower(view_name), sql FROM duckdb_views() WHERE NOT internal AND sql IS NOT NULL
    UNION ALL SELECT lower(table_name), sql FROM duckdb_tables() WHERE NOT internal AND sql IS NOT NULL
    UNION ALL SELECT lower(table_name), sql FROM duckdb_indexes() WHERE sql IS NOT NULL
    UNION ALL SELECT lower(function_name), macro_definition FROM duckdb_functions()
    WHERE NOT internal AND macro_definition IS NOT NULL
"""


def _names_in(tokens: Sequence[Token]) -> frozenset[str]:
    """All that may name an object, also within a text: `FROM 'name'` reads a view like `FROM name`."""
    found = set[str]()
    for token in tokens:
        if token.is_name:
            found.add(token.name)
        elif token.string is not None:
            found.update(part.strip().strip('"') for part in token.string.lower().split("."))
    return frozenset(found)


def refuse_reach(
    connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, text: str, tokens: Sequence[Token]
) -> None:
    """Raises StatementRejected for what would reach other files, databases or sessions, or show paths of the server.

    `tokens` are those of `text`, which holds nothing but the statement and comments.
    """
    kind, query = kind_of(statement), statement.query
    if kind in _REFUSED:
        raise _refusal(kind)
    if kind in _WRAPPERS:
        for word in _INNER.finditer(query):
            if (inner := _kind_of_text(connection, query[word.start() :])) in _REFUSED or (
                inner == "MULTI" and word[0].upper() == "COPY"
            ):
                raise _refusal(word[0].upper())
    _refuse_settings(tokens)
    _refuse_names(connection, text, tokens)


def kind_of(statement: duckdb.Statement) -> str:
    """The name of its type. Raises StatementRejected for a type that the driver does not know."""
    try:
        return statement.type.name
    except ValueError:
        raise StatementRejected("Not implemented Error: this server does not run this kind of statement.") from None


def _refuse_settings(tokens: Sequence[Token]) -> None:
    """SET, RESET, PRAGMA, FORCE CHECKPOINT and COPY FROM DATABASE, at the beginning or behind EXPLAIN."""
    words = list(_unexplained(tokens))
    first = words[0].name if words else ""
    if first in {"copy", "force"}:
        raise _refusal(first.upper())
    if first in {"set", "reset"}:
        _refuse_setting(words[1:])
    elif first == "pragma" and len(words) > 1:
        if any(word.text == "=" for word in words[2:3]):
            _refuse_setting(words[1:])
        elif words[1].name not in _PRAGMAS:
            raise StatementRejected(f"Permission Error: PRAGMA {words[1].name[:60]} is switched off on this server.")


def _unexplained(tokens: Sequence[Token]) -> Iterator[Token]:
    """Without EXPLAIN, its options and ANALYZE, however often."""
    place = 0
    while place < len(tokens) and tokens[place].name == "explain":
        place += 1
        if place < len(tokens) and tokens[place].text == "(":
            depth = 0
            for token in tokens[place:]:
                place += 1
                depth += (token.text == "(") - (token.text == ")")
                if depth == 0:
                    break
        if place < len(tokens) and tokens[place].name in {"analyze", "analyse"}:
            place += 1
    yield from tokens[place:]


def _refuse_setting(words: Sequence[Token]) -> None:
    scope = words[0].name if words else ""
    if scope == "global":
        raise StatementRejected("Permission Error: SET GLOBAL is switched off: settings belong to one session.")
    if scope == "variable":
        return
    name = words[1].name if scope in {"session", "local"} and len(words) > 1 else scope
    if name == "time":
        name = "timezone"
    if name not in SESSION_SETTINGS:
        raise StatementRejected(f"Permission Error: the setting {name[:60]} is locked on this server.")


def _refuse_names(connection: duckdb.DuckDBPyConnection, text: str, tokens: Sequence[Token]) -> None:
    refuse_defects(tokens)
    refuse_variants(connection, text, tokens)
    for name, opening in _calls(tokens):
        _refuse_call(connection, name, arguments(tokens, opening))
    for place, token in enumerate(tokens):
        name = token.name
        if token.is_name:
            if name in _HIDDEN:
                raise _hidden(name)
            if name == "show" and place + 1 < len(tokens) and tokens[place + 1].name in _PATH_SETTINGS:
                # SHOW reads a setting as well as a table.
                raise _hidden(tokens[place + 1].name)
        elif token.kind == "string_const":
            # FROM 'name' reads a view like FROM name.
            parts = (token.string or "").lower().split(".")
            if not _PATH_VIEWS.isdisjoint(part.strip().strip('"') for part in parts):
                raise _hidden(name)


def _calls(tokens: Sequence[Token]) -> Iterator[tuple[str, int]]:
    """The name of each function that is called, and the place of its bracket."""
    for place, token in enumerate(tokens[:-1]):
        if token.is_name and tokens[place + 1].text.startswith("("):
            before = tokens[place - 1] if place else None
            if before is None or before.kind != "keyword" or before.name not in BEFORE_TABLES:
                yield token.name, place + 1


def _refuse_call(connection: duckdb.DuckDBPyConnection, name: str, arguments: Sequence[Sequence[Token]]) -> None:
    if name in _SWITCHED_OFF:
        raise StatementRejected(f"Permission Error: the function {name} is switched off on this server.")
    if name in _BY_STRUCTURE and _depth(arguments) is None:
        raise StatementRejected(
            f"Permission Error: the structure of {name} must be a literal of {_MOST_STRUCTURE} levels at most."
        )
    if name == "current_setting":
        setting = _only_string(arguments)
        if setting is None or setting.lower() not in _READABLE_SETTINGS:
            raise StatementRejected("Permission Error: this setting is not shown on this server.")
    if name == "query":
        text = _only_string(arguments)
        if text is None:
            raise StatementRejected("Permission Error: the text of query() must be a literal.")
        inner = tokens_of(text)
        _refuse_settings(inner)
        _refuse_names(connection, text, inner)
    if name == "query_table":
        for token in (token for argument in arguments for token in argument):
            is_sign = token.text in {"[", "]", ","} or token.name in {"true", "false"}
            if token.kind != "string_const" and not is_sign:
                raise StatementRejected("Permission Error: the names of query_table() must be literals.")


def inner_tokens(tokens: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """Those of each text that `query` runs, also within such a text. Raises StatementRejected as `tokens_of`."""
    for name, opening in _calls(tokens):
        if name == "query" and (text := _only_string(arguments(tokens, opening))) is not None:
            yield (inner := tokens_of(text))
            yield from inner_tokens(inner)


def _only_string(arguments: Sequence[Sequence[Token]]) -> str | None:
    if len(arguments) != 1 or len(arguments[0]) != 1:
        return None
    return arguments[0][0].string


def _depth(arguments: Sequence[Sequence[Token]]) -> int | None:
    """How deep the literal in the last argument is nested; None: too deep, or no literal."""
    text = _only_string(arguments[-1:])
    if text is None:
        return None
    depth = deepest = 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        deepest = max(deepest, depth)
    return deepest if deepest <= _MOST_STRUCTURE else None


def _kind_of_text(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return None
    return kind_of(statements[0]) if statements else None


def _hidden(name: str) -> StatementRejected:
    return StatementRejected(f"Permission Error: {name[:60]} is not shown on this server.")


def _refusal(kind: str) -> StatementRejected:
    words = kind.replace("_", " ")
    return StatementRejected(f"Permission Error: {words} is switched off: statements reach this database only.")
