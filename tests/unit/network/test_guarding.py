"""Connections that code of others opens are held to the rules (Contract platform 5.11: Hosts)."""

import socket
import sys
import threading
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from queryserver.network.addresses import AddressRules, HostRefused
from queryserver.network.guarding import _heard, guarded, install_guard

pytestmark = pytest.mark.security("T8")

_NOT_HERE = AddressRules(blocked=(ip_network("127.0.0.9/32"), ip_network("::1/128")))


@pytest.fixture(autouse=True)
def installed() -> None:
    install_guard()


@pytest.fixture
def port() -> Iterator[int]:
    """Where somebody listens, on every address of this machine."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


def connect(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=5).close()


def test_a_permitted_address_is_connected_to(port: int) -> None:
    with guarded(_NOT_HERE):
        connect("127.0.0.2", port)


@pytest.mark.parametrize("host", ["127.0.0.9", "0x7f.9", "2130706441", "::ffff:127.0.0.9", "::1"])
def test_a_refused_address_is_not_connected_to(port: int, host: str) -> None:
    with pytest.raises(HostRefused, match="led to an address") as raised, guarded(_NOT_HERE):
        connect(host, port)
    assert "127.0.0.9" not in raised.value.message
    connect("127.0.0.9", port)


def test_who_does_not_wait_is_refused_too(port: int) -> None:
    with pytest.raises(HostRefused), guarded(_NOT_HERE), socket.socket() as made:
        made.connect_ex(("127.0.0.9", port))


def test_a_name_at_the_socket_was_checked_by_nobody(port: int) -> None:
    with pytest.raises(HostRefused), guarded(AddressRules()), socket.socket() as made:
        made.connect(("localhost", port))


def test_no_socket_of_this_machine_is_connected_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as made:
        server.bind(str(tmp_path / "s"))
        server.listen()
        with pytest.raises(HostRefused), guarded(AddressRules()):
            made.connect(str(tmp_path / "s"))


def test_the_service_s_own_database_is_refused_by_address_and_port(port: int) -> None:
    with pytest.raises(HostRefused), guarded(AddressRules(own=frozenset({("localhost", port)}))):
        connect("127.0.0.5", port)
    with guarded(AddressRules(own=frozenset({("localhost", port + 1)}))):
        connect("127.0.0.5", port)


def test_the_last_connection_decides_what_a_failure_is_about(port: int) -> None:
    def log_in() -> None:
        with pytest.raises(ConnectionRefusedError):
            connect("127.0.0.9", port)
        connect("127.0.0.2", port)
        raise ValueError("login")

    with pytest.raises(ValueError, match="login"), guarded(_NOT_HERE):
        log_in()


def test_a_call_that_gets_over_a_refusal_has_not_failed(port: int) -> None:
    with guarded(_NOT_HERE), pytest.raises(ConnectionRefusedError):
        connect("127.0.0.9", port)


def test_other_threads_are_not_concerned(port: int) -> None:
    failures: list[Exception] = []

    def other() -> None:
        try:
            inside.wait(5)
            connect("127.0.0.9", port)
        except OSError as error:
            failures.append(error)

    inside = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with guarded(_NOT_HERE):
        inside.set()
        thread.join()
    assert failures == []


def test_a_call_inside_a_call_gives_back_the_rules_of_the_outer(port: int) -> None:
    with guarded(_NOT_HERE):
        with guarded(AddressRules()):
            connect("127.0.0.9", port)
        with pytest.raises(ConnectionRefusedError):
            connect("127.0.0.9", port)


def test_the_hook_is_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    install_guard()
    assert added == []


@pytest.mark.parametrize("event", ["open", "import", "socket.bind"])
def test_other_events_are_not_looked_at(event: str) -> None:
    with guarded(_NOT_HERE):
        _heard(event, ())
