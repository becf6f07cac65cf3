"""References of uploaded files: `upload/<43 characters of base64url>/<name>` (Contract importer 3.1).

Who has the secret in the middle has the file, if it is theirs. It is never stored: its digest is, and names the file.
"""

import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass, field
from typing import Self

MAX_NAME = 100
_SECRET_BYTES = 32
_FORM = re.compile(r"upload/([A-Za-z0-9_-]{43})/([^/]{1,100})", re.DOTALL)
_SEPARATORS = re.compile(r"[/\\]")
_OTHER = re.compile(r"[^\w.-]")
_NAMELESS = "file"


@dataclass(frozen=True, slots=True)
class UploadReference:
    """What a client hands back."""

    secret: str = field(repr=False)
    name: str

    @classmethod
    def new(cls, client_name: str) -> Self:
        """A reference that nobody can guess, of a file that its client calls so."""
        return cls(secrets.token_urlsafe(_SECRET_BYTES), reminder_of(client_name))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """None for anything that never was a reference."""
        found = _FORM.fullmatch(text)
        return cls(*found.groups()) if found else None

    def __str__(self) -> str:
        return f"upload/{self.secret}/{self.name}"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()


def base_name(client_name: str) -> str:
    """The last part of a path, as any system writes it."""
    return _SEPARATORS.split(client_name)[-1]


def reminder_of(client_name: str) -> str:
    """The base name, with `_` for everything but letters, digits and `._-`."""
    name = _OTHER.sub("_", unicodedata.normalize("NFC", base_name(client_name)))[:MAX_NAME]
    return name if name.strip(".") else _NAMELESS
