"""Emails are delivered with encryption through a real mail server (Contract platform 10.5)."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.engines.postfix import MailAddress

pytestmark = pytest.mark.engine("smtp")


@pytest.mark.platform(109)
@pytest.mark.parametrize("tls", ["starttls", "tls"])
async def test_email_with_csv_is_delivered(
    fleets: Callable[..., Any], smtp_server: MailAddress, monkeypatch: pytest.MonkeyPatch, tls: str
):
    monkeypatch.setenv("SSL_CERT_FILE", str(smtp_server.authority))
    port = smtp_server.port if tls == "starttls" else smtp_server.tls_port
    smtp = {"host": "localhost", "port": port, "tls": tls, "default_from_email": "Query Server <qs@example.org>"}
    desktop = {"smtp": smtp, "task_server": {"email_allowed_domains": ["example.org", "example.net"]}}
    async with fleets(desktop=desktop) as fleet:
        notify = {"to": ["ana@example.org"], "attach_csv": True}
        made = await fleet.schedule(f"zähler {tls}", statement="text =1+1", notify=notify)
        await fleet.due(made["id"])
        subject = f"[queryserver] zähler {tls}: finished"
        await fleet.until(lambda: any(mail["Subject"] == subject for mail in smtp_server.mails()))
        (mail,) = [mail for mail in smtp_server.mails() if mail["Subject"] == subject]
        assert (mail["From"], mail["To"]) == ("Query Server <qs@example.org>", "ana@example.org")
        (attached,) = mail.iter_attachments()
        assert attached.get_content().splitlines()[1:] == ["'=1+1"]
        # The mail server accepts mail only for its own domain, example.org.
        refused = await fleet.root.post_ok("taskserver/email/test", to="ana@example.net")
        assert (refused["ok"], refused["message"][:4]) == (False, "554 ")


@pytest.mark.platform(109)
async def test_server_of_an_unknown_authority_receives_no_email(fleets: Callable[..., Any], smtp_server: MailAddress):
    smtp = {"host": "localhost", "port": smtp_server.port, "default_from_email": "qs@example.org"}
    task_server = {"email_allowed_domains": ["example.org"]}
    before = len(smtp_server.mails())
    async with fleets(beats=False, desktop={"smtp": smtp, "task_server": task_server}) as fleet:
        body = await fleet.root.post_ok("taskserver/email/test", to="ana@example.org")
        assert (body["ok"], body["message"]) == (
            False,
            "The TLS handshake with the mail server failed, or its certificate is not valid.",
        )
    assert len(smtp_server.mails()) == before
