"""HTTP Negotiate (RFC 4559) with the service's own Kerberos ticket; the extra `kerberos` brings `gssapi`."""

import asyncio
import base64
import importlib
import importlib.util
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from queryserver.domain.errors.files import StorageError

_UNAUTHORIZED = 401


class Negotiate(httpx.Auth):
    """Answers the challenge of a host with a ticket for `HTTP@host`. For asynchronous clients: a thread asks for it."""

    def __init__(self) -> None:
        self._gssapi: Any = importlib.import_module("gssapi")

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """See httpx.Auth."""
        response = yield request
        offered = response.headers.get("www-authenticate", "").lower()
        if response.status_code != _UNAUTHORIZED or "negotiate" not in offered:
            return
        try:
            token = await asyncio.to_thread(self._first_token, request.url.host)
        except self._gssapi.exceptions.GSSError as error:
            raise StorageError("The Kerberos login at the store failed.") from error
        request.headers["Authorization"] = f"Negotiate {base64.b64encode(token).decode()}"
        yield request

    def _first_token(self, host: str) -> bytes:
        name = self._gssapi.Name(f"HTTP@{host}", self._gssapi.NameType.hostbased_service)
        return self._gssapi.SecurityContext(name=name, usage="initiate").step() or b""


def is_installed() -> bool:
    """Whether the extra `kerberos` is there."""
    return importlib.util.find_spec("gssapi") is not None
