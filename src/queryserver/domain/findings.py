"""What a check of the settings finds (Contract platform 7.5, 11)."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """The server does not start, or not everything works."""
    WARNING = "warning"
    """Allowed, and probably not meant."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check. The text goes on after the key, and holds no secret."""

    level: Level
    key: str
    text: str

    @classmethod
    def error(cls, key: str, text: str) -> "Finding":
        """Something that does not work."""
        return cls(Level.ERROR, key, text)

    @classmethod
    def warning(cls, key: str, text: str) -> "Finding":
        """Something that looks like a mistake."""
        return cls(Level.WARNING, key, text)

    @classmethod
    def of_problem(cls, line: str) -> "Finding":
        """An error as settings tell it: `<full.key>: <text>`."""
        key, _, text = line.partition(": ")
        return cls.error(key, text)

    def __str__(self) -> str:
        return f"{self.level} {self.key}: {self.text}"
