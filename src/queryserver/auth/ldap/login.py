"""The back end itself: the directory is asked in threads, for a bounded time."""

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

from queryserver.auth.ldap.directory import Directory, DirectorySession
from queryserver.auth.ldap.judging import Judge
from queryserver.domain.errors.base import InvalidUsername, LoginBackendUnavailable
from queryserver.domain.user import AuthenticatedUser
from queryserver.domain.usernames import Username
from queryserver.interfaces.auth import RequestInfo

_THREADS = 8
_MOST_WAITING = 200
LIMIT_S = 10.0
"""Of one login, all its steps together."""


class LdapLogin:
    """See `interfaces.auth.LoginBackend`. At most eight logins run at once; more than 200 waiting are refused."""

    def __init__(self, directory: Directory, judge: Judge, threads: ThreadPoolExecutor, *, limit_s: float) -> None:
        self._directory = directory
        self._judge = judge
        self._threads = threads
        self._limit_s = min(limit_s, LIMIT_S)
        self._waiting = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Directory, judge: Judge, *, limit_s: float = LIMIT_S) -> Generator[Self]:
        """With threads of its own; one that still waits for the directory at the end is not waited for."""
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ldap")
        try:
            yield cls(directory, judge, threads, limit_s=limit_s)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The person whom the directory knows by that name and password. Raises LoginBackendUnavailable."""
        del request
        try:
            name = self._judge.usernames.read(username)
        except InvalidUsername:
            return None
        # A directory would take it for an anonymous login, and say yes (RFC 4513 5.1.2).
        if not password:
            return None
        if self._waiting >= _MOST_WAITING:
            raise LoginBackendUnavailable("Too many logins at once.")
        self._waiting += 1
        try:
            return await self._ask(name, password)
        finally:
            self._waiting -= 1

    async def _ask(self, name: Username, password: str) -> AuthenticatedUser | None:
        opened: list[DirectorySession] = []

        def work() -> AuthenticatedUser | None:
            with self._directory.session() as session:
                opened.append(session)
                return self._judge.judge(session, name, password)

        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise LoginBackendUnavailable("The directory did not answer in time.") from None
        finally:
            # After the answer it is closed already; a thread that still waits is set free.
            for session in opened:
                session.abort()
