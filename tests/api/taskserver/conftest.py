"""Mail servers and webhook receivers for schedules, and applications with a beat whose schedules a test can make
due.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session
from tests.api.conftest import ApiOpener
from tests.api.driving import Api, Caller, until
from tests.engines.certificates import Authority

WEBHOOK_SECRET = "w9Kd2vX5pLq4Rt8Zb3Nc6Yf1Hs5Jd0Gx"


@dataclass
class Mailbox:
    """Records the mail that a server has accepted. `answers` are the server's first replies. Afterward it accepts all
    mail.
    """

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 by aiosmtpd
        if self.answers:
            return self.answers.pop(0)
        assert isinstance(envelope.content, bytes)
        parsed = message_from_bytes(envelope.content, policy=default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        self.recipients += envelope.rcpt_tos
        self.encrypted.append(session.ssl is not None)
        return "250 taken"


@asynccontextmanager
async def mail_server(directory: Path, authority: Authority, *names: str) -> AsyncIterator[Mailbox]:
    """Run a mail server on loopback that requires STARTTLS; yield its mailbox."""
    certificate = authority.certify(*names)
    file = directory / f"{names[0]}.pem"
    file.write_text(certificate.certificate + certificate.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    box, loop = Mailbox(), asyncio.get_running_loop()

    def protocol() -> SMTP:
        return SMTP(box, hostname="localhost", tls_context=context, require_starttls=True, loop=loop)

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    async with server:
        box.port = server.sockets[0].getsockname()[1]
        yield box


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """A certificate authority. This process trusts no other."""
    made = Authority()
    file = tmp_path / "authority.pem"
    file.write_text(made.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return made


@pytest.fixture
async def mailbox(tmp_path: Path, authority: Authority) -> AsyncIterator[Mailbox]:
    async with mail_server(tmp_path, authority, "localhost") as box:
        yield box


@dataclass
class Receiver:
    """A webhook receiver. `answers` are the statuses of its first responses. All later responses have the status
    204.
    """

    url: str = ""
    calls: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.calls.append((headers, body))
        status = self.answers.pop(0) if self.answers else 204
        writer.write(f"HTTP/1.1 {status} X\r\nLocation: {self.url}/again\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    one = Receiver()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    async with server:
        # The URL contains a host name, because responses of the service must not contain IP addresses.
        one.url = f"http://localhost:{server.sockets[0].getsockname()[1]}/hook"
        yield one


Desktop = Callable[..., dict[str, Any]]


@pytest.fixture
def desktop() -> Desktop:
    """A function that builds `desktop` settings with a mail server and a webhook secret."""

    def made(mailbox: Mailbox | None = None, **task_server: Any) -> dict[str, Any]:
        smtp = {"host": "localhost", "port": mailbox.port, "default_from_email": "qs@example.org"} if mailbox else {}
        tasks = {
            "webhook_secret": WEBHOOK_SECRET,
            "webhook_allowed_networks": ["127.0.0.0/8", "::1"],
            "email_allowed_domains": ["example.org"],
            **task_server,
        }
        return {"smtp": smtp, "task_server": tasks}

    return made


@dataclass(frozen=True)
class Fleet:
    """An application whose process also runs the beat, and its administrator."""

    api: Api
    root: Caller

    async def schedule(self, name: str, **members: Any) -> dict[str, Any]:
        """Create a schedule for a statement on the scripted engine; return the schedule in the response."""
        given = {"name": name, "kind": "statement", "connector": "mysql", "statement": "rows 3", "interval_s": 3600}
        response = await self.root.post_json("taskserver/schedules/new", schedule={**given, **members})
        assert response.status_code == 200, response.text
        return response.json()["schedule"]

    async def read(self, schedule_id: int) -> dict[str, Any]:
        response = await self.root.get(f"taskserver/schedules/{schedule_id}")
        assert response.status_code == 200, response.text
        return response.json()["schedule"]

    async def due(self, *ids: int, since: str = "0 s") -> None:
        """Make these schedules due now. With `since`, they have already been due for this interval."""
        await self.api.database.execute(
            "update schedules set next_run_at = now() - $2::text::interval where id = any($1::bigint[])",
            list(ids),
            since,
        )

    async def runs(self, schedule_id: int) -> list[dict[str, Any]]:
        rows = await self.api.database.fetch(
            "select * from schedule_runs where schedule_id = $1 order by due_at", schedule_id
        )
        return [dict(row) for row in rows]

    async def ended(self, schedule_id: int, runs: int = 1) -> list[dict[str, Any]]:
        """Wait until at least this many runs of a schedule have ended; return all runs."""

        async def have_ended() -> bool:
            return sum(bool(run["status"]) for run in await self.runs(schedule_id)) >= runs

        await until(have_ended)
        return await self.runs(schedule_id)

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        await until(condition)


@pytest.fixture
def fleets(small_api: ApiOpener) -> Callable[..., Any]:
    """A function that opens an application. Its process runs both the beat and the statements."""

    @asynccontextmanager
    async def opener(*, beats: bool = True, **changes: Any) -> AsyncIterator[Fleet]:
        async with small_api(**changes) as api:
            root = await api.user("root", admin=True)
            await api.database.execute(
                "update users set email = username || '@example.org' where username = $1", root.username
            )
            if not beats:
                yield Fleet(api, root)
                return
            async with api.services.scheduling.beat.running():
                yield Fleet(api, root)

    return opener
