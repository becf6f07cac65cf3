"""The broker check, run against a real Valkey server."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from tests.engines.certificates import Authority, ServerCertificate
from tests.engines.relay import passed_on
from tests.fixtures.valkey import PASSWORD, guarded_valkey
from tests.ports import free_port

from queryserver.administration import readiness
from queryserver.administration.doctor import State
from queryserver.administration.readiness import check_broker, examine_broker, ping_broker, read_broker
from queryserver.errors.base import ServiceUnavailable
from queryserver.platform.settings.tree import Settings


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_WITHIN_S", 60.0)


def settings_with(url: str) -> Settings:
    return Settings.model_validate({"desktop": {"task_server": {"enabled": True, "broker_url": url}}})


async def test_healthy_broker_reports_version_and_queue_length() -> None:
    async with guarded_valkey() as url:
        settings = settings_with(url)
        await ping_broker(settings, within_s=60)
        assert await check_broker(settings) == []
        async with Redis.from_url(url) as client:
            await client.zadd(settings.desktop.task_server.queue, {"stmt:1": 1, "stmt:2": 2})
        facts = await read_broker(settings)
        assert facts.product.startswith("Valkey 9.")
        assert (facts.eviction, facts.queued, facts.last_save_failed) == ("noeviction", 2, False)
        [finding] = await examine_broker(settings)
        assert finding.state is State.OK
        assert "2 jobs are queued" in finding.what


async def test_broker_with_an_eviction_policy_is_an_error_in_both_reports() -> None:
    async with guarded_valkey(maxmemory="20mb", maxmemory_policy="allkeys-lru") as url:
        [problem] = await check_broker(settings_with(url))
        assert str(problem).startswith("error desktop.task_server.broker_url: has the eviction policy allkeys-lru")
        _, finding = await examine_broker(settings_with(url))
        assert (finding.state, "allkeys-lru" in finding.what, "noeviction" in finding.to_do) == (
            State.ERROR,
            True,
            True,
        )


async def test_login_limited_to_ping_is_sufficient() -> None:
    async with guarded_valkey() as url, Redis.from_url(url) as admin:
        await admin.execute_command(
            "ACL", "SETUSER", "narrow", "on", ">narrow-password", "-@all", "+ping", "+client", "+hello"
        )
        narrow = url.replace(f":{PASSWORD}@", "narrow:narrow-password@")
        facts = await read_broker(settings_with(narrow))
        assert (facts.product, facts.eviction, facts.queued) == ("", "", None)
        assert await check_broker(settings_with(narrow)) == []


@pytest.mark.parametrize("case", ["gone", "wrong password"])
async def test_unusable_broker_is_reported_without_its_address(case: str) -> None:
    async with guarded_valkey() as url:
        wrong = {
            "gone": f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0",
            "wrong password": url.replace(PASSWORD, "another-secret"),
        }[case]
        settings = settings_with(wrong)
        with pytest.raises(ServiceUnavailable) as refused:
            await ping_broker(settings, within_s=60)
        [finding] = await examine_broker(settings)
        [problem] = await check_broker(settings)
        assert finding.state is State.ERROR
        texts = f"{refused.value.message} {finding} {problem}"
        assert not any(secret in texts for secret in (PASSWORD, "another-secret", "127.0.0.1"))


@asynccontextmanager
async def behind_tls(port: int, certificate: ServerCertificate, directory: Path) -> AsyncIterator[int]:
    """Run a TLS proxy that presents `certificate` and forwards to `port`; yield the proxy's port."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed_on(reader, to_writer), passed_on(to_reader, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate.write(directory))
    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_tls_requires_a_certificate_for_the_broker_host(tmp_path: Path) -> None:
    authority = Authority()
    signer = tmp_path / "authority.pem"
    signer.write_text(authority.certificate)
    async with guarded_valkey() as url:
        address = urlsplit(url)
        for name, options, answers in (
            ("127.0.0.1", "", True),
            ("another.example.org", "", False),
            ("another.example.org", "&ssl_check_hostname=false", True),
        ):
            async with behind_tls(address.port or 0, authority.certify(name), tmp_path) as port:
                settings = settings_with(f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={signer}{options}")
                if answers:
                    await ping_broker(settings, within_s=60)
                else:
                    with pytest.raises(ServiceUnavailable):
                        await ping_broker(settings, within_s=60)
