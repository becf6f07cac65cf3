"""The synchronous API: the same methods without `await`. The async core runs in a separate thread.

Each object here wraps an async object, and each method runs the coroutine of the async object in the event loop of the
connection's thread. Ctrl-C during a call first cancels the coroutine, which cancels the statement on the server, and
then raises KeyboardInterrupt.
"""

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from queryserver_client import connection as core
from queryserver_client.credentials import Secret, TokenSource, hidden, hidden_values
from queryserver_client.encoding import ParameterRows, Parameters
from queryserver_client.event_loop import Loop
from queryserver_client.exports import Compression, CopyIfExists, Export, ExportFormat, IfExists
from queryserver_client.named_results import NamedResults
from queryserver_client.result import PAGE_ROWS
from queryserver_client.result import Result as AsyncResult
from queryserver_client.retries import Retries
from queryserver_client.shares import SharedResult, Shares
from queryserver_client.statement import Statement as AsyncStatement
from queryserver_client.status import Event, Logs, Status
from queryserver_client.submitted import OnLog, OnProgress
from queryserver_client.sync_parts import Connectors, Files, History, Imports, Metadata, Schedules, Users
from queryserver_client.sync_parts import Documents as DocumentCalls
from queryserver_client.values import Column, Row

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from typing_extensions import Self

    from queryserver_client.generated import Handle, ResultPage


class Result:
    """Like the async Result, without `await`."""

    def __init__(self, loop: Loop, result: AsyncResult) -> None:
        self._loop = loop
        self.core = result
        """The wrapped async object."""

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def operation_id(self) -> str:
        return self.core.operation_id

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.core.columns

    @property
    def status(self) -> Status:
        return self.core.status

    @property
    def row_count(self) -> int:
        return self.core.row_count

    @property
    def modified_row_count(self) -> int | None:
        return self.core.modified_row_count

    @property
    def has_rows(self) -> bool:
        return self.core.has_rows

    @property
    def is_truncated(self) -> bool:
        return self.core.is_truncated

    def rows(self) -> list[Row]:
        return self._loop.run(self.core.rows)

    def dicts(self) -> list[dict[str, Any]]:
        return self._loop.run(self.core.dicts)

    def scalar(self) -> Any:
        return self._loop.run(self.core.scalar)

    def __iter__(self) -> Iterator[Row]:
        for page in self.pages():
            yield from page

    def pages(self, rows: int = PAGE_ROWS) -> Iterator[list[Row]]:
        return self._loop.iterate(partial(self.core.pages, rows))

    def batches(self) -> "Iterator[pa.RecordBatch]":
        return self._loop.iterate(self.core.batches)

    def arrow(self) -> "pa.Table":
        return self._loop.run(self.core.arrow)

    def pandas(self, **options: Any) -> "pd.DataFrame":
        return self._loop.run(partial(self.core.pandas, **options))

    def polars(self) -> "pl.DataFrame":
        return self._loop.run(self.core.polars)

    def download(
        self,
        path: "str | os.PathLike[str]",
        format: str | None = None,  # noqa: A002
        *,
        guard: bool = False,
        on_bytes: Callable[[int, int | None], None] | None = None,
    ) -> Path:
        return self._loop.run(partial(self.core.download, path, format, guard=guard, on_bytes=on_bytes))

    def close(self) -> None:
        self._loop.run(self.core.close)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self.core.statement.close_quietly)


