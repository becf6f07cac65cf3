"""Engine sessions (Contract editor 9). Statements in one session share its settings, temporary tables and
transaction.
"""

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
"""Codes for statements rejected because their session is gone. They were not started (Contract editor 3.4)."""
_OPENED_WITHIN_S = 60.0
"""Hive and Impala may start a process for a session."""
_CLOSE_WITHIN_S = 15.0


@dataclass(frozen=True)
class EngineSession:
    """An open session. Its `id` is the `session_id` of `Connection.query`."""

    id: int
    dialect: str
    """The connector's dialect, such as `postgresql`."""


async def open_session(
    transport: Transport,
    connector: str,
    *,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
    engine_login: tuple[str, Secret] | None = None,
) -> EngineSession:
    """Open a connector's session with a current database, engine settings and a login for the data source.

    If the response is lost, the call is repeated. At worst a second session exists, which the server closes after it
    has been idle. Raises StatementError if the data source rejects the login, and ApiError.
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
        raise ApiError("this server is too old for sessions with a database", status=501, code="not_supported")
    return session


async def close_session(transport: Transport, connector: str, session_id: int) -> None:
    """Close a session, even if the task is canceled. Never fails. The engine rolls back an open transaction and
    drops temporary tables.
    """
    session = {"type": connector, "id": session_id}
    with anyio.move_on_after(_CLOSE_WITHIN_S, shield=True):
        # If this fails, the session is already gone, or the server closes it after it has been idle.
        with suppress(QueryserverError):
            await transport.call(
                "POST", "editor/close_session", {"session": session}, is_repeatable=True, wait_s=WAIT_S
            )
