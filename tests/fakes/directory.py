"""A fake LDAP directory with entries that a test defines. It records logins and searches."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from queryserver.identity.ldap import Entry, LdapSearch

BASE = "dc=example,dc=test"


@dataclass
class FakeDirectory:
    """Implements `DirectorySession`.

    `answers` maps keys to entries. A search returns the entries of the first key that is contained in its filter or
    equal to its base.
    """

    passwords: dict[str, str] = field(default_factory=dict)
    """Maps distinguished names to passwords."""
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
    """Return the entry of a person below `ou=people`. `names` are the values of `uid` if they are given."""
    values = {name: (value,) for name, value in attributes.items()}
    return Entry(f"uid={uid},ou=people,{BASE}", {"uid": names or (uid,), **values})


def group(name: str) -> Entry:
    return Entry(f"cn={name},ou=groups,{BASE}", {"cn": (name,)})
