"""`connect`, and PEP 249 connections: one connector, one session, and one transaction at a time."""

import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from queryserver_client.connection import Connection as AsyncClient
from queryserver_client.credentials import Secret, TokenSource, hidden, hidden_values
from queryserver_client.dbapi import errors, servers
from queryserver_client.dbapi.cursor import Cursor
from queryserver_client.dbapi.session import (
    ALWAYS_IN_ONE,
    BEGINNINGS,
    TRANSACTIONAL,
    Session,
    free,
    is_lost,
    last_id_statement,
)
from queryserver_client.encoding import Parameters
from queryserver_client.errors import ApiError, ConnectionLost, StatementError
from queryserver_client.result import Result
from queryserver_client.retries import Retries

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_EXIT_WITHIN_S = 5.0
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*|#[^\n]*", re.DOTALL)
_ENDS = frozenset({"COMMIT", "END", "ROLLBACK", "ABORT"})


def connect(
    url: str | None = None,
    connector: str = "",
    *,
    token: "str | Secret | TokenSource | None" = None,
    user: str | None = None,
    password: "str | Secret | None" = None,
    database: str | None = None,
    autocommit: bool = False,
    settings: Mapping[str, str] | None = None,
    engine_login: "tuple[str, str | Secret] | None" = None,
    limit: int | None = None,
    timeout: float | None = None,
    timeout_s: float = 30.0,
    retries: Retries | None = None,
    verify: Any = True,
    headers: "Mapping[str, str | Secret] | None" = None,
    http_transport: httpx.AsyncBaseTransport | None = None,
) -> "Connection":
    """Create a connection to a connector: an id, a key in the settings, or a dialect; "" for the user's default.

    `url`, `token`, `user`, `password`, `timeout_s`, `retries`, `verify`, `headers` and `http_transport` are those of
    `queryserver_client.connect`, including the environment variables. `database` is the initial database of the
    session. `settings` are settings of the engine session. `engine_login` is a user name and password for the data
    source. `limit` is the maximum number of rows in a result; if it is not set, a truncated result is an error.
    `timeout` is the timeout of a statement in seconds.

    Nothing is sent before the first statement.
    """
    token, password, headers = hidden(token), hidden(password), hidden_values(headers)
    engine_login = None if engine_login is None else (engine_login[0], hidden(engine_login[1]))
    login = servers.Login(
        url, token, user, password, timeout_s, retries, verify, tuple((headers or {}).items()), http_transport
    )
    with errors.translated():
        client = servers.acquire(login)
    session = Session(
        client.core,
        connector,
        settings=settings or {},
        engine_login=engine_login,
        database=database,
        timeout_s=timeout,
        limit=limit,
    )
    return Connection(client, session, autocommit=autocommit)


