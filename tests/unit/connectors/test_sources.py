"""What adapters say of a connector, for who sent it (Contract platform 5.6)."""

from datetime import timedelta
from types import MappingProxyType

import pytest

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.connectors.options import OptionsRefused
from queryserver.connectors.sources import by_setting
from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.tree import Settings

_LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)


def refused(interface: str, *, read_only: bool = False, **options: str) -> ConfigurationError:
    connector = Connector(
        "new", "shop", interface, "Shop", _LIMITS, options=MappingProxyType(options), read_only=read_only
    )
    with pytest.raises(ConfigurationError) as raised:
        EngineBuilder(Settings()).build(connector)
    return raised.value


def test_options_that_are_refused_keep_their_kind() -> None:
    error = refused("sqlalchemy", url="exotic://h/d?x=1")
    assert isinstance(error, OptionsRefused)
    assert error.refusal().code == "driver_not_allowed"


def test_a_path_is_an_option_like_any_other() -> None:
    error = refused("duckdb", path="x.db")
    assert isinstance(error, OptionsRefused)
    assert error.refusal().errors == {"path": ["Only :memory: is allowed: local_database_dir is not set."]}


def test_what_the_adapter_itself_refuses_names_the_setting_without_its_place() -> None:
    assert by_setting(refused("sqlite", read_only=True).problems).keys() == {"read_only"}
    assert by_setting(["notebook.interpreters.new.options.url: is bad.", "threads: Too many."]) == {
        "url": ["Is bad."],
        "threads": ["Too many."],
    }
