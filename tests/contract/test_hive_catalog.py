"""The catalog contract for Apache Hive's metadata."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, NestedFact, TypeText
from tests.contract.test_hive_engine import statements_at_work
from tests.engines.servers import ServerAddress
from tests.ports import free_port

from queryserver.engines.catalog_queries import Folding, backquoted
from queryserver.engines.hiveserver2.catalog_variants import HiveCatalog
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE, Hs2Address, Member
from queryserver.engines.protocol import Catalog, Engine, ForeignKey, SampleKind, TableColumn, TableKind

_COLUMNS = "(id int COMMENT 'the id', name string DEFAULT 'x', PRIMARY KEY (id) DISABLE NOVALIDATE)"
_KEY = "CONSTRAINT {table}_fk FOREIGN KEY (owner) REFERENCES {db}.owners (id) DISABLE NOVALIDATE"


def _column(name: str, kind: str, comment: str = "", **facts: object) -> TableColumn:
    """Return a column with the nullability and key membership that Hive reports."""
    return TableColumn(name, kind, comment, **{"nullable": True, "primary_key": False, **facts})


def _insert(table: str, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return statements that insert through SELECT, because Hive's VALUES does not allow array and map constructors."""
    selects = " UNION ALL ".join(f"SELECT {', '.join(row)}" for row in rows)
    return (f"INSERT INTO {table} {selects}",) if rows else ()


FACTS = CatalogFacts(
    folding=Folding.LOWER,
    default_database="default",
    int_type=TypeText("int", "int"),
    text_type=TypeText("string", "string"),
    types=(
        TypeText("decimal(10, 2)", "decimal(10,2)"),
        TypeText("varchar(20)", "varchar(20)"),
        TypeText("timestamp", "timestamp"),
        TypeText("array<struct<k:string>>", "array<struct<k:string>>"),
        TypeText("map<string, int>", "map<string,int>"),
    ),
    tables=(
        DescribedTable(
            "kept",
            (f"CREATE TABLE {{t}} {_COLUMNS} PARTITIONED BY (dt string COMMENT 'day') STORED AS PARQUET",),
            (
                _column("id", "int", "the id", nullable=False, primary_key=True),
                _column("name", "string", default="'x'"),
                _column("dt", "string", "day", partition_key=True),
            ),
            kind=TableKind.EXTERNAL,
            support_updates=False,
            format="parquet",
        ),
        DescribedTable(
            "owned",
            (
                "CREATE TABLE {db}.owners (id int, PRIMARY KEY (id) DISABLE NOVALIDATE) STORED AS ORC",
                f"CREATE TABLE {{t}} (owner int, {_KEY.replace('{table}', 'owned')}) STORED AS ORC",
            ),
            (_column("owner", "int"),),
            kind=TableKind.EXTERNAL,
            support_updates=False,
            format="orc",
            foreign_keys=(ForeignKey("owner", "{database}.owners.id"),),
        ),
    ),
    nested=(
        NestedFact("array<int>", ("array(3, 1)", "array(1, 2)"), ("item",), (1, 2, 3)),
        NestedFact("map<string,int>", ("map('x', 2)", "map('y', 1)"), ("value",), (1, 2)),
        NestedFact("struct<a:struct<b:int>>", ("named_struct('a', named_struct('b', 7))",), ("a", "b"), (7,)),
    ),
    create_database=("CREATE DATABASE {db}",),
    drop_database=("DROP DATABASE {db} CASCADE",),
    quote=backquoted,
    odd_databases=(),
    # Only a few names, because each name causes several jobs of about a second.
    odd_tables=("a`b;drop", 'x"y'),
    odd_columns=("o'brien a/b", 'x"y', "a`b;drop"),
    create_table=lambda table, columns: (
        f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)}) STORED AS ORC",
    ),
    insert=_insert,
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"min": "1", "max": "4", "num_nulls": 0, "distinct_count": 4},
        "name": {"num_nulls": 1, "distinct_count": 2, "max_col_len": 2},
    },
    builtin_function="abs",
    create_function=("CREATE FUNCTION {db}.twice AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFAbs'",),
    drop_function=("DROP FUNCTION {db}.twice",),
    many_tables=20,
    catalog_on=HiveCatalog,
)


