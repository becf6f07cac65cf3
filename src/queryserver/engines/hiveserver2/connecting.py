"""From an address to a connection that is logged in."""

import asyncio
import socket
import ssl

from queryserver.domain.errors.statements import EngineUnavailable
from queryserver.engines.hiveserver2.address import Hs2Address, Login, Mechanism, Member
from queryserver.engines.hiveserver2.connection import Connection
from queryserver.engines.hiveserver2.errors import connect_errors
from queryserver.engines.hiveserver2.http import HttpTransport
from queryserver.engines.hiveserver2.sasl import Plain, SaslMechanism, negotiate
from queryserver.engines.hiveserver2.transports import READ_BYTES, BareTransport, FramedTransport, Transport
from queryserver.engines.tls import client_tls


async def connect(address: Hs2Address, login: Login) -> Connection:
    """A connection to the member of `login`. Raises EngineUnavailable, CredentialsRequired."""
    member = login.member
    resolved = await address.rules.resolve(member.host, member.port)
    *others, last = resolved
    for one in others:
        try:
            return await _connect_to(address, login, one, address.limits.connect_s / len(resolved))
        except EngineUnavailable:
            continue
    return await _connect_to(address, login, last, address.limits.connect_s / len(resolved))


async def _connect_to(address: Hs2Address, login: Login, resolved: str, limit_s: float) -> Connection:
    with connect_errors():
        tls = await _tls(address, login.member)
        if address.http_path is not None:
            # Nothing is sent before the first call: the session's OpenSession proves the login.
            return Connection(HttpTransport(address, login, resolved, tls), most_bytes=address.reply_max_bytes)
        async with asyncio.timeout(limit_s):
            transport = await _stream_transport(address, login, resolved, tls)
            return Connection(transport, most_bytes=address.reply_max_bytes)


async def _stream_transport(address: Hs2Address, login: Login, resolved: str, tls: ssl.SSLContext | None) -> Transport:
    reader, writer = await asyncio.open_connection(
        resolved,
        login.member.port,
        limit=READ_BYTES,
        ssl=tls,
        server_hostname=login.member.host if tls else None,
    )
    _keep_alive(writer)
    try:
        if address.mechanism is Mechanism.NOSASL:
            return BareTransport(reader, writer)
        await negotiate(reader, writer, _mechanism(address, login))
    except BaseException:  # a cancel too: the connection must not stay open
        writer.transport.abort()
        raise
    return FramedTransport(reader, writer)


async def _tls(address: Hs2Address, member: Member) -> ssl.SSLContext | None:
    if address.tls is None:
        return None
    # Reading the system's certificates takes tens of milliseconds.
    return await asyncio.to_thread(client_tls, member.host, validate=address.tls.validate, ca=address.tls.ca)


def _mechanism(address: Hs2Address, login: Login) -> SaslMechanism:
    if address.mechanism is Mechanism.GSSAPI:
        from queryserver.engines.hiveserver2.kerberos import Gssapi  # noqa: PLC0415 an extra that few have

        return Gssapi(address.kerberos.service, address.kerberos.host or login.member.host)
    return Plain(login.user, login.password)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the system notice a server that is gone while nothing is sent."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
