"""What a user name may be, and when two names are the same user (Contract platform 3.7)."""

import re
import unicodedata
from dataclasses import dataclass

from queryserver.domain.errors.base import InvalidUsername

MAX_LENGTH = 150

_ALLOWED = re.compile(r"[\w@.+-]+")
_ONLY_DOTS = re.compile(r"\.+")


@dataclass(frozen=True, slots=True)
class Username:
    """A legal name: as it is shown, and the key by which it is compared."""

    shown: str
    key: str


@dataclass(frozen=True, slots=True)
class UsernameRule:
    """The case rule of this installation."""

    ignore_case: bool = True
    force_lowercase: bool = True
    force_uppercase: bool = False

    def read(self, text: str) -> Username:
        """The name that `text` means; blanks around it do not count. Raises InvalidUsername."""
        # Compatible forms are one: directories compare so, and letters of full width would be further names to guess.
        name = unicodedata.normalize("NFKC", text.strip())
        if self.force_lowercase:
            name = name.lower()
        elif self.force_uppercase:
            name = name.upper()
        if not (0 < len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name)) or _ONLY_DOTS.fullmatch(name):
            raise InvalidUsername
        return Username(name, name.casefold() if self.ignore_case else name)

    def read_exact(self, text: str) -> Username:
        """The name that is written exactly as this installation keeps it.

        What another issuer writes in another way, such as in full width, in capitals or with blanks, is the name of
        another person there: it must not become the user whose name it is changed into. Raises InvalidUsername.
        """
        name = self.read(text)
        if name.shown != text:
            raise InvalidUsername
        return name
