"""The caller."""

from dataclasses import dataclass, field

DOWNLOAD = "download"
IMPORTER = "importer"


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with the union of the rights of the groups (Contract platform 4.3)."""

    id: int
    username: str
    is_admin: bool = False
    rights: frozenset[str] = field(default_factory=frozenset[str])
    groups: frozenset[str] = field(default_factory=frozenset[str])

    def may(self, right: str) -> bool:
        """Administrators may everything."""
        return self.is_admin or right in self.rights


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """What a login back end or an authenticator says about the caller."""

    username: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: tuple[str, ...] | None = None