@pytest.mark.engine("hive")
class TestHiveCatalog(CatalogContract):
    """The catalog contract for the output of Hive's SHOW and DESCRIBE."""

    tested_with = "Hive 4.0.1 HiveServer2"
    catalog_facts = FACTS

    @pytest.fixture
    async def engine(self, hive_server: ServerAddress) -> AsyncGenerator[Engine]:
        self.port = hive_server.port
        engine = Hs2Engine(Hs2Address((Member(hive_server.host, hive_server.port),)), HIVE)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member("127.0.0.1", free_port()),)), HIVE)
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        """Return how many HiveServer2 threads are running a statement."""
        return await statements_at_work(self.port)

    @pytest.mark.item(60)
    async def test_tables_and_views_are_listed(self, engine: Engine, catalog: Catalog, database: str) -> None:
        """Without a transaction manager, Hive 4 creates only external tables."""
        await self.make_table(engine, database, "items")
        await self.make_view(engine, database, "items_view", "items")
        assert {table.name: table.kind for table in await catalog.tables(database)} == {
            "items": TableKind.EXTERNAL,
            "items_view": TableKind.VIEW,
        }

    @pytest.mark.item(63)
    async def test_built_in_functions_are_listed_once(self, engine: Engine, catalog: Catalog) -> None:
        """The list contains only names, because each signature would need a separate statement."""
        names = [function.name for function in await catalog.functions(None)]
        assert len(names) == len(set(names)) > 300
        found = await catalog.function(None, "abs")
        assert found is not None
        assert (found.name, found.signature, found.is_builtin) == ("abs", "abs(x)", "BUILTIN")

    @pytest.mark.item(65)
    async def test_database_comment_is_reported(self, engine: Engine, catalog: Catalog, database: str) -> None:
        """Hive cannot change a database comment, so the test creates the database again."""
        await self.execute(engine, [f"DROP DATABASE {database}", f"CREATE DATABASE {database} COMMENT 'Shop data'"])
        assert (await catalog.database(database)).comment == "Shop data"

    @pytest.mark.item(65)
    async def test_description_includes_all_engine_metadata(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        """Hive escapes strings as in Java source; the catalog returns them unescaped."""
        columns = '(id int COMMENT \'Zoë "q" \\\\ back\\tslash\', `x"y` int)'
        told = "COMMENT 'it\\'s; a\\ntable' STORED AS ORC TBLPROPERTIES ('k'='v, x=y]')"
        await self.execute(engine, [f"CREATE EXTERNAL TABLE {database}.items {columns} {told}"])
        found = await catalog.table(database, "ITEMS")
        assert (found.comment, found.format, found.kind) == ("it's; a\ntable", "orc", TableKind.EXTERNAL)
        assert [(one.name, one.comment) for one in found.columns] == [("id", 'Zoë "q" \\ back\tslash'), ('x"y', "")]
        assert {one.name: one.value for one in found.properties}["k"] == "v, x=y]"
        assert found.location.endswith(f"/{database}.db/items")
        assert found.create_time.endswith("Z")
        assert found.owner

    @pytest.mark.item(64)
    async def test_newest_partitions_come_first(self, engine: Engine, catalog: Catalog, database: str) -> None:
        table = f"{database}.days"
        await self.execute(
            engine,
            [
                f"CREATE EXTERNAL TABLE {table} (n int) PARTITIONED BY (day int, town string) STORED AS ORC",
                *(
                    f"INSERT INTO {table} PARTITION (day={day}, town='a/b=c') SELECT {day} UNION ALL SELECT {day}"
                    for day in (9, 10, 11, 2)
                ),
            ],
        )
        described = await catalog.table(database, "days")
        rows = await self.rows(engine, await catalog.sample_statement(described, None, (), SampleKind.DEFAULT))
        assert [row[1] for row in rows] == [11, 11, 10, 10, 9, 9, 2, 2]
        assert rows[0] == (11, 11, "a/b=c")
