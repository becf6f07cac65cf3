"""The catalog contract for PostgreSQL: always the newest release, and release 15 on request."""

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, NestedFact, TypeText
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import failure
from tests.contract.postgresql_basis import EmbeddedBasis, Release15Basis
from tests.fixtures.database import execute

from queryserver.engines.catalog_queries import Folding
from queryserver.engines.postgresql.catalog import PostgresqlCatalog
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import Catalog, Engine, ForeignKey, SampleKind, TableColumn, TableKind
from queryserver.errors.statements import EngineForbidden, StatementDenied
from queryserver.platform.embedded.postgres import EmbeddedPostgres

_PLAIN = {"nullable": True, "autoincrement": False, "primary_key": False}

TABLES = (
    DescribedTable(
        "orders",
        (
            "CREATE TABLE {db}.people (id integer PRIMARY KEY)",
            (
                "CREATE TABLE {t} (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number serial,"
                " name varchar(20) NOT NULL DEFAULT 'a''b', price numeric(10,2) DEFAULT 1 + 1,"
                " twice numeric GENERATED ALWAYS AS (price * 2) STORED, owner integer REFERENCES {db}.people)"
            ),
            "COMMENT ON TABLE {t} IS 'What was ordered'",
            "COMMENT ON COLUMN {t}.price IS 'in EUR, 19 % VAT'",
        ),
        (
            TableColumn("id", "integer", nullable=False, autoincrement=True, primary_key=True),
            TableColumn(
                "number", "integer", nullable=False, autoincrement=True, primary_key=False,
                default="nextval('{database}.orders_number_seq'::regclass)",
            ),
            TableColumn(
                "name", "character varying(20)", nullable=False, autoincrement=False, primary_key=False,
                default="'a''b'::character varying",
            ),
            TableColumn("price", "numeric(10,2)", comment="in EUR, 19 % VAT", default="(1 + 1)", **_PLAIN),
            TableColumn("twice", "numeric", **_PLAIN),
            TableColumn("owner", "integer", **_PLAIN),
        ),
        comment="What was ordered",
        support_updates=True,
        foreign_keys=(ForeignKey("owner", "{database}.people.id"),),
    ),
    DescribedTable(
        "events",
        (
            "CREATE TABLE {t} (day date NOT NULL, id bigint) PARTITION BY RANGE (day, id)",
            "CREATE TABLE {db}.events_2024 PARTITION OF {t} FOR VALUES FROM ('2024-01-01', 0) TO ('2025-01-01', 0)",
        ),
        (
            TableColumn(
                "day", "date", nullable=False, autoincrement=False, primary_key=False, partition_key=True
            ),
            TableColumn("id", "bigint", partition_key=True, **_PLAIN),
        ),
        support_updates=True,
    ),
    DescribedTable(
        "totals",
        (
            "CREATE MATERIALIZED VIEW {t} AS SELECT 1 AS id, 'x'::text AS name",
            "COMMENT ON MATERIALIZED VIEW {t} IS 'Totals'",
        ),
        (
            TableColumn("id", "integer", nullable=None, autoincrement=None, primary_key=False),
            TableColumn("name", "text", nullable=None, autoincrement=None, primary_key=False),
        ),
        kind=TableKind.MATERIALIZED_VIEW,
        comment="Totals",
        support_updates=False,
    ),
)  # fmt: skip

FACTS = CatalogFacts(
    folding=Folding.LOWER,
    default_database="public",
    int_type=TypeText("integer", "integer"),
    text_type=TypeText("text", "text"),
    types=(
        TypeText("varchar(20)", "character varying(20)"),
        TypeText("char(3)", "character(3)"),
        TypeText("varchar(20)[]", "character varying(20)[]"),
        TypeText("numeric(10,2)", "numeric(10,2)"),
        TypeText("double precision", "double precision"),
        TypeText("timestamptz(3)", "timestamp(3) with time zone"),
        TypeText("jsonb", "jsonb"),
        TypeText("int4range", "int4range"),
    ),
    tables=TABLES,
    nested=(
        NestedFact("integer[]", ("'{3,1,NULL}'", "'{{3,2},{10,1}}'", "NULL"), ("item",), (1, 2, 3, 10, None)),
        NestedFact("varchar(5)[]", ("'{b}'", "'{a,b}'"), ("item",), ("a", "b")),
        NestedFact("json[]", ("""ARRAY['{"a":1}'::json]""",), ("item",), ('{"a":1}',)),
    ),
    create_database=("CREATE SCHEMA {db}",),
    drop_database=("DROP SCHEMA {db} CASCADE",),
    comment_database=("COMMENT ON SCHEMA {db} IS 'Shop data'",),
    distinguishes_case=True,
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"min": "1", "max": "4", "num_nulls": 0, "distinct_count": 4, "avg_col_len": 4},
        "name": {"num_nulls": 1, "distinct_count": 2},
    },
    builtin_function="abs",
    overloaded_function="abs",
    create_function=(
        "CREATE FUNCTION {db}.twice(n integer) RETURNS integer LANGUAGE sql AS 'SELECT 2 * n'",
        "CREATE FUNCTION {db}.twice(n numeric DEFAULT 1) RETURNS numeric LANGUAGE sql AS 'SELECT 2 * n'",
    ),
    create_many=lambda quoted, count: (
        (
            f"DO $$BEGIN FOR n IN 0..{count - 1} LOOP EXECUTE format('CREATE TABLE {quoted}.t%s (id int)', n);"
            " END LOOP; END$$"
        ),
    ),
    catalog_on=PostgresqlCatalog,
)


