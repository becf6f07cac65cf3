"""The session of a DB-API connection on the server, which is opened with the first statement (Contract editor 9)."""

import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queryserver_client import connection as core
from queryserver_client.credentials import Secret
from queryserver_client.encoding import Parameters
from queryserver_client.engine_sessions import LOST, close_session, open_session
from queryserver_client.errors import ApiError, StatementError
from queryserver_client.result import Result
from queryserver_client.statement import Statement, canceling, statement_of
from queryserver_client.submitted import WAIT_S
from queryserver_client.transport import segment

BEGINNINGS: Mapping[str, str] = {"postgresql": "BEGIN", "duckdb": "BEGIN TRANSACTION", "sqlite": "BEGIN"}
"""The statement that begins a transaction, for dialects that do not begin transactions implicitly."""
ALWAYS_IN_ONE = frozenset({"mysql"})
"""Dialects whose sessions have an autocommit setting, which is turned off to use transactions.

If the engine ends a transaction by itself, as MySQL does for DDL and after deadlocks, the next statement begins another
transaction instead of being committed individually.
"""
TRANSACTIONAL = ALWAYS_IN_ONE | BEGINNINGS.keys()
"""The dialects with transactions. All other dialects commit each statement individually."""
MAX_ROWS = 1_000_000
"""The default of the server's setting `result_max_rows` (Contract editor 13)."""
_MAX_IN_MESSAGE = re.compile(r"\blimit\b.*\bbetween 1 and (\d+)")

_ONE_BY_ONE = re.compile(r"parameters: |parameter_rows: the (?:text|statement) must be one")
"""Messages of a server that does not support parameter rows at all, or not for this statement."""
_FREE_WITHIN_S = 10.0


class Session:
    """An engine session on one connector. Not for concurrent use."""

    def __init__(
        self,
        client: core.Connection,
        connector: str,
        *,
        settings: Mapping[str, str],
        engine_login: tuple[str, Secret] | None,
        database: str | None,
        timeout_s: float | None,
        limit: int | None,
    ) -> None:
        self._client = client
        self.connector = connector
        self._settings = settings
        self._engine_login = engine_login
        self._database = database
        self._timeout_s = timeout_s
        self._limit = limit
        self._max_rows = MAX_ROWS
        self._is_autocommit: bool | None = True
        """The autocommit setting of the engine session, if it has one; None if unknown."""
        self.id: int | None = None
        self.dialect = ""
        """The dialect, known once the session is open."""
        self.has_run = False
        """Whether the last call of `run` or `run_rows` ran at least one statement."""

    async def open(self) -> None:
        """Open the session if it is not open.

        Raises StatementError if the data source rejects the credentials, and ApiError.
        """
        if self.id is not None:
            return
        opened = await open_session(
            self._client.transport,
            self.connector,
            database=self._database,
            settings=self._settings,
            engine_login=self._engine_login,
        )
        self.id, self.dialect, self._is_autocommit = opened.id, opened.dialect, True

    async def close(self) -> None:
        """Close the session. The engine rolls back an open transaction and drops temporary tables. Never fails."""
        session_id, self.id = self.id, None
        if session_id is not None:
            await close_session(self._client.transport, self.connector, session_id)

    async def run(self, sql: str, parameters: Parameters | None) -> list[Result]:
        """Run the statements of a script in order and return their results. Stops at the first failure."""
        self.has_run = False
        try:
            results = [await self._query(sql, parameters)]
        except ApiError as error:
            found = (
                _MAX_IN_MESSAGE.search(error.message)
                if self._limit is None and error.code == "invalid_parameter"
                else None
            )
            if found is None or int(found[1]) >= self._max_rows:
                raise
            self._max_rows = int(found[1])
            results = [await self._query(sql, parameters)]
        self.has_run = True
        try:
            while results[-1].statement.has_more_statements:
                statement = await self._client.next(results[-1].statement)
                async with canceling(statement):
                    results.append(await statement.result(allow_truncated=True))
        except BaseException:
            await free(results)
            raise
        return results

    async def run_rows(self, sql: str, rows: Sequence[Parameters]) -> Result | None:
        """Run a statement once for each row of values, in one call.

        Returns None, without having run anything, if the server does not support this for the statement.
        """
        self.has_run = False
        try:
            result = await self._client.query(
                self.connector, sql, parameter_rows=rows, session_id=self.id, timeout=self._timeout_s
            )
        except ApiError as error:
            if error.code == "invalid_parameter" and _ONE_BY_ONE.match(error.message):
                return None
            raise
        self.has_run = True
        return result

    async def set_autocommit(self, value: bool) -> None:
        """Set autocommit for a dialect in ALWAYS_IN_ONE. Nothing is sent if the session already has this value."""
        if self._is_autocommit is not value:
            self._is_autocommit = None
            await self.control(f"SET autocommit = {int(value)}")
            self._is_autocommit = value

    async def control(self, sql: str) -> None:
        """Run a statement of this package, such as COMMIT, which does not appear in the user's history."""
        await self._control(sql)

    async def value(self, sql: str) -> Any:
        """Run a statement like `control`, and return the first cell of its result."""
        result = await (await self._control(sql)).result()
        return await result.scalar()

    async def _control(self, sql: str) -> Statement:
        fields = {
            "statement": sql,
            "session_id": self.id,
            "rows": 1,
            "escape": False,
            "big_numbers": "number",
            "notebook": {"skipHistorify": True},
        }
        body = await self._client.transport.call(
            "POST",
            f"editor/execute/{segment(self.connector)}" if self.connector else "editor/execute",
            fields,
            headers={"Idempotency-Key": str(uuid.uuid4())},
            is_repeatable=True,
            wait_s=WAIT_S,
            is_held=True,
        )
        statement = statement_of(self._client.transport, body)
        status = await statement.wait()
        if status.error is not None:
            raise status.error
        return statement

    async def _query(self, sql: str, parameters: Parameters | None) -> Result:
        return await self._client.query(
            self.connector,
            sql,
            parameters,
            session_id=self.id,
            timeout=self._timeout_s,
            limit=self._limit or self._max_rows,
            allow_truncated=True,
            run_all=False,
        )

    def is_cut(self, result: Result) -> bool:
        """Return whether the result was truncated by anything other than the user's own limit."""
        return result.is_truncated and not (self._limit is not None and result.status.truncated_by == "limit")


async def free(results: Iterable[Result]) -> None:
    """Delete large results on the server.

    Small results are left to expire, because a call for each of them would cost more. Gives up after 10 s if the server
    does not respond; the remaining results then expire.
    """
    until = time.monotonic() + _FREE_WITHIN_S
    for result in results:
        if time.monotonic() > until:
            return
        if result.row_count > len(result.first_rows):
            await result.statement.close_quietly()


def is_lost(error: BaseException) -> bool:
    """Return whether the session no longer exists, in which case nothing was started (Contract editor 3.4)."""
    return isinstance(error, (StatementError, ApiError)) and error.code in LOST


def last_id_statement(dialect: str) -> str | None:
    """Return the SQL that selects the id generated for the last inserted row; None if the engine has none."""
    return _LAST_IDS.get(dialect)


_LAST_IDS: Mapping[str, str] = {"sqlite": "SELECT last_insert_rowid()", "mysql": "SELECT LAST_INSERT_ID()"}
