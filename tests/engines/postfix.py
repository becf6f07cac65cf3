"""Postfix from the system's packages. It accepts mail for example.org only over TLS, and delivers it to files."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

from tests.engines.certificates import Authority
from tests.engines.servers import data_directory, listens, require, serving, unavailable
from tests.ports import free_port

_AS_ME = {"start_new_session": True}
_SETTINGS = """\
compatibility_level = 3.6
queue_directory = {directory}/queue
data_directory = {directory}/data
myhostname = mail.example.org
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
alias_maps =
virtual_mailbox_domains = example.org
virtual_mailbox_base = {directory}/mail
virtual_mailbox_maps = static:all/
virtual_uid_maps = static:{user}
virtual_gid_maps = static:{group}
virtual_minimum_uid = 1
smtpd_tls_cert_file = {directory}/certificate.pem
smtpd_tls_key_file = {directory}/key.pem
smtpd_tls_security_level = encrypt
smtpd_relay_restrictions = reject_unauth_destination
default_transport = error:no mail leaves the tests
"""
_SERVICES = """\
127.0.0.1:{port} inet n - n - - smtpd
127.0.0.1:{tls_port} inet n - n - - smtpd -o smtpd_tls_wrappermode=yes
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
virtual unix - n n - - virtual
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
tlsmgr unix - - n 1000? 1 tlsmgr
"""


@dataclass(frozen=True, slots=True)
class MailAddress:
    """The addresses of the server, whose name is `localhost`. `port` uses STARTTLS, `tls_port` implicit TLS."""

    port: int
    tls_port: int
    authority: Path
    """PEM file of the authority that signed the server's certificate."""
    delivered: Path

    def mails(self) -> list[EmailMessage]:
        """Return all emails that have been delivered."""
        found = [message_from_bytes(file.read_bytes(), policy=default) for file in self.delivered.glob("all/new/*")]
        return [mail for mail in found if isinstance(mail, EmailMessage)]


@contextmanager
def postfix_server() -> Generator[MailAddress]:
    """Start Postfix with its own queue. Requires root, because Postfix switches users."""
    program = shutil.which("postfix", path="/usr/sbin:/usr/bin")
    server = require(Path(program) if program else None, "smtp")
    if os.geteuid() != 0:
        unavailable("smtp", "Postfix runs as root only")
    with data_directory() as directory:
        directory.chmod(0o755)
        conf, mail, data = (directory / name for name in ("conf", "mail", "data"))
        for one in (conf, mail, data, directory / "queue"):
            one.mkdir()
        unprivileged = pwd.getpwnam("nobody")
        os.chown(mail, unprivileged.pw_uid, unprivileged.pw_gid)
        os.chown(data, pwd.getpwnam("postfix").pw_uid, -1)
        authority = Authority()
        authority.certify("localhost").write(directory)
        for file in (directory / "certificate.pem", directory / "key.pem"):
            os.chown(file, 0, 0)
        (directory / "authority.pem").write_text(authority.certificate)
        address = MailAddress(free_port(), free_port(), directory / "authority.pem", mail)
        settings = _SETTINGS.format(directory=directory, user=unprivileged.pw_uid, group=unprivileged.pw_gid)
        (conf / "main.cf").write_text(settings)
        (conf / "master.cf").write_text(_SERVICES.format(port=address.port, tls_port=address.tls_port))
        subprocess.run([server, "-c", conf, "check"], check=True, capture_output=True, timeout=60)
        # `postfix start-fg` would start a new session, which would outlive a killed test.
        shown = subprocess.run(
            ["/usr/sbin/postconf", "-h", "daemon_directory"], capture_output=True, text=True, check=True
        )
        command = [Path(shown.stdout.strip()) / "master", "-c", conf, "-d"]
        with serving(command, directory, lambda: listens(address.tls_port), signal.SIGTERM, options=_AS_ME):
            yield address
