"""A guard for blocking drivers: the connections that a call opens go only to permitted addresses.

An audit hook of Python sees each connection before it is made (Contract platform 5.11: Hosts).
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

from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.platform.addresses import AddressRules, HostRefused, literal_address

_REFUSED = "The data source led to an address that connections are not allowed to."
_MOST_LINKS = 50  # of an error to its causes; real ones have a handful


class _Refusal(ConnectionRefusedError):
    """A refused connection: recognized inside the errors that drivers make of it."""


@dataclass(slots=True)
class _Call:
    """A call under way in one thread."""

    rules: AddressRules
    was_refused: bool = False
    """About its last connection."""


class _ThisThread(threading.local):
    call: _Call | None = None


_this_thread = _ThisThread()
_installing = threading.Lock()
_installed: list[bool] = []


def install_guard() -> None:
    """Install the audit hook for connections, once; a process cannot remove it."""
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            _installed.append(True)


@contextmanager
def guarded(rules: AddressRules) -> Generator[None]:
    """Around a call that blocks: it connects only to where `rules` permit, as long as it stays in this thread.

    For the call, the host has refused the connection. Raises HostRefused when the call fails
    over it, not when it fails over something else later. Needs `install_guard`.
    """
    outer, call = _this_thread.call, _Call(rules)
    _this_thread.call = call
    try:
        yield
    except EngineError:  # already translated, perhaps by a guard within this one
        raise
    except Exception as error:  # drivers wrap a refused connection in errors of any class
        if _is_over_refusal(error, call):
            raise HostRefused(_REFUSED) from error
        raise
    finally:
        _this_thread.call = outer


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. It gets every event of the process: others than connections must cost next to nothing."""
    if event != "socket.connect":
        return
    call = _this_thread.call
    if call is None:
        return
    connecting, address = args
    _this_thread.call = None  # the rules themselves connect a socket, to learn which addresses are of this machine
    try:
        call.was_refused = not _permits(call.rules, connecting.family, address)
    finally:
        _this_thread.call = call
    if call.was_refused:
        raise _Refusal(errno.ECONNREFUSED, _REFUSED)


def _is_over_refusal(error: BaseException, call: _Call) -> bool:
    """Whether a call failed over a refused connection: drivers go on without some, such as one for updates.

    A refusal that an error holds decides. One that was merely being handled when the error came up, and our text
    without a refusal (asyncio makes one error of several so), count as long as no connection was permitted since.
    """
    return any(
        isinstance(one, _Refusal)
        or (call.was_refused and any(isinstance(part, str) and _REFUSED in part for part in one.args))
        for one in _links(error, with_context=call.was_refused)
    )


def _links(error: BaseException, *, with_context: bool) -> Iterator[BaseException]:
    """An error and the errors that it holds: cause, attributes such as `orig` and `reason`, arguments."""
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
    """No sockets of this machine, and no names, whose addresses were not checked."""
    if family not in (socket.AF_INET, socket.AF_INET6):
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