class Statement:
    """Like the async Statement, without `await`."""

    def __init__(self, loop: Loop, statement: AsyncStatement) -> None:
        self._loop = loop
        self.core = statement
        """The wrapped async object."""

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def operation_id(self) -> str:
        return self.core.operation_id

    @property
    def handle(self) -> "Handle | None":
        return self.core.handle

    @property
    def has_more_statements(self) -> bool:
        return self.core.has_more_statements

    def status(self, *, wait_s: float = 0) -> Status:
        return self._loop.run(partial(self.core.status, wait_s=wait_s))

    def wait(self, timeout_s: float | None = None) -> Status:
        return self._loop.run(partial(self.core.wait, timeout_s))

    def result(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool | None = None,
    ) -> Result:
        call = partial(
            self.core.result, timeout_s, on_progress=on_progress, on_log=on_log, allow_truncated=allow_truncated
        )
        return Result(self._loop, self._loop.run(call))

    def copy(
        self,
        target: "str | Sequence[str]",
        *,
        if_exists: CopyIfExists = "error",
        columns: "Sequence[str] | None" = None,
        allow_truncated: bool | None = None,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> Export:
        call = partial(
            self.core.copy,
            target,
            if_exists=if_exists,
            columns=columns,
            allow_truncated=allow_truncated,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_log=on_log,
        )
        return self._loop.run(call)

    def export(
        self,
        path: str,
        *,
        format: ExportFormat | None = None,  # noqa: A002
        compression: Compression | None = None,
        guard: bool = False,
        header: bool = True,
        split_rows: int | None = None,
        split_bytes: int | None = None,
        if_exists: IfExists = "error",
        allow_truncated: bool | None = None,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> Export:
        call = partial(
            self.core.export,
            path,
            format=format,
            compression=compression,
            guard=guard,
            header=header,
            split_rows=split_rows,
            split_bytes=split_bytes,
            if_exists=if_exists,
            allow_truncated=allow_truncated,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_log=on_log,
        )
        return self._loop.run(call)

    def submit_export(
        self,
        path: str,
        *,
        format: ExportFormat | None = None,  # noqa: A002
        compression: Compression | None = None,
        guard: bool = False,
        header: bool = True,
        split_rows: int | None = None,
        split_bytes: int | None = None,
        if_exists: IfExists = "error",
        allow_truncated: bool | None = None,
    ) -> "Statement":
        call = partial(
            self.core.submit_export,
            path,
            format=format,
            compression=compression,
            guard=guard,
            header=header,
            split_rows=split_rows,
            split_bytes=split_bytes,
            if_exists=if_exists,
            allow_truncated=allow_truncated,
        )
        return Statement(self._loop, self._loop.run(call))

    def events(self, log_from: int = 0) -> Iterator[Event]:
        return self._loop.iterate(partial(self.core.events, log_from))

    def logs(self, since: int = 0) -> Logs:
        return self._loop.run(partial(self.core.logs, since))

    def fetch(self, start_row: int, rows: int) -> "ResultPage":
        return self._loop.run(partial(self.core.fetch, start_row, rows))

    def share(
        self,
        *,
        users: Sequence[str] = (),
        groups: Sequence[str] = (),
        until: "dt.datetime | None" = None,
        title: str = "",
    ) -> Shares:
        return self._loop.run(partial(self.core.share, users=users, groups=groups, until=until, title=title))

    def unshare(self, *, users: Sequence[str] = (), groups: Sequence[str] = ()) -> Shares:
        return self._loop.run(partial(self.core.unshare, users=users, groups=groups))

    def shares(self) -> Shares:
        return self._loop.run(self.core.shares)

    def cancel(self) -> Status:
        return self._loop.run(self.core.cancel)

    def close(self) -> None:
        self._loop.run(self.core.close)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self.core.close_quietly)


class Documents(DocumentCalls):
    """Like the async Documents, without `await`."""

    def submit(self, uuid: str, parameters: Parameters | None = None, **options: Any) -> Statement:
        """Run a document without waiting for its end. The options are those of the async `submit`."""
        return Statement(self.loop, self.loop.run(partial(self.core.submit, uuid, parameters, **options)))

    def run(self, uuid: str, parameters: Parameters | None = None, **options: Any) -> Result:
        """Run a document and return its result. The options are those of the async `run`."""
        return Result(self.loop, self.loop.run(partial(self.core.run, uuid, parameters, **options)))


class Connection:
    """Like the async Connection, without `await`. Created by `connect_sync`. Threads can share it."""

    def __init__(self, make: Callable[[], core.Connection]) -> None:
        self.loop = Loop()
        """Runs coroutines of the async core: `db.loop.run(lambda: db.core.transport.call("GET", "…"))`."""

        async def made() -> core.Connection:
            return make()

        try:
            self.core = self.loop.run(made)
            """The wrapped async object."""
        except BaseException:
            self.loop.close()
            raise

    def __repr__(self) -> str:
        return repr(getattr(self, "core", None))  # `core` is missing in the traceback for an invalid address

    def query(
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
        """Run a statement like the async `query`. The callbacks run in the connection's thread."""
        call = partial(
            self.core.query,
            connector,
            sql,
            parameters,
            database=database,
            session_id=session_id,
            limit=limit,
            timeout=timeout,
            max_age=max_age,
            read_only=read_only,
            max_estimated_bytes=max_estimated_bytes,
            on_progress=on_progress,
            on_log=on_log,
            allow_truncated=allow_truncated,
            run_all=run_all,
            parameter_rows=parameter_rows,
            results=results,
            into=into,
        )
        return Result(self.loop, self.loop.run(call))

    def script(
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
        """Run a script like the async `script`. The callbacks run in the connection's thread."""
        call = partial(
            self.core.script,
            connector,
            sql,
            parameters,
            database=database,
            session_id=session_id,
            limit=limit,
            timeout=timeout,
            read_only=read_only,
            max_estimated_bytes=max_estimated_bytes,
            on_progress=on_progress,
            on_log=on_log,
            allow_truncated=allow_truncated,
            results=results,
        )
        return [Result(self.loop, result) for result in self.loop.run(call)]

    def submit(
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
        call = partial(
            self.core.submit,
            connector,
            sql,
            parameters,
            database=database,
            session_id=session_id,
            limit=limit,
            timeout=timeout,
            max_age=max_age,
            read_only=read_only,
            max_estimated_bytes=max_estimated_bytes,
            allow_truncated=allow_truncated,
            idempotency_key=idempotency_key,
            run_all=run_all,
            results=results,
            into=into,
        )
        return Statement(self.loop, self.loop.run(call))

    def copy(
        self,
        connector: str,
        sql: str,
        target: str | Sequence[str],
        parameters: Parameters | None = None,
        *,
        database: str | None = None,
        session_id: int | None = None,
        if_exists: CopyIfExists = "error",
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        max_estimated_bytes: int | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        results: NamedResults | None = None,
    ) -> Export:
        """Copy the rows of a statement like the async `copy`. The callbacks run in the connection's thread."""
        call = partial(
            self.core.copy,
            connector,
            sql,
            target,
            parameters,
            database=database,
            session_id=session_id,
            if_exists=if_exists,
            columns=columns,
            limit=limit,
            timeout=timeout,
            max_estimated_bytes=max_estimated_bytes,
            on_progress=on_progress,
            on_log=on_log,
            results=results,
        )
        return self.loop.run(call)

    def next(self, statement: Statement) -> Statement:
        return Statement(self.loop, self.loop.run(partial(self.core.next, statement.core)))

    def statement(self, operation_id: str, *, allow_truncated: bool = False) -> Statement:
        return Statement(self.loop, self.core.statement(operation_id, allow_truncated=allow_truncated))

    def shared_with_me(self, limit: int | None = None) -> Iterator[SharedResult]:
        return self.loop.iterate(partial(self.core.shared_with_me, limit))

    def open_shared(self, link: str, *, allow_truncated: bool = False) -> Statement:
        return Statement(
            self.loop, self.loop.run(partial(self.core.open_shared, link, allow_truncated=allow_truncated))
        )

    @property
    def files(self) -> Files:
        return Files(self.loop, self.core.files)

    @property
    def documents(self) -> Documents:
        return Documents(self.loop, self.core.documents)

    @property
    def imports(self) -> Imports:
        return Imports(self.loop, self.core.imports)

    @property
    def connectors(self) -> Connectors:
        return Connectors(self.loop, self.core.connectors)

    @property
    def schedules(self) -> Schedules:
        return Schedules(self.loop, self.core.schedules)

    @property
    def history(self) -> History:
        return History(self.loop, self.core.history)

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.loop, self.core.metadata)

    @property
    def users(self) -> Users:
        return Users(self.loop, self.core.users)

    def close(self) -> None:
        """Close the HTTP connections and end the thread. Does nothing in a forked child, which has neither."""
        if not self.loop.is_ours:
            return
        try:
            self.loop.run(self.core.close)
        finally:
            self.loop.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect_sync(
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
    """Create a synchronous connection, to be used with `with`. The arguments are those of `connect`."""
    token, password, headers = hidden(token), hidden(password), hidden_values(headers)
    return Connection(
        partial(
            core.connect,
            url,
            token=token,
            user=user,
            password=password,
            timeout_s=timeout_s,
            retries=retries,
            verify=verify,
            headers=headers,
            http_transport=http_transport,
        )
    )
