"""Packages behind SQLAlchemy's dialects that are older than it, or broken."""

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.engine.default import DefaultDialect

from queryserver.domain.errors import DriverNotInstalled
from queryserver.engines.sqlalchemy.drivers import driver_of


class Older(DefaultDialect):
    """As packages for SQLAlchemy 1 name the method."""

    name = "qs_older"

    @classmethod
    def dbapi(cls) -> object:  # type: ignore[override]
        return "its module"


class Broken(DefaultDialect):
    """Its module cannot be loaded on this machine."""

    name = "qs_broken"

    @classmethod
    def import_dbapi(cls) -> object:  # type: ignore[override]
        message = "libodbc.so.2: cannot open shared object file"
        raise OSError(message)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    for dialect in (Older, Broken, DefaultDialect):
        registry.register(getattr(dialect, "name", "") or "qs_without", __name__, dialect.__name__)


def test_a_dialect_of_the_older_form_is_installed() -> None:
    assert driver_of(sa.make_url("qs_older://")) == (Older, "its module")


@pytest.mark.parametrize("name", ["qs_broken", "default", "qs_unheard_of"])
def test_whatever_cannot_be_imported_is_not_installed(name: str) -> None:
    with pytest.raises(DriverNotInstalled, match=name):
        driver_of(sa.make_url(f"{name}://"))
