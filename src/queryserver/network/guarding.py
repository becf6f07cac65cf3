"""Calls into code of others that opens connections by itself, held to the rules (Contract platform 5.11: Hosts).

Drivers that speak HTTP follow redirects, fetch from where a server tells them to, and resolve names anew. Python
announces each of their connections by the audit event `socket.connect`, just before the system is asked; there it can
be refused. Not held to the rules: threads that a driver starts by itself, and what a library in C opens.
"""

import errno
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from queryserver.domain.errors import EngineUnavailable
from queryserver.network.addresses import AddressRules, HostRefused, literal_address

_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_REFUSED = "The data source led to an address that connections are not allowed to."


@dataclass(slots=True)
class _Call:
    """A call under way in one thread."""

    rules: AddressRules
    was_refused: bool = False
    """About its last connection."""


class _Here(threading.local):
    """What goes on in this thread."""

    call: _Call | None = None


_here = _Here()
_installing = threading.Lock()
_installed: list[bool] = []


def install_guard() -> None:
    """Listen to the connections of this process. Once is enough; a process cannot be rid of it."""
    with _installing:
        if not _installed:
            sys.addaudithook(_heard)
            _installed.append(True)


@contextmanager
def guarded(rules: AddressRules) -> Generator[None]:
    """Around a call that blocks: it connects only to where `rules` permit, as long as it stays in this thread.

    To the call a refused connection looks like one that the host refused. Raises HostRefused when the call fails
    over it. Needs `install_guard`.
    """
    outer, call = _here.call, _Call(rules)
    _here.call = call
    try:
        yield
    except HostRefused:
        raise
    except Exception as error:
        if call.was_refused:
            raise HostRefused(_REFUSED) from error
        raise
    finally:
        _here.call = outer


def _heard(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. It hears every event of the process: those of others must cost next to nothing."""
    if event != "socket.connect":
        return
    call = _here.call
    if call is None:
        return
    connecting, address = args
    call.was_refused = not _permits(call.rules, connecting.family, address)
    if call.was_refused:
        raise ConnectionRefusedError(errno.ECONNREFUSED, _REFUSED)


def _permits(rules: AddressRules, family: int, address: Any) -> bool:
    """No sockets of this machine; and no names, whose address nobody could have checked."""
    if family not in _INTERNET:
        return False
    host, port = address[:2]
    literal = literal_address(host if isinstance(host, str) else bytes(host).decode("latin-1"))
    if literal is None:
        return False
    try:
        rules.resolve_blocking(str(literal), port)
    except EngineUnavailable:
        return False
    return True
