"""The web server: its worker processes, and the address that it logs."""

import asyncio
import os
import pickle
import socket
from collections.abc import Callable
from signal import SIGTERM, SIGWINCH
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import uvloop
from structlog.testing import capture_logs

from queryserver.errors.base import ConfigurationError, DatabaseUnavailable, QueryServerError, SchemaMismatch
from queryserver.main import Supervisor, Worker, _error_factory, _log_address
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.threads import Restarts, restart_pause_s


def test_restart_pauses_grow_from_one_to_thirty_seconds():
    assert [restart_pause_s(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 5000)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_restart_pauses_reset_after_a_long_run(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("queryserver.platform.threads.time.monotonic", lambda: now)
    restarts = Restarts()

    def pause_after(run_s: float) -> float:
        nonlocal now
        restarts.begin()
        now += run_s
        return restarts.pause_s()

    assert [pause_after(run_s) for run_s in (1, 60, 1, 61, 1)] == [1, 2, 4, 1, 2]


@pytest.mark.parametrize("error",
    [ConfigurationError(["a: one.", "b: two."]), SchemaMismatch("Another schema."),
    DatabaseUnavailable()], ids=lambda error: error.code)  # fmt: skip
def test_startup_error_of_a_worker_reaches_its_parent_unchanged(error) -> None:
    heard: QueryServerError = pickle.loads(pickle.dumps(_error_factory(error)))()  # noqa: S301 our own object, pickled as for a pipe
    assert (type(heard), heard.message) == (type(error), error.message)
    assert vars(heard) == vars(error)


def test_stopping_parent_accepts_no_connections_and_forwards_further_stop_signals():
    supervisor: Any = object.__new__(Supervisor)  # avoids the signal handlers that the constructor would install
    listener = socket.create_server(("127.0.0.1", 0))
    signals = [[], [SIGTERM], [SIGWINCH], []]
    told: list[int] = []

    def is_alive() -> bool:
        if signals:
            supervisor.signal_queue += signals.pop(0)
        return bool(signals)

    worker = SimpleNamespace(process=SimpleNamespace(is_alive=is_alive), terminate=lambda: told.append(1), join=list)
    supervisor.sockets, supervisor.signal_queue = [listener], [SIGTERM]
    supervisor.processes = supervisor._workers = [worker]
    supervisor.join_all()
    assert told == [1], "once, for the second signal"
    assert listener.fileno() == -1


class SignalOnData(asyncio.Protocol):
    """Sends this process the stop signal in a callback whose exceptions uvloop only logs."""

    def data_received(self, data: bytes) -> None:
        os.kill(os.getpid(), SIGTERM)


def start_forever(sockets: list[socket.socket], began: Callable[[], None]) -> None:
    async def start() -> None:
        near, far = socket.socketpair()
        with near, far:
            await asyncio.get_running_loop().create_connection(SignalOnData, sock=near)
            far.send(b"data")
            await asyncio.sleep(600)

    uvloop.run(start())


def test_stop_signal_in_a_callback_ends_a_starting_worker(capfd: pytest.CaptureFixture[str]):
    worker = Worker(uvicorn.Config("", log_config=None), [], start_forever)
    worker.start()
    worker.process.join(30)
    worker.kill()  # only if it is still running
    assert worker.exitcode == 0
    assert not capfd.readouterr().err


def test_log_names_the_address_the_page_and_the_docs():
    for host, settings, begin, path in (
        ("127.0.0.1", {}, "http://127.0.0.1", "/"),
        ("127.0.0.1", {"url_prefix": "/query"}, "http://127.0.0.1", "/query/"),
        ("127.0.0.1", {"url_prefix": "/a/b/"}, "http://127.0.0.1", "/a/b/"),
        ("127.0.0.1", {"ssl_certificate": "a.pem", "ssl_private_key": "a.key"}, "https://127.0.0.1", "/"),
        ("::1", {}, "http://[::1]", "/"),
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener, capture_logs() as lines:
            try:
                listener.bind((host, 0))
            except OSError:
                assert host == "::1"  # this machine lacks IPv6
                continue
            url = f"{begin}:{listener.getsockname()[1]}{path}"
            _log_address(DesktopSettings(**settings), listener)
        (line,) = lines
        assert line["event"] == "queryserver listens"
        assert (line["url"], line["api_page"]) == (url, f"{url}api/docs")
        assert line["docs"].startswith("README.md")


def test_disabled_docs_page_is_not_logged():
    with socket.socket() as listener, capture_logs() as lines:
        listener.bind(("127.0.0.1", 0))
        _log_address(DesktopSettings(docs_enabled=False), listener)
    assert "api_page" not in lines[0]
