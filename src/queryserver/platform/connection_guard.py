"""Restricts connections of blocking drivers to permitted addresses (Contract platform 5.11: Hosts).

A Python audit hook checks each connection before it is opened.
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

_REFUSED = "The driver tried to connect to an address to which connections are not allowed."
_MAX_LINKS = 50  # maximum number of errors searched in an error chain; real chains contain a handful


class _GuardRefusal(ConnectionRefusedError):
    """A connection that the guard refused. Drivers wrap it in their own errors, so error chains are searched for it."""


@dataclass(slots=True)
class _Call:
    """A guarded call, which runs in one thread."""

    rules: AddressRules
    is_refused: bool = False
    """Whether the most recent connection of the call was refused."""


class _ThisThread(threading.local):
    call: _Call | None = None


_this_thread = _ThisThread()
_installing = threading.Lock()
_installed: list[bool] = []


def install_guard() -> None:
    """Install the audit hook, once per process. An audit hook cannot be removed."""
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            _installed.append(True)


@contextmanager
def guarded(rules: AddressRules) -> Generator[None]:
    """Restrict the connections that this thread opens inside the context to addresses that `rules` permit.

    To the code inside, a forbidden connection looks like one that the host refused. Raises HostRefused if the code
    fails because of a refused connection, but not if it fails later for another reason. Requires `install_guard`.
    """
    outer, call = _this_thread.call, _Call(rules)
    _this_thread.call = call
    try:
        yield
    except EngineError:  # already translated, for example by a nested guard
        raise
    except Exception as error:  # drivers wrap a refused connection in errors of any class
        if _is_caused_by_refusal(error, call):
            raise HostRefused(_REFUSED) from error
        raise
    finally:
        _this_thread.call = outer


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Check connections as an audit hook. Python calls it for every audit event, so other events return at once."""
    if event != "socket.connect":
        return
    call = _this_thread.call
    if call is None:
        return
    connecting, address = args
    _this_thread.call = None  # the rules themselves connect a socket to find this machine's addresses: do not check it
    try:
        call.is_refused = not _permits(call.rules, connecting.family, address)
    finally:
        _this_thread.call = call
    if call.is_refused:
        raise _GuardRefusal(errno.ECONNREFUSED, _REFUSED)


def _is_caused_by_refusal(error: BaseException, call: _Call) -> bool:
    """Return whether a refused connection caused this error.

    Drivers tolerate some refused connections, for example of update checks. A refusal in the chain of causes always
    counts. A refusal that appears only as context, or only in the message (asyncio merges several errors into one),
    counts unless a later connection was permitted.
    """
    return any(
        isinstance(one, _GuardRefusal)
        or (call.is_refused and any(isinstance(part, str) and _REFUSED in part for part in one.args))
        for one in _linked_errors(error, with_context=call.is_refused)
    )


def _linked_errors(error: BaseException, *, with_context: bool) -> Iterator[BaseException]:
    """Yield an error and the errors it contains: its cause, attributes such as `orig` and `reason`, and arguments."""
    ahead, seen = deque[Any]([error]), set[int]()
    while ahead and len(seen) < _MAX_LINKS:
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
    """Return whether the rules permit the address. Refuses local sockets and unresolved host names."""
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
