"""HiveServer2 over http: one POST per call, cookies as the server sets them."""

import base64
import ssl
from contextlib import suppress

import httpx

from queryserver.engines.echoes import without_token
from queryserver.engines.hiveserver2.address import Hs2Address, Login, Mechanism
from queryserver.engines.hiveserver2.errors import LoginRefused
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.transports import Expected, Overlong, ReplyT, read_past

_REFUSED = frozenset({401, 403})
_UNAVAILABLE = frozenset({502, 503, 504})
_OK = 200
_LONGEST_SILENCE_S = 600.0


class HttpTransport:
    """One caller's way to one member. `address` is what the member's name was resolved to."""

    def __init__(self, address: Hs2Address, login: Login, resolved: str, tls: ssl.SSLContext | None) -> None:
        host = f"[{resolved}]" if ":" in resolved else resolved
        self._url = f"{'https' if tls else 'http'}://{host}:{login.member.port}/{(address.http_path or '').lstrip('/')}"
        self._closed = False
        self._token = login.password if address.mechanism is Mechanism.JWT else None
        self._client = httpx.AsyncClient(
            headers={
                "Host": str(login.member),
                "Content-Type": "application/x-thrift",
                "Accept": "application/x-thrift",
                # One packed piece may hold a thousand times its size.
                "Accept-Encoding": "identity",
                "Authorization": _authorization(address, login),
                # Hive asks for it where its filter against forged requests is on.
                "X-XSRF-HEADER": "true",
            },
            verify=tls or False,
            timeout=httpx.Timeout(_LONGEST_SILENCE_S, connect=address.limits.connect_s),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            follow_redirects=False,
            trust_env=False,
        )

    def is_closed(self) -> bool:
        return self._closed

    async def exchange(self, call: bytes, expected: Expected[ReplyT]) -> ReplyT:
        async with self._client.stream("POST", self._url, content=call) as response:
            if response.status_code in _REFUSED:
                raise LoginRefused
            if response.status_code in _UNAVAILABLE:
                raise httpx.ReadError(f"status {response.status_code}")
            if response.status_code != _OK:
                raise MalformedMessage(f"http status {response.status_code}")
            body = await _body(response, expected)
        return expected.decode(without_token(body, self._token))

    async def close(self) -> None:
        self._closed = True
        with suppress(httpx.HTTPError, OSError):
            await self._client.aclose()


async def _body(response: httpx.Response, expected: Expected[ReplyT]) -> bytes:
    """The whole body. Raises Overlong, CellFound, MalformedMessage."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise MalformedMessage("the answer is packed, which was not accepted")
    body, skimmer = bytearray(), None
    async for piece in response.aiter_raw():
        if skimmer is not None:
            await read_past(skimmer, piece)
            continue
        body += piece
        if len(body) > expected.most_bytes:
            skimmer = expected.skimmer()
            await read_past(skimmer, body)
            body.clear()
    if skimmer is not None:
        raise Overlong(skimmer.size)
    return bytes(body)


def _authorization(address: Hs2Address, login: Login) -> str:
    if address.mechanism is Mechanism.JWT:
        return f"Bearer {login.password}"
    pair = f"{login.user}:{login.password or 'none'}".encode()
    return "Basic " + base64.b64encode(pair).decode()
