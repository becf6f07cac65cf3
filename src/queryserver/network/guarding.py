"""Calls into code of others that opens connections by itself, held to the rules (Contract platform 5.11: Hosts).

Drivers that speak HTTP follow redirects, fetch from where a server tells them to, and resolve names anew. Python
announces each of their connections by the audit event `socket.connect`, just before the system is asked; there it can
be refused. Not held to the rules: threads that a driver starts by itself, what a library in C opens, and what a proxy
of the environment connects to for a driver.
"""

import errno
import socket
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from queryserver.domain.errors.statements import EngineError, EngineUnavailable
from queryserver.network.addresses import AddressRules, HostRefused, literal_address

_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_REFUSED = "The data source led to an address that connections are not allowed to."
_MOST_LINKS = 50
"""Of an error to what it came of; real ones have a handful."""


class _Refusal(ConnectionRefusedError):
    """What a refused connection raises: known again in whatever a driver makes of it."""


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
    over it, not when it fails over something else later. Needs `install_guard`.
    """
    outer, call = _here.call, _Call(rules)
    _here.call = call
    try:
        yield
    except EngineError:  # an error of ours says what it is; a guard within this one may have made it of a refusal
        raise
    except Exception as error:  # drivers wrap a refused connection in errors of any class
        if _is_over_refusal(error, call):
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
    _here.call = None  # the rules themselves connect a socket, to learn which addresses are of this machine
    try:
        call.was_refused = not _permits(call.rules, connecting.family, address)
    finally:
        _here.call = call
    if call.was_refused:
        raise _Refusal(errno.ECONNREFUSED, _REFUSED)


def _is_over_refusal(error: BaseException, call: _Call) -> bool:
    """Whether a call failed over a refused connection: drivers go on without some, such as one that asks for updates.

    A refusal that an error holds decides. One that was merely being handled when the error came up, and our text
    without a refusal (asyncio makes one error of several so), count as long as no connection was permitted since.
    """
    return any(
        isinstance(one, _Refusal) or (call.was_refused and _tells_refusal(one))
        for one in _links(error, with_context=call.was_refused)
    )


def _tells_refusal(error: BaseException) -> bool:
    return any(isinstance(part, str) and _REFUSED in part for part in error.args)


def _links(error: BaseException, *, with_context: bool) -> Iterator[BaseException]:
    """An error and those that it holds: as its cause, in attributes such as `orig` and `reason`, as arguments."""
    ahead, seen = deque[Any]([error]), set[int]()
    while ahead and len(seen) < _MOST_LINKS:
        one = ahead.popleft()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        ahead += (one.__cause__, *vars(one).values(), *one.args)
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions
        if with_context:
            ahead.append(one.__context__)


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
