"""Checks that the single-file engine in docs/engines.md fulfills the engine contract exactly as printed."""

import re
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import ClassVar

import pytest
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_facts import Change, EngineFacts, TypeFact
from tests.contract.engine_parameters import lacking
from tests.contract.test_sqlite_engine import FACTS as SQLITE_FACTS

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.engines.protocol import Engine
from queryserver.errors.base import ConfigurationError
from queryserver.formats.arrow import ResultType
from queryserver.platform.settings.tree import Settings

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)

FACTS = replace(
    SQLITE_FACTS,
    misspelled_at=None,
    types=tuple(
        TypeFact(text, f"SELECT {text} UNION ALL SELECT NULL", kind, native, value)
        for text, kind, native, value in (
            ("1 + 1", ResultType.BIGINT, "INTEGER", 2),
            ("1.5", ResultType.DOUBLE, "REAL", 1.5),
            ("'a' || 'b'", ResultType.STRING, "TEXT", "ab"),
            ("x'00ff'", ResultType.BINARY, "BLOB", b"\x00\xff"),
            ("NULL", ResultType.STRING, "TEXT", None),
        )
    ),
    changes=(
        Change("CREATE TABLE {t} (n INTEGER PRIMARY KEY, s TEXT)"),
        Change("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')", rows=3),
        Change("UPDATE {t} SET s = 'c' WHERE n > 100", rows=0),
        Change("SELECT * FROM {t}", has_result_set=True),
        Change("DELETE FROM {t}", rows=3),
        Change("DROP TABLE {t}"),
    ),
)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Save the page's Python code to a file and import it."""
    (block,) = (
        text for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        if "def build(" in text
    )  # fmt: skip
    file = tmp_path_factory.mktemp("documented") / "pysqlite.py"
    file.write_text(block)
    spec = spec_from_file_location("documented_pysqlite", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def built(example: ModuleType, root: Path, **options: str) -> Engine:
    """Build the engine from connector options, as the application does."""
    builder = EngineBuilder(Settings.model_validate({"desktop": {"connector_policy": {"local_database_dir": root}}}))
    connector = Connector("shop", "sqlite", "pysqlite", "Shop", LIMITS, MappingProxyType(options))
    return example.build(connector, builder)


class TestDocumentedEngine(EngineContract):
    facts: ClassVar[EngineFacts] = FACTS
    tested_with = "SQLite of Python"
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = lacking(
        pytest.mark.never("the example is as small as it can be")
    )

    @pytest.fixture
    async def engine(self, example: ModuleType, tmp_path: Path) -> AsyncGenerator[Engine]:
        engine = built(example, tmp_path, path="facts.sqlite")
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, example: ModuleType, tmp_path: Path) -> AsyncGenerator[Engine]:
        engine = built(example, tmp_path, path="missing/facts.sqlite")
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        return engine._sessions.threads.busy  # type: ignore[attr-defined]


def test_options_are_validated(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="path: must be set") as caught:
        built(example, tmp_path, pth="facts.sqlite")
    assert "pth: is not an option" in caught.value.message
