"""An engine whose statements are small scripts, for tests of services. It passes the engine contract.

The words of a statement are separated by spaces; `then` separates an action from its result or failure:

    rows 823 [wide 100]       returns 823 integers starting at 0, or 823 strings of 100 characters
    rows 10 then fail <text>  returns 10 rows, then fails
    sleep 30 [then rows 5]    runs for 30 s, then finishes without a result set or returns rows
    sleep 30 then fail <text> runs for 30 s, then fails
    work [then rows 5]        runs until the engine's `finish` is set, then finishes or returns rows
    fail <text>               fails with that message
    deny <text>               fails with that message because of a missing permission
    ddl                       finishes without a result set
    change 3                  finishes with three modified rows
    text <anything>           returns a single value: the rest of the statement
    values 1 null             returns one column with these integers
    columns a a               returns one row (1, 2, …) with two or more columns of these names; `then rows 0`: no row
    set x 1 / get x           sets or returns a session variable; `get` is refused if the variable is not set
    from <path>               returns the content of a file as a single value, if the fake reads files (`READS_FILES`)
    copy <path> <text>        writes the text to a file, and finishes
    <blank>                   finishes without a result set

Parameter values are inserted as words of the statement. Only an engine with the capabilities `TAKES_WORDS` accepts
them.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from queryserver.engines.external_data import StatementFiles
from queryserver.engines.protocol import (
    NO_CONTEXT,
    EngineCapabilities,
    EngineSession,
    OperationHandle,
    OperationState,
    OperationStatus,
    SessionOptions,
    StatementContext,
)
from queryserver.errors.base import QueryServerError, recreate_error
from queryserver.errors.statements import (
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)
from queryserver.formats.arrow import Column, ResultType
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.parameters import ParameterSupport, ParameterType

TAKES_WORDS = EngineCapabilities(
    reports_progress=True, parameters=ParameterSupport({ParameterType.BIGINT, ParameterType.VARCHAR})
)
"""Capabilities of a fake engine whose statements take parameters."""
READS_FILES = EngineCapabilities(reads_files=True, writes_files=True)
"""Capabilities of a fake engine whose statements read and write files."""

BATCH_ROWS = 1000
BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Script:
    """The actions parsed from a statement."""

    sleep_s: float = 0
    works: bool = False
    names: tuple[str, ...] = ()
    rows: int | None = None
    width: int = 0
    text: str | None = None
    values: tuple[int | None, ...] | None = None
    modified_rows: int | None = None
    failure: str | None = None
    is_denied: bool = False
    assign: tuple[str, str] | None = None
    file: str | None = None
    content: str | None = None
    """The content to write to `file`. If it is None, `file` is read instead."""

    @property
    def has_result_set(self) -> bool:
        return self.rows is not None


@dataclass(eq=False)
class _Operation:
    script: Script
    handle: OperationHandle
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    work: "asyncio.Task[None] | None" = None
    state: OperationState = OperationState.RUNNING
    error: StatementRejected | None = None
    sent_rows: int = 0
    is_closed: bool = False


class FakeEngine:
    """An engine that executes the script in each statement.

    `executions`, `options`, `contexts`, `cancels` and `sessions_opened` record the calls that services make. A test
    makes the engine unavailable by clearing `reachable`, and completes `work` statements by setting `finish`. Sessions
    may request only the names in `databases`.
    """

    def __init__(self, *, capabilities: EngineCapabilities | None = None, dialect: str = "fake") -> None:
        self._capabilities = capabilities or EngineCapabilities(reports_progress=True)
        self._dialect = dialect
        self._sessions: set[FakeSession] = set()
        self._closed = False
        self.reachable = True
        self.finish = asyncio.Event()
        self.databases = frozenset({"main"})
        self.executions: list[str] = []
        self.cancels = 0
        self.sessions_opened = 0
        self.options: list[SessionOptions] = []
        self.contexts: list[StatementContext] = []

    @property
    def dialect(self) -> str:
        return self._dialect

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def running(self) -> int:
        """The number of running statements."""
        return sum(session.is_running for session in self._sessions)

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        await self.ping()
        if options.database and options.database not in self.databases:
            raise StatementRejected(f"unknown database {options.database}")
        for name in options.settings:
            raise StatementRejected(f"unknown setting {name}")
        self.sessions_opened += 1
        self.options.append(options)
        session = self._new_session(options)
        self._sessions.add(session)
        try:
            yield session
        finally:
            await session.end()
            self._sessions.discard(session)

    def _new_session(self, options: SessionOptions) -> "FakeSession":
        return FakeSession(self, options.files)

    async def ping(self) -> None:
        if self._closed or not self.reachable:
            raise EngineUnavailable("The fake engine is out of reach.")

    async def close(self) -> None:
        self._closed = True
        for session in list(self._sessions):
            await session.end()


class FakeSession:
    """A session of the fake engine. If a test sets `is_lost`, the session accepts no more statements."""

    def __init__(self, engine: FakeEngine, files: StatementFiles | None = None) -> None:
        self._engine = engine
        self._files = files
        self._operation: _Operation | None = None
        self._variables: dict[str, str] = {}
        self.is_lost = False

    @property
    def is_running(self) -> bool:
        operation = self._operation
        return operation is not None and operation.work is not None and not operation.work.done()

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        statement = sql_text(statement, lambda _, one: str(one.value))
        self._engine.contexts.append(context)
        if self._operation is not None:
            await self.close(self._operation.handle)
        if self.is_lost:
            raise SessionLost("Invalid session Id: the session no longer exists.")
        script = parse(statement, self._variables)
        self._engine.executions.append(statement)
        handle = OperationHandle(f"fake-{len(self._engine.executions)}")
        self._operation = operation = _Operation(script, handle)
        operation.work = asyncio.create_task(self._work(operation))
        return handle

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        operation = self._known(handle)
        if wait_s > 0 and operation.work is not None:
            await asyncio.wait({operation.work}, timeout=wait_s)
        if operation.state is OperationState.RUNNING:
            return OperationStatus(OperationState.RUNNING, progress=50 if self._reports_progress else None)
        return OperationStatus(
            operation.state,
            has_result_set=operation.state is OperationState.FINISHED and operation.script.has_result_set,
            modified_rows=operation.script.modified_rows,
            error=operation.error if operation.state is OperationState.FAILED else None,
        )

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        script = self._known(handle).script
        is_text = script.text is not None or script.width > 0
        kind, native = (ResultType.STRING, "text") if is_text else (ResultType.BIGINT, "integer")
        return tuple(Column(name, kind, native) for name in script.names)

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        operation = self._known(handle)
        rows = operation.script.rows or 0
        while operation.sent_rows < rows:
            await asyncio.sleep(0)
            self._check_reading(operation)
            batch = _batch(operation.script, operation.sent_rows)
            operation.sent_rows += batch.num_rows
            yield batch
        if operation.script.failure is not None:
            operation.state, operation.error = OperationState.FAILED, StatementRejected(operation.script.failure)
            raise operation.error

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        return [f"statement {self._known(handle).handle.token}"][start:]

    async def cancel(self, handle: OperationHandle) -> None:
        operation = self._operation
        if operation is None or operation.handle != handle or operation.is_closed:
            return
        if operation.state is OperationState.RUNNING or operation.sent_rows < (operation.script.rows or 0):
            self._engine.cancels += not operation.stop.is_set()
            operation.stop.set()

    async def close(self, handle: OperationHandle) -> None:
        operation = self._operation
        if operation is None or operation.handle != handle or operation.is_closed:
            return
        operation.is_closed = True
        operation.stop.set()
        if operation.work is not None:
            await operation.work

    async def is_alive(self) -> bool:
        return not self.is_lost

    async def end(self) -> None:
        if self._operation is not None:
            await self.close(self._operation.handle)
        self.is_lost = True

    @property
    def _reports_progress(self) -> bool:
        return self._engine.capabilities.reports_progress

    def _known(self, handle: OperationHandle) -> _Operation:
        if self._operation is None or self._operation.handle != handle:
            raise OutcomeUnknown("Results have expired: the statement no longer exists on the engine.")
        return self._operation

    def _check_reading(self, operation: _Operation) -> None:
        if operation.stop.is_set():
            raise StatementRejected("The statement was stopped.")

    async def _work(self, operation: _Operation) -> None:
        script = operation.script
        if script.works or script.sleep_s:
            until = self._engine.finish.wait() if script.works else asyncio.sleep(script.sleep_s)
            await _first(operation.stop.wait(), until)
        if (script.works or script.sleep_s) and operation.stop.is_set():
            operation.state = OperationState.CANCELED
        elif script.failure is not None and not script.has_result_set:
            refusal = StatementDenied if script.is_denied else StatementRejected
            operation.state, operation.error = OperationState.FAILED, refusal(script.failure)
        elif script.file is not None:
            await self._work_on_file(operation, script.file)
        else:
            operation.state = OperationState.FINISHED
            if script.assign is not None:
                self._variables[script.assign[0]] = script.assign[1]

    async def _work_on_file(self, operation: _Operation, path: str) -> None:
        script, files = operation.script, self._files
        try:
            if files is None:
                raise StatementRejected("The fake engine has got no files.")
            if script.content is None:
                found = await files.require_readable(path)
                content = await files.read(path, offset=0, length=found.size, version=found.version)
                operation.script = replace(script, text=content.decode())
            else:
                async with files.write(path, overwrite=True) as sink:
                    await sink.send(script.content.encode())
        except QueryServerError as error:
            operation.state, operation.error = (
                OperationState.FAILED,
                recreate_error(StatementRejected, error.code, error.message),
            )
        else:
            operation.state = OperationState.FINISHED


_GRAMMAR: tuple[tuple[str, Callable[[re.Match[str]], Script]], ...] = (
    (r"(?:\s*|ddl)", lambda _: Script()),
    (r"SELECT 'Hello World!'", lambda _: Script(names=("hello",), rows=1, text="Hello World!")),
    (r"text (.*)", lambda found: Script(names=("text",), rows=1, text=found[1])),
    (r"fail (.*)", lambda found: Script(failure=found[1])),
    (r"deny (.*)", lambda found: Script(failure=found[1], is_denied=True)),
    (r"change (\d+)", lambda found: Script(modified_rows=int(found[1]))),
    (r"sleep ([\d.]+)", lambda found: Script(sleep_s=float(found[1]))),
    (r"sleep ([\d.]+) then rows (\d+)", lambda found: Script(float(found[1]), names=("n",), rows=int(found[2]))),
    (r"sleep ([\d.]+) then fail (.*)", lambda found: Script(sleep_s=float(found[1]), failure=found[2])),
    (r"work", lambda _: Script(works=True)),
    (r"work then rows (\d+)", lambda found: Script(works=True, names=("n",), rows=int(found[1]))),
    (r"rows (\d+)", lambda found: Script(names=("n",), rows=int(found[1]))),
    (r"rows (\d+) wide (\d+)", lambda found: Script(names=("n",), rows=int(found[1]), width=int(found[2]))),
    (r"rows (\d+) then fail (.*)", lambda found: Script(names=("n",), rows=int(found[1]), failure=found[2])),
    (r"values (.*)", lambda found: _values(found[1].split())),
    (r"columns (.*) then rows 0", lambda found: Script(names=tuple(found[1].split()), rows=0)),
    (r"columns (.*)", lambda found: Script(names=tuple(found[1].split()), rows=1)),
    (r"from (\S+)", lambda found: Script(names=("content",), rows=1, file=found[1])),
    (r"copy (\S+) (.*)", lambda found: Script(file=found[1], content=found[2])),
    (r"set (\w+) (\w+)", lambda found: Script(assign=(found[1], found[2]))),
)


def parse(statement: str, variables: Mapping[str, str]) -> Script:
    """Parse a statement into its script. Raises StatementRejected if the statement matches no known form."""
    for pattern, script in _GRAMMAR:
        if found := re.fullmatch(pattern, statement, re.DOTALL):
            return script(found)
    match = re.fullmatch(r"get (\w+)", statement)
    if match and match[1] in variables:
        return Script(names=(match[1],), rows=1, text=variables[match[1]])
    raise StatementRejected(f"the fake engine does not know: {statement[:200]}")


def _values(words: Sequence[str]) -> Script:
    values = tuple(None if word == "null" else int(word) for word in words)
    return Script(names=("n",), rows=len(values), values=values)


async def _first(*awaited: Coroutine[object, object, object]) -> None:
    waits = [asyncio.create_task(one) for one in awaited]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _batch(script: Script, start: int) -> pa.RecordBatch:
    count = min(BATCH_ROWS, (script.rows or 0) - start, max(BATCH_BYTES // max(script.width, 1), 1))
    if script.text is not None:
        arrays = [pa.array([script.text])]
    elif script.values is not None:
        arrays = [pa.array(script.values[start : start + count], pa.int64())]
    elif script.width:
        arrays = [pa.array([str(number).rjust(script.width) for number in range(start, start + count)])]
    elif len(script.names) > 1:
        arrays = [pa.array([place], pa.int64()) for place, _ in enumerate(script.names, start=1)]
    else:
        arrays = [pa.array(range(start, start + count), pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=list(script.names))
