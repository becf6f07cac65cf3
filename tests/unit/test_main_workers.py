"""What the parent of several workers decides by itself."""

import pickle
import socket
from signal import SIGTERM, SIGWINCH
from types import SimpleNamespace
from typing import Any

import pytest

from queryserver.errors.base import ConfigurationError, DatabaseUnavailable, QueryServerError, SchemaMismatch
from queryserver.main import Supervisor, _remade, pause_s


def test_pauses_grow_from_one_second_to_thirty():
    assert [pause_s(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 5000)] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(
    "error",
    [ConfigurationError(["a: one.", "b: two."]), SchemaMismatch("Another schema."), DatabaseUnavailable()],
    ids=lambda error: error.code,
)
def test_why_a_worker_cannot_start_reaches_its_parent_unchanged(
    error: ConfigurationError | SchemaMismatch | DatabaseUnavailable,
):
    heard: QueryServerError = pickle.loads(pickle.dumps(_remade(error)))()  # noqa: S301 our own, as a pipe does it
    assert (type(heard), heard.message) == (type(error), error.message)
    assert vars(heard) == vars(error)


def test_a_parent_that_stops_takes_no_connections_and_passes_further_signals_to_stop_on():
    supervisor: Any = object.__new__(Supervisor)  # without the handlers of signals
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
