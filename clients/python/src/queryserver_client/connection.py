"""`connect`, and the connection that it creates."""

import os
import uuid
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from queryserver_client.connectors import Connectors
from queryserver_client.credentials import Secret, TokenSource, credentials_of, hidden, hidden_values
from queryserver_client.documents import Documents
from queryserver_client.encoding import ParameterRows, Parameters, encode_parameters
from queryserver_client.errors import ApiError, ConfigurationError, ConnectionLost
from queryserver_client.exports import CopyIfExists, Export, copy_target, destination
from queryserver_client.files import Files
from queryserver_client.guards import Guards
from queryserver_client.history import History
from queryserver_client.imports import Imports
from queryserver_client.metadata import Metadata
from queryserver_client.named_results import NamedResults, with_results
from queryserver_client.result import Result
from queryserver_client.retries import Retries
from queryserver_client.schedules import Schedules
from queryserver_client.shares import SharedResult, id_in, received_results
from queryserver_client.statement import FIRST_ROWS, Statement, canceling, started
from queryserver_client.submitted import WAIT_S, OnLog, OnProgress, SubmittedStatement
from queryserver_client.transport import Transport, segment
from queryserver_client.users import Users

if TYPE_CHECKING:
    from typing_extensions import Self


class Connection:
    """A connection to one server as one user, created by `connect`. Tasks of one event loop can share it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        """The HTTP layer, for calls that this class does not offer: `await db.transport.call("GET", "…")`."""

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
        max_age: int | None = None,
        read_only: bool = False,
        max_estimated_bytes: int | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool = False,
        run_all: bool = True,
        parameter_rows: ParameterRows | None = None,
        results: NamedResults | None = None,
        into: "str | Mapping[str, Any] | None" = None,
    ) -> Result:
        """Run a statement and return its result. A small result takes a single request.

        All statements of a script run in order, in one session, up to the first failure, and the result is that of the
        last statement with a result set. Use `script` to get the result of each statement; `run_all=False` runs only
        the first statement.

        `connector` is an id, a key in the settings or a dialect; "" is the default connector. `parameters` are values
        for `?` or, in a mapping, for `:name`. `parameter_rows` are up to 10,000 sets of parameters: the statement,
        which must change rows, runs once for each set, in one transaction if the engine supports transactions (Contract
        editor 4.6). `results` maps names to results, statements or operation ids of any connector: on DuckDB,
        `{orders}` in the SQL refers to the result with this name as a table (Contract editor 6.5). `into` is a path in
        a store, or a mapping with the fields of Contract exports 3: the rows go there instead of into the result, which
        is then a row that describes what was written; a script then runs only its first statement. `limit` is the
        maximum number of rows to store (by default the server's limit). After `timeout` seconds, the server stops the
        statement. `max_age` permits the server to answer a query with a stored result of the same query that is at most
        so many seconds old, without asking the data source (Contract editor 4.8); 0 forbids it, None leaves it to the
        connector. `Status.reused_from` is then the operation that returned the rows. With `read_only`, the statement
        fails if it would change anything (Contract editor 4.9). With `max_estimated_bytes`, it fails with the code
        `estimate_exceeded`, before it runs, if the data source expects it to read more bytes; ApiError with the code
        `not_supported` if the data source estimates no bytes (Contract editor 4.10). If the waiting task is canceled or
        a callback fails, the statement is canceled on the engine, and its result is deleted.

        Raises StatementError if the statement does not succeed, ApiError, and ConnectionLost. After ApiError or
        ConnectionLost, the statement may or may not have run. `submit` with the same arguments and the error's
        `idempotency_key` then returns this statement, and starts it only if it has not run.
        """
        # `parameter_rows` and `into` cannot be combined with `run_all`, because they apply to a single statement.
        run_all = run_all and parameter_rows is None and into is None
        sql = with_results(sql, results)
        guards = Guards(read_only, max_estimated_bytes)
        fields = _fields(
            sql, parameters, database, session_id, limit, timeout, max_age=max_age, guards=guards, run_all=run_all
        )
        wait_s = 0.0
        if parameter_rows is not None:
            rows = fields["parameter_rows"] = [encode_parameters(row) for row in parameter_rows]
            # A server that does not know `parameter_rows` must not run the statement without values.
            fields["parameters"] = {} if rows and isinstance(rows[0], dict) else []
        if into is not None:
            fields["into"] = destination(into)
        elif on_progress is None and on_log is None:
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
        read_only: bool = False,
        max_estimated_bytes: int | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool = False,
        results: NamedResults | None = None,
    ) -> list[Result]:
        """Run all statements of a script like `query`, and return the result of each statement in order.

        `limit` and `max_estimated_bytes` apply to each statement, `timeout` to the whole script. Raises the
        StatementError of the first statement that fails: `statement_id` is its position in the script, and the status
        of `statement(error.operation_id)` lists the previous statements with their results (`Status.statements`).
        """
        key = str(uuid.uuid4())
        sql, guards = with_results(sql, results), Guards(read_only, max_estimated_bytes)
        fields = _fields(sql, parameters, database, session_id, limit, timeout, guards=guards, run_all=True)
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
        max_age: int | None = None,
        read_only: bool = False,
        max_estimated_bytes: int | None = None,
        allow_truncated: bool = False,
        idempotency_key: str | None = None,
        run_all: bool = True,
        results: NamedResults | None = None,
        into: "str | Mapping[str, Any] | None" = None,
    ) -> Statement:
        """Start a statement or script without waiting for its end. The arguments are those of `query`.

        A program that may crash between submitting a statement and recording its id passes its own `idempotency_key`:
        submitting again with the same key returns the same statement (Contract editor 4.4).
        """
        sql, run_all = with_results(sql, results), run_all and into is None
        guards = Guards(read_only, max_estimated_bytes)
        fields = _fields(
            sql, parameters, database, session_id, limit, timeout, max_age=max_age, guards=guards, run_all=run_all
        )
        if into is not None:
            fields["into"] = destination(into)
        key = idempotency_key or str(uuid.uuid4())
        with _telling(key):
            return await self._execute(
                connector, fields, allow_truncated=allow_truncated, key=key, is_abandoned=not idempotency_key
            )

    async def copy(
        self,
        connector: str,
        sql: str,
        target: "str | Sequence[str]",
        parameters: Parameters | None = None,
        *,
        database: str | None = None,
        session_id: int | None = None,
        if_exists: CopyIfExists = "error",
        columns: "Sequence[str] | None" = None,
        limit: int | None = None,
        timeout: float | None = None,
        max_estimated_bytes: int | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        results: NamedResults | None = None,
    ) -> Export:
        """Run a statement and write its rows to a table of any connector, or to a file of a store, all or none.

        The rows go straight to the target, without the server's limit of stored results. `target` is `connector.table`
        or `connector.database.table`, a sequence of these names if one contains a dot, or a path in a store such as
        `s3a://bucket/sales.parquet`, whose ending determines the format. `if_exists` is `error`, `append` (tables) or
        `replace`. `columns` are the names of the table's columns, in the order of the result; by default its names. All
        other arguments are those of `query`, as are the exceptions. Canceling the waiting task cancels the copy.
        """
        result = await self.query(
            connector,
            sql,
            parameters,
            database=database,
            session_id=session_id,
            limit=limit,
            timeout=timeout,
            max_estimated_bytes=max_estimated_bytes,
            on_progress=on_progress,
            on_log=on_log,
            results=results,
            into=copy_target(target, if_exists, columns),
        )
        return Export.of((await result.dicts())[0], result.operation_id)

    async def next(self, statement: SubmittedStatement) -> Statement:
        """Start the next statement of a script that was started with `run_all=False`. `statement` must have ended.

        Contract editor 5.4.
        """
        return await self._execute("", {"operationId": statement.operation_id})

    def statement(self, operation_id: str, *, allow_truncated: bool = False) -> Statement:
        """Return a statement that this or another program submitted earlier. Sends no request."""
        return Statement(self.transport, operation_id, allow_truncated=allow_truncated)

    def shared_with_me(self, limit: int | None = None) -> AsyncIterator[SharedResult]:
        """Yield the results that other users share with this user, newest first."""
        return received_results(self.transport, limit)

    async def open_shared(self, link: str, *, allow_truncated: bool = False) -> Statement:
        """Return the statement of a shared result, given its link or id. Raises NotFound if it is not shared (anymore).

        The statement can be waited for and its result read or exported. Its progress and log are not shown, so
        `on_progress`, `on_log` and `events` raise NotFound, and it cannot be canceled or closed.
        """
        statement = self.statement(id_in(link), allow_truncated=allow_truncated)
        await self.transport.call("GET", f"editor/results/{segment(statement.operation_id)}")
        return statement

    @property
    def files(self) -> Files:
        """Files in the server's stores."""
        return Files(self.transport)

    @property
    def imports(self) -> Imports:
        """Imports of files into tables."""
        return Imports(self.transport, partial(started, self.transport))

    @property
    def connectors(self) -> Connectors:
        """Connectors to which statements can be sent."""
        return Connectors(self.transport)

    @property
    def documents(self) -> Documents:
        """Saved queries of this user, and those shared with this user."""
        return Documents(self.transport, self._execute)

    @property
    def schedules(self) -> Schedules:
        """Schedules of statements, saved queries and tasks (administrators)."""
        return Schedules(self.transport)

    @property
    def history(self) -> History:
        """The history of the user's statements."""
        return History(self.transport)

    @property
    def metadata(self) -> Metadata:
        """Databases, tables and columns of the connectors."""
        return Metadata(self.transport)

    @property
    def users(self) -> Users:
        """The users of the server, and the preferences of this user."""
        return Users(self.transport)

    async def close(self) -> None:
        """Close the HTTP connections, and revoke the tokens of a password login.

        Running statements continue, and results are kept.
        """
        await self.transport.close()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _execute(self, connector: str, fields: Mapping[str, Any], **more: Any) -> Statement:
        path = f"editor/execute/{segment(connector)}" if connector else "editor/execute"
        return await started(self.transport, path, fields, **more)


@contextmanager
def _telling(key: str) -> Generator[None, None, None]:
    """Set the idempotency key of errors after which it is unknown whether the statement ran."""
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
    """Create a connection to a server, to be used with `async with`. Nothing is sent before the first call.

    `url` defaults to the environment variable QUERYSERVER_URL. `token` is a string, or a sync or async function that
    returns a token and is called again if the server rejects the token. If `token`, `user` and `password` are all
    omitted, the credentials come from QUERYSERVER_TOKEN, or else from QUERYSERVER_USER and QUERYSERVER_PASSWORD.
    `timeout_s` applies to each response, `retries` to a call as a whole. `verify` is True, False or an ssl.SSLContext;
    `headers` are sent with every call. Raises ConfigurationError.
    """
    token, password, headers = hidden(token), hidden(password), hidden_values(headers)
    url = url or os.environ.get("QUERYSERVER_URL")
    if not url:
        raise ConfigurationError("no server address; pass url, or set QUERYSERVER_URL")
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
    max_age: int | None = None,
    guards: Guards,
    run_all: bool,
) -> dict[str, Any]:
    given = {
        "statement": sql,
        "parameters": None if parameters is None else encode_parameters(parameters),
        "database": database,
        "session_id": session_id,
        "limit": limit,
        "timeout": timeout,
        "max_age_s": max_age,
        "run_all": True if run_all else None,
        **guards.fields(),
    }
    return {name: value for name, value in given.items() if value is not None}
