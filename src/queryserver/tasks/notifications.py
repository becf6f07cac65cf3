"""Notification and test emails with their permitted recipients, and signed webhooks (Contract platform 10.5, 10.8)."""

import asyncio
import hashlib
import hmac
import re
import ssl
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid, parseaddr
from urllib.parse import urlsplit

import orjson

from queryserver import errors
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import EngineUnavailable
from queryserver.formats.download.encoder import DownloadFormat, FileForm
from queryserver.formats.download.stream import download
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused, HttpServer, UnknownHost
from queryserver.platform.database import Database
from queryserver.platform.http_client import HttpClient, HttpRequest
from queryserver.platform.settings.desktop import SmtpSettings
from queryserver.platform.settings.sections import Secret, TaskServerSettings
from queryserver.platform.settings.tree import protects_secrets
from queryserver.statements.downloads import Downloads
from queryserver.tasks.deliveries import Delivery, DeliveryFailed, Message, clean_message

_MAX_ADDRESS_CHARACTERS = 254  # RFC 5321 4.5.3.1.3, without the angle brackets
_MAX_URL_CHARACTERS = 2000
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)", re.ASCII)

_TIMEOUT = timedelta(seconds=10)
_MAX_RESPONSE_BYTES = 64 * 1024
_SUCCESS = range(200, 300)


class Recipients:
    """Checks the recipients of notifications when they are configured.

    Webhook URLs are checked again at each delivery, because DNS records may change.
    """

    def __init__(self, database: Database, settings: TaskServerSettings, rules: AddressRules) -> None:
        self._database = database
        self._domains = frozenset(domain.lower().lstrip("@") for domain in settings.email_allowed_domains)
        self._has_secret = bool(settings.webhook_secret.get_secret_value())
        self._rules = rules

    async def require_addresses(self, addresses: Sequence[str], field: str) -> None:
        """Raise InvalidParameter unless emails may be sent to all addresses."""
        domains = {address: _domain(address, field) for address in addresses}
        if self._domains:
            refused = [address for address, domain in domains.items() if domain not in self._domains]
        else:
            account_addresses = await self._account_addresses({address.lower() for address in addresses})
            refused = [address for address in addresses if address.lower() not in account_addresses]
        if refused:
            reason = "its domain is not in email_allowed_domains" if self._domains else "no user has this address"
            raise InvalidParameter(
                f"{field}: sending email to {refused[0][:_MAX_ADDRESS_CHARACTERS]} is not allowed: {reason}."
            )

    async def require_url(self, url: str, field: str) -> None:
        """Raise InvalidParameter unless webhooks may be sent to the URL. The host name need not resolve yet."""
        if not self._has_secret:
            raise InvalidParameter(f"{field} requires the setting desktop.task_server.webhook_secret.")
        if len(url) > _MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
            raise InvalidParameter(
                f"{field} must be a URL of at most {_MAX_URL_CHARACTERS} printable ASCII characters."
            )
        if not protects_secrets(url) or "@" in urlsplit(url).netloc or "#" in url:
            raise InvalidParameter(
                f"{field} must be an https URL, or an http URL on loopback, without credentials or a fragment."
            )
        server = HttpServer(url)
        if refusal := self._rules.refusal(server.host, server.port):
            raise InvalidParameter(f"{field} is not allowed: {refusal}.")
        try:
            await self._rules.resolve(server.host, server.port)
        except UnknownHost:
            return
        except HostRefused as error:
            raise InvalidParameter(f"{field} is not allowed: {error.message}") from None

    async def _account_addresses(self, addresses: Collection[str]) -> frozenset[str]:
        rows = await self._database.fetch(
            "select distinct lower(email) as email from users where is_active and lower(email) = any($1::text[])",
            list(addresses),
        )
        return frozenset(row["email"] for row in rows)


def _domain(address: str, field: str) -> str:
    """Return the address's domain in lower case. Raises InvalidParameter, also for line breaks and address lists."""
    match = _ADDRESS.fullmatch(address)
    if match is None or len(address) > _MAX_ADDRESS_CHARACTERS:
        raise InvalidParameter(f"{field} must contain email addresses such as ana@example.org.")
    return match[1].lower()


