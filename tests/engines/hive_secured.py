"""Hive servers with other logins: one over TLS with passwords, and one without any login.

HTTP mode is not covered, because no setting binds it to the loopback interface: HTTP listeners of Hive 4.0 accept only
a port.
"""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.certificates import Authority, ServerCertificate
from tests.engines.hive import NAME, hive_node, hive_program
from tests.engines.servers import ServerAddress, data_directory
from tests.ports import free_port

# Hive decodes each byte of a password as one character, so only ASCII works (PlainSaslServer of Hive 4.0).
PASSWORDS = {"ana": "Ana's pass:word", "svc": "of the service"}
SERVICE = "svc"
"""The only user that may impersonate others; it may impersonate any user."""

_CHECKING = RECIPES / NAME / "passwords" / "Passwords.java"
_MEMORY = "384m"


@dataclass(frozen=True, slots=True)
class SecuredHive:
    """The address of a server whose certificate is for `localhost`, not for 127.0.0.1."""

    port: int
    authority: str
    """PEM text of the authority that signed the server's certificate."""


@contextmanager
def secured_hive_server() -> Generator[SecuredHive]:
    """Start a server with binary transport over TLS and the logins in PASSWORDS. Statements run as the session's user
    (doAs).
    """
    program, authority, port = hive_program(), Authority(), free_port()
    with data_directory() as directory:
        password = secrets.token_hex(16)
        settings = {
            "hive.server2.use.SSL": "true",
            "hive.server2.keystore.path": str(_key_store(directory, authority.certify("localhost"), password)),
            "hive.server2.keystore.password": password,
            "hive.server2.keystore.type": "PKCS12",
            "hive.server2.authentication": "CUSTOM",
            "hive.server2.custom.authentication.class": _CHECKING.stem,
            "hive.server2.enable.doAs": "true",
        }
        environment = {"HIVE_PASSWORDS": str(_password_file(directory))}
        classes = [password_check()]
        with hive_node(
            program, directory, port, memory=_MEMORY, classes=classes, settings=settings, environment=environment
        ):
            yield SecuredHive(port, authority.certificate)


@contextmanager
def nosasl_hive_server() -> Generator[ServerAddress]:
    """Start a server in NOSASL mode: messages are unframed, and clients do not authenticate."""
    address = ServerAddress("127.0.0.1", free_port(), "svc", "")
    with (
        data_directory() as directory,
        hive_node(
            hive_program(), directory, address.port, memory=_MEMORY, settings={"hive.server2.authentication": "NOSASL"}
        ),
    ):
        yield address


def password_check() -> Path:
    """Compile the Java class that checks passwords unless it is cached; return its folder."""
    program = hive_program()

    def fill(folder: Path) -> None:
        run_tool(NAME, [program.jdk.home / "bin" / "javac", "-d", folder, "-cp", program.libraries / "*", _CHECKING])

    return kept("hive-passwords", [_CHECKING, RECIPES / NAME / "pom.xml"], fill)


def _key_store(directory: Path, server: ServerCertificate, password: str) -> Path:
    file = directory / "server.p12"
    file.touch(mode=0o600)
    file.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"server",
            load_pem_private_key(server.key.encode(), password=None),
            x509.load_pem_x509_certificate(server.certificate.encode()),
            None,
            BestAvailableEncryption(password.encode()),
        )
    )
    return file


def _password_file(directory: Path) -> Path:
    file = directory / "passwords"
    file.touch(mode=0o600)
    file.write_text("".join(f"{user}={password}\n" for user, password in PASSWORDS.items()), encoding="utf-8")
    return file
