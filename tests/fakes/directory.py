"""A fake LDAP directory whose entries a test defines; it records logins and searches."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from queryserver.identity.ldap import Entry, LdapSearch

BASE = "dc=example,dc=test"


@dataclass
class FakeDirectory:
    """Implements `DirectorySession`.

    A search returns the entries of the first key in `answers` that its filter contains or that equals its search base.
    """

    passwords: dict[str, str] = field(default_factory=dict)
    """Passwords by distinguished name."""
    answers: dict[str, Sequence[Entry]] = field(default_factory=dict)
    logins: list[tuple[str, str]] = field(default_factory=list)
    searches: list[LdapSearch] = field(default_factory=list)

    @contextmanager
    def session(self) -> Generator["FakeDirectory"]:
        yield self

    def bind(self, name: str, password: str) -> bool:
        assert password or not name, "an empty password was sent"
        self.logins.append((name, password))
        return not name or self.passwords.get(name) == password

    def entries(self, search: LdapSearch) -> Sequence[Entry]:
        self.searches.append(search)
        found = (entries for text, entries in self.answers.items() if text in search.filter or text == search.base)
        return next(found, ())[: search.limit]

    def abort(self) -> None:
        pass


def person(uid: str, *names: str, **attributes: str) -> Entry:
    """Return an entry of a person below `ou=people`."""
    values = {name: (value,) for name, value in attributes.items()}
    return Entry(f"uid={uid},ou=people,{BASE}", {"uid": names or (uid,), **values})


def group(name: str) -> Entry:
    return Entry(f"cn={name},ou=groups,{BASE}", {"cn": (name,)})