_TIMEOUT_S = 20.0
_PERMANENT_ERROR_CODES = range(500, 600)
_LOGIN_ERROR_CODES = frozenset({530, 534, 535, 538})  # RFC 4954 6
_LINE_BREAKS = frozenset("\r\n\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvAttachments:
    """Reads results as CSV attachments, with the rights of their owners and within the limits of the settings."""

    downloads: Downloads
    callers: CallerRepository
    threads: Executor
    settings: TaskServerSettings

    async def read(self, message: Message) -> tuple[bytes | None, str]:
        """Return the attachment, or None and the reason. Raises DeliveryFailed if a retry may succeed."""
        user = await self.callers.user(message.owner_id)
        if user is None or message.history_uuid is None:
            return None, "its owner is disabled" if user is None else "the run has no statement"
        try:
            return await self._read(user, message)
        except errors.ServiceUnavailable as error:
            raise DeliveryFailed(error.message) from error
        except errors.QueryServerError as error:
            return None, error.message.rstrip(".")

    async def _read(self, user: User, message: Message) -> tuple[bytes | None, str]:
        assert message.history_uuid is not None  # noqa: S101 checked by the caller
        rows = await self.downloads.open(user, message.history_uuid, allow_truncated=True)
        if rows.rows > self.settings.email_max_rows:
            return None, (
                f"it has {rows.rows} rows, but at most {self.settings.email_max_rows} rows can be attached"
                " (`desktop.task_server.email_max_rows`)"
            )
        content = bytearray()
        pieces = download(rows, FileForm(DownloadFormat.CSV, guard=True), threads=self.threads)
        async with aclosing(self.downloads.audited(user, message.history_uuid, pieces)) as audited:
            async for piece in audited:
                content += piece
                if len(content) > self.settings.email_max_bytes:
                    return None, (
                        f"it is larger than {self.settings.email_max_bytes} bytes"
                        " (`desktop.task_server.email_max_bytes`)"
                    )
        return bytes(content), ""


class MailSender:
    """Sends emails through the configured server, and verifies its certificate.

    `tls` is called once to create the TLS context. Without a given context, aiosmtplib would also verify the
    certificate, but would create a new context for every connection.
    """

    def __init__(
        self,
        settings: SmtpSettings,
        recipients: Recipients,
        attachments: CsvAttachments,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._settings = settings
        self._recipients = recipients
        self._attachments = attachments
        self._tls = tls
        self._context: ssl.SSLContext | None = None

    @property
    def are_configured(self) -> bool:
        return bool(self._settings.host)

    async def send(self, delivery: Delivery) -> None:
        message = delivery.message
        try:
            await self._recipients.require_addresses([delivery.recipient], "to")
        except errors.InvalidParameter as error:
            raise DeliveryFailed(error.message, final=True) from error
        attached, reason = None, ""
        if message.attach_csv and message.event == "finished":
            attached, reason = await self._attachments.read(message)
        mail = self._mail(delivery.recipient, f"[queryserver] {message.name}: {message.event}", _text(message, reason))
        mail["Date"] = format_datetime(delivery.moment)
        if attached is not None:
            mail.add_attachment(attached, maintype="text", subtype="csv", filename="result.csv")
        await self._transmit(mail)

    async def test(self, to: str) -> str:
        """Send a test email. Return the failure reason, empty on success. Raises InvalidParameter."""
        await self._recipients.require_addresses([to], "to")
        mail = self._mail(to, "[queryserver] test", "This is a test email from queryserver.\n")
        try:
            await self._transmit(mail)
        except DeliveryFailed as error:
            return error.reason
        return ""

    def _mail(self, to: str, subject: str, text: str) -> EmailMessage:
        """Create an email. Raises DeliveryFailed if a header would contain a line break."""
        sender = self._settings.default_from_email or "queryserver@localhost"
        for value in (sender, to, subject):
            if _LINE_BREAKS & set(value):
                raise DeliveryFailed("A header of the email contains a line break.", final=True)
        mail = EmailMessage(policy=SMTP)
        mail["From"], mail["To"], mail["Subject"] = sender, to, subject
        mail["Message-ID"] = make_msgid(domain=parseaddr(sender)[1].rpartition("@")[2] or "localhost")
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: prevents out-of-office replies
        mail.set_content(text)
        return mail

    async def _transmit(self, mail: EmailMessage) -> None:
        settings = self._settings
        if not settings.host:
            raise DeliveryFailed("desktop.smtp.host is not set.", final=True)
        if self._context is None:
            self._context = await asyncio.to_thread(self._tls)
        import aiosmtplib  # noqa: PLC0415 few processes send mail

        server = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            username=settings.user or None,
            password=settings.password.get_secret_value() if settings.user else None,
            timeout=_TIMEOUT_S,
            use_tls=settings.tls == "tls",
            start_tls=settings.tls == "starttls",  # with True, sending fails if the server does not support STARTTLS
            tls_context=self._context,
        )
        try:
            async with asyncio.timeout(2 * _TIMEOUT_S):
                async with server:
                    await server.send_message(mail)
        except aiosmtplib.SMTPResponseException as error:
            # A rejected greeting, TLS handshake or login is retried, because the settings or the server may be
            # corrected.
            is_message_error = isinstance(error, aiosmtplib.SMTPSenderRefused | aiosmtplib.SMTPDataError)
            final = is_message_error and error.code in _PERMANENT_ERROR_CODES and error.code not in _LOGIN_ERROR_CODES
            raise DeliveryFailed(clean_message(f"{error.code} {error.message}"), final=final) from error
        except aiosmtplib.SMTPRecipientsRefused as error:
            refused = error.recipients[0]
            reason = clean_message(f"{refused.code} {refused.message}")
            final = refused.code in _PERMANENT_ERROR_CODES and refused.code not in _LOGIN_ERROR_CODES
            raise DeliveryFailed(reason, final=final) from error
        except TimeoutError as error:
            raise DeliveryFailed("The mail server did not respond in time.") from error
        except (aiosmtplib.SMTPConnectError, OSError) as error:
            is_tls = isinstance(error.__cause__ or error, ssl.SSLError)
            reason = (
                "The TLS handshake with the mail server failed, or its certificate is not valid."
                if is_tls
                else "The connection to the mail server failed."
            )
            raise DeliveryFailed(reason) from error
        except aiosmtplib.SMTPException as error:
            raise DeliveryFailed(clean_message(str(error)) or type(error).__name__) from error


def _text(message: Message, not_attached: str) -> str:
    lines = [
        f"Name: {message.name}",
        f"Connector: {message.connector}",
        f"State: {message.state}",
        f"Started: {message.started:%Y-%m-%dT%H:%M:%SZ}",
        f"Duration: {message.duration_ms / 1000:.1f} s",
        f"Rows: {message.rows}",
    ]
    if message.history_uuid is not None:
        lines.append(f"Statement: {message.history_uuid}")
    if message.error:
        lines.append(f"Error: {message.error}")
    if not_attached:
        lines.append(f"The result is not attached: {not_attached}.")
    return "\n".join(lines) + "\n"


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `X-Queryserver-Signature`.

    It contains the Unix timestamp in seconds and the HMAC-SHA256 of `<timestamp>.<body>`.
    """
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


class WebhookSender:
    """POSTs JSON to permitted addresses. Does not follow redirects; any status other than 2xx is a failure."""

    def __init__(self, rules: AddressRules, secret: Secret) -> None:
        self._rules = rules
        self._secret = secret.get_secret_value()

    async def send(self, delivery: Delivery) -> None:
        if not self._secret:
            raise DeliveryFailed("desktop.task_server.webhook_secret is not set.", final=True)
        message = delivery.message
        body = orjson.dumps(
            {
                "event": message.event,
                "name": message.name,
                "connector": message.connector,
                "state": message.state,
                "started": message.started,
                "duration_ms": message.duration_ms,
                "rows": message.rows,
                "history_uuid": str(message.history_uuid) if message.history_uuid else None,
                "error": message.error,
            },
            option=orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS,
        )
        request = HttpRequest(
            delivery.recipient,
            "POST",
            {
                "Content-Type": "application/json",
                "User-Agent": "queryserver",
                "X-Queryserver-Delivery": _ascii_header(delivery.key),
                "X-Queryserver-Signature": signature(self._secret, int(delivery.moment.timestamp()), body),
            },
            body,
            max_bytes=_MAX_RESPONSE_BYTES,
            within_s=_TIMEOUT.total_seconds(),
        )
        try:
            # Each webhook opens a new connection: webhooks are rare, and the receiver may restart in between.
            async with HttpClient(self._rules) as client:
                response = await client.send(request)
        except HostRefused as error:
            raise DeliveryFailed(error.message, final=True) from error
        except EngineUnavailable as error:
            raise DeliveryFailed(error.message) from error
        if response.status not in _SUCCESS:
            raise DeliveryFailed(f"The receiver responded with status {response.status}.")


def _ascii_header(key: str) -> str:
    return key.encode("ascii", "replace").decode()
