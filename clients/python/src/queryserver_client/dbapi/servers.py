"""One client for all DB-API connections of a process to one server as one user.

A pool of ten connections is then one thread, one login and one set of HTTP connections; what each connection has of its
own is its session at the server.
"""

import atexit
import os
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakSet

import httpx

from queryserver_client import sync
from queryserver_client.credentials import Secret, TokenSource, hidden
from queryserver_client.retries import Retries

Client = sync.Connection


@dataclass(frozen=True)
class Login:
    """Where, as whom, and how calls are made. Its text shows no secret."""

    url: str | None
    token: "Secret | TokenSource | None"
    user: str | None
    password: Secret | None
    timeout_s: float
    retries: Retries | None
    verify: Any
    headers: tuple[tuple[str, Secret], ...]
    http_transport: httpx.AsyncBaseTransport | None

    def open(self) -> Client:
        return sync.connect_sync(
            self.url,
            token=self.token,
            user=self.user,
            password=self.password,
            timeout_s=self.timeout_s,
            retries=self.retries,
            verify=self.verify,
            headers=dict(self.headers),
            http_transport=self.http_transport,
        )

    def key(self) -> Hashable:
        """Of the same server and user in this process: a child made by fork has clients of its own."""
        environment = tuple(hidden(os.environ.get(name)) for name in _ENVIRONMENT)
        verify = self.verify if isinstance(self.verify, Hashable) else id(self.verify)
        return os.getpid(), replace(self, verify=verify), environment


_ENVIRONMENT = ("QUERYSERVER_URL", "QUERYSERVER_TOKEN", "QUERYSERVER_USER", "QUERYSERVER_PASSWORD")


class _Shared:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


_lock = threading.RLock()  # the garbage collector may release while it is held
_shared: dict[Hashable, _Shared] = {}
_open: "WeakSet[Closable]" = WeakSet()
_abandoned: "deque[Callable[[], None]]" = deque()
_closing: set[threading.Event] = set()
_CLOSE_WITHIN_S = 5.0


class Closable(Protocol):
    """A connection."""

    def close_at_exit(self) -> None: ...


def acquire(login: Login) -> Client:
    """The client of this login; `release` gives it back. Nothing is sent yet."""
    _close_abandoned()
    key = login.key()
    with _lock:
        while True:
            entry = _shared.get(key)
            if entry is None:
                entry = _shared[key] = _Shared(login.open())
                # After the client's own, which is called later then: handlers run in the opposite order.
                atexit.unregister(_close_all)
                atexit.register(_close_all)
            entry.users += 1
            if _shared.get(key) is entry:  # else the garbage collector gave it back just before, for the last user
                return entry.client


def release(client: Client) -> None:
    """The last one that gives it back closes it."""
    with _lock:
        for key, entry in list(_shared.items()):
            if entry.client is client:
                entry.users -= 1
                if entry.users:
                    return
                del _shared[key]
                break
        else:
            return
    client.close()


def close_at_exit(connection: Closable) -> None:
    """Close it when the program ends, if it is still open: its session at the server ends with it."""
    _open.add(connection)


def close_later(close: Callable[[], None]) -> None:
    """For the garbage collector, which may run in any thread, also in one that `close` would wait for."""
    _abandoned.append(close)


def close_in_thread(close: Callable[[], None]) -> None:
    """For the garbage collector where it must not wait: at once, in a thread of its own.

    A program that ends waits for it for some seconds.
    """
    is_closed = threading.Event()

    def closed() -> None:
        try:
            with suppress(CancelledError, RuntimeError):  # the loop has ended, with the program or its last connection
                close()
        finally:
            is_closed.set()
            _closing.discard(is_closed)

    _closing.add(is_closed)
    try:
        start_new_thread(closed, ())  # threading would wait until it has begun
    except RuntimeError:  # the program ends
        _closing.discard(is_closed)
        close_later(close)


def _close_abandoned() -> None:
    while _abandoned:
        try:
            close = _abandoned.popleft()
        except IndexError:
            return  # another thread took it
        close()


def _forget_parent() -> None:
    """In a child made by fork: a thread of its parent may have held the lock, and the clients are the parent's."""
    global _lock, _open
    _lock, _open = threading.RLock(), WeakSet()
    _shared.clear()
    _abandoned.clear()
    _closing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def _close_all() -> None:
    _close_abandoned()
    until = time.monotonic() + _CLOSE_WITHIN_S
    for is_closed in list(_closing):
        is_closed.wait(max(0.0, until - time.monotonic()))
    for connection in list(_open):
        connection.close_at_exit()
