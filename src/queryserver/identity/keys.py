"""The secret key of this deployment, the keys derived from it, and the encryption of secrets in the database (Contract
platform 3.3)."""

import asyncio
import hashlib
import hmac
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from queryserver.errors.base import ConfigurationError
from queryserver.platform.database import Database, FactRepository
from queryserver.platform.embedded.cluster import sync, write_private
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.sections import Secret
from queryserver.platform.settings.tree import fallbacks_problem, secret_key_problem

_BATCH = 500
# Each entry: the table, the key column and its type, the sealed column, and the condition for rows that are still
# needed. Closed sessions are never reopened, so their credentials are not needed.
_SEALED_COLUMNS = (
    ("sessions", "id", "bigint", "sealed_credentials", "closed_at is null"),
    ("statements", "id", "uuid", "sealed_token", "true"),
    ("statements", "id", "uuid", "engine_handle", "true"),
    ("statements", "id", "uuid", "sealed_parameters", "true"),
)

KEY_FILE = "secret_key"

FINGERPRINT_FACT = "secret_key_fingerprint"
_KEY_BYTES = 32


class Sealer(Protocol):
    """Encrypts secrets for storage in the database. The key is not in the database."""

    def seal(self, secret: bytes) -> bytes: ...

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a secret. Raises ValueError if the sealed bytes were modified or their key is unknown."""
        ...

    def digest(self, content: bytes) -> bytes:
        """Return 16 bytes that are equal for equal contents, and cannot be computed without the current key."""
        ...


async def reseal(database: Database, sealer: Sealer) -> tuple[int, int]:
    """Re-encrypt the secrets in `_SEALED_COLUMNS` with the current key. Servers may keep running.

    Returns how many secrets were re-encrypted, and how many could not be decrypted, for example because their key is
    unknown. A value that changes after its batch was read is skipped, as it already uses the current key.
    """
    done = lost = 0
    for table, key, kind, column, needed in _SEALED_COLUMNS:
        last: object = None
        select = (
            f"select {key}, {column} as sealed from {table} where {column} is not null and {needed}"
            f" and ($1::{kind} is null or {key} > $1::{kind}) order by {key} limit {_BATCH}"
        )
        update = f"update {table} set {column} = $3 where {key} = $1 and {column} = $2"
        while rows := await database.fetch(select, last):
            for row in rows:
                try:
                    resealed = _reseal_value(row["sealed"], sealer)
                except ValueError:
                    lost += 1
                else:
                    done += await database.execute(update, row[key], row["sealed"], resealed)
            last = rows[-1][key]
    return done, lost


def _reseal_value(sealed: bytes | str, sealer: Sealer) -> bytes | str:
    """Re-encrypt a value. A string is base64, the form in which engine handles are stored. Raises ValueError."""
    if isinstance(sealed, str):
        return b64encode(sealer.seal(sealer.unseal(b64decode(sealed, validate=True)))).decode()
    return sealer.seal(sealer.unseal(sealed))


@dataclass(frozen=True, slots=True)
class SecretKey:
    """The keys derived from one secret. No derived key reveals another."""

    fingerprint: str
    """Hexadecimal; not confidential."""
    signing: bytes = field(repr=False)
    sealing: bytes = field(repr=False)
    comparing: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """The `kid` of tokens: the first eight hex digits of the fingerprint."""
        return self.fingerprint[:8]

    @classmethod
    def derive(cls, secret: Secret) -> "SecretKey":
        """Derive the keys from a secret; the result is the same in every process."""
        source = secret.get_secret_value().encode()
        fingerprint = hashlib.sha256(_derived(source, b"fingerprint")).hexdigest()
        signing, sealing = _derived(source, b"token signing"), _derived(source, b"secret sealing")
        return cls(fingerprint, signing, sealing, _derived(source, b"comparing digests"))


@dataclass(frozen=True, slots=True)
class Keyring:
    """The current key, which signs and seals, and former keys, which only verify and unseal."""

    present: SecretKey
    former: tuple[SecretKey, ...] = ()

    def __iter__(self) -> Iterator[SecretKey]:
        yield self.present
        yield from self.former

    def find(self, key_id: str) -> SecretKey | None:
        return next((key for key in self if key.id == key_id), None)


def load_keyring(desktop: DesktopSettings) -> Keyring:
    """Load the configured keys. If none is configured, load the key in the data directory, created if missing.

    Blocks on disk I/O. Raises ConfigurationError.
    """
    secret = desktop.secret_key if desktop.secret_key.get_secret_value() else _stored_secret(desktop.data_dir)
    return _keyring(desktop, secret)


def existing_keyring(desktop: DesktopSettings) -> Keyring | None:
    """Load the keys like `load_keyring`, but return None instead of creating a missing key."""
    if desktop.secret_key.get_secret_value():
        return _keyring(desktop, desktop.secret_key)
    file = desktop.data_dir / KEY_FILE
    with _key_errors(file):
        return _keyring(desktop, Secret(file.read_text(encoding="ascii").strip())) if file.exists() else None


def _keyring(desktop: DesktopSettings, secret: Secret) -> Keyring:
    """Validate the secrets and derive their keys. Raises ConfigurationError."""
    checks = {
        "desktop.secret_key": secret_key_problem(secret),
        "desktop.secret_key_fallbacks": fallbacks_problem(desktop.secret_key_fallbacks),
    }
    problems = [f"{key}: {problem}" for key, problem in checks.items() if problem]
    if problems:
        raise ConfigurationError(problems)
    return Keyring(SecretKey.derive(secret), tuple(map(SecretKey.derive, desktop.secret_key_fallbacks)))


async def open_keyring(desktop: DesktopSettings, database: Database) -> Keyring:
    """Load the keys and check that they match the database. Raises ConfigurationError, DatabaseUnavailable."""
    keyring = await asyncio.to_thread(load_keyring, desktop)
    await require_known_key(keyring, FactRepository(database))
    return keyring


async def require_known_key(keyring: Keyring, facts: FactRepository) -> None:
    """Raise ConfigurationError unless the database was first used with a key of the ring.

    With any other key, all existing tokens would be rejected and no sealed secret could be opened.
    """
    known = await facts.keep(FINGERPRINT_FACT, keyring.present.fingerprint)
    if text := key_mismatch(keyring, known):
        raise ConfigurationError([f"desktop.secret_key: {text}"])


def key_mismatch(keyring: Keyring, known: str) -> str | None:
    """Explain why the keys do not match a database first used with the key fingerprint `known`; None if they match."""
    if any(key.fingerprint == known for key in keyring):
        return None
    return (
        f"does not match the key of this database (fingerprint {known[:8]}; "
        f"this key has {keyring.present.id}). Set that key, or list it in desktop.secret_key_fallbacks."
    )


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"queryserver " + purpose).derive(secret)


def _stored_secret(data_dir: Path) -> Secret:
    file = data_dir / KEY_FILE
    with _key_errors(file):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            _make_secret(file)
        return Secret(file.read_text(encoding="ascii").strip())


@contextmanager
def _key_errors(file: Path) -> Generator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError([f"desktop.secret_key: {file} cannot be read or created: {reason}."]) from error


def _make_secret(file: Path) -> None:
    """Create the key file with a random secret.

    A draft file is written first and then linked to `file`, so that processes that start at the same time read the same
    key.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write_private(draft, secrets.token_urlsafe(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)
            sync(file.parent)
    finally:
        draft.unlink(missing_ok=True)


_ID_BYTES = 4
_NONCE_BYTES = 12
_DIGEST_BYTES = 16


class AesSealer:
    """Encrypts secrets for storage in the database. Secrets sealed with former keys of the ring can still be opened."""

    def __init__(self, keyring: Keyring) -> None:
        self._present = bytes.fromhex(keyring.present.id)
        self._ciphers = {bytes.fromhex(key.id): AESGCM(key.sealing) for key in reversed(list(keyring))}
        self._comparing = keyring.present.comparing

    def seal(self, secret: bytes) -> bytes:
        """Encrypt with a fresh nonce, so equal secrets give different results."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._present + nonce + self._ciphers[self._present].encrypt(nonce, secret, self._present)

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a secret. Raises ValueError if the sealed bytes were modified or their key is unknown."""
        key_id, nonce = sealed[:_ID_BYTES], sealed[_ID_BYTES : _ID_BYTES + _NONCE_BYTES]
        cipher = self._ciphers.get(key_id)
        if cipher is None or len(nonce) < _NONCE_BYTES:
            raise ValueError("encrypted with an unknown key")
        try:
            return cipher.decrypt(nonce, sealed[_ID_BYTES + _NONCE_BYTES :], key_id)
        except InvalidTag:
            raise ValueError("the encrypted text was modified") from None

    def digest(self, content: bytes) -> bytes:
        return hmac.digest(self._comparing, content, "sha256")[:_DIGEST_BYTES]
