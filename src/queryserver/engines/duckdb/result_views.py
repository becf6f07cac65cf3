"""Makes stored results available as tables in statements: `FROM 'result://<operation id>'` (Contract editor 6.5).

DuckDB first tries to resolve a quoted name as a table. Before a statement runs, each result named in its text is
therefore opened on the server with the caller's rights. Until the statement ends, the result is registered under that
name as a temporary view on the session's own connection.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import duckdb

from queryserver import errors
from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.duckdb.guard import Token
from queryserver.engines.process.calls import RemoteResults
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineError, ResultRefused, StatementRejected

if TYPE_CHECKING:
    from queryserver.engines.duckdb.stored_results import StoredResultTable

_NAME = re.compile(r"result://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![\w-])", re.IGNORECASE)
_UNKNOWN = re.compile(r"with name result://(\S+) does not exist", re.IGNORECASE)
_QUOTED = frozenset({"string_const", "identifier"})
_MAX_RESULTS = 100
_DEFINITION_KEYWORDS = frozenset({"create", "prepare"})
_STORED_KINDS = frozenset({"view", "macro", "function"})
_CREATE_MODIFIERS = frozenset({"or", "replace", "temp", "temporary", "recursive", "materialized"})


class ResultViews:
    """Registers the results that a connection's statements read. The statements run one after another."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, results: RemoteResults) -> None:
        self._connection = connection
        self._results = results
        self._tables: dict[str, StoredResultTable] = {}
        self._failures = dict[str, QueryServerError]()
        """The errors for results that cannot be read, by operation ID.

        An error is reported only if DuckDB looks up the table, because the ID may just be part of a string.
        """

    def begin(self, tokens: Sequence[Token]) -> None:
        """Register the results named in a statement's tokens as tables until `end` is called.

        Raises SessionLost, Interrupted.
        """
        if _is_definition(tokens):
            return
        for operation_id in _named(tokens):
            if operation_id in self._tables or operation_id in self._failures:
                continue
            if len(self._tables) >= _MAX_RESULTS:
                self._failures[operation_id] = ResultRefused(f"A statement can read at most {_MAX_RESULTS} results.")
                continue
            try:
                self._open(operation_id)
            except (errors.SessionLost, Interrupted):
                raise
            except QueryServerError as error:
                self._failures[operation_id] = error

    def end(self) -> None:
        """Unregister the tables.

        Must be called once the statement has ended and no reader of its rows is open. Idempotent.
        """
        tables, self._tables = self._tables, {}
        self._failures = {}
        for operation_id, table in tables.items():
            # A failed transaction does not allow dropping a view, but its rollback removes the view.
            with suppress(duckdb.Error):
                self._connection.unregister(_view_of(operation_id))
            with suppress(QueryServerError):  # the server closes the result with the session at the latest
                table.close()

    @property
    def size_bytes(self) -> int:
        """The stored size of the registered results."""
        return sum(table.size_bytes for table in self._tables.values())

    def error_of(self, text: str) -> EngineError | None:
        """Return the domain error for a DuckDB message that a result has caused; otherwise None."""
        for table in self._tables.values():
            if table.failure is not None:
                return _as_engine_error(table.failure)
        if (match := _UNKNOWN.search(text)) is None:
            return None
        operation_id = match[1]
        if (failure := self._failures.get(operation_id.lower())) is not None:
            return _as_engine_error(failure)
        if _NAME.fullmatch(f"result://{operation_id}") is None:
            return errors.result_not_found(f"Operation {operation_id[:100]} does not exist.")
        return ResultRefused(
            f"result://{operation_id} can only be read by a statement that names it, not through a view, macro or"
            " prepared statement. Use CREATE TABLE … AS SELECT … to make a copy."
        )

    def _open(self, operation_id: str) -> None:
        # pyarrow.dataset takes 0.1 s to import, so it is imported only for statements that read results.
        from queryserver.engines.duckdb.stored_results import StoredResultTable  # noqa: PLC0415

        result = self._results.open(operation_id)
        try:
            table = StoredResultTable(result)
            self._connection.register(_view_of(operation_id), table.dataset)
        except duckdb.Error:
            result.close()  # the transaction has failed; the statement will report this
        except BaseException:
            with suppress(QueryServerError):
                result.close()
            raise
        else:
            self._tables[operation_id] = table


def _view_of(operation_id: str) -> str:
    return f"result://{operation_id}"


def _named(tokens: Sequence[Token]) -> Sequence[str]:
    """Return the distinct operation IDs in a statement, in lower case.

    The IDs occur in quoted names and in strings, including strings passed to query().
    """
    ids = (match[1].lower() for token in tokens if token.kind in _QUOTED for match in _NAME.finditer(token.text))
    return list(dict.fromkeys(ids))


def _is_definition(tokens: Sequence[Token]) -> bool:
    """Return whether the statement stores a definition that reads its tables later, such as a view or a macro."""
    words = [token.name for token in tokens]
    if words[:1] == ["explain"]:  # EXPLAIN ANALYZE executes the definition
        words = words[next((place for place, word in enumerate(words) if word in _DEFINITION_KEYWORDS), 0) :]
    if words[:1] != ["create"]:
        return words[:1] == ["prepare"]
    return next((word for word in words[1:] if word not in _CREATE_MODIFIERS), "") in _STORED_KINDS


def _as_engine_error(error: QueryServerError) -> EngineError:
    """Convert an error to an EngineError with the same code and message."""
    return (
        error if isinstance(error, EngineError) else errors.recreate_error(StatementRejected, error.code, error.message)
    )
