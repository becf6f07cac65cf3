"""`queryserver health`: its requests, its exit codes, and how it uses the server's settings."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.harness import ALIVE_WITHIN_S, PROGRAM, ServerProcess, started
from tests.engines.certificates import Authority
from tests.ports import free_port
from tests.unit.cli.test_commands import CommandOutput, command_in

ALIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HEALTH = ("health", "--timeout", "60")
BUSY = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\n\r\n{"database": "down"}'


@asynccontextmanager
async def scripted(answer: bytes, *, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that sends `answer` to every request; yield its port and the received requests.

    If `answer` is empty, the server never responds.
    """
    requests: list[bytes] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if not answer:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


async def test_response_determines_the_exit_code(tmp_path: Path) -> None:
    async with scripted(ALIVE) as (port, requests):
        health = command_in(tmp_path, QUERYSERVER__DESKTOP__HTTP_PORT=str(port))
        url = f"http://127.0.0.1:{port}/desktop/debug"
        assert await health(*HEALTH) == CommandOutput(0, f"{url}/is_alive: alive\n", "")
        assert await health(*HEALTH, "--ready") == CommandOutput(0, f"{url}/is_ready: ready\n", "")
    assert [request.split()[1] for request in requests] == [b"/desktop/debug/is_alive", b"/desktop/debug/is_ready"]
    assert await health(*HEALTH) == CommandOutput(1, "", f"{url}/is_alive: connection refused.\n")
    for answer, told in (
        (BUSY, 'status 503 {"database": "down"}'),
        (b"SSH-2.0-x\r\n\r\n", "the response is not HTTP."),
        (b"HTTP/1.1 200", "the response is not HTTP."),
        (b"x" * 200_000, "the response is not HTTP."),
        (b"", "no response within 0.5 s."),
    ):
        async with scripted(answer) as (port, _):
            ended = await health("health", "--port", str(port), "--timeout", "60" if answer else "0.5")
        assert ended == CommandOutput(1, "", f"http://127.0.0.1:{port}/desktop/debug/is_alive: {told}\n")


async def test_address_and_prefix_come_from_the_settings(tmp_path: Path) -> None:
    async with scripted(ALIVE) as (port, requests):
        (tmp_path / "queryserver.toml").write_text(
            f"[desktop]\nhttp_host = '0.0.0.0'\nhttp_port = {port}\nurl_prefix = '/sql/'\n"
        )
        health = command_in(tmp_path)
        assert (await health(*HEALTH)).code == 0
        assert (await command_in(tmp_path, QUERYSERVER__DESKTOP__HTTP_PORT="1")(*HEALTH)).code == 1
    assert requests[0].startswith(b"GET /sql/desktop/debug/is_alive HTTP/1.1\r\n")
    if not has_ipv6():
        return
    async with scripted(ALIVE, host="::1") as (port, requests):
        ended = await health(*HEALTH, "--host", "::", "--port", str(port))
        assert ended.out == f"http://[::1]:{port}/sql/desktop/debug/is_alive: alive\n"


async def test_secret_scripts_do_not_run_and_other_problems_are_ignored(tmp_path: Path) -> None:
    async with scripted(ALIVE) as (port, _):
        settings = f"[desktop]\nsecret_key_script = 'touch {tmp_path}/ran'\nhttp_port = {port}\n[editor]\ncolor = 1\n"
        (tmp_path / "queryserver.toml").write_text(settings)
        assert (await command_in(tmp_path)(*HEALTH)).code == 0
        assert not (tmp_path / "ran").exists()


async def test_health_reports_settings_that_prevent_the_check(tmp_path: Path) -> None:
    hidden = await command_in(tmp_path, QUERYSERVER__DESKTOP__HTTP_PORT="0")("health")
    assert (hidden.code, hidden.err) == (
        2,
        "desktop.http_port is 0, so the port of the server is unknown. Use --port.\n",
    )
    wrong = await command_in(tmp_path, QUERYSERVER__DESKTOP__URL_PREFIX="sql")("health", "--port", str(free_port()))
    assert wrong.code == 1
    assert wrong.err.startswith("error desktop.url_prefix: must look like ")
    missing = await command_in(tmp_path)("health", "--config", "missing.toml", "--port", str(free_port()))
    assert missing.code == 1
    assert missing.err.startswith("error missing.toml: cannot be read: ")


async def test_server_with_tls_and_prefix_is_healthy(tmp_path: Path, database_dsn: str) -> None:
    certificate, key = Authority().certify("sql.example.org").write(tmp_path)
    port = free_port()
    environment = {
        "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
        "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
        "QUERYSERVER__DESKTOP__HTTP_PORT": str(port),
        "QUERYSERVER__DESKTOP__URL_PREFIX": "/sql",
        "QUERYSERVER__DESKTOP__ALLOWED_HOSTS": "sql.example.org",
        "QUERYSERVER__DESKTOP__SSL_CERTIFICATE": str(certificate),
        "QUERYSERVER__DESKTOP__SSL_PRIVATE_KEY": str(key),
    }
    health = command_in(tmp_path, **environment)
    async with started([str(PROGRAM), "serve"], port, tmp_path, environment) as server:
        alive = await until_it_is_0(lambda: health(*HEALTH), server)
        assert alive.out == f"https://127.0.0.1:{port}/sql/desktop/debug/is_alive: alive\n"
        await until_it_is_0(lambda: health(*HEALTH, "--ready"), server)
        assert (await command_in(tmp_path)(*HEALTH, "--port", str(port))).code == 1
        assert await server.terminate() == 0
    assert (await health(*HEALTH)).code == 1


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 loopback address, which many containers lack."""
    try:
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
    except OSError:
        return False
    return True


async def until_it_is_0(command: Callable[[], Awaitable[CommandOutput]], server: ServerProcess) -> CommandOutput:
    """Repeat the command, which takes about half a second, until its exit code is 0; return the last output."""
    async with asyncio.timeout(ALIVE_WITHIN_S):
        while (ended := await command()).code:
            assert server.process.returncode is None, server.stderr
    return ended
