"""Adapters have the signatures of their Protocols, and pytest collects the full contract for every adapter.

Type checkers accept changed default values, and do not check a class that is never passed where the Protocol is
expected.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.engine_contract import EngineContract
from tests.contract.loading_contract import LoadingContract
from tests.contract.slow_loading_contract import SlowLoadingContract
from tests.contract.storage_contract import StorageContract

from queryserver.engines.estimates import EstimatingSession
from queryserver.engines.external_data import FileSink, OpenResult, StatementFiles, StatementResults
from queryserver.engines.protocol import (
    Catalog,
    CatalogEngine,
    Engine,
    EngineSession,
    LoadingEngine,
    LoadLedger,
    ResumableEngine,
    ResumableSession,
    TableLoader,
)
from queryserver.files.protocol import (
    CheckedWrites,
    ClusterFileSystem,
    FileSystem,
    ModeStorage,
    OwnedStorage,
    RenamingStorage,
    ReplicatedStorage,
    Storage,
    SummarizedStorage,
    TrashStorage,
    UnlistedUploads,
)
from queryserver.imports.uploads import ImportUploadRecords
from queryserver.results.segments import ResultStore

TESTS = Path(__file__).parent
ENGINES = TESTS.parents[1] / "src/queryserver/engines"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A class that implements a Protocol."""

    protocol: type
    module: str
    name: str

    def load(self) -> type:
        return getattr(import_module(self.module), self.name)


