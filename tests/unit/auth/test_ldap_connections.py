"""Directories that are down, silent or slow: a login ends in time, and sets its thread free."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.engines.servers import free_port

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.ldap.ldap3_directory import DirectoryServer, Ldap3Directory, client_context
from queryserver.identity.ldap.login import Judge, LdapLogin
from queryserver.identity.model import UsernameRule
from queryserver.identity.protocols import RequestInfo
from queryserver.platform.settings.desktop import LdapSettings

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass
    writer.close()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The beginning of a long answer, byte by byte: no single read takes long."""
    await reader.read(1000)
    try:
        writer.write(b"\x30\x84\x00\x10\x00\x00")
        while True:
            writer.write(b"\0")
            await writer.drain()
            await asyncio.sleep(0.05)
    except ConnectionError:
        writer.close()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.close()


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[int]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def refused(url: str) -> float:
    """How long it took; without a sign of the password in the reason."""
    judge = Judge(LdapSettings(base_dn="dc=test"), UsernameRule())
    directory = Ldap3Directory(DirectoryServer(url, 1), client_context(None))
    began = time.monotonic()
    with LdapLogin.open(directory, judge, limit_s=1) as backend:
        with pytest.raises(LoginBackendUnavailable) as raised:
            await backend.login("ana", "planted password", RequestInfo("127.0.0.1"))
        assert "planted" not in str(raised.value)
        for _ in range(200):
            if not any(thread.name.startswith("ldap") and _is_busy(thread) for thread in threading.enumerate()):
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("a thread still waits")
    return time.monotonic() - began


def _is_busy(thread: threading.Thread) -> bool:
    import sys
    import traceback

    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and any("ldap3" in line.filename for line in traceback.extract_stack(frame))


@pytest.mark.platform(48)
@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_a_server_that_is_down_is_out_of_reach(scheme: str) -> None:
    assert await refused(f"{scheme}://127.0.0.1:{free_port()}") < 9


@pytest.mark.parametrize("peer", [silent, dripping, garbage, hanging_up])
@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_no_peer_holds_a_login_beyond_its_limit(scheme: str, peer: Peer) -> None:
    async with listening(peer) as port:
        assert await refused(f"{scheme}://127.0.0.1:{port}") < 9
