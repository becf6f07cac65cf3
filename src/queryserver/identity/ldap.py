"""Logins against an LDAP directory. Directory calls block, so they run in threads."""

import secrets
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import structlog

from queryserver.errors.base import InvalidUsername, LoginBackendUnavailable
from queryserver.identity.model import AuthenticatedUser, RequestInfo, Username, UsernameRule
from queryserver.identity.threads import LimitedThreads
from queryserver.platform.settings.desktop import LdapSettings

log = structlog.get_logger(__name__)

MAX_GROUPS = 5000
_LIMIT_S = 10.0
"""Time limit for an entire login."""
_PERSON = ("givenName", "sn", "mail")
_MAX_CHARACTERS = 254
_MAX_WAITING = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory entry: its distinguished name and the requested attributes, by lower-case name."""

    dn: str
    attributes: dict[str, tuple[str, ...]]

    def values(self, attribute: str) -> tuple[str, ...]:
        return self.attributes.get(attribute.lower(), ())


@dataclass(frozen=True, slots=True)
class LdapSearch:
    """A search for at most `limit` entries in the subtree of `base`; `only_base` restricts it to that entry."""

    base: str
    filter: str
    attributes: tuple[str, ...]
    limit: int
    only_base: bool = False


class DirectorySession(Protocol):
    """A connection to the directory. Every call raises LoginBackendUnavailable once the deadline has passed."""

    def bind(self, name: str, password: str) -> bool:
        """Authenticate; False if the directory rejects the credentials. Raises ValueError for an empty password."""
        ...

    def entries(self, search: LdapSearch) -> Sequence[Entry]:
        """Return the matching entries. Does not follow referrals to other servers."""
        ...

    def abort(self) -> None:
        """Shut down the connection, which unblocks a thread that is waiting for it."""
        ...


Directory: TypeAlias = Callable[[], AbstractContextManager[DirectorySession]]
"""Opens sessions with a TLS-authenticated directory server. A session connects on first use."""


def filter_value(text: str) -> str:
    """Escape `text` for use as an assertion value in a search filter."""
    return _escaped(text, "\\*()\0")


def name_value(text: str) -> str:
    """Escape `text` for use as an attribute value in a distinguished name."""
    return _escaped(text, '\\,+"<>;=#/\0')


def _escaped(text: str, special: str) -> str:
    """Escape special characters and whitespace in hexadecimal, which both grammars allow.

    Whitespace is included because libraries and servers strip it.
    """
    pieces = list[str]()
    for character in text:
        is_special = character in special or character.isspace()
        pieces += (f"\\{byte:02x}" for byte in character.encode()) if is_special else character
    return "".join(pieces)


def both(*filters: str) -> str:
    """Combine filters with "and". A filter may lack its outer parentheses, as in the settings."""
    return f"(&{''.join(part if part.startswith('(') else f'({part})' for part in filters)})"


class LdapLogin:
    """The login back end `ldap`. Up to eight logins run concurrently and up to 200 wait; more are refused."""

    def __init__(self, directory: Directory, settings: LdapSettings, usernames: UsernameRule) -> None:
        self._directory = directory
        self._settings = settings
        self._usernames = usernames
        self._threads = LimitedThreads("ldap", limit_s=min(settings.timeout_s, _LIMIT_S), max_waiting=_MAX_WAITING)
        self.close = self._threads.close

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """Return the directory user with that name and password, or None. Raises LoginBackendUnavailable."""
        del request
        try:
            name = self._usernames.read(username)
        except InvalidUsername:
            return None
        # A directory would treat an empty password as an anonymous bind (RFC 4513 5.1.2).
        if not password:
            return None
        opened = list[DirectorySession]()

        def work() -> AuthenticatedUser | None:
            with self._directory() as session:
                opened.append(session)
                return self._authenticate(session, name, password)

        try:
            return cast("AuthenticatedUser | None", await self._threads.call(work))
        except TimeoutError:
            raise LoginBackendUnavailable("The directory did not respond in time.") from None
        finally:
            # Finished sessions are already closed; abort unblocks a thread that is still waiting for the directory.
            for session in opened:
                session.abort()

    def _authenticate(self, session: DirectorySession, username: Username, password: str) -> AuthenticatedUser | None:
        """Return the user; None if the name is unknown, the password is wrong or the user is in no `login_groups`.

        The returned name comes from the directory entry, because the directory may accept several spellings.
        """
        find = self._search_and_bind if self._settings.search_bind_authentication else self._direct_bind
        entry = find(session, username, password)
        name = entry and self._name(entry, username)
        if entry is None or name is None:
            return None
        groups = self._groups(session, entry) if self._needs_groups else ()
        allowed = {group.casefold() for group in self._settings.login_groups}
        if allowed and allowed.isdisjoint(group.casefold() for group in groups):
            log.info("user is in none of the login groups", username=name)
            return None
        texts = (next(iter(entry.values(attribute)), "")[:_MAX_CHARACTERS] for attribute in _PERSON)
        first_name, last_name, email = (text if text.isprintable() else "" for text in texts)
        kept = tuple(groups) if self._settings.sync_groups_on_login else None
        return AuthenticatedUser(name, first_name, last_name, email, kept)

    @property
    def _needs_groups(self) -> bool:
        return self._settings.sync_groups_on_login or bool(self._settings.login_groups)

    def _search_and_bind(self, session: DirectorySession, username: Username, password: str) -> Entry | None:
        """Search and bind: find the user's entry with the service account, then bind as that entry."""
        self._log_in_service(session)
        entry = self._single_entry(session, self._settings.base_dn, username)
        # Bind even if there is no entry, so that an unknown name takes as long as a wrong password (Rule T15).
        dn = entry.dn if entry else f"cn={secrets.token_hex(8)},{self._settings.base_dn}"
        if not session.bind(dn, password) or entry is None:
            return None
        if self._needs_groups:
            self._log_in_service(session)
        return entry

    def _direct_bind(self, session: DirectorySession, username: Username, password: str) -> Entry | None:
        """Direct bind: bind with the name pattern, then read the user's own entry."""
        pattern, domain = self._settings.ldap_username_pattern, self._settings.nt_domain
        if domain:
            login, base, is_entry = f"{username.shown}@{domain}", self._settings.base_dn, False
        else:
            is_entry = "=" in pattern
            login = pattern.replace("<username>", name_value(username.shown) if is_entry else username.shown)
            base = login if is_entry else self._settings.base_dn
        if not session.bind(login, password):
            return None
        if not is_entry:
            return self._single_entry(session, base, username)
        search = LdapSearch(base, both(self._settings.users.user_filter), self._attributes, limit=1, only_base=True)
        return next(iter(session.entries(search)), None)

    def _log_in_service(self, session: DirectorySession) -> None:
        if not session.bind(self._settings.bind_dn, self._settings.bind_password.get_secret_value()):
            raise LoginBackendUnavailable("The directory rejects the login of desktop.ldap.bind_dn.")

    def _single_entry(self, session: DirectorySession, base: str, username: Username) -> Entry | None:
        users = self._settings.users
        filters = both(users.user_filter, f"{users.user_name_attr}={filter_value(username.shown)}")
        entries = session.entries(LdapSearch(base, filters, self._attributes, limit=2))
        if len(entries) > 1:
            log.warning("several directory entries have this name", username=username.shown)
            return None
        return entries[0] if entries else None

    def _name(self, entry: Entry, typed: Username) -> str | None:
        """Return the entry's name that equals the typed name, or else the entry's first valid name."""
        legal: list[Username] = []
        for value in entry.values(self._settings.users.user_name_attr):
            try:
                name = self._usernames.read(value)
            except InvalidUsername:
                continue
            # Directories ignore case, so names that differ only in case belong to one user. Names that differ in
            # character width or whitespace may belong to different users.
            if name.shown.casefold() == unicodedata.normalize("NFC", value).casefold():
                legal.append(name)
        if not legal:
            log.warning(
                "directory entry has no valid user name", dn=entry.dn, attribute=self._settings.users.user_name_attr
            )
            return None
        return next((name for name in legal if name.key == typed.key), legal[0]).shown

    def _groups(self, session: DirectorySession, entry: Entry) -> Sequence[str]:
        """Return the names of groups that contain the entry directly; nested groups are not resolved."""
        groups = self._settings.groups
        # RFC 2307 groups list user names instead of DNs.
        holds_names = groups.group_member_attr.lower() == "memberuid"
        member = next(iter(entry.values(self._settings.users.user_name_attr)), "") if holds_names else entry.dn
        search = LdapSearch(
            self._settings.base_dn,
            both(groups.group_filter, f"{groups.group_member_attr}={filter_value(member)}"),
            (groups.group_name_attr,),
            MAX_GROUPS,
        )
        entries = session.entries(search)
        return sorted({name for group in entries for name in group.values(groups.group_name_attr)})

    @property
    def _attributes(self) -> tuple[str, ...]:
        return (self._settings.users.user_name_attr, *_PERSON)
