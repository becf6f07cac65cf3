"""The cost of identity and configuration, compared with the cheapest call to the same server in the same run."""

import base64
import json
import statistics
import time
from asyncio import start_server
from asyncio.streams import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.bench.client import Client
from tests.bench.setting import Bench, Measured, administrator_token, bench_server

_ROUNDS = 1000
_CONNECTORS = 200
_CONFIGURATIONS = 100
_KEY_ID = "bench"
_ISSUER, _AUDIENCE = "https://issuer.example", "queryserver"


async def tokens(folder: Path) -> list[Measured]:
    """Measure a small call with each kind of token, and is_alive. The kinds alternate, so other load slows all of them
    equally.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    async with _key_server(key) as (url, fetches), bench_server(folder, settings=_jwt_settings(url)) as bench:
        alive_ms = await _median_ms(bench.client(), "/desktop/debug/is_alive")
        api = Client(bench.server.base_url, await _api_token(bench))
        external = Client(bench.server.base_url, _external_token(key))
        clients = (bench.client(), api, external)
        own_ms, api_ms, external_ms = await _medians_ms(clients, "/api/v1/get_namespaces/hive")
    return [
        Measured("is_alive, median", f"{alive_ms:.2f} ms"),
        Measured("call with an own token, above is_alive", f"{own_ms - alive_ms:.2f} ms"),
        Measured("call with an API token, above is_alive", f"{api_ms - alive_ms:.2f} ms"),
        Measured("call with an API token, of one with an own token", f"{api_ms / own_ms:.2f}", "<= 1.2"),
        Measured("call with an external token, above is_alive", f"{external_ms - alive_ms:.2f} ms", "<= 0.3 ms"),
        Measured(f"fetches of keys in {_ROUNDS} such calls", str(fetches["keys"]), "1"),
    ]


async def _api_token(bench: Bench) -> str:
    async with bench.client() as client:
        status, body = await client.post("/api/v1/token/api_tokens/new", {"name": "bench", "scopes": "query"})
    assert status == 200, body
    return json.loads(body)["value"]


async def configuration(folder: Path) -> list[Measured]:
    """Measure get_config with 200 stored connectors."""
    async with bench_server(folder) as bench:
        token = await administrator_token(bench)
        async with Client(bench.server.base_url, token) as client:
            for number in range(_CONNECTORS):
                await _store_connector(client, number)
            before = await _median_ms(bench.client(), "/desktop/debug/is_alive")
            took: list[float] = []
            for _ in range(_CONFIGURATIONS):
                started = time.perf_counter()
                status, body = await client.post("/api/v1/get_config", {})
                took.append((time.perf_counter() - started) * 1000)
                assert status == 200
            shown = len(json.loads(body)["app_config"]["editor"]["interpreters"])
            assert shown >= _CONNECTORS, shown
    took.sort()
    return [
        Measured("get_config with 200 connectors, median", f"{statistics.median(took):.1f} ms", "< 20 ms"),
        Measured("get_config with 200 connectors, p95", f"{took[int(len(took) * 0.95)]:.1f} ms"),
        Measured("is_alive beside it, median", f"{before:.2f} ms"),
    ]


async def _store_connector(client: Client, number: int) -> None:
    connector = {
        "nice_name": f"Bench {number}",
        "dialect": "postgresql",
        "interface": "sqlalchemy",
        "settings": [{"name": "url", "value": f"postgresql://user{number}:secret@localhost:5432/shop"}],
    }
    status, body = await client.post("/api/v1/connector/instance/update", {"connector": json.dumps(connector)})
    assert status == 200, body


async def _median_ms(opened: Client, path: str) -> float:
    (median,) = await _medians_ms([opened], path)
    return median


async def _medians_ms(opened: Sequence[Client], path: str) -> list[float]:
    """Return the median of each client in ms. The clients call alternately."""
    async with AsyncExitStack() as stack:
        clients = [(await stack.enter_async_context(one), list[float]()) for one in opened]
        for _ in range(_ROUNDS):
            for client, took in clients:
                started = time.perf_counter()
                status, body = await client.get(path)
                took.append((time.perf_counter() - started) * 1000)
                assert status == 200, body
    return [statistics.median(took[_ROUNDS // 10 :]) for _, took in clients]


def _jwt_settings(url: str) -> dict[str, str]:
    place = "QUERYSERVER__DESKTOP__AUTH__JWT__"
    return {f"{place}KEY_SERVER_URL": url, f"{place}ISSUER": _ISSUER, f"{place}AUDIENCE": _AUDIENCE}


@asynccontextmanager
async def _key_server(key: rsa.RSAPrivateKey) -> AsyncIterator[tuple[str, Counter[str]]]:
    """Serve a JWKS document on loopback; yield its URL and the number of fetches."""
    numbers = key.public_key().public_numbers()
    keys = {"keys": [{"kty": "RSA", "kid": _KEY_ID, "use": "sig", "n": _base64(numbers.n), "e": _base64(numbers.e)}]}
    body = json.dumps(keys).encode()
    fetches: Counter[str] = Counter()

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        fetches["keys"] += 1
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys", fetches


def _external_token(key: rsa.RSAPrivateKey) -> str:
    now = int(time.time())
    claims = {"sub": "outside", "iss": _ISSUER, "aud": _AUDIENCE, "iat": now, "exp": now + 3600}
    signed = f"{_part({'alg': 'RS256', 'typ': 'JWT', 'kid': _KEY_ID})}.{_part(claims)}"
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_text(signature)}"


def _part(content: dict[str, Any]) -> str:
    return _text(json.dumps(content).encode())


def _base64(number: int) -> str:
    return _text(number.to_bytes((number.bit_length() + 7) // 8))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
