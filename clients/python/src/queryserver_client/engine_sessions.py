"""Engine sessions, whose statements share settings, temporary tables and a transaction (Contract editor 9)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from queryserver_client.credentials import Secret
from queryserver_client.errors import ApiError, QueryserverError, statement_error
from queryserver_client.submitted import WAIT_S
from queryserver_client.transport import Transport

LOST = frozenset({"session_lost", "session_not_found"})
"""Codes of statements that were not started because their session no longer exists (Contract editor 3.4)."""
_OPENED_WITHIN_S = 60.0
"""Long, because the data source may have to start a process for a session."""
_CLOSE_WITHIN_S = 15.0


@dataclass(frozen=True)
class EngineSession:
    """An open session. `id` is the argument `session_id` of `Connection.query`."""

    id: int
    dialect: str
    """The dialect of the connector, such as `postgresql`."""


async def open_session(
    transport: Transport,
    connector: str,
    *,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
    engine_login: tuple[str, Secret] | None = None,
) -> EngineSession:
    """Open a session on a connector. `engine_login` is a user name and password for the data source.

    If the response is lost, the call is repeated, which may leave a second session that the server closes when it has
    been idle. Raises StatementError if the data source rejects the login, and ApiError.
    """
    properties: list[dict[str, Any]] = []
    if engine_login is not None:
        user, password = engine_login
        properties += [{"name": "user", "value": user}, {"name": "password", "value": password}]
    if settings:
        properties.append(
            {"key": "settings", "value": [{"key": name, "value": value} for name, value in settings.items()]}
        )
    fields: dict[str, Any] = {"session": {"type": connector, "properties": properties}}
    if database is not None:
        fields["database"] = database
    answer, headers = await transport.answered(
        "POST", "editor/create_session", fields, is_repeatable=True, wait_s=_OPENED_WITHIN_S
    )
    if answer.get("status"):
        raise statement_error(answer, request_id=headers.get("X-Request-Id"))
    session = EngineSession(answer["session"]["id"], answer["session"]["type"])
    if "database" in headers.get("X-Unknown-Fields", ""):
        await close_session(transport, connector, session.id)
        raise ApiError(
            "this server version does not support sessions with a database", status=501, code="not_supported"
        )
    return session


async def close_session(transport: Transport, connector: str, session_id: int) -> None:
    """Close a session, even if the task is canceled. The engine rolls back a transaction and drops temporary tables.

    Never raises. If the call fails, the server closes the session when it has been idle.
    """
    session = {"type": connector, "id": session_id}
    with anyio.move_on_after(transport.cleanup_s(_CLOSE_WITHIN_S), shield=True):
        with suppress(QueryserverError):
            await transport.call(
                "POST", "editor/close_session", {"session": session}, is_repeatable=True, wait_s=WAIT_S
            )
