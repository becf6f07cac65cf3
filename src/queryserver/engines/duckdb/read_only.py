"""Lets a statement read only: its kind must be known to read, and DuckDB runs it in a read-only transaction.

Neither check would be enough. A read-only transaction refuses changes of the database wherever they are written (in
CTEs, EXPLAIN ANALYZE, sequences, views and macros), but not settings, checkpoints and files, and a statement could end
it. The kinds exclude the latter, but not a query that changes something. Temporary tables of the session are the
exception: DuckDB, like PostgreSQL, lets a data-modifying CTE change them.
"""

from collections.abc import Callable, Sequence

import duckdb

from queryserver.engines.duckdb.guard import Token, called_functions, statement_kind, tokenize, without_explain
from queryserver.errors.statements import StatementRejected

_READING_KINDS = frozenset({"SELECT", "EXPLAIN", "PRAGMA", "MULTI"})
"""SELECT includes FROM, VALUES, SHOW, DESCRIBE and SUMMARIZE. MULTI is a PIVOT; its other forms change something."""
_PIVOT_STARTS = frozenset({"select", "from", "with", "pivot", "pivot_wider", "unpivot", "pivot_longer", "("})
_FUNCTIONS_WITH_EFFECTS = frozenset({"checkpoint", "setseed"})
"""Functions with effects outside the transaction that other statements may call (guard.py disables more)."""

_MAX_ROLLBACKS = 5


def refuse_changes(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, tokens: Sequence[Token]) -> None:
    """Reject a statement that does more than read. `tokens` are those of the statement. Raises StatementRejected.

    The statement must have passed `refuse_outside_access`, which permits only PRAGMAs that read or set a value.
    """
    kind = statement_kind(statement)
    first = next((token.text.lower()[:1] if token.kind == "operator" else token.name for token in tokens), "")
    if kind not in _READING_KINDS or (kind == "MULTI" and first not in _PIVOT_STARTS):
        raise read_only_error(f"{kind.replace('_', ' ')} is not permitted")
    if kind == "PRAGMA" and any(token.text == "=" for token in tokens):
        raise read_only_error("PRAGMA can only read")
    for name in called_functions(tokens):
        if name in _FUNCTIONS_WITH_EFFECTS:
            raise read_only_error(f"the function {name} is not permitted")
    if kind == "EXPLAIN":
        _refuse_explained(connection, statement)


def _refuse_explained(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    """Check the statement that EXPLAIN contains, because EXPLAIN ANALYZE runs it."""
    query = statement.query
    inner = explained_text(query, tokenize(query))
    try:
        statements = connection.extract_statements(inner)
    except duckdb.Error:
        statements = []
    if len(statements) != 1:
        raise read_only_error("this form of EXPLAIN is not permitted")
    refuse_changes(connection, statements[0], tokenize(inner))


def explained_text(query: str, tokens: Sequence[Token]) -> str:
    """Return the text after EXPLAIN, its options and ANALYZE; empty if there is none."""
    inner = next(iter(without_explain(tokens)), None)
    return "" if inner is None else query.encode()[inner.start :].decode()


def is_analyzed(tokens: Sequence[Token]) -> bool:
    """Return whether an EXPLAIN runs its statement."""
    inner = next(iter(without_explain(tokens)), None)
    prefix = (token for token in tokens if inner is None or token.start < inner.start)
    return any(token.name in {"analyze", "analyse"} for token in prefix)


def read_only_error(reason: str) -> StatementRejected:
    known = StatementRejected(f"Permission Error: the statement is read-only: {reason}.")
    known.with_sqlstate("25006")
    return known


class ReadTransaction:
    """The read-only transaction around a statement of one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, is_in_transaction: Callable[[], bool]) -> None:
        self._connection = connection
        self._is_in_transaction = is_in_transaction
        self.is_open = False
        self.may_follow_writes = False
        """Whether other statements have run, which may have left a transaction open."""

    def begin(self) -> None:
        """Begin the transaction.

        Raises StatementRejected if a transaction is open, because its access mode cannot be changed, and DuckDB's
        errors.
        """
        if self.may_follow_writes and self._is_in_transaction():
            raise read_only_error("it cannot run in the open transaction, which may write; end that transaction first")
        self._connection.execute("BEGIN TRANSACTION READ ONLY")
        self.is_open = True

    def end(self) -> bool:
        """End the transaction, which has changed nothing. No reader may be open. Idempotent.

        Return False if DuckDB did not end it, so that the connection must not run another statement.
        """
        for _ in range(_MAX_ROLLBACKS):
            if not self.is_open:
                return True
            try:
                self._connection.execute("ROLLBACK")
            except duckdb.InterruptException:  # meant for the statement, whose end it reached
                continue
            except duckdb.Error as error:
                self.is_open = "no transaction is active" not in str(error)
                return not self.is_open
            self.is_open = False
        return not self.is_open
