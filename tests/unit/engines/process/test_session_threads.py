"""Threads of an engine process are reused for later sessions."""

import threading
import time
from collections.abc import Callable

from queryserver.engines.process.host import SessionThreads

TIMEOUT_S = 60.0


def idle(threads: SessionThreads, count: int) -> None:
    """Wait until this many threads are idle."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(threads._idle) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def served(threads: SessionThreads, sessions: int) -> list[int]:
    """Serve sessions that are all open at the same time. Return the ids of their threads."""
    together = threading.Barrier(sessions + 1)
    ids: list[int] = []

    def serve() -> None:
        ids.append(threading.get_ident())
        together.wait(TIMEOUT_S)

    for _ in range(sessions):
        threads.start(serve)
    together.wait(TIMEOUT_S)
    return ids


def test_later_session_uses_an_idle_thread() -> None:
    threads = SessionThreads()
    first = served(threads, 1)
    idle(threads, 1)
    assert served(threads, 1) == first


def test_concurrent_sessions_have_their_own_threads() -> None:
    assert len(set(served(SessionThreads(), 3))) == 3


def test_only_a_few_idle_threads_are_kept() -> None:
    threads = SessionThreads()
    before = threading.active_count()
    served(threads, 9)
    idle(threads, 4)
    deadline = time.monotonic() + TIMEOUT_S
    while threading.active_count() > before + 4:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert len(threads._idle) == 4


def test_idle_thread_keeps_nothing_of_its_last_session() -> None:
    class Session:
        def serve(self) -> None:
            pass

        def __del__(self) -> None:
            gone.set()

    gone = threading.Event()
    threads = SessionThreads()
    serve: Callable[[], None] = Session().serve
    threads.start(serve)
    del serve
    assert gone.wait(TIMEOUT_S)
