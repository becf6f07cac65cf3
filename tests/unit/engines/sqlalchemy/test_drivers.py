"""SQLAlchemy drivers that are outdated or broken, or that open connections while they are imported."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_network
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.engine.default import DefaultDialect

from queryserver.engines.protocol import SessionOptions
from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress, SqlalchemyEngine, driver_of
from queryserver.errors.statements import DriverNotInstalled, EngineUnavailable
from queryserver.platform.addresses import AddressRules, HostRefused

_BAD = "127.0.0.9"
_RULES = AddressRules(blocked=(ip_network(f"{_BAD}/32"),))


class Older(DefaultDialect):
    """A dialect whose import method has the name that SQLAlchemy 1 used."""

    name = "qs_older"

    @classmethod
    def dbapi(cls) -> object:  # type: ignore[override]
        return "its module"


class Broken(DefaultDialect):
    """A dialect whose driver module cannot be loaded on this machine."""

    name = "qs_broken"

    @classmethod
    def import_dbapi(cls) -> object:  # type: ignore[override]
        message = "libodbc.so.2: cannot open shared object file"
        raise OSError(message)


class Connecting(DefaultDialect):
    """A dialect whose driver module runs `at_import` during the import."""

    name = "qs_connecting"
    at_import: Callable[[], object]

    @classmethod
    def import_dbapi(cls) -> object:  # type: ignore[override]
        cls.at_import()
        return "its module"


class UsesLibpq(DefaultDialect):
    """A dialect that uses libpq although its URLs do not mention it."""

    name = "qs_uses_libpq"
    driver = "psycopg2"

    @classmethod
    def import_dbapi(cls) -> object:  # type: ignore[override]
        return SimpleNamespace(connect=None, paramstyle="qmark")


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    for dialect in (Older, Broken, Connecting, UsesLibpq, DefaultDialect):
        registry.register(getattr(dialect, "name", "") or "qs_without", __name__, dialect.__name__)


def test_dialect_for_sqlalchemy_1_is_supported() -> None:
    assert driver_of(sa.make_url("qs_older://"), AddressRules()) == (Older, "its module")


@pytest.mark.parametrize("name", ["qs_broken", "default", "qs_unheard_of"])
def test_driver_that_cannot_be_imported_is_not_installed(name: str) -> None:
    with pytest.raises(DriverNotInstalled, match=name):
        driver_of(sa.make_url(f"{name}://"), AddressRules())


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Listen on an address that the rules forbid."""
    with socket.create_server((_BAD, 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.security("T8")
@pytest.mark.parametrize("is_vital", [True, False])
def test_address_rules_apply_to_connections_during_driver_import(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch, *, is_vital: bool
) -> None:
    def at_import() -> None:
        with suppress(*[] if is_vital else [OSError]):
            socket.create_connection(server.getsockname(), timeout=30).close()

    monkeypatch.setattr(Connecting, "at_import", at_import, raising=False)
    address = SqlalchemyAddress(sa.make_url("qs_connecting://h"), rules=_RULES)
    if is_vital:
        with pytest.raises(DriverNotInstalled, match="qs_connecting cannot be imported"):
            address.require_driver()
        with pytest.raises(EngineUnavailable, match="qs_connecting cannot be imported"):
            SqlalchemyEngine(address, dialect="sql")._connect(SessionOptions())
    else:
        address.require_driver()
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.security("T8")
def test_default_port_is_derived_from_dialect_driver() -> None:
    url = sa.make_url("qs_uses_libpq://127.0.0.5/d")
    with pytest.raises(HostRefused):
        SqlalchemyAddress(url, rules=AddressRules(own=frozenset({("localhost", 5432)}))).engine(SessionOptions())
    assert SqlalchemyAddress(url).engine(SessionOptions()).url.port == 5432
