"""Outbound connections: exchanges over HTTP with key servers and catalogues, and the guard of blocking drivers.

The name is resolved once and the connection goes to a checked address (Contract platform 5.11: Hosts); certificates are
verified for the name. No redirects, no proxies of the environment, no cookies; an answer has a limit of bytes and time.
"""

import asyncio
import errno
import socket
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.platform.addresses import AddressRules, HostRefused, HttpServer, literal_address

if TYPE_CHECKING:
    from queryserver.platform.http_transport import HttpTransport

_REFUSED = "The data source led to an address that connections are not allowed to."
_MOST_LINKS = 50  # of an error to its causes; real ones have a handful


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `url` holds no login; `max_bytes` bounds the answer, `within_s` the whole exchange."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    content: bytes = b""
    max_bytes: int = 1024 * 1024
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer, with any status."""

    status: int
    content_type: str
    body: bytes


class NotConnected(EngineUnavailable):
    """The address took no connection; another one of the host may."""


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


class _Refusal(ConnectionRefusedError):
    """A refused connection: recognized inside the errors that drivers make of it."""


@dataclass(slots=True)
class _Call:
    """A call under way in one thread."""

    rules: AddressRules
    was_refused: bool = False
    """About its last connection."""


class _ThisThread(threading.local):
    call: _Call | None = None


_this_thread = _ThisThread()
_installing = threading.Lock()
_installed: list[bool] = []


def install_guard() -> None:
    """Install the audit hook for connections, once; a process cannot remove it."""
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            _installed.append(True)


@contextmanager
def guarded(rules: AddressRules) -> Generator[None]:
    """Around a call that blocks: it connects only to where `rules` permit, as long as it stays in this thread.

    For the call, the host has refused the connection. Raises HostRefused when the call fails
    over it, not when it fails over something else later. Needs `install_guard`.
    """
    outer, call = _this_thread.call, _Call(rules)
    _this_thread.call = call
    try:
        yield
    except EngineError:  # already translated, perhaps by a guard within this one
        raise
    except Exception as error:  # drivers wrap a refused connection in errors of any class
        if _is_over_refusal(error, call):
            raise HostRefused(_REFUSED) from error
        raise
    finally:
        _this_thread.call = outer


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. It gets every event of the process: others than connections must cost next to nothing."""
    if event != "socket.connect":
        return
    call = _this_thread.call
    if call is None:
        return
    connecting, address = args
    _this_thread.call = None  # the rules themselves connect a socket, to learn which addresses are of this machine
    try:
        call.was_refused = not _permits(call.rules, connecting.family, address)
    finally:
        _this_thread.call = call
    if call.was_refused:
        raise _Refusal(errno.ECONNREFUSED, _REFUSED)


def _is_over_refusal(error: BaseException, call: _Call) -> bool:
    """Whether a call failed over a refused connection: drivers go on without some, such as one for updates.

    A refusal that an error holds decides. One that was merely being handled when the error came up, and our text
    without a refusal (asyncio makes one error of several so), count as long as no connection was permitted since.
    """
    return any(
        isinstance(one, _Refusal)
        or (call.was_refused and any(isinstance(part, str) and _REFUSED in part for part in one.args))
        for one in _links(error, with_context=call.was_refused)
    )


def _links(error: BaseException, *, with_context: bool) -> Iterator[BaseException]:
    """An error and the errors that it holds: cause, attributes such as `orig` and `reason`, arguments."""
    ahead, seen = deque[Any]([error]), set[int]()
    while ahead and len(seen) < _MOST_LINKS:
        one = ahead.popleft()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        ahead += (one.__cause__, *vars(one).values(), *one.args)
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions
        if with_context:
            ahead.append(one.__context__)


def _permits(rules: AddressRules, family: int, address: Any) -> bool:
    """No sockets of this machine, and no names, whose addresses were not checked."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return False
    host, port = address[:2]
    literal = literal_address(host if isinstance(host, str) else bytes(host).decode("latin-1"))
    if literal is None:
        return False
    try:
        rules.resolve_blocking(str(literal), port)
    except EngineUnavailable:
        return False
    return True
