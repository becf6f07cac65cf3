"""Emails and webhook calls about runs and statements that have ended (Contract platform 10.5, 10.8)."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import verdict
from tests.api.taskserver.conftest import WEBHOOK_SECRET, Desktop, Fleet, Mailbox, Receiver, mail_server
from tests.engines.certificates import Authority
from tests.fixtures.database import PATIENT
from tests.timing import TRIES

from queryserver.platform.database import open_database
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.tasks.deliveries import (
    DELIVERIES,
    Deliveries,
    Delivery,
    DeliveryKind,
    Message,
    NewDelivery,
    Outbox,
    _log_fields,
    new_deliveries,
)
from queryserver.tasks.model import Notify

Fleets = Callable[..., Any]


@asynccontextmanager
async def immediate_retries(fleet: Fleet) -> AsyncIterator[None]:
    """Make all retries of failed deliveries due immediately, until the context exits."""

    async def hurry() -> None:
        while True:
            await fleet.api.database.execute("update deliveries set next_try_at = now() where next_try_at > now()")
            await asyncio.sleep(0.05)

    task = asyncio.create_task(hurry())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def delivered(fleet: Fleet, count: int) -> list[dict[str, Any]]:
    """Wait until at least this many deliveries have succeeded or failed for good; return all deliveries."""

    async def are_done() -> bool:
        return await fleet.api.database.value("select count(*) from deliveries where next_try_at is null") >= count

    await fleet.until(are_done)
    return [dict(row) for row in await fleet.api.database.fetch("select * from deliveries order by created_at, key")]


async def test_round_without_work_is_one_query(database_dsn: str) -> None:
    queries: list[float] = []
    async with open_database(database_dsn, PATIENT, observe_query=queries.append) as database:
        kinds: dict[DeliveryKind, Any] = dict.fromkeys(DeliveryKind)
        ownership = Ownership(database, lease=timedelta(seconds=30))
        await Deliveries(Outbox(database), ownership, kinds, kinds, mailed_after=None).round()
    assert len(queries) == 1


@pytest.mark.platform(109)
async def test_finished_and_failed_schedules_send_one_email_each(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    async with fleets(desktop=desktop(mailbox)) as fleet:
        notify = {"to": ["a@example.org", "A@example.org"], "attach_csv": True}
        good = await fleet.schedule("good", statement="text =1+1", notify=notify)
        bad = await fleet.schedule("bad", statement="fail no table\r\nBcc: x@example.org", notify=notify)
        quiet = await fleet.schedule("quiet", notify={"on": ["failed"], "to": ["a@example.org"]})
        await fleet.due(good["id"], bad["id"], quiet["id"])
        for one in (good, bad, quiet):
            await fleet.ended(one["id"])
        await delivered(fleet, 2)
    assert mailbox.encrypted == [True, True]
    by_subject = {mail["Subject"]: mail for mail in mailbox.mails}
    assert set(by_subject) == {"[queryserver] good: finished", "[queryserver] bad: failed"}
    finished, failed = by_subject["[queryserver] good: finished"], by_subject["[queryserver] bad: failed"]
    assert (finished["From"], finished["To"]) == ("qs@example.org", "a@example.org")
    text = finished.get_body().get_content()
    for line in ("Name: good", "Connector: mysql", "State: available", "Rows: 1", "Started: 2", "Duration: "):
        assert line in text
    (attached,) = finished.iter_attachments()
    assert attached.get_content_type() == "text/csv"
    content = attached.get_content()
    assert content.splitlines()[1:] == ["'=1+1"]
    assert "Error: no table Bcc: x@example.org" in failed.get_body().get_content()
    assert failed["Bcc"] is None
    assert not list(failed.iter_attachments())


@pytest.mark.platform(109)
async def test_attached_csv_respects_row_and_byte_limits(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    async with fleets(desktop=desktop(mailbox, email_max_rows=5, email_max_bytes=100)) as fleet:
        notify = {"to": ["a@example.org"], "attach_csv": True}
        ids = [
            (await fleet.schedule(statement, statement=statement, notify=notify))["id"]
            for statement in ("rows 5", "rows 6", "rows 2 wide 100")
        ]
        await fleet.due(*ids)
        await delivered(fleet, 3)
    found = {mail["Subject"].split(":")[0]: mail for mail in mailbox.mails}
    assert len(list(found["[queryserver] rows 5"].iter_attachments())) == 1
    for name, reason in (
        ("rows 6", "it has 6 rows, but at most 5 rows can be attached (`desktop.task_server.email_max_rows`)"),
        ("rows 2 wide 100", "it is larger than 100 bytes (`desktop.task_server.email_max_bytes`)"),
    ):
        mail = found[f"[queryserver] {name}"]
        assert not list(mail.iter_attachments())
        assert reason in mail.get_body().get_content()


@pytest.mark.platform(109)
async def test_line_break_in_a_name_adds_no_header(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    async with fleets(desktop=desktop(mailbox)) as fleet:
        made = await fleet.schedule("plain", notify={"to": ["a@example.org"]})
        # API calls reject such a name. Therefore it is written directly to the database.
        await fleet.api.database.execute(r"update schedules set name = E'x\r\nBcc: b@example.org'")
        await fleet.due(made["id"])
        (one,) = await delivered(fleet, 1)
        assert (one["tries"], one["delivered_at"]) == (1, None)
        assert one["error"] == "A header of the email contains a line break."
    assert mailbox.mails == []


async def test_email_is_tried_five_times_but_only_once_after_a_permanent_refusal(
    fleets: Fleets, desktop: Desktop, mailbox: Mailbox
):
    mailbox.answers = ["451 later"] * 2
    async with fleets(desktop=desktop(mailbox)) as fleet, immediate_retries(fleet):
        made = await fleet.schedule("later", notify={"to": ["a@example.org"]})
        await fleet.due(made["id"])
        (one,) = await delivered(fleet, 1)
        assert (one["tries"], one["error"], one["delivered_at"] is not None) == (3, "", True)
        mailbox.answers = ["451 later"] * 9
        await fleet.due(made["id"])
        _, given_up = await delivered(fleet, 2)
        assert (given_up["tries"], given_up["delivered_at"], given_up["error"]) == (5, None, "451 later")
        mailbox.answers = ["554 never"]
        await fleet.due(made["id"])
        never = (await delivered(fleet, 3))[2]
        assert (never["tries"], never["error"]) == (1, "554 never")
        assert [run["status"] for run in await fleet.ended(made["id"], 3)] == ["finished"] * 3
    assert len(mailbox.mails) == 1


async def test_servers_with_untrusted_certificates_receive_no_email(
    fleets: Fleets, desktop: Desktop, tmp_path: Path, authority: Authority
):
    async with (
        mail_server(tmp_path, authority, "elsewhere.example") as other_name,
        mail_server(tmp_path, Authority(), "localhost") as other_authority,
    ):
        for box in (other_name, other_authority):
            async with fleets(beats=False, desktop=desktop(box)) as fleet:
                body = await fleet.root.post_ok("taskserver/email/test", to="a@example.org")
                assert (body["ok"], body["message"]) == (
                    False,
                    "The TLS handshake with the mail server failed, or its certificate is not valid.",
                )
            assert box.mails == []


async def test_test_email_reports_success_and_refusal(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    async with fleets(beats=False, desktop=desktop(mailbox)) as fleet:
        assert await fleet.root.post_ok("taskserver/email/test") == {"ok": True, "message": "", "status": 0}
        assert mailbox.recipients == [f"{fleet.root.username}@example.org"]
        mailbox.answers = ["554 go away"]
        refused = await fleet.root.post_ok("taskserver/email/test", to="b@example.org")
        assert refused == {"ok": False, "message": "554 go away", "status": 0}
        assert await fleet.root.refused("taskserver/email/test", to="b@elsewhere.org") == (400, -1, "invalid_parameter")
        without = await fleet.api.user("other", admin=True)
        assert await without.refused("taskserver/email/test") == (400, -1, "missing_parameter")
    async with fleets(beats=False, desktop=desktop()) as fleet:
        assert await fleet.root.refused("taskserver/email/test") == (501, -1, "smtp_not_configured")


async def quick_statement(fleet: Fleet, *, below_ms: int) -> tuple[str, list[str]]:
    """Run statements until one takes less than `below_ms`. Return its operation id, and the ids of the slower
    statements before it.
    """
    delayed: list[str] = []
    for _ in range(TRIES):
        body = await fleet.root.run("mysql", "rows 1")
        if body["query_status"]["elapsed_ms"] < below_ms:
            return body["history_uuid"], delayed
        delayed.append(body["history_uuid"])
    raise AssertionError(delayed)


async def test_owners_are_emailed_about_long_statements(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    async with fleets(desktop=desktop(mailbox, email_after_s=3)) as fleet:
        quick, delayed = await quick_statement(fleet, below_ms=3000)
        slow = await fleet.root.run("mysql", "sleep 3.3 then rows 2")
        # The schedule already notifies its owner by email. A single email must be sent for both reasons.
        address = f"{fleet.root.username}@example.org"
        made = await fleet.schedule("slow", statement="sleep 3.3 then rows 2", notify={"to": [address]})
        await fleet.due(made["id"])
        await fleet.ended(made["id"])
        found = await delivered(fleet, 2 + len(delayed))
        assert len(found) == 2 + len(delayed)
        assert await fleet.api.database.value("select count(*) from statements where notify is not null") == 0
    assert mailbox.recipients == [address] * len(found)
    texts = [mail.get_body().get_content() for mail in mailbox.mails]
    for operation, mails in ((quick, 0), (slow["history_uuid"], 1), *((one, 1) for one in delayed)):
        assert sum(f"Statement: {operation}" in text for text in texts) == mails


def signed_well(call: tuple[Any, bytes]) -> bool:
    """Return whether the signature is valid, according to the instructions in docs/operations/schedules.md."""
    headers, body = call
    parts = dict(part.split("=", 1) for part in headers["x-queryserver-signature"].split(","))
    digest = hmac.new(WEBHOOK_SECRET.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(digest, parts["v1"])


async def test_webhook_signature_is_verifiable_and_failed_calls_are_repeated(
    fleets: Fleets, desktop: Desktop, receiver: Receiver
):
    receiver.answers = [500, 302]
    async with fleets(desktop=desktop()) as fleet, immediate_retries(fleet):
        made = await fleet.schedule("calls", notify={"url": receiver.url})
        assert made["notify"]["url"] == receiver.url
        await fleet.due(made["id"])
        (run,) = await fleet.ended(made["id"])
        (one,) = await delivered(fleet, 1)
    assert (one["tries"], one["error"]) == (3, "")
    assert len(receiver.calls) == 3
    assert all(map(signed_well, receiver.calls))
    keys = {headers["x-queryserver-delivery"] for headers, _ in receiver.calls}
    assert keys == {one["key"]}
    body = json.loads(receiver.calls[-1][1])
    assert body == {
        "event": "finished",
        "name": "calls",
        "connector": "mysql",
        "state": "available",
        "started": body["started"],
        "duration_ms": body["duration_ms"],
        "rows": 3,
        "history_uuid": str(run["statement_id"]),
        "error": "",
    }
    changed = (receiver.calls[0][0], receiver.calls[0][1] + b" ")
    assert not signed_well(changed)


async def test_single_statement_calls_its_webhook_on_completion(fleets: Fleets, desktop: Desktop, receiver: Receiver):
    async with fleets(beats=False, desktop=desktop()) as fleet:
        ana = await fleet.api.user("ana")
        failed = await ana.run("mysql", "fail no table", notify=json.dumps({"url": receiver.url}))
        await delivered(fleet, 1)
        waiting = await ana.post_json("editor/execute/mysql", statement="sleep 600", notify={"url": receiver.url})
        await ana.on(waiting.json()["history_uuid"], "cancel_statement")
        await delivered(fleet, 2)
        first, second = [json.loads(body) for _, body in receiver.calls]
        assert (first["event"], first["error"]) == ("failed", "no table")
        assert first["history_uuid"] == str(failed["history_uuid"])
        assert (second["event"], second["state"]) == ("failed", "canceled")
        for url in ("https://169.254.169.254/", "https://10.0.0.1/", "http://example.org/", "nonsense"):
            response = await ana.post_json("editor/execute/mysql", statement="rows 1", notify={"url": url})
            assert verdict(response)[::2] == (400, "invalid_parameter")
    async with fleets(beats=False, desktop=desktop(webhook_secret="")) as fleet:
        response = await fleet.root.post_json("editor/execute/mysql", statement="rows 1", notify={"url": receiver.url})
        assert verdict(response)[::2] == (400, "invalid_parameter")


async def test_webhook_address_refused_before_delivery_is_not_called(
    fleets: Fleets, desktop: Desktop, receiver: Receiver
):
    async with fleets(desktop=desktop()) as fleet:
        made = await fleet.schedule("refused", notify={"url": receiver.url})
    async with fleets(desktop=desktop(webhook_allowed_networks=[])) as fleet:
        response = await fleet.root.post_json("editor/execute/mysql", statement="rows 1", notify={"url": receiver.url})
        assert verdict(response)[::2] == (400, "invalid_parameter")
        await fleet.due(made["id"])
        (one,) = await delivered(fleet, 1)
        assert (one["tries"], one["delivered_at"]) == (1, None)
        assert "not allowed" in one["error"]
    assert receiver.calls == []


async def test_delivery_is_sent_by_one_worker_and_repeated_after_its_death(
    fleets: Fleets, desktop: Desktop, receiver: Receiver
):
    off = {"enabled": True}  # deliveries are sent by workers, not by this process
    async with fleets(beats=False, desktop=desktop(**off)) as fleet:
        outbox = fleet.api.services.scheduling.beat.runs._outbox
        made = await fleet.schedule("calls", statement="", kind="task", task="result_cleanup",
                                    notify={"url": receiver.url})  # fmt: skip
        beat = fleet.api.services.scheduling.beat
        await fleet.due(made["id"])
        await beat.fire()
        await fleet.api.database.execute("update tasks set state = 'finished', ended_at = now()")
        await beat.record_ends()
        claim, database = partial(outbox.claim, DeliveryKind.WEBHOOK, 4), fleet.api.database
        me, other = fleet.api.services.ownership.id, Ownership(database, lease=timedelta(hours=1))
        await other.beat(Role.WORKER, Load())
        claims = await asyncio.gather(claim(owner=other.id), claim(owner=other.id))
        assert sorted(len(claimed) for claimed in claims) == [0, 1]
        assert await claim(owner=me) == []
        await database.execute("update instances set alive_until = now() where id = $1", other.id)
        (again,) = await claim(owner=me)
        assert again.tries == 2
        # The first worker resumes. It must not change the record of the delivery.
        (first,) = claims[0] or claims[1]
        await outbox.record(first, "late")
        await outbox.release(first)
        row = await database.row(f"select error, tries, {DELIVERIES.is_owned()} as is_owned from deliveries")
        assert row is not None
        assert tuple(row) == ("", 2, True)


async def test_worker_that_was_paused_before_sending_leaves_the_delivery_to_others(fleets: Fleets, desktop: Desktop):
    now = 0.0

    class PausedOutbox(Outbox):
        """The process is paused after each claim."""

        async def claim(self, kind: DeliveryKind, limit: int, *, owner: str) -> Sequence[Delivery]:
            nonlocal now
            claimed = await super().claim(kind, limit, owner=owner)
            now += 31
            return claimed

    async with fleets(beats=False, desktop=desktop(enabled=True)) as fleet:
        database = fleet.api.database
        outbox, paused = PausedOutbox(database), Ownership(database, lease=timedelta(seconds=30), clock=lambda: now)
        async with database.transaction() as connection:
            await outbox.add(connection, [NewDelivery("a", DeliveryKind.EMAIL, "a@example.org", _message().stored())])
        senders: dict[DeliveryKind, Any] = dict.fromkeys(DeliveryKind)  # a delivery that is sent fails
        deliveries = Deliveries(outbox, paused, senders, senders, mailed_after=None)
        await paused.beat(Role.WORKER, Load())
        await deliveries.round()
        assert now == 31

        async def is_released() -> bool:
            return await database.value("select claimed_until < now() and tries = 0 and error = '' from deliveries")

        await fleet.until(is_released)
        await deliveries.round()
        assert now == 31, "it claims nothing until its next heartbeat"
        await paused.beat(Role.WORKER, Load())
        await deliveries.round()
        assert now == 31, "another worker may be sending the delivery, but has not sent its heartbeat yet"
        now += 15
        await deliveries.round()
        assert now == 77


async def test_slow_receiver_occupies_one_delivery_slot(fleets: Fleets, desktop: Desktop):
    async with fleets(beats=False, desktop=desktop(enabled=True)) as fleet:
        outbox, database = fleet.api.services.scheduling.beat.runs._outbox, fleet.api.database
        content = _message().stored()
        slow, other = "https://slow.example/", "https://other.example/"
        async with database.transaction() as connection:
            new = [NewDelivery(f"slow {n}", DeliveryKind.WEBHOOK, slow, content) for n in range(6)]
            new.append(NewDelivery("other", DeliveryKind.WEBHOOK, other, content))
            new.append(NewDelivery("mail", DeliveryKind.EMAIL, "a@example.org", content))
            await outbox.add(connection, new)
        claim = partial(outbox.claim, owner=fleet.api.services.ownership.id)
        claimed = {one.recipient: one for one in await claim(DeliveryKind.WEBHOOK, 4)}
        assert set(claimed) == {slow, other}
        assert await claim(DeliveryKind.WEBHOOK, 4) == []
        assert [one.key for one in await claim(DeliveryKind.EMAIL, 4)] == ["mail"]
        await outbox.record(claimed[slow])
        assert [one.recipient for one in await claim(DeliveryKind.WEBHOOK, 4)] == [slow]


async def test_refused_mail_login_is_retried(fleets: Fleets, desktop: Desktop, mailbox: Mailbox):
    refusing = desktop(mailbox)
    refusing["smtp"] |= {"user": "qs", "password": "wrong"}
    async with fleets(desktop=refusing) as fleet, immediate_retries(fleet):
        made = await fleet.schedule("login", notify={"to": ["a@example.org"]})
        await fleet.due(made["id"])
        (one,) = await delivered(fleet, 1)
    assert (one["tries"], one["delivered_at"]) == (5, None)
    assert "a@example.org" not in one["key"]


def _message() -> Message:
    started = datetime(2026, 1, 5, tzinfo=UTC)
    return Message(event="failed", name="n", connector="c", state="failed", started=started, duration_ms=1, rows=0,
                   history_uuid=None, error="", owner_id=1)  # fmt: skip


def test_logs_never_contain_webhook_paths():
    message = _message()
    url = "https://hooks.example/s3cret"
    (new,) = new_deliveries("about", message, Notify(url=url))
    facts = _log_fields(Delivery(new.key, new.kind, url, message, 1, message.started, "", 0))
    assert facts == {"key": new.key, "kind": "webhook", "outcome": "failed", "host": "hooks.example"}
    assert "s3cret" not in str(facts)
