"""`connect`, and a connection's operations."""

import os
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from queryserver_client.connectors import Connectors
from queryserver_client.credentials import Secret, TokenSource, credentials_of, hidden, hidden_values
from queryserver_client.encoding import ParameterRows, Parameters, encode_parameters
from queryserver_client.errors import ApiError, ConfigurationError, ConnectionLost, QueryserverError
from queryserver_client.files import Files
from queryserver_client.history import History
from queryserver_client.imports import Imports
from queryserver_client.metadata import Metadata
from queryserver_client.named_results import NamedResults, with_results
from queryserver_client.result import Result
from queryserver_client.retries import Retries
from queryserver_client.statement import FIRST_ROWS, Statement, canceling, statement_of
from queryserver_client.submitted import WAIT_S, OnLog, OnProgress, SubmittedStatement
from queryserver_client.transport import Sent, Transport, segment
from queryserver_client.users import Users

if TYPE_CHECKING:
    from typing_extensions import Self

_ABANDON_WITHIN_S = 15.0


class Connection:
    """A connection to one server as one user. Created by `connect`. Can be used by many tasks of one event loop
    concurrently.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        """The HTTP layer, for calls that this class does not provide: `await db.transport.call("GET", "…")`."""

    def __repr__(self) -> str:
        return f"Connection({self.transport.url!r})"

    async def query(
        self,
        connector: str,
        sql: str,
        parameters: Parameters | None = None,
        *,
        database: str | None = None,
        session_id: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool = False,
        run_all: bool = True,
        parameter_rows: ParameterRows | None = None,
        results: NamedResults | None = None,
    ) -> Result:
        """Run a statement and return its result. A small result takes one call.

        All statements of a script run in order, in one session, up to the first failure. The result is that of the last
        statement with rows. `script` returns the result of each statement. `run_all=False` only runs the first
        statement.

        `connector` is an id, a key in the settings or a dialect; "" is the default connector. `parameters` are values
        for `?` or, by name, `:name`; `parameter_rows` are many sets of parameters. A statement that changes rows runs
        once for each set, with at most 10,000 sets per call, in one transaction if the engine supports transactions
        (Contract editor 4.6). `results` are results, statements or their ids, from any connector: `{orders}` in the
        text denotes the result with that name as a table, on DuckDB (Contract editor 6.5). `limit` is the maximum
        number of rows to keep (by default the server's limit), `timeout` the seconds after which the server stops the
        statement. If the waiting task is canceled or a callback fails, the statement is canceled, also in the engine,
        and an existing result is deleted.

        Raises StatementError if it does not succeed, ApiError, ConnectionLost. After ApiError and ConnectionLost the
        statement may have run: `submit` with the same arguments and the error's `idempotency_key` finds it, and runs it
        at most once.
        """
        # Scripts with several rows of values are rejected, because one statement runs for each row.
        run_all = run_all and parameter_rows is None
        sql = with_results(sql, results)
        fields, wait_s = _fields(sql, parameters, database, session_id, limit, timeout, run_all=run_all), 0.0
        if parameter_rows is not None:
            rows = fields["parameter_rows"] = [encode_parameters(row) for row in parameter_rows]
            # A server that does not know the field must not run the statement without values.
            fields["parameters"] = {} if rows and isinstance(rows[0], dict) else []
        if on_progress is None and on_log is None:
            fields |= {"rows": FIRST_ROWS, "escape": False, "big_numbers": "number"}
            wait_s = WAIT_S
        key = str(uuid.uuid4())
        with _telling(key):
            statement = await self._execute(connector, fields, allow_truncated=allow_truncated, wait_s=wait_s, key=key)
            async with canceling(statement):
                return await statement.result(on_progress=on_progress, on_log=on_log)

    async def script(
        self,
        connector: str,
        sql: str,
        parameters: Parameters | None = None,
        *,
        database: str | None = None,
        session_id: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool = False,
        results: NamedResults | None = None,
    ) -> list[Result]:
        """Run all statements in a script like `query`, and return each statement's result, in order.

        `limit` applies to each statement, `timeout` to the whole script. Raises the StatementError of the first failed
        statement. Its `statement_id` is the position in the script, and `statement(error.operation_id)` has the results
        of the previous statements (`Status.statements`).
        """
        key = str(uuid.uuid4())
        fields = _fields(with_results(sql, results), parameters, database, session_id, limit, timeout, run_all=True)
        with _telling(key):
            callbacks = on_progress is not None or on_log is not None
            whole = await self._execute(connector, fields, wait_s=0.0 if callbacks else WAIT_S, key=key)
            async with canceling(whole):
                if callbacks:
                    await whole.report(on_progress=on_progress, on_log=on_log)
                status = await whole.wait()
                if status.error is not None:
                    raise status.error
                return [
                    await self.statement(one["operationId"], allow_truncated=allow_truncated).result()
                    for one in status.statements
                ]

    async def submit(
        self,
        connector: str,
        sql: str,
        parameters: Parameters | None = None,
        *,
        database: str | None = None,
        session_id: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        allow_truncated: bool = False,
        idempotency_key: str | None = None,
        run_all: bool = True,
        results: NamedResults | None = None,
    ) -> Statement:
        """Start a statement, or a whole script, without waiting for it. The arguments are the same as for `query`.

        `idempotency_key`: a program that may crash between submitting a statement and recording its id passes its own
        key. Submitting again with the same key returns the same statement (Contract editor 4.4).
        """
        sql = with_results(sql, results)
        fields = _fields(sql, parameters, database, session_id, limit, timeout, run_all=run_all)
        key = idempotency_key or str(uuid.uuid4())
        with _telling(key):
            return await self._execute(
                connector, fields, allow_truncated=allow_truncated, key=key, is_abandoned=not idempotency_key
            )

    async def next(self, statement: SubmittedStatement) -> Statement:
        """Start the next statement in a script begun with `run_all=False`, after the previous one has ended.

        Contract editor 5.4.
        """
        return await self._execute("", {"operationId": statement.operation_id})

    def statement(self, operation_id: str, *, allow_truncated: bool = False) -> Statement:
        """Attach to a statement that this or another program submitted earlier."""
        return Statement(self.transport, operation_id, allow_truncated=allow_truncated)

    @property
    def files(self) -> Files:
        """Files in the server's stores."""
        return Files(self.transport)

    @property
    def imports(self) -> Imports:
        """Imports of files into tables."""
        return Imports(self.transport, self._started)

    @property
    def connectors(self) -> Connectors:
        """Connectors to which statements can be sent."""
        return Connectors(self.transport)

    @property
    def history(self) -> History:
        """The user's statements."""
        return History(self.transport)

    @property
    def metadata(self) -> Metadata:
        """The connectors' databases, tables and columns."""
        return Metadata(self.transport)

    @property
    def users(self) -> Users:
        """The server's users, and this user's preferences."""
        return Users(self.transport)

    async def close(self) -> None:
        """Close the connections, and revoke a password login. Running statements continue; results are kept."""
        await self.transport.close()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _execute(self, connector: str, fields: Mapping[str, Any], **more: Any) -> Statement:
        path = f"editor/execute/{segment(connector)}" if connector else "editor/execute"
        return await self._started(path, fields, **more)

    async def _started(
        self,
        path: str,
        fields: Mapping[str, Any],
        *,
        allow_truncated: bool = False,
        key: str | None = None,
        is_abandoned: bool = True,
        wait_s: float = 0.0,
    ) -> Statement:
        """Start a statement with an idempotency key, so that it runs once even if the call is repeated.

        `is_abandoned`: canceling the task also cancels the started statement, because no other code has its id.
        """
        headers, sent = {"Idempotency-Key": key or str(uuid.uuid4())}, Sent()
        try:
            body, received = await self.transport.answered(
                "POST", path, fields, headers=headers, is_repeatable=True, wait_s=wait_s, is_held=wait_s > 0, sent=sent
            )
        except anyio.get_cancelled_exc_class():
            if sent.is_ever_possible and is_abandoned:
                await self._abandon(path, fields, headers)
            raise
        statement = statement_of(
            self.transport, body, allow_truncated=allow_truncated, request_id=received.get("X-Request-Id")
        )
        unknown = received.get("X-Unknown-Fields", "").replace(",", " ").split()
        named = ("parameters", "parameter_rows", "run_all")
        missing = next((name for name in named if name in fields and name in unknown), None)
        # A single statement does not need run_all.
        if missing is not None and (missing != "run_all" or statement.has_more_statements):
            await statement.abandon()
            raise ApiError(f"this server is too old for {missing}", status=501, code="not_supported")
        return statement

    async def _abandon(self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Cancel a statement whose id has not arrived yet. The same key returns its id."""
        fields = {name: value for name, value in fields.items() if name != "rows"}
        with anyio.move_on_after(_ABANDON_WITHIN_S, shield=True):
            # If the server is unavailable, it stops the statement at its timeout.
            with suppress(QueryserverError):
                body = await self.transport.call("POST", path, fields, headers=headers, is_repeatable=True)
                await statement_of(self.transport, body).abandon()


@contextmanager
def _telling(key: str) -> Generator[None, None, None]:
    """Attach the key to errors that leave open whether the statement ran."""
    try:
        yield
    except (ApiError, ConnectionLost) as error:
        error.idempotency_key = key
        raise


def connect(
    url: str | None = None,
    *,
    token: "str | Secret | TokenSource | None" = None,
    user: str | None = None,
    password: "str | Secret | None" = None,
    timeout_s: float = 30.0,
    retries: Retries | None = None,
    verify: Any = True,
    headers: "Mapping[str, str | Secret] | None" = None,
    http_transport: httpx.AsyncBaseTransport | None = None,
) -> Connection:
    """Create a connection to a server, for `async with`. Nothing is sent before the first call.

    `url` defaults to QUERYSERVER_URL. `token` is a text, or a sync or async function that returns a token and is called
    again if the server rejects the previous token. Without `token`, `user` and `password`, the environment is used:
    QUERYSERVER_TOKEN, or else QUERYSERVER_USER and QUERYSERVER_PASSWORD. `timeout_s` applies to each response from the
    server, `retries` to a call as a whole. `verify` is True, False or an ssl.SSLContext; `headers` are sent with every
    call.
    """
    token, password, headers = hidden(token), hidden(password), hidden_values(headers)
    url = url or os.environ.get("QUERYSERVER_URL")
    if not url:
        raise ConfigurationError("no address: give url, or set QUERYSERVER_URL")
    return Connection(
        Transport(
            url,
            credentials_of(token, user, password),
            timeout_s=timeout_s,
            retries=retries,
            verify=verify,
            headers=headers,
            http_transport=http_transport,
        )
    )


def _fields(
    sql: str,
    parameters: Parameters | None,
    database: str | None,
    session_id: int | None,
    limit: int | None,
    timeout: float | None,
    *,
    run_all: bool,
) -> dict[str, Any]:
    given = {
        "statement": sql,
        "parameters": None if parameters is None else encode_parameters(parameters),
        "database": database,
        "session_id": session_id,
        "limit": limit,
        "timeout": timeout,
        "run_all": True if run_all else None,
    }
    return {name: value for name, value in given.items() if value is not None}
