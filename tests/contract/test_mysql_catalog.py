"""The catalog contract for MariaDB, which uses the MySQL protocol."""

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, TypeText
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.mariadb_basis import MariadbBasis
from tests.contract.test_mysql_engine import engine_on
from tests.engines.servers import ServerAddress
from tests.refusals import raises_code

from queryserver.engines.catalog_queries import Folding, backquoted
from queryserver.engines.mysql.catalog import MysqlCatalog
from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.protocol import Catalog, Engine, ForeignKey, TableColumn

_PLAIN = {"nullable": True, "autoincrement": False, "primary_key": False}

TABLES = (
    DescribedTable(
        "orders",
        (
            "CREATE TABLE {db}.people (id INT PRIMARY KEY)",
            (
                "CREATE TABLE {t} (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY,"
                " name VARCHAR(20) NOT NULL DEFAULT 'a''b', price DECIMAL(10,2) DEFAULT (1 + 1) COMMENT 'in EUR',"
                " twice INT AS (price * 2) STORED, kind ENUM('a,b','c'), owner INT,"
                " FOREIGN KEY (owner) REFERENCES {db}.people (id)) COMMENT 'What was ordered'"
            ),
        ),
        (
            TableColumn("id", "int(10) unsigned", nullable=False, autoincrement=True, primary_key=True),
            TableColumn(
                "name", "varchar(20)", nullable=False, default="'a''b'", autoincrement=False, primary_key=False
            ),
            TableColumn("price", "decimal(10,2)", comment="in EUR", default="(1 + 1)", **_PLAIN),
            TableColumn("twice", "int(11)", **_PLAIN),
            TableColumn("kind", "enum('a,b','c')", **_PLAIN),
            TableColumn("owner", "int(11)", **_PLAIN),
        ),
        comment="What was ordered",
        support_updates=True,
        foreign_keys=(ForeignKey("owner", "{database}.people.id"),),
    ),
    DescribedTable(
        "events",
        (
            (
                "CREATE TABLE {t} (day DATE, id BIGINT) PARTITION BY RANGE COLUMNS (day)"
                " (PARTITION p VALUES LESS THAN ('2025-01-01'), PARTITION q VALUES LESS THAN (MAXVALUE))"
            ),
        ),
        (
            TableColumn("day", "date", partition_key=True, **_PLAIN),
            TableColumn("id", "bigint(20)", **_PLAIN),
        ),
        support_updates=True,
    ),
)  # fmt: skip

FACTS = CatalogFacts(
    folding=Folding.CASELESS,
    default_database="users",
    int_type=TypeText("INT", "int(11)"),
    text_type=TypeText("VARCHAR(100)", "varchar(100)"),
    types=(
        TypeText("DECIMAL(10,2)", "decimal(10,2)"),
        TypeText("TINYINT(1)", "tinyint(1)"),
        TypeText("DATETIME(3)", "datetime(3)"),
        TypeText("SET('x','y')", "set('x','y')"),
        TypeText("LONGBLOB", "longblob"),
    ),
    tables=TABLES,
    create_database=("CREATE DATABASE {db}",),
    drop_database=("DROP DATABASE {db}",),
    comment_database=("ALTER DATABASE {db} COMMENT = 'Shop data'",),
    quote=backquoted,
    distinguishes_case=True,
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"min": "1", "max": "4", "num_nulls": 0, "distinct_count": 4},
        "name": {"min": "a", "max": "bb", "num_nulls": 1, "distinct_count": 2},
    },
    builtin_function="ABS",
    overloaded_function="SUBDATE",
    create_function=("CREATE FUNCTION {db}.twice(n INT) RETURNS INT DETERMINISTIC RETURN 2 * n",),
    drop_function=("DROP FUNCTION {db}.twice",),
    catalog_on=lambda session: MysqlCatalog(session, mariadb=True),
)


@pytest.mark.engine("mariadb")
class TestMariadbCatalog(MariadbBasis, CatalogContract):
    catalog_facts = FACTS
    tested_with = "MariaDB 10.11"
    engine_on = staticmethod(engine_on)

    async def test_empty_name_without_default_database_is_not_found(self, mariadb: ServerAddress) -> None:
        engine = MysqlEngine(MysqlAddress(mariadb.host, mariadb.port, None, mariadb.user, mariadb.password))
        try:
            async with engine.catalog(USER, NO_OPTIONS) as catalog:
                with raises_code("database_not_found"):
                    await catalog.tables("")
                assert await catalog.functions(None)
        finally:
            await engine.close()

    async def test_indexed_column_has_distinct_count(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.execute(
            engine,
            [
                f"CREATE TABLE {database}.keyed (id INT PRIMARY KEY)",
                f"INSERT INTO {database}.keyed SELECT seq FROM seq_1_to_100",
                f"ANALYZE TABLE {database}.keyed",
            ],
        )
        table = await catalog.table(database, "keyed")
        assert (await catalog.column_statistics(table, "id")).distinct_count == 100
        assert ("engine", "InnoDB") in [(one.name, one.value) for one in table.properties]
        assert table.create_time.endswith("Z")
