"""Implements the directory sessions of `ldap.py` with ldap3."""

import math
import socket
import ssl
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import LDAPException
from pyasn1.error import PyAsn1Error

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.ldap import Entry, LdapSearch

# RFC 4511 result codes that concern the user logging in: constraint violation (locked by a policy), no such object,
# invalid DN, inappropriate authentication (no password), invalid credentials, insufficient rights, unwilling to
# perform.
_REFUSALS = frozenset({19, 32, 34, 48, 49, 50, 53})
_SUCCESS, _SIZE_LIMIT, _REFERRAL, _NO_SUCH_OBJECT = 0, 4, 10, 32
_PAGE_SIZE = 500


class _NamedTls(ldap3.Tls):
    """Lets Python's `ssl` check certificate and host name, since ldap3 ignores IP addresses in certificates."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        del do_handshake
        connection.socket = self._context.wrap_socket(connection.socket, server_hostname=connection.server.host)


class Ldap3Session:
    """One LDAP connection; `ldap://` uses StartTLS. The timeout starts at construction. Close it after use."""

    def __init__(self, url: str, timeout_s: float, context: ssl.SSLContext) -> None:
        address = urlsplit(url)
        self._is_tls_from_start = address.scheme == "ldaps"
        self._deadline = time.monotonic() + timeout_s
        peer = ldap3.Server(
            address.hostname or "",
            port=address.port or (636 if self._is_tls_from_start else 389),
            use_ssl=self._is_tls_from_start,
            get_info=ldap3.NONE,
            tls=_NamedTls(context),
            connect_timeout=timeout_s,
        )
        self._connection = ldap3.Connection(
            peer,
            client_strategy=ldap3.SAFE_SYNC,
            auto_bind=ldap3.AUTO_BIND_NONE,
            auto_referrals=False,
            auto_escape=False,
            check_names=False,
            read_only=True,
            receive_timeout=math.ceil(timeout_s),
        )
        self._is_aborted = False

    def bind(self, name: str, password: str) -> bool:
        """Bind with name and password; anonymously if both are empty."""
        with self._in_time():
            if name and not password:
                # RFC 4513 5.1.2: servers treat a name without a password as an anonymous bind.
                raise ValueError("An empty password must not be sent.")
            if name:
                _, result, _, _ = self._connection.rebind(name, password, ldap3.SIMPLE, read_server_info=False)
            else:
                _, result, _, _ = self._connection.rebind(authentication=ldap3.ANONYMOUS, read_server_info=False)
        if result["result"] == _SUCCESS:
            return True
        if result["result"] in _REFUSALS:
            return False
        raise _unavailable(result)

    def entries(self, search: LdapSearch) -> Sequence[Entry]:
        entries: list[Entry] = []
        cookie: bytes | None = None
        while len(entries) < search.limit:
            page, cookie = self._page(search, cookie)
            entries += page
            if not cookie:
                break
        return entries[: search.limit]

    def abort(self) -> None:
        self._is_aborted = True
        plain = self._connection.socket
        if plain is not None:
            with suppress(OSError):
                # SSLSocket.shutdown would drop the TLS state that the other thread is using.
                socket.socket.shutdown(plain, socket.SHUT_RDWR)

    def close(self) -> None:
        # ldap3 does not close a socket whose connect or TLS handshake failed.
        leaked = self._connection.socket
        with suppress(LDAPException, OSError):
            self._connection.unbind()
        if leaked is not None:
            leaked.close()

    def _page(self, search: LdapSearch, cookie: bytes | None) -> tuple[list[Entry], bytes | None]:
        # Large results are read in pages, because servers typically return at most 1,000 entries per search.
        limits: dict[str, Any] = {"size_limit": search.limit}
        if search.limit >= _PAGE_SIZE:
            limits = {"paged_size": _PAGE_SIZE, "paged_criticality": False, "paged_cookie": cookie}
        with self._in_time():
            _, result, response, _ = self._connection.search(
                search.base,
                search.filter,
                ldap3.BASE if search.only_base else ldap3.SUBTREE,
                dereference_aliases=ldap3.DEREF_NEVER,
                attributes=list(search.attributes),
                time_limit=math.ceil(max(self._deadline - time.monotonic(), 1)),
                **limits,
            )
        if result["result"] in {_NO_SUCH_OBJECT, _REFERRAL}:
            return [], None
        if result["result"] not in {_SUCCESS, _SIZE_LIMIT}:
            raise _unavailable(result)
        entries = list[Entry]()
        for one in response or ():
            if one["type"] == "searchResEntry":
                raw: Mapping[str, Sequence[bytes]] = one["raw_attributes"]
                texts = {
                    name.lower(): tuple(value.decode("utf-8", "replace") for value in values)
                    for name, values in raw.items()
                }
                entries.append(Entry(one["dn"], texts))
        control = (result.get("controls") or {}).get("1.2.840.113556.1.4.319")
        return entries, (control or {}).get("value", {}).get("cookie") or None

    @contextmanager
    def _in_time(self) -> Generator[None]:
        """Run one exchange within the deadline. The first exchange opens the connection.

        Raises LoginBackendUnavailable.
        """
        try:
            if self._connection.closed:
                self._connection.open(read_server_info=False)
                self._limit()
                if not self._is_tls_from_start:
                    self._connection.start_tls(read_server_info=False)
            self._limit()
            yield
        except (LDAPException, PyAsn1Error, OSError) as error:
            reason = str(error).splitlines()[0][:300] if str(error) else ""
            raise LoginBackendUnavailable(f"{type(error).__name__}: {reason}") from error

    def _limit(self) -> None:
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0 or self._is_aborted or self._connection.socket is None:
            raise LoginBackendUnavailable("The directory did not respond in time.")
        self._connection.socket.settimeout(remaining_s)


def _unavailable(result: Mapping[str, Any]) -> LoginBackendUnavailable:
    return LoginBackendUnavailable(f"{result['description']}: {str(result['message'])[:300]}")
