"""Address rules also apply to connections opened by third-party code (Contract platform 5.11: Hosts)."""

import socket
import sys
import threading
import urllib.error
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.connection_guard import _audit, _permits, guarded, install_guard

pytestmark = pytest.mark.security("T8")

_NOT_HERE = AddressRules(blocked=(ip_network("127.0.0.9/32"), ip_network("::1/128")))


@pytest.fixture(autouse=True)
def installed() -> None:
    install_guard()


@pytest.fixture
def port() -> Iterator[int]:
    """Listen on all IPv4 addresses of this machine and return the port."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


def connect(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=5).close()


def test_connection_to_permitted_address_succeeds(port: int) -> None:
    with guarded(_NOT_HERE):
        connect("127.0.0.2", port)


@pytest.mark.parametrize(("host", "is_permitted"), [("::1", False), ("::ffff:127.0.0.9", False), ("::2", True)])
def test_ipv6_addresses_are_checked_even_without_kernel_support(host: str, *, is_permitted: bool) -> None:
    assert _permits(_NOT_HERE, socket.AF_INET6, (host, 80, 0, 0)) is is_permitted


@pytest.mark.parametrize("host", ["127.0.0.9", "0x7f.9", "2130706441"])
def test_connection_to_refused_address_fails(port: int, host: str) -> None:
    with pytest.raises(HostRefused, match="tried to connect to an address") as raised, guarded(_NOT_HERE):
        connect(host, port)
    assert "127.0.0.9" not in raised.value.message
    connect("127.0.0.9", port)


def test_connect_ex_is_refused(port: int) -> None:
    with pytest.raises(HostRefused), guarded(_NOT_HERE), socket.socket() as made:
        made.connect_ex(("127.0.0.9", port))


def test_host_name_passed_to_socket_is_refused(port: int) -> None:
    with pytest.raises(HostRefused), guarded(AddressRules()), socket.socket() as made:
        made.connect(("localhost", port))


def test_unix_socket_connection_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as made:
        server.bind(str(tmp_path / "s"))
        server.listen()
        with pytest.raises(HostRefused), guarded(AddressRules()):
            made.connect(str(tmp_path / "s"))


def test_service_database_is_refused_by_address_and_port(port: int) -> None:
    with pytest.raises(HostRefused), guarded(AddressRules(own=frozenset({("localhost", port)}))):
        connect("127.0.0.5", port)
    with guarded(AddressRules(own=frozenset({("localhost", port + 1)}))):
        connect("127.0.0.5", port)


def test_error_after_permitted_connection_is_not_a_refusal(port: int) -> None:
    def log_in() -> None:
        with pytest.raises(ConnectionRefusedError):
            connect("127.0.0.9", port)
        connect("127.0.0.2", port)
        raise ValueError("login")

    with pytest.raises(ValueError, match="login"), guarded(_NOT_HERE):
        log_in()


def refused(port: int) -> OSError:
    """Connect to an address that the rules refuse; return the error that the driver receives."""
    with pytest.raises(ConnectionRefusedError) as raised:
        connect("127.0.0.9", port)
    return raised.value


class DriverError(Exception):
    """A driver error that stores the original error in an attribute."""

    def __init__(self, text: str, inner: Exception | None = None) -> None:
        super().__init__(text)
        self.inner = inner


def test_ignored_refusal_is_not_blamed_for_later_error(port: int) -> None:
    def log_in() -> None:
        with socket.create_connection(("127.0.0.2", port)):
            refused(port)
            raise DriverError("wrong password")

    with pytest.raises(DriverError, match="password"), guarded(_NOT_HERE):
        log_in()


@pytest.mark.parametrize(
    "made",
    [
        lambda refusal: refusal,
        lambda refusal: DriverError("no line", refusal),
        lambda refusal: DriverError("no line", urllib.error.URLError(refusal)),
        lambda refusal: OSError("no line", refusal),
        lambda refusal: ExceptionGroup("no line", [ValueError(), refusal]),
    ],
)
@pytest.mark.parametrize("host_after", [None, "127.0.0.2"])
def test_error_that_contains_the_refusal_is_a_refusal(port, made, host_after) -> None:
    def log_in() -> None:
        error = made(refused(port))
        if host_after is not None:
            connect(host_after, port)  # like a driver that cancels the request it has started
        raise error

    with pytest.raises(HostRefused), guarded(_NOT_HERE):
        log_in()


@pytest.mark.parametrize("text", [None, "several: {}"])
@pytest.mark.parametrize(("host_after", "error"), [(None, HostRefused), ("127.0.0.2", DriverError)])
def test_hidden_refusal_is_reported_unless_another_connection_followed(port, text, host_after, error) -> None:
    def go_on(refusal: OSError) -> None:
        if host_after is not None:
            connect(host_after, port)
        raise DriverError((text or "no line").format(refusal))

    def log_in() -> None:
        try:
            connect("127.0.0.9", port)
        except OSError as refusal:
            kept = refusal
            if text is None:
                go_on(refusal)
        go_on(kept)

    with pytest.raises(error), guarded(_NOT_HERE):
        log_in()


def test_refusal_text_alone_is_not_a_refusal(port: int) -> None:
    """A server could send the same text in an error message of its own."""

    def log_in() -> None:
        connect("127.0.0.2", port)
        raise DriverError("The driver tried to connect to an address to which connections are not allowed.")

    with pytest.raises(DriverError), guarded(_NOT_HERE):
        log_in()


def test_circular_error_references_terminate(port: int) -> None:
    def log_in() -> None:
        one, other = DriverError("one"), DriverError("other")
        one.inner, other.inner = other, one
        refused(port)
        raise one from other

    with pytest.raises(DriverError, match="one"), guarded(_NOT_HERE):
        log_in()


def test_handled_refusal_does_not_fail_the_call(port: int) -> None:
    with guarded(_NOT_HERE), pytest.raises(ConnectionRefusedError):
        connect("127.0.0.9", port)


def test_guard_does_not_affect_other_threads(port: int) -> None:
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


def test_nested_guard_restores_outer_rules(port: int) -> None:
    with guarded(_NOT_HERE):
        with guarded(AddressRules()):
            connect("127.0.0.9", port)
        with pytest.raises(ConnectionRefusedError):
            connect("127.0.0.9", port)


def test_audit_hook_is_installed_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    install_guard()
    assert added == []


@pytest.mark.parametrize("event", ["open", "import", "socket.bind"])
def test_other_audit_events_are_ignored(event: str) -> None:
    with guarded(_NOT_HERE):
        _audit(event, ())
