"""One client for all of a process's DB-API connections to one server as one user.

A pool of ten connections therefore uses one thread, one login and one set of HTTP connections. Each connection only has
its own session at the server.
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
    """The server, the login, and how calls are made. Its text shows no secrets."""

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
        """Return the key for clients with the same server and user in this process. A forked child has its own
        clients.
        """
        environment = tuple(hidden(os.environ.get(name)) for name in _ENVIRONMENT)
        verify = self.verify if isinstance(self.verify, Hashable) else id(self.verify)
        return os.getpid(), replace(self, verify=verify), environment


_ENVIRONMENT = ("QUERYSERVER_URL", "QUERYSERVER_TOKEN", "QUERYSERVER_USER", "QUERYSERVER_PASSWORD")


class _SharedClient:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


_lock = threading.RLock()  # reentrant, because the garbage collector may release a client while the lock is held
_shared: dict[Hashable, _SharedClient] = {}
_open: "WeakSet[Closable]" = WeakSet()
_abandoned: "deque[Callable[[], None]]" = deque()
_closing: set[threading.Event] = set()
_CLOSE_WITHIN_S = 5.0


class Closable(Protocol):
    """Implemented by connections."""

    def close_at_exit(self) -> None: ...


def acquire(login: Login) -> Client:
    """Return the client for this login. Return it with `release`. Nothing is sent yet."""
    _close_abandoned()
    key = login.key()
    with _lock:
        while True:
            entry = _shared.get(key)
            if entry is None:
                entry = _shared[key] = _SharedClient(login.open())
                # Registered after the client's own handler, which then runs later, because handlers run in reverse
                # order.
                atexit.unregister(_close_all)
                atexit.register(_close_all)
            entry.users += 1
            if _shared.get(key) is entry:  # otherwise the garbage collector has just released it for the last user
                return entry.client


def release(client: Client) -> None:
    """Release a client. The last release closes it."""
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
    """Close a connection on exit if it is still open, which also closes its session at the server."""
    _open.add(connection)


def close_later(close: Callable[[], None]) -> None:
    """Close something later. For the garbage collector, which may run in any thread, even one that `close` would
    wait for.
    """
    _abandoned.append(close)


def close_in_thread(close: Callable[[], None]) -> None:
    """Close something immediately in a separate thread, because the garbage collector must not wait.

    On exit, the program waits some seconds for it.
    """
    is_closed = threading.Event()

    def closed() -> None:
        try:
            with suppress(CancelledError, RuntimeError):  # the event loop has ended
                close()
        finally:
            is_closed.set()
            _closing.discard(is_closed)

    _closing.add(is_closed)
    try:
        start_new_thread(closed, ())  # threading would wait until the thread has started
    except RuntimeError:  # the program is exiting
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
    """Reset the state in a forked child. A thread of its parent may have held the lock, and the clients belong to
    the parent.
    """
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