class PostgresqlCatalogContract(CatalogContract):
    """The catalog tests for every PostgreSQL release."""

    adapter = PostgresqlEngine
    catalog_facts = FACTS

    @pytest.mark.item(66)
    async def test_statistics_cover_more_types(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.execute(
            engine,
            [
                (
                    f"CREATE TABLE {database}.wide AS SELECT n % 4 = 0 AS flag, n::text AS name, ARRAY[n] AS list,"
                    " point(n, n) AS place FROM generate_series(1, 1000) AS n"
                ),
                f"ANALYZE {database}.wide",
            ],
        )
        table = await catalog.table(database, "wide")
        flag = await catalog.column_statistics(table, "flag")
        assert (flag.num_trues, flag.num_falses, flag.min, flag.max) == (250, 750, "false", "true")
        name = await catalog.column_statistics(table, "name")
        assert (name.min, name.max, name.distinct_count) == ("1", "999", 1000)
        assert (await catalog.column_statistics(table, "list")).distinct_count == 1000
        assert (await catalog.column_statistics(table, "place")).min is None

    @pytest.mark.item(64)
    async def test_unorderable_values_are_sampled(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.execute(
            engine,
            [
                f"CREATE TABLE {database}.odd (j json, p point, x xid)",
                f"INSERT INTO {database}.odd VALUES ('[2]', point(1, 2), '2'), ('[1]', point(1, 2), '1')",
                f"INSERT INTO {database}.odd VALUES (NULL, NULL, NULL)",
            ],
        )
        table = await catalog.table(database, "odd")
        for column, expected in (("j", ["[1]", "[2]", None]), ("p", ["(1,2)", None]), ("x", ["1", "2", None])):
            statement = await catalog.sample_statement(table, column, (), SampleKind.DISTINCT)
            assert await self.rows(engine, statement) == [(value,) for value in expected]
            statement = await catalog.sample_statement(table, column, (), SampleKind.MAX)
            assert await self.rows(engine, statement) == [(expected[-2],)]


class TestPostgresqlCatalog(EmbeddedBasis, PostgresqlCatalogContract):
    """The catalog tests on the newest release."""

    async def test_inaccessible_objects_are_forbidden_and_not_listed(
        self, engine: Engine, users_dsn: str, tcp_open: EmbeddedPostgres, catalog: Catalog
    ) -> None:
        """The error code is `engine_forbidden` (Contract editor 1.5)."""
        name = users_dsn.rpartition("/")[2]
        admin = tcp_open.admin_dsn().replace("/postgres?", f"/{name}?", 1)
        for sql in (
            "CREATE SCHEMA closed",
            "CREATE TABLE closed.secret (a integer)",
            "CREATE TABLE public.secret (a integer)",
            "CREATE TABLE public.half (a integer, b integer)",
            f"GRANT SELECT (a) ON public.half TO {name}",
        ):
            await execute(admin, sql)
        assert "closed" not in await catalog.databases()
        for look in (
            catalog.database("closed"),
            catalog.tables("closed"),
            catalog.table("closed", "secret"),
            catalog.table("public", "secret"),
            catalog.functions("closed"),
        ):
            with pytest.raises(EngineForbidden):
                await look
        assert [table.name for table in await catalog.tables("public")] == ["half"]
        assert [column.name for column in (await catalog.table("public", "half")).columns] == ["a", "b"]
        async with engine.session(USER, NO_OPTIONS) as session:
            assert isinstance(await failure(session, "SELECT * FROM public.half"), StatementDenied)


@pytest.mark.engine("postgresql15")
class TestPostgresql15Catalog(Release15Basis, PostgresqlCatalogContract):
    """The catalog tests on an older release."""