ADAPTERS = (
    Adapter(Engine, "queryserver.engines.duckdb.engine", "DuckdbEngine"),
    Adapter(Engine, "queryserver.engines.sqlite.engine", "SqliteEngine"),
    Adapter(Engine, "queryserver.engines.postgresql.engine", "PostgresqlEngine"),
    Adapter(Engine, "queryserver.engines.mysql.engine", "MysqlEngine"),
    Adapter(Engine, "queryserver.engines.phoenix.engine", "PhoenixEngine"),
    Adapter(Engine, "queryserver.engines.sqlalchemy.engine", "SqlalchemyEngine"),
    Adapter(CatalogEngine, "queryserver.engines.sqlalchemy.engine", "SqlalchemyEngine"),
    Adapter(Catalog, "queryserver.engines.sqlalchemy.catalog", "SqlalchemyCatalog"),
    Adapter(EngineSession, "queryserver.engines.blocking_drivers", "ThreadedSession"),
    Adapter(Engine, "queryserver.engines.trino.engine", "TrinoEngine"),
    Adapter(EngineSession, "queryserver.engines.trino.session", "TrinoSession"),
    Adapter(ResumableEngine, "queryserver.engines.trino.engine", "TrinoEngine"),
    Adapter(ResumableSession, "queryserver.engines.trino.session", "TrinoSession"),
    Adapter(EstimatingSession, "queryserver.engines.trino.session", "TrinoSession"),
    Adapter(EstimatingSession, "queryserver.engines.phoenix.engine", "PhoenixSession"),
    Adapter(Engine, "queryserver.engines.hiveserver2.engine", "Hs2Engine"),
    Adapter(EngineSession, "queryserver.engines.hiveserver2.engine", "Hs2Session"),
    Adapter(ResumableEngine, "queryserver.engines.hiveserver2.engine", "Hs2Engine"),
    Adapter(ResumableSession, "queryserver.engines.hiveserver2.engine", "Hs2Session"),
    Adapter(Engine, "tests.fakes.engine", "FakeEngine"),
    Adapter(EngineSession, "queryserver.engines.sessions", "StreamedSession"),
    Adapter(EngineSession, "tests.fakes.engine", "FakeSession"),
    Adapter(LoadingEngine, "queryserver.engines.postgresql.engine", "PostgresqlEngine"),
    Adapter(TableLoader, "queryserver.engines.postgresql.loader", "PostgresqlLoader"),
    Adapter(LoadingEngine, "queryserver.engines.mysql.engine", "MysqlEngine"),
    Adapter(TableLoader, "queryserver.engines.mysql.loader", "MysqlLoader"),
    Adapter(LoadingEngine, "queryserver.engines.duckdb.engine", "DuckdbEngine"),
    Adapter(LoadingEngine, "queryserver.engines.sqlite.engine", "SqliteEngine"),
    Adapter(EngineSession, "queryserver.engines.process.sessions", "ProcessSession"),
    Adapter(TableLoader, "queryserver.engines.process.connections", "ProcessLoader"),
    Adapter(LoadingEngine, "queryserver.engines.trino.engine", "TrinoEngine"),
    Adapter(TableLoader, "queryserver.engines.trino.engine", "TrinoLoader"),
    Adapter(LoadingEngine, "queryserver.engines.hiveserver2.engine", "Hs2Engine"),
    Adapter(TableLoader, "queryserver.engines.hiveserver2.loader", "Hs2Loader"),
    Adapter(LoadingEngine, "queryserver.engines.phoenix.engine", "PhoenixEngine"),
    Adapter(TableLoader, "queryserver.engines.phoenix.catalog", "PhoenixLoader"),
    Adapter(Engine, "tests.fakes.loading", "FakeLoadingEngine"),
    Adapter(EngineSession, "tests.fakes.loading", "TablesSession"),
    Adapter(LoadingEngine, "tests.fakes.loading", "FakeLoadingEngine"),
    Adapter(TableLoader, "tests.fakes.loading", "FakeLoader"),
    Adapter(LoadLedger, "tests.contract.loading_basis", "MemoryLedger"),
    Adapter(LoadLedger, "queryserver.imports.repository", "StatementLedger"),
    Adapter(EngineSession, "queryserver.statements.job_session", "JobSession"),
    Adapter(EngineSession, "queryserver.statements.stored_session", "StoredSession"),
    Adapter(CatalogEngine, "queryserver.engines.sqlite.engine", "SqliteEngine"),
    Adapter(Catalog, "queryserver.engines.sqlite.catalog", "SqliteCatalog"),
    Adapter(CatalogEngine, "queryserver.engines.duckdb.engine", "DuckdbEngine"),
    Adapter(Catalog, "queryserver.engines.duckdb.catalog", "DuckdbCatalog"),
    Adapter(CatalogEngine, "queryserver.engines.phoenix.engine", "PhoenixEngine"),
    Adapter(Catalog, "queryserver.engines.phoenix.catalog", "PhoenixCatalog"),
    Adapter(CatalogEngine, "queryserver.engines.mysql.engine", "MysqlEngine"),
    Adapter(Catalog, "queryserver.engines.mysql.catalog", "MysqlCatalog"),
    Adapter(CatalogEngine, "queryserver.engines.postgresql.engine", "PostgresqlEngine"),
    Adapter(Catalog, "queryserver.engines.postgresql.catalog", "PostgresqlCatalog"),
    Adapter(CatalogEngine, "queryserver.engines.hiveserver2.engine", "Hs2Engine"),
    Adapter(Catalog, "queryserver.engines.hiveserver2.catalog", "HiveFamilyCatalog"),
    Adapter(ImportUploadRecords, "tests.fakes.import_uploads", "MemoryImportUploads"),
    Adapter(Storage, "queryserver.files.stores.local.storage", "LocalStorage"),
    Adapter(RenamingStorage, "queryserver.files.stores.local.storage", "LocalStorage"),
    Adapter(SummarizedStorage, "queryserver.files.stores.local.storage", "LocalStorage"),
    Adapter(ModeStorage, "queryserver.files.stores.local.storage", "LocalStorage"),
    Adapter(TrashStorage, "queryserver.files.stores.local.storage", "UserStorage"),
    Adapter(FileSystem, "queryserver.files.stores.local.storage", "LocalFileSystem"),
    Adapter(Storage, "queryserver.files.stores.adls.dfs", "HierarchicalStorage"),
    Adapter(RenamingStorage, "queryserver.files.stores.adls.dfs", "HierarchicalStorage"),
    Adapter(ModeStorage, "queryserver.files.stores.adls.dfs", "HierarchicalStorage"),
    Adapter(OwnedStorage, "queryserver.files.stores.adls.dfs", "HierarchicalStorage"),
    Adapter(Storage, "queryserver.files.stores.adls.flat", "AzureFlatStorage"),
    Adapter(FileSystem, "queryserver.files.stores.adls.file_system", "AdlsFileSystem"),
    Adapter(Storage, "queryserver.files.stores.s3.storage", "S3Storage"),
    Adapter(CheckedWrites, "queryserver.files.stores.s3.storage", "S3Storage"),
    Adapter(UnlistedUploads, "queryserver.files.stores.s3.storage", "S3Storage"),
    Adapter(FileSystem, "queryserver.files.stores.s3.storage", "S3FileSystem"),
    Adapter(Storage, "tests.fakes.storage", "MemoryStorage"),
    Adapter(RenamingStorage, "tests.fakes.storage", "Renames"),
    Adapter(TrashStorage, "tests.fakes.storage", "Trashes"),
    Adapter(ReplicatedStorage, "tests.fakes.storage", "Replicates"),
    Adapter(SummarizedStorage, "tests.fakes.storage", "SumsUp"),
    Adapter(ModeStorage, "tests.fakes.storage", "HasModes"),
    Adapter(OwnedStorage, "tests.fakes.storage", "HasOwners"),
    Adapter(UnlistedUploads, "tests.fakes.storage", "KeepsUnseen"),
    Adapter(FileSystem, "tests.fakes.storage", "MemoryFileSystem"),
    Adapter(ClusterFileSystem, "tests.fakes.storage", "MemoryCluster"),
    Adapter(Storage, "tests.fakes.storage_faults", "FaultyStorage"),
    Adapter(FileSystem, "tests.fakes.storage_faults", "FaultyFileSystem"),
    Adapter(ResultStore, "tests.fakes.results", "MemoryResults"),
    Adapter(StatementFiles, "queryserver.files.statement_files", "SessionFiles"),
    Adapter(FileSink, "queryserver.files.statement_files", "FileBody"),
    Adapter(StatementResults, "queryserver.statements.external_access", "SessionResults"),
    Adapter(OpenResult, "queryserver.statements.downloads", "OpenTable"),
)