class Connection:
    """A connection created by `connect`. Threads may share it; their statements run one at a time."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self, client: servers.Client, session: Session, *, autocommit: bool) -> None:
        self._client = client
        self._session = session
        self._lock = threading.RLock()
        self._autocommit = autocommit
        self._in_transaction = False
        self._is_uncertain = False
        """Whether the transaction state of the engine is unknown because a response was lost."""
        self._is_fresh = True
        self._used_at = time.monotonic()
        self._is_closed = self._is_exiting = False
        servers.close_at_exit(self)

    def __repr__(self) -> str:
        return f"Connection({self._client.core.transport.url!r})"

    @property
    def client(self) -> AsyncClient:
        """The underlying async client, for calls outside PEP 249. Run its coroutines with `run`."""
        return self._client.core

    @property
    def connector(self) -> str:
        """The connector as passed to `connect`."""
        return self._session.connector

    @property
    def dialect(self) -> str:
        """The dialect of the connector, such as `postgresql`. Opens the session if necessary."""
        self._opened()
        return self._session.dialect

    @property
    def has_transactions(self) -> bool:
        """Whether `commit` and `rollback` have an effect. If not, the engine commits each statement individually."""
        return self.dialect in TRANSACTIONAL

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._in_transaction

    @property
    def idle_s(self) -> float:
        """Seconds since the session was last used (an extension of PEP 249). The server closes idle sessions."""
        return time.monotonic() - self._used_at

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def autocommit(self) -> bool:
        """Whether each statement is committed immediately. False by default, as PEP 249 requires."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        with self._lock:
            if value and self._in_transaction:
                raise errors.ProgrammingError("autocommit cannot be changed within a transaction")
            self._autocommit = value

    def cursor(self) -> Cursor:
        self._require_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters | None = None) -> Cursor:
        """Execute a statement on a new cursor and return the cursor (an extension of PEP 249)."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Commit the transaction. If none is open, nothing is sent."""
        self._require_open()
        self._end("COMMIT")

    def rollback(self) -> None:
        """Roll back the transaction. If none is open, nothing is sent."""
        if self._is_exiting:
            return  # closing the session has already rolled back
        self._require_open()
        if self._in_transaction and self._client.loop.must_not_wait:
            self.close()  # the garbage collector returns a lost connection to the pool; close its session instead
            return
        try:
            self._end("ROLLBACK")
        except errors.DatabaseError:
            if self._in_transaction:
                raise
            # The transaction has already been rolled back: by the end of the session, or by the engine, as sqlite does
            # after some errors.

    def close(self) -> None:
        """Close the session, which rolls back an open transaction. Idempotent. Later calls raise InterfaceError."""
        if not self._client.loop.is_ours:
            self._is_closed = True  # the session belongs to the parent process, and in this fork the lock may stay held
            return
        if self._client.loop.must_not_wait:
            if not self._is_closed:
                self._is_closed = True
                servers.close_in_thread(partial(_close, self._client, self._session))
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            _close(self._client, self._session)

    def close_at_exit(self) -> None:
        """Close the connection because the program exits. Pools that are closed later may still call `rollback`.

        Running calls of daemon threads are canceled.
        """
        self._is_exiting = True
        self._client.loop.cancel_running()
        if not self._lock.acquire(timeout=_EXIT_WITHIN_S):
            return
        try:
            self.close()
        finally:
            self._lock.release()

    def forget_state(self) -> None:
        """Declare that temporary tables and session settings are no longer needed (an extension of PEP 249).

        If the server closes the idle session before the next statement, a new session is opened without an error.
        """
        self._is_fresh = not self._in_transaction

    def ping(self) -> None:
        """Raise an error unless the session exists and the engine responds (an extension of PEP 249)."""
        with self._lock:
            is_fresh = self._is_fresh
            self._in_session(self._pinged)
            self._is_fresh = is_fresh

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the client (an extension of PEP 249). Its errors are raised as PEP 249 exceptions."""
        self._require_open()
        with errors.translated():
            return self._client.loop.run(call)

    def results_of(self, sql: str, parameters: Parameters | None) -> list[Result]:
        """Run a script in the session, in a transaction unless `autocommit` is set; return all results.

        Used by cursors. Raises OperationalError if the server truncated a result.
        """

        async def call() -> list[Result]:
            await self._begin()
            try:
                results = await self._session.run(sql, parameters)
            except BaseException as error:
                self._note_own(sql, error)
                raise
            self._note_own(sql)
            return results

        with self._lock:
            results = self._in_session(call)
            for result in results:
                if self._session.is_cut(result):
                    self.free(results)
                    message = f"{result.status.message} To accept a partial result, pass limit= to connect."
                    raise errors.OperationalError(message)
            return results

    def result_of_rows(self, sql: str, rows: Sequence[Parameters]) -> Result | None:
        """Run a statement once for each row of values, in one call. Used by cursors.

        Returns None if the server does not support this for the statement, so that the rows must run one by one.
        """

        async def call() -> Result | None:
            await self._begin()
            return await self._session.run_rows(sql, rows)

        with self._lock:
            return self._in_session(call)

    def free(self, results: Iterable[Result]) -> None:
        """Delete large results on the server that are no longer needed. Used by cursors."""
        if not self._is_closed:
            self.run(lambda: free(results))

    def last_row_id(self) -> int | None:
        """Return the id that the engine generated for the last inserted row; None if unsupported. Used by cursors."""
        with self._lock:
            sql = last_id_statement(self._session.dialect)
            return None if sql is None else self.run(lambda: self._session.value(sql))

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back after an exception; then close the connection."""
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self._is_closed = True
            servers.close_later(partial(_close, self._client, self._session))

    async def _pinged(self) -> None:
        await self._session.open()
        await self._session.control("SELECT 1")

    async def _begin(self) -> None:
        await self._session.open()
        if self._session.dialect not in TRANSACTIONAL:
            return
        if self._is_uncertain:
            try:
                await self._session.control("ROLLBACK")
            except StatementError as error:
                if error.code != "engine_error":  # duckdb and sqlite reject ROLLBACK outside a transaction
                    raise
            self._in_transaction = self._is_uncertain = False
        if self._session.dialect in ALWAYS_IN_ONE:
            await self._session.set_autocommit(self._autocommit)
            self._in_transaction = self._in_transaction or not self._autocommit
        elif not (self._in_transaction or self._autocommit):
            self._is_uncertain = True  # a BEGIN whose response was lost may have begun a transaction
            await self._session.control(BEGINNINGS[self._session.dialect])
            self._in_transaction, self._is_uncertain = True, False

    def _note_own(self, sql: str, error: BaseException | None = None) -> None:
        """Update the transaction state after the user's own BEGIN, COMMIT or ROLLBACK has succeeded or failed."""
        words = _words(sql)
        begins = _begins(words)
        if begins is None or self._session.dialect not in TRANSACTIONAL:
            return
        if error is None:
            self._in_transaction = begins
        elif not (isinstance(error, StatementError) and error.code == "engine_error"):
            self._is_uncertain = _may_have_run(error)
        elif not begins:
            self._in_transaction = self._goes_on_after(words[0], error)

    def _goes_on_after(self, word: str, error: StatementError) -> bool:
        """Return whether the transaction is still open after `word` (COMMIT, ROLLBACK, …) failed.

        After a failed COMMIT, sqlite keeps the transaction open; other engines roll it back.
        """
        is_kept = self._session.dialect == "sqlite" and word in {"COMMIT", "END"}
        return self._in_transaction and is_kept and "no transaction is active" not in error.message

    def _opened(self) -> None:
        if self._session.id is None:
            with self._lock:
                self.run(self._session.open)

    def _in_session(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call in the session.

        If the session no longer exists, had no state, and has run nothing of this call, repeat the call in a new
        session.
        """
        self._require_open()
        self._session.has_run = False
        self._used_at = time.monotonic()
        is_fresh, self._is_fresh = self._is_fresh, False
        try:
            return self.run(call)
        except errors.Error as error:
            if not error.is_disconnect or error.client_error is None or not is_lost(error.client_error):
                raise
            self._forget_session()
            if not is_fresh or self._session.has_run:
                raise
        return self.run(call)

    def _end(self, sql: str) -> None:
        with self._lock:
            if not self._in_transaction:
                return
            # If the response is lost, it is unknown whether the transaction has ended.
            self._is_uncertain = True
            try:
                self.run(lambda: self._session.control(sql))
            except errors.Error as error:
                if error.client_error is not None and is_lost(error.client_error):
                    self._forget_session()
                elif isinstance(error.client_error, StatementError) and error.code == "engine_error":
                    self._in_transaction, self._is_uncertain = self._goes_on_after(sql, error.client_error), False
                else:
                    self._is_uncertain = _may_have_run(error.client_error)
                raise
            self._in_transaction = self._is_uncertain = False

    def _forget_session(self) -> None:
        """Forget a session that no longer exists, and its transaction."""
        self._session.id, self._in_transaction, self._is_uncertain = None, False, False

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.InterfaceError("the connection is closed")


def _may_have_run(error: BaseException | None) -> bool:
    """Return whether the engine may have executed a failed call."""
    if isinstance(error, ConnectionLost):
        return error.is_sent
    return not (isinstance(error, ApiError) and error.status < 500)


def _words(sql: str) -> list[str]:
    """Return the words of a single statement in upper case, without comments; an empty list for a script."""
    text = _COMMENTS.sub(" ", sql).strip().rstrip(";").upper()
    return [] if ";" in text else text.split()


def _begins(words: list[str]) -> bool | None:
    """Return whether a statement begins (True) or ends (False) a transaction; None if it does neither.

    `COMMIT AND CHAIN` begins the next transaction.
    """
    if words[:1] == ["BEGIN"] or words[:2] == ["START", "TRANSACTION"]:
        return True
    # COMMIT PREPARED and ROLLBACK TO do not end the current transaction.
    if not words or words[0] not in _ENDS or words[1:2] == ["PREPARED"] or "TO" in words:
        return None
    return " AND CHAIN" in " ".join(words)


def _close(client: servers.Client, session: Session) -> None:
    try:
        if client.loop.is_ours:
            client.loop.run(session.close)
    finally:
        servers.release(client)
