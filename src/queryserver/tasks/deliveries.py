"""Sends emails and webhooks from an outbox (ADR 58).

A delivery is added to the outbox in the same transaction that records the completion it reports.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, Self
from urllib.parse import urlsplit
from uuid import UUID

import structlog
from prometheus_client import Counter

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Connection, Database, Row
from queryserver.platform.logs import Redactor, escaped
from queryserver.platform.ownership import OwnedTable, Ownership
from queryserver.platform.threads import Tasks, background, every
from queryserver.tasks.model import Notify, RunStatus

log = structlog.get_logger(__name__)

MAX_TRIES = 5
_PAUSES_S = (10, 60, 300, 1800)
_CONCURRENT_DELIVERIES = 4
_ROUND_EVERY_S = 1.0
_CLEAN_UP_EVERY_S = 3600.0
_SENT_WITHIN_S = 60.0
_RETENTION = timedelta(days=7)
_MAX_ERROR_CHARACTERS = 500


_redacted = Redactor()


def clean_message(text: str) -> str:
    """Reduce a message from an engine or server to one line of at most 500 characters, with secrets redacted."""
    return escaped(" ".join(_redacted(text[: 10 * _MAX_ERROR_CHARACTERS]).split()))[:_MAX_ERROR_CHARACTERS]


class DeliveryKind(StrEnum):
    EMAIL = "email"
    WEBHOOK = "webhook"


class DeliveryFailed(Exception):
    """A delivery attempt failed. `reason` is logged and recorded. If `final` is set, the delivery is not retried."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The content of a notification about a finished run or statement."""

    event: str
    name: str
    connector: str
    state: str
    started: datetime
    duration_ms: int
    rows: int
    history_uuid: UUID | None
    error: str
    owner_id: int
    attach_csv: bool = False

    def stored(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "name": self.name,
            "connector": self.connector,
            "state": self.state,
            "started": self.started.isoformat(),
            "duration_ms": self.duration_ms,
            "rows": self.rows,
            "history_uuid": str(self.history_uuid) if self.history_uuid else None,
            "error": clean_message(self.error),
            "owner_id": self.owner_id,
            "attach_csv": self.attach_csv,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        uuid = stored["history_uuid"]
        fields: dict[str, Any] = {
            **stored,
            "started": datetime.fromisoformat(stored["started"]),
            "history_uuid": UUID(uuid) if uuid else None,
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class NewDelivery:
    key: str
    kind: DeliveryKind
    recipient: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A claimed delivery. `moment` is the time of the claim according to the database clock."""

    key: str
    kind: DeliveryKind
    recipient: str
    message: Message
    tries: int
    moment: datetime
    owner: str
    fence: int


class Sender(Protocol):
    """Sends deliveries of one kind."""

    async def send(self, delivery: Delivery) -> None:
        """Send the delivery. Returns once the receiver has accepted it. Raises DeliveryFailed."""
        ...


def new_deliveries(about: str, message: Message, notify: Notify) -> Sequence[NewDelivery]:
    """Create the deliveries for one completion. `about` is the id of the statement, or of the fire if there is none."""
    if message.event not in notify.on:
        return ()
    content = message.stored()
    mail = {**content, "attach_csv": notify.attach_csv}
    deliveries = [_new_delivery(about, message.event, DeliveryKind.EMAIL, address, mail) for address in notify.to]
    if notify.url:
        deliveries.append(_new_delivery(about, message.event, DeliveryKind.WEBHOOK, notify.url, content))
    return deliveries


def _new_delivery(
    about: str, event: str, kind: DeliveryKind, recipient: str, content: Mapping[str, Any]
) -> NewDelivery:
    normalized = recipient.lower() if kind is DeliveryKind.EMAIL else recipient
    # The key contains a digest, because keys are logged and sent, and the path of a webhook URL may be a secret.
    digest = hashlib.sha256(normalized.encode()).hexdigest()
    return NewDelivery(f"{about}:{event}:{kind}:{digest}", kind, recipient, content)


# A schedule's email with an attachment replaces the plain email to the same address, unless a worker has already tried
# to send the plain email.
_ADD = """
insert into deliveries as known (key, kind, recipient, content) values ($1, $2, $3, $4)
on conflict (key) do update set content = excluded.content
    where known.tries = 0 and known.next_try_at is not null and (excluded.content->>'attach_csv')::bool
"""

_RECEIVER = "coalesce(substring({of}.recipient from '^https?://[^/?#]+'), {of}.recipient)"
"""SQL expression: the email address, or the scheme and host of a webhook URL."""

DELIVERIES = OwnedTable("deliveries", key=("key",), lease="claimed_until", active="next_try_at is not null")

# Each receiver gets one delivery at a time, so a slow receiver occupies a single slot. The update repeats the check
# for each row, because another worker may have claimed it since `turns` was read.
_CLAIM = f"""
with turns as (
    select distinct on ({_RECEIVER.format(of="due")}) key from deliveries as due
    where kind = $3 and next_try_at <= now() and {DELIVERIES.claimable("due", me="$1")} and not exists (
        select from deliveries as sent
        where sent.kind = $3 and sent.next_try_at is not null and {DELIVERIES.is_owned("sent", me="$1")}
            and {_RECEIVER.format(of="sent")} = {_RECEIVER.format(of="due")}
    )
    order by {_RECEIVER.format(of="due")}, next_try_at, key
)
update deliveries set tries = tries + 1, {DELIVERIES.claimed("$1")}
where key in (
    select key from deliveries
    where key in (select key from turns) and next_try_at <= now() and {DELIVERIES.claimable(me="$1")}
    order by next_try_at limit $2 for update skip locked
) and {DELIVERIES.may_claim("$1")}
returning key, kind, recipient, content, tries, now() as moment, owner, fence
"""

_RECORD = f"""
update deliveries set {DELIVERIES.released}, error = $4,
    delivered_at = case when $4 = '' then now() end,
    next_try_at = case when $5::interval is null then null else now() + $5::interval end
where {DELIVERIES.fenced}
"""
_RELEASE = f"update deliveries set {DELIVERIES.released}, tries = tries - 1 where {DELIVERIES.fenced}"

_ENDED = """
select s.id, s.history_id, s.notify, s.connector, s.state, s.rows, s.message, s.user_id, u.email,
    coalesce(s.sent_at, s.recorded_at) as started, coalesce(s.ended_at, now()) as ended,
    s.sent_at is not null and s.ended_at - s.sent_at > $1::interval as ran_long
from statements s join users u on u.id = s.user_id
where s.notify is not null and s.state not in ('waiting', 'running')
order by s.history_id limit 200 for update of s skip locked
"""

_PENDING = """
select exists (select from statements where notify is not null and state not in ('waiting', 'running')) as has_ended,
    array(select distinct kind from deliveries where next_try_at <= now()) as kinds
"""


class Outbox:
    """Reads and writes the `deliveries` table. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, connection: Connection, deliveries: Iterable[NewDelivery]) -> None:
        """Add deliveries in the transaction of `connection`. Keeps an existing delivery with the same key.

        Exception: an email with an attachment replaces one that no worker has tried to send yet.
        """
        for delivery in deliveries:
            await connection.execute(_ADD, delivery.key, delivery.kind.value, delivery.recipient, delivery.content)

    async def claim(self, kind: DeliveryKind, limit: int, *, owner: str) -> Sequence[Delivery]:
        """Claim due deliveries, one per receiver."""
        return [_delivery_from_row(row) for row in await self._database.fetch(_CLAIM, owner, limit, kind.value)]

    async def record(self, delivery: Delivery, error: str = "", *, pause: timedelta | None = None) -> None:
        """Record the outcome of an attempt. An empty `error` means success; `pause=None` stops retries.

        Has no effect if another worker has claimed the delivery in the meantime.
        """
        await self._database.execute(_RECORD, *_fence(delivery), clean_message(error), pause)

    async def release(self, delivery: Delivery) -> None:
        """Release a delivery that was not sent."""
        await self._database.execute(_RELEASE, *_fence(delivery))

    async def pending(self) -> tuple[bool, Sequence[str]]:
        """Return whether `add_ended_statements` has work to do, and the kinds of due deliveries, in one query."""
        row = await self._database.row(_PENDING)
        return (row["has_ended"], row["kinds"]) if row else (False, ())

    async def add_ended_statements(self, mailed_after: timedelta | None) -> None:
        """Add the deliveries about statements that have ended. `mailed_after=None` disables emails to owners."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(_ENDED, mailed_after)
            added: list[UUID] = []
            for row in rows:
                try:
                    deliveries = _statement_deliveries(row, mails=mailed_after is not None)
                except Exception:  # a row written by a newer version must not block the others
                    log.exception("notifications of a statement not created", operation_id=str(row["id"]))
                    continue
                await self.add(connection, deliveries)
                added.append(row["id"])
            if added:
                await connection.execute("update statements set notify = null where id = any($1::uuid[])", added)

    async def delete_finished(self) -> None:
        """Delete deliveries that were created more than a week ago and will not be tried again."""
        await self._database.execute(
            "delete from deliveries where next_try_at is null and created_at < now() - $1::interval", _RETENTION
        )


def _statement_deliveries(row: Row, *, mails: bool) -> Sequence[NewDelivery]:
    has_succeeded = row["state"] not in {"failed", "canceled", "timed_out"}
    message = Message(
        event=RunStatus.FINISHED if has_succeeded else RunStatus.FAILED,
        name=f"statement {row['history_id']}",
        connector=row["connector"],
        state=row["state"],
        started=row["started"],
        duration_ms=round((row["ended"] - row["started"]) / timedelta(milliseconds=1)),
        rows=row["rows"],
        history_uuid=row["id"],
        error="" if has_succeeded else row["message"],
        owner_id=row["user_id"],
    )
    to = (row["email"],) if mails and row["ran_long"] and row["email"] else ()
    return new_deliveries(str(row["id"]), message, Notify(to=to, url=row["notify"].get("url")))


def _delivery_from_row(row: Row) -> Delivery:
    return Delivery(
        key=row["key"],
        kind=DeliveryKind(row["kind"]),
        recipient=row["recipient"],
        message=Message.of(row["content"]),
        tries=row["tries"],
        moment=row["moment"],
        owner=row["owner"],
        fence=row["fence"],
    )


def _fence(delivery: Delivery) -> tuple[str, str, int]:
    return delivery.key, delivery.owner, delivery.fence


def _log_fields(delivery: Delivery) -> dict[str, str]:
    """Return the fields for log lines, which must not contain the recipient's full address."""
    if delivery.kind is DeliveryKind.EMAIL:
        host = delivery.recipient.rpartition("@")[2]
    else:
        host = urlsplit(delivery.recipient).hostname or ""
    return {"key": delivery.key, "kind": delivery.kind, "outcome": delivery.message.event, "host": host}


class Deliveries:
    """Sends due deliveries, with up to five attempts and growing pauses. Failures do not affect statements or runs."""

    def __init__(
        self,
        outbox: Outbox,
        ownership: Ownership,
        senders: Mapping[DeliveryKind, Sender],
        counters: Mapping[DeliveryKind, Counter],
        *,
        mailed_after: timedelta | None,
    ) -> None:
        self._outbox = outbox
        self._ownership = ownership
        ownership.watch(DELIVERIES)
        self._senders = senders
        self._counters = counters
        self._mailed_after = mailed_after
        self._sending = Tasks()
        self._slots = dict.fromkeys(senders, _CONCURRENT_DELIVERIES)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Create and send deliveries while the context is open. Deliveries interrupted on exit are retried later."""
        async with (
            self._sending.running(),
            background(every(_ROUND_EVERY_S, self.round), "deliveries"),
            background(every(_CLEAN_UP_EVERY_S, self._outbox.delete_finished), "deliveries-clean-up"),
        ):
            yield

    async def round(self) -> None:
        """Create deliveries about ended statements, then claim and send due deliveries while slots are free.

        Raises DatabaseUnavailable.
        """
        has_ended, kinds = await self._outbox.pending()
        if has_ended:
            await self._outbox.add_ended_statements(self._mailed_after)
        for kind in self._slots:
            if has_ended or kind.value in kinds:
                await self._fill(kind)

    async def _fill(self, kind: DeliveryKind) -> None:
        if (slots := self._slots[kind]) and self._ownership.may_take_over:
            self._slots[kind] = 0  # reserved while the claim is in progress
            claimed: Sequence[Delivery] = ()
            lapses = self._ownership.lapses
            try:
                claimed = await self._outbox.claim(kind, slots, owner=self._ownership.id)
            finally:
                self._slots[kind] += slots - len(claimed)
            for delivery in claimed:
                self._sending.start(self._send(delivery, lapses), "delivery")

    async def _send(self, delivery: Delivery, lapses: int) -> None:
        """Send a delivery that was claimed when `Ownership.lapses` had the given value."""
        try:
            with self._ownership.holding(DELIVERIES, delivery.key, delivery.fence):
                await self._send_and_record(delivery, lapses)
            # The next delivery to this receiver may have been waiting for this one.
            await self._fill(delivery.kind)
        except DatabaseUnavailable:
            log.warning("delivery may be repeated: database unreachable", **_log_fields(delivery))

    async def _send_and_record(self, delivery: Delivery, lapses: int) -> None:
        try:
            if self._ownership.has_lapsed(lapses):  # another worker may be sending it
                return await self._outbox.release(delivery)
            reason, final = await self._try_to_send(delivery)
            pause = None
            if reason and not final and delivery.tries < MAX_TRIES:
                pause = timedelta(seconds=_PAUSES_S[delivery.tries - 1])
            self._counters[delivery.kind].labels("failed" if reason else "sent").inc()
            if reason:
                log.warning("delivery attempt failed", **_log_fields(delivery), tries=delivery.tries, reason=reason)
            await self._outbox.record(delivery, reason, pause=pause)
        finally:
            self._slots[delivery.kind] += 1

    async def _try_to_send(self, delivery: Delivery) -> tuple[str, bool]:
        """Try to send. Return the failure reason (empty on success), and whether the failure is final."""
        if delivery.tries > MAX_TRIES:
            return "The sending worker crashed on every attempt.", True
        try:
            async with asyncio.timeout(_SENT_WITHIN_S):
                await self._senders[delivery.kind].send(delivery)
        except DeliveryFailed as error:
            return error.reason or "The delivery failed.", error.final
        except TimeoutError:
            return "The delivery timed out.", False
        except Exception as error:  # last resort of a task: the delivery is retried
            log.exception("delivery failed", **_log_fields(delivery))
            return f"Internal error: {type(error).__name__}.", False
        return "", False
