"""Stored results that a statement names as tables: `FROM 'result://<operation id>'` (Contract editor 6.5).

DuckDB resolves a quoted name as that of a table before anything else. Before a statement runs, each result that its
text names is opened at the server, with the rights of the caller, and becomes a temporary view of the session's own
connection, under this name and for this statement.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import duckdb

from queryserver import errors
from queryserver.engines.duckdb.guard import Token
from queryserver.engines.process.result_calls import CalledResults
from queryserver.engines.threaded import Interrupted
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineError, ResultRefused, StatementRejected

if TYPE_CHECKING:
    from queryserver.engines.duckdb.stored_results import StoredResultTable

_NAME = re.compile(r"result://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![\w-])", re.IGNORECASE)
_UNKNOWN = re.compile(r"with name result://(\S+) does not exist", re.IGNORECASE)
_QUOTED = frozenset({"string_const", "identifier"})
_MOST_RESULTS = 100
_MAKERS = frozenset({"create", "prepare"})
_KEPT = frozenset({"view", "macro", "function"})
_BEFORE_KEPT = frozenset({"or", "replace", "temp", "temporary", "recursive", "materialized"})


class NamedResults:
    """The results that the statements of one connection read, one statement after another."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, results: CalledResults) -> None:
        self._connection = connection
        self._results = results
        self._tables: dict[str, StoredResultTable] = {}
        self._failures = dict[str, QueryServerError]()
        """Why a result of that id is no table. It counts where DuckDB wants one: the text may only mention it."""

    def begin(self, tokens: Sequence[Token]) -> None:
        """Make tables of the results that the tokens of the statement name. They stay until `end`.

        Raises SessionLost, Interrupted.
        """
        if _is_kept(tokens):
            return
        for operation_id in _named(tokens):
            if operation_id in self._tables or operation_id in self._failures:
                continue
            if len(self._tables) >= _MOST_RESULTS:
                self._failures[operation_id] = ResultRefused(f"A statement reads at most {_MOST_RESULTS} results.")
                continue
            try:
                self._open(operation_id)
            except (errors.SessionLost, Interrupted):
                raise
            except QueryServerError as error:
                self._failures[operation_id] = error

    def end(self) -> None:
        """The statement has ended, and no reader of its rows is open. Idempotent."""
        tables, self._tables = self._tables, {}
        self._failures = {}
        for operation_id, table in tables.items():
            # In a transaction that failed nothing can be dropped: its end removes the view.
            with suppress(duckdb.Error):
                self._connection.unregister(_view_of(operation_id))
            with suppress(QueryServerError):  # the session ends, and closes it
                table.close()

    def error_of(self, text: str) -> EngineError | None:
        """What an error of DuckDB means where a result is its reason."""
        for table in self._tables.values():
            if table.failure is not None:
                return _of_statement(table.failure)
        if (found := _UNKNOWN.search(text)) is None:
            return None
        operation_id = found[1]
        if (failure := self._failures.get(operation_id.lower())) is not None:
            return _of_statement(failure)
        if _NAME.fullmatch(f"result://{operation_id}") is None:
            return errors.result_not_found(f"There is no operation {operation_id[:100]}.")
        return ResultRefused(
            f"result://{operation_id} is a table only of a statement that names it: views, macros and prepared"
            " statements cannot. CREATE TABLE … AS SELECT … makes a copy."
        )

    def _open(self, operation_id: str) -> None:
        # pyarrow.dataset takes 0.1 s to load: only for statements that read results.
        from queryserver.engines.duckdb.stored_results import StoredResultTable  # noqa: PLC0415

        result = self._results.open(operation_id)
        try:
            table = StoredResultTable(result)
            self._connection.register(_view_of(operation_id), table.dataset)
        except duckdb.Error:
            result.close()  # the transaction has failed, as the statement will say
        except BaseException:
            with suppress(QueryServerError):
                result.close()
            raise
        else:
            self._tables[operation_id] = table


def _view_of(operation_id: str) -> str:
    return f"result://{operation_id}"


def _named(tokens: Sequence[Token]) -> Sequence[str]:
    """The ids in quoted names and strings, also within the texts of query(), in small letters; each once."""
    found = (match[1].lower() for token in tokens if token.kind in _QUOTED for match in _NAME.finditer(token.text))
    return list(dict.fromkeys(found))


def _is_kept(tokens: Sequence[Token]) -> bool:
    """Whether the statement makes something that names its tables later on; DuckDB binds it now."""
    words = [token.name for token in tokens]
    if words[:1] == ["explain"]:  # EXPLAIN ANALYZE carries it out
        words = words[next((place for place, word in enumerate(words) if word in _MAKERS), 0) :]
    if words[:1] != ["create"]:
        return words[:1] == ["prepare"]
    return next((word for word in words[1:] if word not in _BEFORE_KEPT), "") in _KEPT


def _of_statement(error: QueryServerError) -> EngineError:
    """The error as the outcome of a statement, with its code and message."""
    return error if isinstance(error, EngineError) else errors.remade(StatementRejected, error.code, error.message)