# Test classes that inherit the engine contract, by file.
ENGINE_TESTS = {
    "test_duckdb_engine.py": ("TestDuckdbEngine", "TestDuckdbInMemory"),
    "test_sqlite_engine.py": ("TestSqliteEngine", "TestSqliteInMemory"),
    "test_postgresql_engine.py": ("TestPostgresql", "TestPostgresql15"),
    "test_mysql_engine.py": ("TestMariadb",),
    "test_sqlalchemy_engine.py": ("TestSqlalchemyMariadb",),
    "test_phoenix_engine.py": ("TestPhoenix",),
    "test_trino_engine.py": ("TestTrino",),
    "test_impala_engine.py": ("TestImpala",),
    "test_spark_engine.py": ("TestSpark",),
    "test_hive_engine.py": ("TestHive",),
    "test_fake_engine.py": ("TestFakeEngine",),
    "test_documented_engine.py": ("TestDocumentedEngine",),
}

# Test classes that inherit the catalog contract, by file.
CATALOG_TESTS = {
    "test_hive_catalog.py": ("TestHiveCatalog",),
    "test_spark_catalog.py": ("TestSparkCatalog",),
    "test_impala_catalog.py": ("TestImpalaCatalog",),
    "test_duckdb_catalog.py": ("TestDuckdbCatalog",),
    "test_mysql_catalog.py": ("TestMariadbCatalog",),
    "test_postgresql_catalog.py": ("TestPostgresqlCatalog", "TestPostgresql15Catalog"),
    "test_phoenix_catalog.py": ("TestPhoenixCatalog",),
    "test_sqlite_catalog.py": ("TestSqliteCatalog",),
    "test_sqlalchemy_catalog.py": ("TestSqlalchemyCatalog",),
    "test_trino_catalog.py": ("TestTrinoCatalog",),
}

# Test classes that inherit the loader contract, by file.
LOADING_TESTS = {
    "test_fake_loading.py": ("TestFakeLoading",),
    "test_mysql_loading.py": ("TestMariadbLoading",),
    "test_phoenix_loading.py": ("TestPhoenixLoading",),
    "test_trino_loading.py": ("TestTrinoLoading",),
    "test_duckdb_loading.py": ("TestDuckdbLoading",),
    "test_sqlite_loading.py": ("TestSqliteLoading",),
    "test_postgresql_loading.py": ("TestPostgresqlLoading", "TestPostgresql15Loading"),
}

# Test classes that inherit the short loader contract, by file.
SLOW_LOADING_TESTS = {"test_hive_loading.py": ("TestHiveLoading",), "test_spark_loading.py": ("TestSparkLoading",)}

# Test classes that inherit the storage contract, by file.
STORAGE_TESTS = {
    "test_fake_storage.py": (
        "TestMemoryStorage",
        "TestFaultyStorage",
        "TestMemoryLikeHdfs",
        "TestMemoryLikeS3",
        "TestFaultyFileSystem",
        "TestFaultyLikeS3",
    ),
    "test_local_storage.py": ("TestLocalHome", "TestLocalAdministrator", "TestPrivateStorage"),
    "test_adls_storage.py": ("TestFlatAccount", "TestHierarchicalAccount"),
    "test_s3_storage.py": ("TestS3",),
}

# Test classes that inherit FaultsContract, by file; files without such classes declare DIALECTS.
FAULT_TESTS = {
    "test_hive_engine.py": ("TestHiveFaults",),
    "test_hiveserver2_faults.py": (),
    "test_mysql_faults.py": ("TestMariadbFaults",),
    "test_phoenix_faults.py": ("TestScriptedFaults", "TestPhoenixFaults"),
    "test_postgresql_faults.py": ("TestPostgresqlFaults",),
    "test_spark_faults.py": ("TestSparkFaults",),
    "test_sqlalchemy_engine.py": ("TestSqlalchemyFaults",),
    "test_trino_faults.py": ("TestTrinoFaults",),
}


