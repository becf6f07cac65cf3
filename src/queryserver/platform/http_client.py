"""An HTTP client for key servers, catalogs and webhooks.

The host name is resolved once, and the client connects to a checked address (Contract platform 5.11: Hosts);
certificates are verified for the name. The client ignores redirects, cookies and proxies in the environment, and
limits the size and time of responses.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Self

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules, HttpServer
from queryserver.platform.http_messages import HttpRequest, HttpResponse, NotConnected

if TYPE_CHECKING:
    from queryserver.platform.http_transport import HttpTransport


class HttpClient:
    """An HTTP client with pooled connections, which are closed at the end of the `async with`."""

    def __init__(self, rules: AddressRules, *, authorities: Path | None = None, verify: bool = True) -> None:
        self._rules = rules
        self._authorities = authorities
        self._verify = verify
        self._opening = asyncio.Lock()
        self._transport: HttpTransport | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def send(self, sent: HttpRequest) -> HttpResponse:
        """Send the request to the first permitted address that accepts the connection.

        Raises EngineUnavailable: no permitted address, no connection, or no complete response within the limits.
        """
        server = HttpServer(sent.url)
        try:
            async with asyncio.timeout(sent.within_s):
                last = EngineUnavailable(f"No connection to {server.host} could be made.")
                for ip in await self._rules.resolve(server.host, server.port):
                    try:
                        return await (await self._opened()).exchange(sent, server, ip)
                    except NotConnected as error:
                        last = error
                raise last
        except TimeoutError:
            raise EngineUnavailable(f"{server.host} did not answer in time.") from None

    async def _opened(self) -> "HttpTransport":
        async with self._opening:
            if self._transport is None:
                self._transport = await asyncio.to_thread(self._open)
            return self._transport

    def _open(self) -> "HttpTransport":
        # Loading httpx takes 40 ms of processor time and 2 MiB, and most servers never send a request.
        from queryserver.platform.http_transport import HttpTransport  # noqa: PLC0415 see above

        return HttpTransport(authorities=self._authorities, verify=self._verify)
