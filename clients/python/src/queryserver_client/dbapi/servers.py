"""Shares one client among all DB-API connections of a process to the same server as the same user.

A pool of ten connections therefore uses one thread, one login and one set of HTTP connections. Each connection still
has its own session on the server.
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
    """The server, the credentials and the HTTP options of a client. The `repr` shows no secrets."""

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
        """Return the key under which clients are shared. Because it includes the PID, a forked child gets its own."""
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
    """A connection that must be closed when the program exits."""

    def close_at_exit(self) -> None: ...


def acquire(login: Login) -> Client:
    """Return the client for this login; sends no request. The caller must release the client with `release`."""
    _close_abandoned()
    key = login.key()
    with _lock:
        while True:
            entry = _shared.get(key)
            if entry is None:
                entry = _shared[key] = _SharedClient(login.open())
                # Exit handlers run in reverse order. Registering this one after the client's own handler makes it run
                # first.
                atexit.unregister(_close_all)
                atexit.register(_close_all)
            entry.users += 1
            if _shared.get(key) is entry:  # if not, the garbage collector has just released it for the last user
                return entry.client


def release(client: Client) -> None:
    """Release a client. It is closed when its last user releases it."""
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
    """Register a connection to be closed on exit, together with its session on the server."""
    _open.add(connection)


def close_later(close: Callable[[], None]) -> None:
    """Defer a call of `close` for the garbage collector, which may run in a thread for which `close` would wait."""
    _abandoned.append(close)


def close_in_thread(close: Callable[[], None]) -> None:
    """Call `close` immediately in a separate thread, because the garbage collector must not wait.

    At exit, the program waits up to 5 s in total for such calls.
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
            return  # another thread has taken the last entry
        close()


def _forget_parent() -> None:
    """Reset the state in a forked child: its clients belong to the parent, one of whose threads may hold the lock."""
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
