"""One line of the access log per call (Contract platform 11, `desktop.logging.access_log`)."""

from collections.abc import Sequence
from typing import cast

from starlette.requests import Request
from starlette.types import Scope

from queryserver.api.client_address import client_address
from queryserver.domain.user import User
from queryserver.logs.access import log_call
from queryserver.settings.networks import Network

CALLER = "queryserver.caller"
"""Key of the scope under which the access log finds who called."""

_LONGEST_PATH = 500


class Caller:
    """Who called, once that is known."""

    name = ""


def note_caller(request: Request, user: User) -> None:
    """Remember who called, for the access log if there is one."""
    caller = cast("Caller | None", request.scope.get(CALLER))
    if caller is not None:
        caller.name = user.username


class AccessLog:
    """Writes the lines. A line has the path of the call without its query, which may hold a token."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = trusted

    def write(self, call: Scope, *, status: int, size_bytes: int, seconds: float, complete: bool) -> None:
        """To be called at the end of a call. `status` 0: the client left before it was answered."""
        fields: dict[str, object] = {
            "user": cast("Caller", call[CALLER]).name or "-",
            "client": client_address(Request(call), self._trusted),
            "method": call["method"],
            "path": call["raw_path"].decode("latin-1")[:_LONGEST_PATH],
            "status": status,
            "bytes": size_bytes,
            "ms": round(seconds * 1000, 1),
        }
        if not complete:
            fields["complete"] = False
        log_call(fields)
