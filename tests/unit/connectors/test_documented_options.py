"""The options that docs/engines.md shows are those that the builders take."""

import re
from pathlib import Path

from tests.cases import each

from queryserver.connectors.engine_builders import BUILDERS, EngineBuilder
from queryserver.connectors.sources import configured_connectors
from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loading import load_settings

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
OWN = "pysqlite"
"""The interface of the page's own example; tests/contract/test_documented_engine.py has it."""


@each("block", BLOCKS, ids=lambda text: re.findall(r"interpreters\.(\w+)\]", text)[0])
async def test_an_example_makes_an_engine(block: str, tmp_path: Path) -> None:
    file = tmp_path / "queryserver.toml"
    file.write_text(block.replace("/srv/databases", str(tmp_path)))
    settings = load_settings(file, {})
    for connector in configured_connectors(settings):
        if connector.interface == OWN:
            continue
        try:
            engine = EngineBuilder(settings).build(connector)
        except ConfigurationError as error:
            assert "not installed" in error.message, "only an extra may be missing"  # noqa: PT017 one block needs it
            continue
        assert engine.dialect == connector.dialect
        await engine.close()


def test_every_interface_has_an_example() -> None:
    shown = set(re.findall(r'^interface = "(\w+)"$', "".join(BLOCKS), re.MULTILINE))
    assert shown == {*BUILDERS, OWN}
