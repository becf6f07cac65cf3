"""Every HiveServer2 transport over TLS. The servers are scripted, because test servers must listen only on the
loopback interface, and Hive's HTTP listener cannot be restricted to it.
"""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, cell, refusal
from tests.engines.certificates import Authority
from tests.engines.scripted_hs2.server import ScriptedServer
from tests.engines.scripted_hs2.wire import Passwords

from queryserver.engines.protocol import Engine
from queryserver.errors.statements import CredentialsRequired, EngineUnavailable

PASSWORD = "Ana's pass:word ü"
TRANSPORTS = ("sasl", "nosasl", "http")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(params=TRANSPORTS)
async def server(
    request: pytest.FixtureRequest, authority: Authority, tmp_path: Path
) -> AsyncGenerator[ScriptedServer]:
    """Start a server whose certificate is valid for `localhost` but not for 127.0.0.1.

    It accepts `ana` with PASSWORD, or any user with NOSASL.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.certify("localhost").write(tmp_path))
    async with ScriptedServer(request.param, Passwords({"ana": PASSWORD}), tls=tls).serving() as server:
        yield server


@asynccontextmanager
async def engine_of(server: ScriptedServer, **changes: str | int | bool) -> AsyncGenerator[Engine]:
    """Build the engine from settings; the caller must make the certificate authority trusted."""
    settings: dict[str, str | int | bool] = {
        "server_host": "localhost",
        "server_port": server.port,
        "use_ssl": True,
        "transport_mode": "http" if server.transport == "http" else "binary",
        "auth_mechanism": "NOSASL" if server.transport == "nosasl" else "LDAP",
        "username": "ana",
        "password": PASSWORD,
        "connect_timeout_s": 30,
    }
    async with built("hiveserver2", dialect="impala", **(settings | changes)) as engine:
        yield engine


async def test_statements_run_over_tls(server: ScriptedServer, authority: Authority) -> None:
    async with engine_of(server, ssl_ca=authority.certificate) as engine:
        assert await cell(engine, "SELECT 7 AS a") == 7
    assert not server.service.sessions


async def test_unknown_authority_is_refused(server: ScriptedServer) -> None:
    for authorities in (Authority().certificate, ""):
        async with engine_of(server, ssl_ca=authorities) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert "certificate verification failed (" in error.message
            assert_tells_nothing(error, PASSWORD)


async def test_certificate_for_another_host_is_refused(server: ScriptedServer, authority: Authority) -> None:
    async with engine_of(server, ssl_ca=authority.certificate, server_host="127.0.0.1") as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert "certificate verification failed (IP address mismatch" in error.message
        assert_tells_nothing(error, PASSWORD)


async def test_unverified_certificate_is_accepted_if_configured(server: ScriptedServer) -> None:
    async with engine_of(server, ssl_validate=False, server_host="127.0.0.1") as engine:
        assert await cell(engine, "SELECT 7 AS a") == 7


async def test_tls_server_refuses_plain_connection(server: ScriptedServer) -> None:
    async with engine_of(server, use_ssl=False, connect_timeout_s=2) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert_tells_nothing(error, PASSWORD)


@pytest.mark.parametrize("server", ["sasl", "http"], indirect=True)
async def test_wrong_password_over_tls_is_refused(server: ScriptedServer, authority: Authority) -> None:
    async with engine_of(server, ssl_ca=authority.certificate, password="wrong") as engine:
        error = await refusal(engine)
        assert isinstance(error, CredentialsRequired)
        assert_tells_nothing(error, PASSWORD, "wrong")
