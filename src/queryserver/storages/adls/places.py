"""Paths as containers and what lies in them."""

import re
import secrets
from dataclasses import dataclass

from queryserver.domain.errors.files import InvalidPath, PathNotFound
from queryserver.domain.storage_names import RESERVED_PREFIX, names_of

_CONTAINER = re.compile(r"\$root|\$web|\$logs|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_STAGING = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """A container (`names` has one name) or something inside one. Never the root."""

    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """Relative to the root of the store."""
        return "/".join(self.names)

    @property
    def container(self) -> str:
        return self.names[0]

    @property
    def key(self) -> str:
        """Within the container; empty for the container itself."""
        return "/".join(self.names[1:])

    @property
    def is_container(self) -> bool:
        return len(self.names) == 1

    @property
    def parent(self) -> "AzurePlace":
        """What holds it; a container has none that is a place."""
        return AzurePlace(self.names[:-1])

    def child(self, name: str) -> "AzurePlace":
        """An entry of it; names of our own are allowed."""
        return AzurePlace((*self.names, name))

    def beside(self, name: str) -> "AzurePlace":
        """Another entry of the same directory."""
        return self.parent.child(name)


def place_of(path: str) -> AzurePlace | None:
    """None for the root. Raises InvalidPath, PathNotFound: no container has such a name."""
    names = names_of(path)
    if not names:
        return None
    if not _CONTAINER.fullmatch(names[0]):
        raise PathNotFound(f"abfs://{path} does not exist.")
    return AzurePlace(names)


def file_place(path: str) -> AzurePlace:
    """Where a file may lie. Raises InvalidPath, PathNotFound: it is the root or directly below it."""
    place = place_of(path)
    if place is None or place.is_container:
        raise InvalidPath("Files lie in containers.")
    return place


def is_container_name(name: str) -> bool:
    """Whether the account takes it for a new container; those with `$` are its own."""
    return _CONTAINER.fullmatch(name) is not None and not name.startswith("$")


def unfinished(place: AzurePlace, token: str | None = None) -> AzurePlace:
    """Where the bytes of a file gather until it is complete. Raises InvalidPath: the token is none of ours."""
    token = secrets.token_hex(16) if token is None else token
    if not _STAGING.fullmatch(token):
        raise InvalidPath("There is no such staging place.")
    return place.beside(f"{RESERVED_PREFIX}upload_{token}")