def members(protocol: type) -> list[str]:
    return [name for name, member in vars(protocol).items() if not name.startswith("_") and _is_member(member)]


def _is_member(member: object) -> bool:
    return isinstance(member, property) or inspect.isfunction(member)


def shape(member: Any) -> tuple[str, ...]:
    """Return the names, kinds and defaults of the parameters, and whether the result is awaited.

    A property may be implemented as an instance attribute.
    """
    if isinstance(member, property) or not callable(member):
        return ("property",)
    signature = inspect.signature(member, follow_wrapped=True)
    parameters = (f"{p.kind.description} {p.name} = {p.default!r}" for p in signature.parameters.values())
    return ("awaited" if inspect.iscoroutinefunction(member) else "called", *parameters)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_signatures_match_the_protocol(adapter: Adapter) -> None:
    named = {name: vars(adapter.protocol)[name] for name in members(adapter.protocol)}
    found = {name: shape(inspect.getattr_static(adapter.load(), name, None)) for name in named}
    assert found == {name: shape(member) for name, member in named.items()}


@pytest.mark.parametrize("flaw", ["default", "kind", "name", "await"])
def test_flawed_signature_is_detected(flaw: str) -> None:
    async def right(self: object, path: str, *, recursive: bool = False) -> None: ...

    async def default(self: object, path: str, *, recursive: bool = True) -> None: ...

    async def kind(self: object, path: str, recursive: bool = False) -> None: ...

    async def name(self: object, qualified_name: str, *, recursive: bool = False) -> None: ...

    def unawaited(self: object, path: str, *, recursive: bool = False) -> None: ...

    flawed = {"default": default, "kind": kind, "name": name, "await": unawaited}[flaw]
    assert shape(flawed) != shape(right)


def test_every_engine_has_a_registered_class_and_suite() -> None:
    folders = {path.name for path in ENGINES.iterdir() if (path / "engine.py").exists()}
    registered = {adapter.module.split(".")[2] for adapter in ADAPTERS if adapter.protocol is Engine}
    assert folders <= registered, "register the engine in ADAPTERS"
    tested = "".join((TESTS / file).read_text() for file in ENGINE_TESTS)
    untested = {name for name in folders if f"queryserver.engines.{name}" not in tested}
    assert not untested, "add its test class to ENGINE_TESTS"


@pytest.mark.parametrize(
    ("contract", "registered"),
    [
        ("EngineContract", ENGINE_TESTS),
        ("CatalogContract", CATALOG_TESTS),
        ("FaultsContract", FAULT_TESTS),
        ("StorageContract", STORAGE_TESTS),
        ("LoadingContract", LOADING_TESTS),
        ("SlowLoadingContract", SLOW_LOADING_TESTS),
    ],
)
def test_every_suite_class_is_registered(contract: str, registered: Mapping[str, tuple[str, ...]]) -> None:
    """An unregistered class would be missing from the support table."""
    for file in TESTS.glob("test_*.py"):
        classes = re.findall(rf"^class (Test\w+)\(.*\b{contract}\b.*\):", file.read_text(), re.MULTILINE)
        assert set(classes) <= set(registered.get(file.name, ())), file.name


@pytest.mark.parametrize(
    ("contract", "at_least", "registered"),
    [
        (EngineContract, 45, ENGINE_TESTS),
        (CatalogContract, 30, CATALOG_TESTS),
        (StorageContract, 45, STORAGE_TESTS),
        (LoadingContract, 25, LOADING_TESTS),
        (SlowLoadingContract, 15, SLOW_LOADING_TESTS),
    ],
    ids=["engines", "catalogs", "storages", "loaders", "slow loaders"],
)
def test_suite_ran_over_every_adapter(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    contract: type,
    at_least: int,
    registered: Mapping[str, tuple[str, ...]],
) -> None:
    """The test runs pytest's own collection, because renaming or shadowing a test would otherwise go unnoticed."""
    monkeypatch.setattr(request.config.option, "engine", "all")
    suite = {name for name, _ in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")}
    assert len(suite) >= at_least
    for file, class_names in registered.items():
        module = pytest.Module.from_parent(request.node.getparent(pytest.Module).parent, path=TESTS / file)
        classes = {found.name: found for found in module.collect() if isinstance(found, pytest.Class)}
        for class_name in class_names:
            collected = {test.originalname for test in classes[class_name].collect()}
            assert suite <= collected, f"{class_name} lacks tests of the suite"
