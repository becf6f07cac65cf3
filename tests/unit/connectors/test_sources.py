"""Connectors from the configuration: where their options come from, and the examples in the documentation."""

import re
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pytest

from queryserver.connectors.engine_builders import BUILDERS, EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.connectors.options import OptionsRefused
from queryserver.connectors.sources import by_setting, configured_connectors
from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loader import load_settings
from queryserver.platform.settings.tree import Settings

_LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)


def refused(interface: str, *, read_only: bool = False, **options: str) -> ConfigurationError:
    connector = Connector(
        "new", "shop", interface, "Shop", _LIMITS, options=MappingProxyType(options), read_only=read_only
    )
    with pytest.raises(ConfigurationError) as raised:
        EngineBuilder(Settings()).build(connector)
    return raised.value


def test_rejected_options_keep_their_error_code() -> None:
    error = refused("sqlalchemy", url="exotic://h/d?x=1")
    assert isinstance(error, OptionsRefused)
    assert error.refusal().code == "driver_not_allowed"


def test_path_is_validated_like_other_options() -> None:
    error = refused("duckdb", path="x.db")
    assert isinstance(error, OptionsRefused)
    assert error.refusal().errors == {"path": ["Only :memory: is allowed: local_database_dir is not set."]}


def test_adapter_problems_are_keyed_by_setting_name() -> None:
    assert by_setting(refused("sqlite", read_only=True).problems).keys() == {"read_only"}
    assert by_setting(["notebook.interpreters.new.options.url: is bad.", "threads: Too many."]) == {
        "url": ["Is bad."],
        "threads": ["Too many."],
    }


PAGE = Path(__file__).parents[3] / "docs" / "engines.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
OWN = "pysqlite"
"""The interface of the example engine on that page; tests/contract/test_documented_engine.py tests the engine itself.
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda text: re.findall(r"interpreters\.(\w+)\]", text)[0])
async def test_documented_example_builds_an_engine(block: str, tmp_path: Path) -> None:
    file = tmp_path / "queryserver.toml"
    file.write_text(block.replace("/srv/databases", str(tmp_path)))
    settings = load_settings(file, {})
    for connector in configured_connectors(settings):
        if connector.interface == OWN:
            continue
        try:
            engine = EngineBuilder(settings).build(connector)
        except ConfigurationError as error:
            assert "not installed" in error.message, "only an extra may be missing"  # noqa: PT017 not every example raises
            continue
        assert engine.dialect == connector.dialect
        await engine.close()


def test_every_interface_has_an_example() -> None:
    shown = set(re.findall(r'^interface = "(\w+)"$', "".join(BLOCKS), re.MULTILINE))
    assert shown == {*BUILDERS, OWN}
