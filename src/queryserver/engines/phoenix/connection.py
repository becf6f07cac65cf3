"""One Avatica connection: it lives in one Query Server, has one statement at a time, and gives signs of life."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown, SessionLost
from queryserver.engines.phoenix import messages
from queryserver.engines.phoenix.address import Login, Patience, PhoenixAddress
from queryserver.engines.phoenix.errors import Phase, avatica_errors
from queryserver.engines.phoenix.http import HttpClient, Route
from queryserver.engines.phoenix.protobuf import Message

_METADATA_ROWS = 1000

Answered = TypeVar("Answered")


class Connection:
    """Made by `connect`. A request that may take as long as the statement has no time limit of its own: instead a
    second request asks now and then whether the server is still there and still knows the connection.
    """

    def __init__(self, http: HttpClient, route: Route, patience: Patience, properties: Mapping[str, str]) -> None:
        self.id = str(uuid4())
        self.schema = ""
        """The one that was chosen when it was opened."""
        self._http = http
        self._route = route
        self._patience = patience
        self._properties = properties
        self._read_only = False
        self._schema = ""
        self._is_stopped = False
        self._lost: EngineError | None = None
        self._lost_now = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """The server is out of reach, or no longer knows the connection."""
        return self._lost is not None

    async def open(self) -> None:
        """Raises EngineUnavailable, CredentialsRequired, StatementRejected."""
        await self._introduce()
        self._beat = asyncio.create_task(self._give_signs(), name="signs of life")

    async def forbid_changes(self) -> None:
        """From now on the server refuses whatever changes something, `USE` included. Raises EngineUnavailable."""
        await self._call(Phase.OPENING, "ConnectionSync", messages.synchronize(self.id, read_only=True))
        self._read_only = True

    async def new_statement(self) -> int:
        """The number of a new statement. Raises SessionLost when the connection is gone."""
        if self._is_stopped:
            await self._open_again()
        body = messages.of_connection(self.id)
        answer = await self._call(Phase.BEFORE, "CreateStatement", body)
        return messages.statement_id(answer)

    async def stop(self) -> bool:
        """End whatever the server does for the connection; the next statement finds it open again, in its schema.

        A statement that is closed alone goes on to its end when the server had not begun with it. What `ALTER SESSION`
        has set is gone. False when the server did not confirm: then the connection is lost.
        """
        self._is_stopped, limit_s = True, self._patience.stop_s
        try:
            answer = await self._call(Phase.BEFORE, "ConnectionSync", messages.synchronize(self.id), within_s=limit_s)
            self._schema = messages.schema_of(answer)
            await self._call(Phase.BEFORE, "CloseConnection", messages.of_connection(self.id), within_s=limit_s)
        except EngineError as error:
            self._lose(error)
            return False
        return True

    async def execute(self, statement: int, sql: str, *, rows: int) -> messages.Executed:
        """Run a statement up to its first rows or its end. Raises StatementRejected, OutcomeUnknown, EngineTimeout."""
        body = messages.prepare_and_execute(self.id, statement, sql, rows=rows)
        answer = await self._watched(self._call(Phase.SENT, "PrepareAndExecute", body, within_s=None))
        with avatica_errors(Phase.SENT):
            return messages.executed(answer)

    async def prepare(self, sql: str) -> int:
        """The number of a new statement with parameters. Raises SessionLost, StatementRejected."""
        if self._is_stopped:
            await self._open_again()
        answer = await self._call(Phase.BEFORE, "Prepare", messages.prepare(self.id, sql))
        return messages.prepared(answer)

    async def execute_batch(self, statement: int, rows: Sequence[bytes]) -> None:
        """Run a prepared statement once for each row of parameters. Raises StatementRejected, OutcomeUnknown."""
        body = messages.execute_batch(self.id, statement, rows)
        answer = await self._watched(self._call(Phase.SENT, "ExecuteBatch", body, within_s=None))
        with avatica_errors(Phase.SENT):
            messages.check_batch(answer)

    async def fetch(self, statement: int, *, offset: int, rows: int) -> messages.Frame:
        """The rows from number `offset` on, at most `rows`. Raises as `execute`."""
        body = messages.fetch(self.id, statement, offset=offset, rows=rows)
        answer = await self._watched(self._call(Phase.SENT, "Fetch", body, within_s=None))
        with avatica_errors(Phase.SENT):
            return messages.fetched(answer)

    async def columns_of(self, schema: str, table: str) -> AsyncIterator[bytes]:
        """Rows of java.sql.DatabaseMetaData.getColumns for all tables whose names are like those.

        Raises EngineUnavailable, StatementRejected.
        """
        body = messages.columns(self.id, schema, table)
        answer = await self._call(Phase.OPENING, "Columns", body)
        with avatica_errors(Phase.OPENING):
            found = messages.result_set(answer)
        frame, offset = found.frame, 0
        while True:
            for row in frame.rows:
                yield row
            offset += len(frame.rows)
            if frame.done or not frame.rows:
                break
            frame = await self.fetch(found.statement, offset=offset, rows=_METADATA_ROWS)
        await self.close_statement(found.statement)

    async def close_statement(self, statement: int) -> bool:
        """Free a statement; one that runs is stopped. False when the server did not confirm. Limited in time."""
        body = messages.of_statement(self.id, statement)
        try:
            await self._call(Phase.SENT, "CloseStatement", body, within_s=self._patience.stop_s)
        except EngineError:
            return False
        return True

    async def close(self) -> None:
        """Idempotent, limited in time."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait({self._beat})
        if self._lost is None:
            self._lose(SessionLost("The Phoenix session is closed."))
            # After a stop too: the connection may have been on its way to be opened again.
            with suppress(EngineError):
                body = messages.of_connection(self.id)
                await self._call(Phase.BEFORE, "CloseConnection", body, within_s=self._patience.stop_s)

    async def _introduce(self) -> None:
        await self._call(Phase.OPENING, "OpenConnection", messages.open_connection(self.id, self._properties))
        body = messages.synchronize(self.id, auto_commit=True, read_only=self._read_only or None, schema=self._schema)
        await self._call(Phase.OPENING, "ConnectionSync", body)

    async def _open_again(self) -> None:
        self.id = str(uuid4())
        try:
            await self._introduce()
        except EngineError as error:
            await self.close()
            raise SessionLost("The session could not be opened again; the statement was not started.") from error
        self._is_stopped = False

    async def _call(self, phase: Phase, name: str, body: bytes, *, within_s: float | None = 0) -> Message:
        """One exchange; 0 means the usual limit."""
        limit_s = self._patience.answer_s if within_s == 0 else within_s
        request = messages.request(name, body)
        try:
            with avatica_errors(phase):
                return messages.response(name, await self._http.post(self._route, request, within_s=limit_s))
        except (SessionLost, OutcomeUnknown) as error:
            # Whoever is answered after a stop is told so; that is no loss.
            if not self._is_stopped and not isinstance(error.__cause__, messages.Missing):
                self._lose(error)
            raise

    async def _watched(self, exchange: Coroutine[Any, Any, Answered]) -> Answered:
        """What the exchange gives; the loss of the connection when that is found out first."""
        request = asyncio.create_task(exchange, name="exchange")
        loss = asyncio.create_task(self._lost_now.wait(), name="loss")
        try:
            await asyncio.wait({request, loss}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            raise OutcomeUnknown(_after_sending(self._lost)) from self._lost
        finally:
            for task in (request, loss):
                task.cancel()
            await asyncio.wait({request, loss})
            if not request.cancelled():
                request.exception()

    async def _give_signs(self) -> None:
        """Keep the connection known, and find out when it no longer is."""
        silent_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self._lost is None:
            await asyncio.sleep(self._patience.beat_s)
            if self._is_stopped:
                continue
            asked, body = clock(), messages.request("ConnectionSync", messages.synchronize(self.id))
            try:
                with avatica_errors(Phase.BEFORE):
                    answer = await self._http.post(self._route, body, within_s=self._patience.answer_s)
                    messages.response("ConnectionSync", answer)
                silent_since = None
            except EngineError as error:
                if self._is_stopped:
                    continue
                if isinstance(error.__cause__, messages.ServerError):
                    self._lose(error)
                    return
                silent_since = silent_since or asked
                if clock() - silent_since >= self._patience.silence_s:
                    self._lose(SessionLost("The Query Server gives no sign of life."))

    def _lose(self, error: EngineError) -> None:
        if self._lost is None:
            self._lost = error
            self._lost_now.set()


async def connect(
    http: HttpClient, address: PhoenixAddress, login: Login | None, properties: Mapping[str, str]
) -> Connection:
    """A new connection, at the first of the server's addresses that answers.

    Raises EngineUnavailable, CredentialsRequired, StatementRejected.
    """
    *others, last = await http.addresses()
    for ip in others:
        connection = Connection(http, Route(ip, login), address.patience, properties)
        with suppress(EngineError):
            await _open(connection)
            return connection
    connection = Connection(http, Route(last, login), address.patience, properties)
    await _open(connection)
    return connection


async def _open(connection: Connection) -> None:
    try:
        await connection.open()
    except BaseException:  # a cancel too: the connection must not stay open
        await connection.close()
        raise


def _after_sending(error: EngineError | None) -> str:
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, messages.ServerError):
        return "Results have expired: the Query Server no longer knows this session."
    return "The Query Server gives no sign of life. The statement may or may not have taken effect."
