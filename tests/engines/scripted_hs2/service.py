"""The calls of ImpalaHiveServer2Service, with Impala's responses (impala-hs2-server.cc defines the behavior)."""

import asyncio
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.engines.scripted_hs2.codec import Call, Value
from tests.engines.scripted_hs2.objects import QUERY_OPTIONS
from tests.engines.scripted_hs2.operations import ERROR, RUNNING, Operation
from tests.engines.scripted_hs2.results import row_set, schema
from tests.engines.scripted_hs2.statements import Context, plan
from tests.engines.scripted_hs2.warehouse import StatementRefusal, Warehouse
from tests.engines.scripted_hs2.wire import Peer

Fields = Mapping[str, Value]

_FINE: Fields = {"statusCode": 0}
_PROTOCOL_V6 = 5
_EXECUTE = 0
_FETCH_NEXT, _FETCH_FIRST = 0, 4
_BATCH_ROWS = 20_000


@dataclass(eq=False)
class Session:
    """An open session."""

    context: Context
    user: str
    guid: bytes = field(default_factory=lambda: os.urandom(16))
    secret: bytes = field(default_factory=lambda: os.urandom(16))


def printed(guid: bytes) -> str:
    """Format an id as Impala prints it: two halves as hexadecimal numbers."""
    high, low = struct.unpack("<QQ", guid)
    return f"{high:016x}:{low:016x}"


def failed(words: str, state: str = "HY000") -> Fields:
    return {"statusCode": 3, "errorMessage": words, "sqlState": state}


