"""A second Trino server, reachable only over HTTPS, with password and token logins and impersonation rules."""

import hashlib
import json
import secrets
import ssl
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jose import jwt
from tests.engines.certificates import Authority
from tests.engines.servers import data_directory
from tests.engines.trino import trino_client, trino_node, trino_program
from tests.ports import free_port

PASSWORDS = {"ana": "Ana's pass:word ü", "service": "of the service"}
SERVICE = "service"
"""The only user that may impersonate others, namely users whose names begin with `a`."""

_RULES = {"impersonation": [{"original_user": SERVICE, "new_user": "a.*"}]}
_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class SecuredAddress:
    """The server's address, and what clients need to log in. The certificate is for `localhost`, not for 127.0.0.1."""

    port: int
    authority: str
    """PEM text of the authority that signed the server's certificate."""
    signing_key: str = field(repr=False)

    @property
    def url(self) -> str:
        """The URL without a trailing slash."""
        return f"https://localhost:{self.port}"

    def token(self, user: str, *, for_s: int = 600) -> str:
        """Return a JSON Web Token that identifies `user` and is valid for `for_s` seconds from now."""
        return jwt.encode({"sub": user, "exp": int(time.time()) + for_s}, self.signing_key, algorithm="RS256")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key pair for signing tokens, as PEM text."""

    private: str = field(repr=False)
    public: str


def new_signing_key() -> SigningKey:
    """Generate a new key pair."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return SigningKey(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
    )


@contextmanager
def secured_trino_server() -> Generator[SecuredAddress]:
    """Start Trino 476 over HTTPS with password and token logins, and wait until its first query has completed."""
    program, authority, port = trino_program(), Authority(), free_port()
    signing = new_signing_key()
    address = SecuredAddress(port, authority.certificate, signing.private)
    trusting = ssl.create_default_context(cadata=authority.certificate)
    server = authority.certify("localhost")
    with (
        data_directory() as directory,
        trino_client(address.url, verify=trusting, auth=(SERVICE, PASSWORDS[SERVICE])) as client,
    ):
        settings: dict[str, str | Path] = {
            "plugin.dir": _plugins(program, directory),
            "http-server.http.enabled": "false",
            "http-server.https.enabled": "true",
            "http-server.https.port": str(port),
            "http-server.https.keystore.path": _file(directory, "server.pem", server.key + server.certificate),
            "http-server.authentication.type": "PASSWORD,JWT",
            "http-server.authentication.jwt.key-file": _file(directory, "token.pem", signing.public),
            "password-authenticator.config-files": _password_file(directory),
            "access-control.config-files": _rules_file(directory),
            "node.internal-address": "localhost",
            "discovery.uri": address.url,
            "internal-communication.https.truststore.path": _file(directory, "authority.pem", authority.certificate),
            "internal-communication.https.required": "true",
            "internal-communication.shared-secret": secrets.token_hex(32),
        }
        with trino_node(program, directory, port, client, settings):
            yield address


def _plugins(program: Path, directory: Path) -> Path:
    """Return a folder with the plugins of the plain server, and with the plugin that checks passwords."""
    folder = directory / "plugins"
    checking = folder / "password-authenticators"
    checking.mkdir(parents=True)
    for plugin in (program / "plugins").iterdir():
        (folder / plugin.name).symlink_to(plugin)
    (server,) = program.glob("trino-server-core-*")
    for jar in (server / "plugin" / checking.name).iterdir():
        # The archive contains hard links to the server's libraries, which Maven extracts as empty files.
        (checking / jar.name).symlink_to(jar if jar.stat().st_size else server / "lib" / jar.name)
    return folder


def _password_file(directory: Path) -> Path:
    lines = [f"{user}:{_hashed(password)}\n" for user, password in PASSWORDS.items()]
    passwords = _file(directory, "passwords", "".join(lines))
    return _file(
        directory, "passwords.properties", f"password-authenticator.name=file\nfile.password-file={passwords}\n"
    )


def _hashed(password: str) -> str:
    """Hash a password with PBKDF2 in the format of Trino's password files: iterations, salt, hash."""
    salt = secrets.token_bytes(16)
    key = hashlib.pbkdf2_hmac("sha1", password.encode(), salt, _ITERATIONS)
    return f"{_ITERATIONS}:{salt.hex()}:{key.hex()}"


def _rules_file(directory: Path) -> Path:
    rules = _file(directory, "rules.json", json.dumps(_RULES))
    return _file(directory, "rules.properties", f"access-control.name=file\nsecurity.config-file={rules}\n")


def _file(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.touch(mode=0o600)
    file.write_text(text)
    return file
