"""The support table of docs/engines.md, generated from the contract suites' marks by `make docs`.

A row is a capability that tests are marked with; a column is an engine. A cell is derived from the engine's test
classes: the tests they inherit, their `known_failures`, and the facts they declare. No cell is written by hand.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from types import MappingProxyType, ModuleType

from tests.contract.catalog_facts import CatalogFacts
from tests.contract.support_table import Footnotes, Proved, Suite, is_test, names_in, rendered, suite_of
from tests.contract.test_signatures import CATALOG_TESTS, ENGINE_TESTS, FAULT_TESTS, LOADING_TESTS, SLOW_LOADING_TESTS

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.engines.protocol import CatalogEngine, Engine
from queryserver.platform.settings.tree import Settings

CAPABILITIES = (
    "Run and follow",
    "Progress",
    "Columns and values with their types",
    "Any text, up to a megabyte",
    "Parameters",
    "Large results in flat memory",
    "Changes are counted and committed",
    "Errors in the engine's own words",
    "Cancel reaches the engine",
    "Abandoned statements are stopped",
    "State of a session",
    "Unknown databases and settings are refused",
    "Many sessions side by side",
    "Tables from files",
    "A failed import leaves nothing",
    "Survives a queryserver restart",
    "An unreachable engine is reported in time",
    "A broken connection is reported in time",
    "Databases, tables, views",
    "Columns",
    "Keys, formats, partitions",
    "Comments",
    "Analyze",
    "Statistics",
    "Functions",
    "Samples",
    "Values inside nested columns",
    "Names in any case",
    "Odd names, quoted",
)
"""All permitted names of the mark `capability`, in table order."""

SCRIPTED = "scripted peer"
_MARK = "capability"


@dataclass(frozen=True, slots=True)
class Column:
    """An engine: the name part that its test files share, and a connector whose facts are read."""

    name: str
    tests: str
    interface: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def engine(self) -> Engine:
        """Build the engine as the server does, without connecting."""
        limits = ConnectorLimits(*[timedelta(seconds=60)] * 4)
        connector = Connector("docs", self.name, self.interface, "", limits, options=MappingProxyType(self.options))
        return EngineBuilder(Settings()).build(connector)


COLUMNS = (
    Column("duckdb", "duckdb", "duckdb"),
    Column("sqlite", "sqlite", "sqlite"),
    Column("postgresql", "postgresql", "sqlalchemy", {"url": "postgresql://u:p@localhost/d"}),
    Column("mysql", "mysql", "sqlalchemy", {"url": "mysql://u:p@localhost/d"}),
    Column("hive", "hive", "hiveserver2", {"server_host": "localhost"}),
    Column("sparksql", "spark", "hiveserver2", {"server_host": "localhost"}),
    Column("impala", "impala", "hiveserver2", {"server_host": "localhost"}),
    Column("trino", "trino", "trino", {"url": "http://localhost:8080"}),
    Column("phoenix", "phoenix", "phoenix", {"url": "http://localhost:8765"}),
    Column("other SQLAlchemy", "sqlalchemy", "sqlalchemy", {"url": "oracle://u:p@localhost/d"}),
)


def table() -> str:
    """Return the table in Markdown, with its notes."""
    footnotes = Footnotes()
    engines = [column.engine() for column in COLUMNS]
    suites = [list(_suites(column)) for column in COLUMNS]
    facts = [_facts(column) for column in COLUMNS]
    rows = [["", *(column.name for column in COLUMNS)]]
    for capability in CAPABILITIES:
        cells = (_cell(capability, *parts, footnotes) for parts in zip(engines, suites, facts, strict=True))
        rows.append([capability, *cells])
    rows.append(["**Tested with**", *(_peers(column) for column in COLUMNS)])
    return rendered(rows, footnotes)


def _cell(capability: str, engine: Engine, suites: list[Suite], facts: CatalogFacts | None, notes: Footnotes) -> str:
    about = [suite for suite in suites if suite.verdict(capability)]
    if not about:
        return "–"
    verdicts = {suite.verdict(capability) for suite in about}
    word = "yes" if "yes" in verdicts else "part" if "part" in verdicts else "no"
    said = _DECIDED[capability](engine, facts) if capability in _DECIDED and word == "yes" else word
    reasons = [reason for suite in about for reason in suite.reasons(capability)]
    if any(suite.peer != SCRIPTED for suite in suites) and all(suite.peer == SCRIPTED for suite in about):
        reasons.append("Tested with a scripted peer")
    return said + notes.mark(iter(reasons))


def _suites(column: Column) -> Iterator[Suite]:
    for registered in (ENGINE_TESTS, CATALOG_TESTS, FAULT_TESTS, LOADING_TESTS, SLOW_LOADING_TESTS):
        for file, class_names in registered.items():
            module = _module(file)
            if not class_names and column.name in module.DIALECTS:
                yield Suite(module.TESTED_WITH, _proved_by_module(module))
            if column.tests == file.split("_")[1]:
                yield from (suite_of(getattr(module, name), _MARK, CAPABILITIES) for name in class_names)


def _proved_by_module(module: ModuleType) -> Proved:
    marks = module.pytestmark if isinstance(module.pytestmark, list) else [module.pytestmark]
    tests = {name: () for name in vars(module) if is_test(name)}
    return dict.fromkeys(names_in(marks, _MARK, CAPABILITIES), tests)


def _module(file: str) -> ModuleType:
    return import_module(f"tests.contract.{file.removesuffix('.py')}")


def _classes(column: Column, registered: Mapping[str, tuple[str, ...]]) -> Iterator[type]:
    for file, class_names in registered.items():
        if column.tests == file.split("_")[1]:
            yield from (getattr(_module(file), name) for name in class_names)


def _facts(column: Column) -> CatalogFacts | None:
    return next((tests.catalog_facts for tests in _classes(column, CATALOG_TESTS)), None)


def _peers(column: Column) -> str:
    return ", ".join(dict.fromkeys(tests.tested_with for tests in _classes(column, ENGINE_TESTS)))


# Capabilities that only the declared facts decide, because the tests leave them open.


def _listed(**parts: object) -> str:
    return ", ".join(name for name, there in parts.items() if there) or "no"


def _progress(engine: Engine, _: CatalogFacts | None) -> str:
    return "yes" if engine.capabilities.reports_progress else "no"


def _described(_: Engine, facts: CatalogFacts | None) -> str:
    return "yes" if facts and facts.tables else "–"


def _comments(_: Engine, facts: CatalogFacts | None) -> str:
    if facts is None or not (facts.tables or facts.comment_database):
        return "–"
    of_columns = any(column.comment for table in facts.tables for column in table.columns)
    return "yes" if facts.comment_database or of_columns or any(table.comment for table in facts.tables) else "no"


def _analyze(_: Engine, facts: CatalogFacts | None) -> str:
    return _listed(tables=facts and facts.analyzes_tables, columns=facts and facts.analyzes_columns)


def _statistics(_: Engine, facts: CatalogFacts | None) -> str:
    return _listed(tables=facts and facts.statistics, columns=facts and facts.column_statistics)


def _functions(engine: Engine, facts: CatalogFacts | None) -> str:
    if not (isinstance(engine, CatalogEngine) and engine.lists_functions):
        return "no"
    return "built-in, own" if facts and facts.create_function else "built-in"


def _nested(_: Engine, facts: CatalogFacts | None) -> str:
    return "yes" if facts and facts.nested else "no"


_DECIDED: Mapping[str, Callable[[Engine, CatalogFacts | None], str]] = {
    "Progress": _progress,
    "Keys, formats, partitions": _described,
    "Comments": _comments,
    "Analyze": _analyze,
    "Statistics": _statistics,
    "Functions": _functions,
    "Values inside nested columns": _nested,
}
