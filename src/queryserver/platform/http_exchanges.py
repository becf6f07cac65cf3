"""Exchanges over HTTP with key servers, catalogues and webhooks.

The name is resolved once and the connection goes to a checked address (Contract platform 5.11: Hosts); certificates are
verified for the name. No redirects, no proxies of the environment, no cookies; an answer has a limit of bytes and time.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Self

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules, HttpServer
from queryserver.platform.http_messages import HttpAnswer, HttpRequest, NotConnected

if TYPE_CHECKING:
    from queryserver.platform.http_transport import HttpTransport


class HttpExchanges:
    """Connections that are kept for further exchanges, until the `async with` ends."""

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

    async def send(self, sent: HttpRequest) -> HttpAnswer:
        """The answer of the first permitted address that takes the connection.

        Raises EngineUnavailable: no permitted address, no connection, no whole answer within the limits.
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
        # Most servers make no exchange: httpx takes 40 ms of processor time and 2 MiB.
        from queryserver.platform.http_transport import HttpTransport  # noqa: PLC0415 see above

        return HttpTransport(authorities=self._authorities, verify=self._verify)