class Service:
    """The sessions and operations of one server."""

    def __init__(self) -> None:
        self.warehouse = Warehouse()
        self.sessions: dict[bytes, Session] = {}
        self.operations: dict[bytes, Operation] = {}
        self.seen: list[str] = []
        self.lacks: frozenset[str] = frozenset()
        """Names of calls that this server does not support."""
        self.keeps_sessions = False
        """Whether sessions outlive connections, as in Hive with `hive.server2.close.session.on.disconnect=false`."""
        self.protocol = _PROTOCOL_V6
        self.batch_rows = _BATCH_ROWS

    async def answer(self, peer: Peer, call: Call) -> Fields | None:
        """Return the reply, or None for a call that the interface lacks."""
        rule = getattr(self, f"_{call.name}", None)
        if rule is None or call.name in self.lacks:
            return None
        self.seen.append(call.name)
        try:
            return await rule(peer, call.request)
        except StatementRefusal as error:
            return {"status": failed(str(error))}

    async def leave(self, peer: Peer) -> None:
        """Close the sessions of a binary connection when it ends, unless `keeps_sessions` is set."""
        if self.keeps_sessions:
            return
        for guid in list(peer.sessions):
            await self._end_session(guid)

    async def _OpenSession(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802 the interface's names
        session = Session(Context(self.warehouse), peer.user or request.get("username", ""))
        for name, value in request.get("configuration", {}).items():
            if name.lower() == "use:database":
                session.context.database = value  # validated only when the first statement runs
            elif name.lower() == "impala.doas.user":
                session.user = value
            elif name.upper() in QUERY_OPTIONS:
                session.context.options[name.upper()] = value  # unknown options are only logged
        self.sessions[session.guid] = session
        peer.sessions.add(session.guid)
        configuration = {**QUERY_OPTIONS, **session.context.options, "http_addr": "scripted:25000"}
        handle = {"sessionId": {"guid": session.guid, "secret": session.secret}}
        return {"status": _FINE, "serverProtocolVersion": min(self.protocol, request["client_protocol"]),
                "sessionHandle": handle, "configuration": configuration}  # fmt: skip

    async def _CloseSession(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        session = self._session(request)
        await self._end_session(session.guid)
        peer.sessions.discard(session.guid)
        return {"status": _FINE}

    async def _GetInfo(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        self._session(request)
        return {"status": _FINE, "infoValue": {"stringValue": "Impala"}}

    async def _PingImpalaHS2Service(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        self._session(request)
        return {"status": _FINE, "version": "impalad version 4.4.1-RELEASE", "webserver_address": "scripted:25000"}

    async def _ExecuteStatement(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        session = self._session(request)
        options = {**request.get("confOverlay", {})}
        cache = options.pop("impala.resultset.cache.size", "0")
        if not cache.lstrip("-").isdigit():
            raise StatementRefusal(f"Invalid value '{cache}' for 'impala.resultset.cache.size' option.")
        for name in options:
            if name not in QUERY_OPTIONS:
                raise StatementRefusal(f"Invalid query option: {name}")
        self.warehouse.database(session.context.database)
        session.context.statement_options = options
        planned = await asyncio.to_thread(plan, session.context, request["statement"])
        operation = Operation(planned, session.guid, request["statement"], options, kept_rows=int(cache))
        self.operations[operation.guid] = operation
        operation.start()
        identifier = {"guid": operation.guid, "secret": session.secret}
        has_rows = planned.columns is not None
        handle = {"operationId": identifier, "operationType": _EXECUTE, "hasResultSet": has_rows}
        return {"status": _FINE, "operationHandle": handle}

    async def _GetOperationStatus(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        operation = self._operation(request)
        reply: dict[str, Value] = {"status": _FINE, "operationState": operation.state}
        if operation.state == ERROR:
            reply |= {"errorMessage": operation.error, "sqlState": "HY000"}
        return reply

    async def _CancelOperation(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        self._operation(request).cancel()
        return {"status": _FINE}

    async def _CloseOperation(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        await self._end_operation(self._operation(request))
        return {"status": _FINE}

    async def _CloseImpalaOperation(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        operation = self._operation(request)
        await self._end_operation(operation)
        if operation.plan.modified_rows is None:
            return {"status": _FINE}
        return {"status": _FINE, "dml_result": {"rows_modified": {"": operation.plan.modified_rows}}}

    async def _GetResultSetMetadata(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        columns = self._operation(request).plan.columns
        return {"status": _FINE} if columns is None else {"status": _FINE, "schema": schema(columns)}

    async def _FetchResults(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        if request.get("orientation", 0) not in {_FETCH_NEXT, _FETCH_FIRST}:
            return {"status": failed("Unsupported operation", "HYC00")}
        operation = self._operation(request)
        columns = operation.plan.columns
        if columns is None:
            return {"status": _FINE, "hasMoreRows": False, "results": {"startRowOffset": 0, "rows": [], "columns": []}}
        try:
            first = request.get("orientation", 0) == _FETCH_FIRST
            rows, more = await operation.rows(min(request["maxRows"], self.batch_rows), first=first)
        except StatementRefusal:
            await self._end_operation(operation)  # a failed fetch closes the query
            raise
        return {"status": _FINE, "hasMoreRows": more, "results": row_set(columns, rows, 0)}

    async def _GetLog(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        operation = self._operation(request)
        lines = list[str]()
        if operation.plan.is_query:
            done = operation.progress()["num_completed_scan_ranges"]
            lines.append(f"Query {printed(operation.guid)} {50 * done}% Complete ({done} out of 2)\n")
        return {"status": _FINE, "log": "".join(lines) + operation.error}

    async def _GetExecSummary(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        self._session(request)
        operation = self._operation(request)
        state = 1 if operation.state == RUNNING else 2
        return {"status": _FINE, "summary": {"state": state, "progress": operation.progress(), "is_queued": False}}

    async def _GetRuntimeProfile(self, peer: Peer, request: Fields) -> Fields:  # noqa: N802
        self._session(request)
        operation = self._operation(request)
        text = f"Query (id={printed(operation.guid)}):\n  Summary:\n    Sql Statement: {operation.statement}\n"
        return {"status": _FINE, "profile": text}

    def _session(self, request: Fields) -> Session:
        identifier = self._identifier(request.get("sessionHandle", {}).get("sessionId", {}))
        session = self.sessions.get(identifier)
        if session is None:
            raise StatementRefusal(f"Invalid session id: {printed(identifier)}")
        return session

    def _operation(self, request: Fields) -> Operation:
        identifier = self._identifier(request.get("operationHandle", {}).get("operationId", {}))
        operation = self.operations.get(identifier)
        if operation is None:
            raise StatementRefusal(f"Invalid query handle: {printed(identifier)}")
        return operation

    def _identifier(self, identifier: Fields) -> bytes:
        guid, secret = identifier.get("guid", b""), identifier.get("secret", b"")
        if len(guid) != 16 or len(secret) != 16:
            raise StatementRefusal(
                f"Malformed THandleIdentifier (guid size: {len(guid)}, expected 16, secret size: {len(secret)},"
                " expected 16)"
            )
        return guid

    async def _end_operation(self, operation: Operation) -> None:
        self.operations.pop(operation.guid, None)
        await operation.end()

    async def _end_session(self, guid: bytes) -> None:
        if self.sessions.pop(guid, None) is None:
            return
        for operation in [one for one in self.operations.values() if one.session == guid]:
            await self._end_operation(operation)
