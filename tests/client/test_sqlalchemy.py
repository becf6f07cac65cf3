"""The SQLAlchemy dialects, and tools that are based on them (issue 20, section 5)."""

import datetime as dt
import gc
import re
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import polars as pl
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateTable
from tests.api.conftest import make_settings
from tests.api.driving import open_api
from tests.api.serving import served
from tests.client.conftest import Server
from tests.client.sqlalchemy_suite.running import WIDTH, run_suite
from tests.client.threads import in_thread
from tests.fixtures.database import execute

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver_client import dbapi
from queryserver_client.credentials import Secret
from queryserver_client.sqlalchemy import connector
from queryserver_client.sqlalchemy.choice import named_interpreter
from queryserver_client.sqlalchemy.connector import connect_arguments
from queryserver_client.sqlalchemy.types import interval_value, type_of

ENGINES = ("duckdb", "postgresql", "sqlite")


@pytest.fixture
async def url(server: Server) -> str:
    """The URL of a new user, in which `%s` stands for the connector. The password is the user's token."""
    return f"queryserver://:{await server.token()}@{server.url.removeprefix('http://')}/%s?scheme=http"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, url: str) -> sa.Engine:
    """An SQLAlchemy engine of a new user. It has not made a call yet, so a test may use it in another thread."""
    return sa.create_engine(url.replace("queryserver:", f"queryserver+{request.param}:") % request.param)


@pytest.fixture
def items() -> sa.Table:
    return sa.Table(
        f"items_{uuid4().hex[:8]}",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(30), nullable=False),
        sa.Column("price", sa.Numeric(10, 2)),
        sa.Column("tags", sa.JSON),
    )


@in_thread
def test_server_determines_engine_and_its_sql_is_used(url: str):
    for name in ENGINES:
        engine = sa.create_engine(url % name)
        assert (engine.dialect.name, engine.dialect.driver) == (name, "queryserver")
        engine.dispose()
    assert sa.create_engine(url % "warehouse").dialect.name == "postgresql"
    with pytest.raises(sa.exc.ArgumentError, match="does not exist"):
        sa.create_engine(url % "nowhere")
    with pytest.raises(sa.exc.ArgumentError, match="has the dialect sqlite"):
        sa.create_engine(url.replace("queryserver:", "queryserver+duckdb:") % "sqlite").connect()


@in_thread
def test_tables_are_created_filled_read_and_reflected(engine: sa.Engine, items: sa.Table):
    items.metadata.create_all(engine)
    with engine.begin() as connection:
        made = connection.execute(items.insert(), {"name": "pen", "price": "1.50", "tags": {"a": [1, None]}})
        assert made.inserted_primary_key == (1,)
        connection.execute(items.insert(), [{"name": f"n{n}"} for n in range(2500)])
    with engine.connect() as connection:
        row = connection.execute(sa.select(items).where(items.c.name == "pen")).one()
        assert (row.price, row.tags) == (Decimal("1.50"), {"a": [1, None]})
        assert connection.scalar(sa.select(sa.func.count()).where(items.c.name.in_(["pen", "n7"]))) == 2
    found = sa.inspect(engine)
    assert items.name in found.get_table_names()
    assert found.has_table(items.name)
    assert not found.has_table("nowhere")
    assert found.get_pk_constraint(items.name)["constrained_columns"] == ["id"]
    read = sa.Table(items.name, sa.MetaData(), autoload_with=engine)
    assert [(column.name, column.nullable) for column in read.columns] == [
        ("id", False),
        ("name", False),
        ("price", True),
        ("tags", True),
    ]
    assert isinstance(read.c.price.type, sa.Numeric)
    items.metadata.drop_all(engine)
    assert not sa.inspect(engine).has_table(items.name)
    engine.dispose()


@in_thread
def test_transactions_and_savepoints_work(engine: sa.Engine, items: sa.Table):
    items.metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(items.insert(), {"name": "a"})
        connection.rollback()
        assert connection.scalar(sa.select(sa.func.count()).select_from(items)) == 0
        if engine.dialect.name != "duckdb":  # DuckDB has no savepoints
            with connection.begin_nested() as savepoint:
                connection.execute(items.insert(), {"name": "b"})
                savepoint.rollback()
            connection.execute(items.insert(), {"name": "c"})
            connection.commit()
            assert connection.scalars(sa.select(items.c.name)).all() == ["c"]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(items.insert(), {"name": "kept"})
        connection.rollback()
        assert connection.scalar(sa.select(sa.func.count()).where(items.c.name == "kept")) == 1
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(items.insert(), {"name": None})
    items.metadata.drop_all(engine)
    engine.dispose()


@pytest.mark.parametrize("has_pre_ping", [False, True], ids=["checkout", "pre_ping"])
@in_thread
def test_session_expired_while_idle_is_replaced_and_reconfigured_by_listeners(
    url: str, monkeypatch: pytest.MonkeyPatch, has_pre_ping: bool
):
    monkeypatch.setattr(connector, "CHECK_AFTER_S", 1e9 if has_pre_ping else 0)
    made = sa.create_engine(
        url.replace("queryserver:", "queryserver+postgresql:") % "postgresql", pool_pre_ping=has_pre_ping
    )

    def set_path(connection: dbapi.Connection, _record: object) -> None:
        connection.execute("SET search_path TO pg_catalog")
        connection.commit()

    sa.event.listen(made, "connect", set_path)
    for _ in range(2):
        with made.connect() as connection:
            assert connection.scalar(sa.text("SHOW search_path")) == "pg_catalog"
            lower = connection.connection.dbapi_connection
            assert isinstance(lower, dbapi.Connection)
        close = partial(
            lower.client.transport.call, "POST", "editor/close_session", {"session": {"type": "postgresql"}}
        )
        lower.run(close)
    monkeypatch.undo()
    made.dispose()


@in_thread
def test_connection_garbage_collected_in_client_thread_is_replaced(
    engine: sa.Engine, items: sa.Table, caplog: pytest.LogCaptureFixture
):
    items.metadata.create_all(engine)
    with engine.connect():
        held: list[sa.Connection] = []

        async def collect() -> None:
            found = held.pop().connection.dbapi_connection
            assert isinstance(found, dbapi.Connection)
            # The thread of one loop must not wait for another loop, because each could wait for the other.
            assert found._client.loop.must_not_wait
            del found
            gc.collect()

        another = sa.create_engine(engine.url.update_query_dict({"timeout": "99"}))
        for finder in (engine, another):
            with finder.connect() as finding:
                lower = finding.connection.dbapi_connection
                assert isinstance(lower, dbapi.Connection)
                held.append(engine.connect())
                held[0].execute(items.insert(), {"name": "a"})
                lower.run(collect)
        another.dispose()
        with engine.connect() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(items)) == 0
    assert "Traceback" not in caplog.text
    items.metadata.drop_all(engine)
    engine.dispose()


@in_thread
def test_connection_garbage_collected_during_call_is_replaced(
    engine: sa.Engine, items: sa.Table, monkeypatch: pytest.MonkeyPatch
):
    """The garbage collector may run while its thread holds a lock that the loop needs to end the wait."""
    items.metadata.create_all(engine)
    allocate = threading._allocate_lock  # pyright: ignore[reportAttributeAccessIssue] which Condition.wait calls
    with engine.connect() as connection:
        held = [engine.connect()]
        held[0].execute(items.insert(), {"name": "a"})

        def collect() -> threading.Lock:
            monkeypatch.undo()
            held.clear()
            gc.collect()
            return allocate()

        monkeypatch.setattr(threading, "_allocate_lock", collect)
        assert connection.scalar(sa.select(sa.func.count()).select_from(items)) == 0
        assert held == []
    items.metadata.drop_all(engine)
    engine.dispose()


@in_thread
def test_objects_are_mapped(engine: sa.Engine):
    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = f"person_{uuid4().hex[:8]}"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Person(name="ana"), Person(name="bob")])
        session.commit()
        assert [person.id for person in session.scalars(sa.select(Person).order_by(Person.id))] == [1, 2]
    Base.metadata.drop_all(engine)
    engine.dispose()


@in_thread
def test_pandas_and_polars_read_and_write(engine: sa.Engine):
    name = f"frame_{uuid4().hex[:8]}"
    frame = pd.DataFrame({"n": range(1200), "word": [f"w{n}" for n in range(1200)]})
    assert frame.to_sql(name, engine, index=False) == 1200
    pd.testing.assert_frame_equal(pd.read_sql(f"SELECT * FROM {name} ORDER BY n", engine), frame)
    pd.testing.assert_frame_equal(pd.read_sql_table(name, engine).sort_values("n", ignore_index=True), frame)
    with engine.connect() as connection:
        assert pl.read_database(f"SELECT * FROM {name}", connection)["n"].sum() == sum(range(1200))
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))
    engine.dispose()


@in_thread
def test_infinity_round_trips_through_table(engine: sa.Engine):
    """See pandas#34431."""
    name, infinity = f"frame_{uuid4().hex[:8]}", float("inf")
    frame = pd.DataFrame({"f": [1.5, infinity, -infinity, None]})
    assert frame.to_sql(name, engine, index=False) == 4
    pd.testing.assert_frame_equal(pd.read_sql(f"SELECT * FROM {name}", engine), frame)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))
    engine.dispose()


@in_thread
def test_update_for_many_value_sets_is_one_statement(engine: sa.Engine):
    table = sa.Table(f"many_{uuid4().hex[:8]}", sa.MetaData(), sa.Column("n", sa.Integer), sa.Column("t", sa.String(9)))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(sa.insert(table), [{"n": n, "t": "old"} for n in range(100)])
        update = sa.update(table).where(table.c.n == sa.bindparam("which")).values(t=sa.bindparam("what"))
        changed = connection.execute(update, [{"which": n, "what": f"new {n}"} for n in range(50)])
        assert changed.rowcount == 50
        rows = connection.execute(sa.select(table).where(table.c.t != "old").order_by(table.c.n)).all()
        assert rows == [(n, f"new {n}") for n in range(50)]
        client = connection.connection.dbapi_connection

        async def updates() -> int:
            return len([1 async for entry in client.client.history.search() if entry.statement.startswith("UPDATE")])

        assert client.run(updates) == 1
        table.drop(connection)
    engine.dispose()


@in_thread
def test_json_operators_reach_postgresql(url: str):
    engine = sa.create_engine(url.replace("queryserver:", "queryserver+postgresql:") % "postgresql")
    document = sa.cast({"a": 1}, pg.JSONB)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(document["a"])) == 1
        assert connection.scalar(sa.select(sa.cast({"b": [1, 7]}, sa.JSON)["b"][1].as_integer())) == 7
        assert connection.scalar(sa.select(document.has_key("a"))) is True
        assert connection.scalar(sa.select(document.has_any(sa.cast(["b"], pg.ARRAY(sa.Text))))) is False
        assert connection.scalar(sa.text("SELECT CAST('{}' AS jsonb) ? 'a'")) is False
    engine.dispose()


def test_url_hides_token_and_refuses_unknown_options():
    url = sa.make_url("queryserver://:secret@db.example:8443/duckdb?database=shop&limit=7&verify=false")
    assert "secret" not in repr(url)
    assert connect_arguments(url) == {
        "url": "https://db.example:8443",
        "connector": "duckdb",
        "token": Secret("secret"),
        "database": "shop",
        "limit": 7,
        "verify": False,
    }
    assert connect_arguments(sa.make_url("queryserver://ana:pw@db.example/7"))["user"] == "ana"
    with pytest.raises(sa.exc.ArgumentError, match="unknown argument color"):
        connect_arguments(sa.make_url("queryserver://db.example/7?color=red"))


@pytest.mark.parametrize(
    ("dialect", "wanted"),
    [
        ("hive", "`s`.`select` (`id` INT NOT NULL, `t` STRING, `d` DECIMAL(10, 2), `f` DOUBLE, `b` BINARY"),
        ("impala", "`s`.`select` (`id` INT, `t` STRING, `d` DECIMAL(10, 2), `f` DOUBLE, `b` BINARY"),
        ("trino", '"s"."select" ("id" INTEGER NOT NULL, "t" VARCHAR, "d" DECIMAL(10, 2), "f" DOUBLE, "b" VARBINARY'),
        ("mysql", "s.`select` (id INTEGER NOT NULL AUTO_INCREMENT, t TEXT, d NUMERIC(10, 2), f FLOAT, b BLOB"),
    ],
    ids=["hive", "impala", "trino", "mysql"],
)
def test_engines_get_their_own_type_names_and_quotes(dialect: str, wanted: str):
    engine = sa.create_engine(f"queryserver+{dialect}://:x@db.example/7")
    columns = [
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("t", sa.Text),
        sa.Column("d", sa.Numeric(10, 2)),
        sa.Column("f", sa.Float),
        sa.Column("b", sa.LargeBinary),
    ]
    text = str(CreateTable(sa.Table("select", sa.MetaData(), *columns, schema="s")).compile(engine))
    flat = re.sub(r"\s+", " ", text).replace("( ", "(").replace(" ,", ",")
    assert flat.strip().startswith(f"CREATE TABLE {wanted}")


class UppercaseText(sa.types.TypeDecorator[str]):
    impl = sa.String
    cache_ok = True

    def process_literal_param(self, value: Any, dialect: Any) -> str:
        return str(value).upper()

    process_bind_param = process_literal_param


@pytest.mark.parametrize("dialect", ["hive", "impala", "sparksql", "phoenix"])
def test_backslash_does_not_end_literal(dialect: str):
    engine = sa.create_engine(f"queryserver+{dialect}://:x@db.example/7")
    texts = sa.select(sa.literal(r"\' OR 1=1 -- "), sa.literal("it's"), sa.literal(7))
    text = str(texts.compile(engine, compile_kwargs={"literal_binds": True}))
    processed = str(
        sa.select(sa.literal("it's", UppercaseText())).compile(engine, compile_kwargs={"literal_binds": True})
    )
    assert r"'IT\'S' AS " in processed
    assert text.startswith(r"SELECT '\\\' OR 1=1 -- ' AS "), text
    assert r"'it\'s' AS " in text
    assert "7 AS " in text


def test_phoenix_writes_only_by_key():
    engine = sa.create_engine("queryserver+phoenix://:x@db.example/7")
    key = sa.Column("id", sa.Integer, primary_key=True)
    name = sa.Column("name", sa.Text, sa.ForeignKey("other.id"), nullable=False, unique=True, server_default="x")
    table = sa.Table("t", sa.MetaData(), key, name, sa.Column("made", sa.DateTime))
    made = " ".join(str(sa.schema.CreateTable(table).compile(engine)).split())
    wanted = """CREATE TABLE "T" ( "ID" INTEGER NOT NULL, "NAME" VARCHAR DEFAULT 'x', "MADE" TIMESTAMP,"""
    assert made.startswith(wanted)
    assert made.endswith('CONSTRAINT pk PRIMARY KEY ("ID") )')
    inserting = table.insert().prefix_with("/*INSERT*/").compile(engine, column_keys=["id", "name"])
    assert " ".join(str(inserting).split()) == 'UPSERT /*INSERT*/ INTO "T" ("ID", "NAME") VALUES (?, ?)'
    with pytest.raises(sa.exc.CompileError, match="no UPDATE"):
        table.update().values(name="x").compile(engine)
    with pytest.raises(sa.exc.CompileError, match="primary key: keyless"):
        sa.schema.CreateTable(sa.Table("keyless", sa.MetaData(), sa.Column("id", sa.Integer))).compile(engine)


_HIVE_KEYS = ["PRIMARY KEY (`id`) DISABLE NOVALIDATE", "UNIQUE (`name`) DISABLE NOVALIDATE"]


@pytest.mark.parametrize(
    ("dialect", "constraints", "column"),
    [
        ("trino", [], '"id" INTEGER NOT NULL'),
        ("sparksql", [], "`id` INT NOT NULL"),
        ("hive", _HIVE_KEYS, "`id` INT NOT NULL"),
        ("impala", [], "`id` INT"),
        ("postgresql", ["PRIMARY KEY (id)", "CHECK (id > 0)", "UNIQUE (name)"], "id INTEGER NOT NULL CHECK (id > 1)"),
    ],
)
def test_tables_have_constraints_of_their_engine(dialect: str, constraints: list[str], column: str):
    engine = sa.create_engine(f"queryserver+{dialect}://:x@db.example/7")
    key = sa.Column("id", sa.Integer, sa.CheckConstraint("id > 1"), primary_key=True, autoincrement=False)
    table = sa.Table("t", sa.MetaData(), key, sa.Column("name", sa.Text, unique=True), sa.CheckConstraint("id > 0"))
    made = str(sa.schema.CreateTable(table).compile(engine)).strip()
    parts = [part.strip() for part in made.removesuffix(")").partition("(")[2].split(", \n")]
    assert (parts[0], parts[2:]) == (column, constraints)


@pytest.mark.parametrize(
    ("dialect", "is_altered"),
    [("trino", False), ("sparksql", False), ("impala", False), ("phoenix", False), ("hive", True)],
)
def test_mutually_referencing_tables_are_created(dialect: str, is_altered: bool):
    url, tables, said = f"queryserver+{dialect}://:x@db.example/7", sa.MetaData(), list[str]()
    made = sa.create_engine(url).dialect
    for name, other in (("a", "b"), ("b", "a")):
        key = sa.Column("id", sa.Integer, primary_key=True)
        sa.Table(name, tables, key, sa.Column("other", sa.ForeignKey(f"{other}.id", use_alter=True, name=f"of_{name}")))
    mock = sa.create_mock_engine(url, lambda ddl, *_, **__: said.append(str(ddl.compile(dialect=made)).strip()))
    tables.create_all(mock, checkfirst=False)
    tables.drop_all(mock, checkfirst=False)
    assert [text for text in said if "None" in text] == []
    assert any(text.startswith("ALTER") for text in said) is is_altered
    names = ['"A"', '"B"'] if dialect == "phoenix" else ['"a"', '"b"'] if dialect == "trino" else ["`a`", "`b`"]
    assert {f"DROP TABLE {name}" for name in names} <= set(said)


@pytest.mark.parametrize("dialect", ["trino", "hive", "impala", "sparksql"])
def test_indexes_are_omitted_if_engine_has_none(dialect: str):
    url, sent = f"queryserver+{dialect}://:x@db.example/7", list[str]()
    made = sa.create_engine(url).dialect
    table = sa.Table("t", sa.MetaData(), sa.Column("n", sa.Integer, index=True))
    mock = sa.create_mock_engine(url, lambda ddl, *_, **__: sent.append(str(ddl.compile(dialect=made)).strip()))
    table.metadata.create_all(mock, checkfirst=False)
    (index,) = table.indexes
    index.drop(mock)
    assert [text for text in sent if "INDEX" in text] == []
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("name", "in_sql"),
    [
        ("order", '"ORDER"'),
        ("_x", '"_X"'),
        ("1a", '"1A"'),
        ("Mixed", '"Mixed"'),
        ("UPPER", '"UPPER"'),
        ("a b", '"a b"'),
        (sa.sql.quoted_name("lower", quote=True), '"lower"'),
        (sa.sql.quoted_name("lower", quote=False), "lower"),
    ],
)
def test_phoenix_names_are_upper_case_and_quoted(name: str, in_sql: str):
    dialect = sa.create_engine("queryserver+phoenix://:x@db.example/7").dialect
    assert dialect.identifier_preparer.quote(name) == in_sql


@pytest.mark.parametrize(
    ("dialect", "is_at_once"),
    [("trino", True), ("hive", True), ("impala", True), ("sparksql", True), ("phoenix", False)],
)
def test_rows_are_sent_together_if_engine_supports_it(dialect: str, is_at_once: bool):
    made = sa.create_engine(f"queryserver+{dialect}://:x@db.example/7").dialect
    assert made.use_insertmanyvalues is is_at_once
    assert made.insertmanyvalues_page_size == (200 if is_at_once else 1000)


def test_mysql_times_bits_and_decimals_are_read_as_sent():
    dialect = sa.create_engine("queryserver+mysql://:x@db.example/7").dialect

    def read(kind: sa.types.TypeEngine[Any], cell: Any) -> Any:
        process = kind.dialect_impl(dialect).result_processor(dialect, None)
        return cell if process is None else process(cell)

    noon = dt.time(12)
    for kind in (sa.Time(), mysql.TIME(fsp=3)):
        assert [read(kind, cell) for cell in (noon, "-01:00:00", None)] == [noon, "-01:00:00", None]
    assert str(sa.cast(sa.literal("1"), sa.Numeric(10, 2)).compile(dialect=dialect)) == "CAST(? AS DECIMAL(10, 2))"
    bits = mysql.BIT(9)
    assert [read(bits, cell) for cell in (b"\x01\x05", True, None)] == [261, True, None]


def test_trino_has_catalogs_in_schemas_and_its_own_limit_order():
    engine = sa.create_engine("queryserver+trino://:x@db.example/7")
    table = sa.Table("t", sa.MetaData(), sa.Column("n"), schema='tpch."s.1".Tiny')
    text = str(sa.select(table).limit(5).offset(2).compile(engine, compile_kwargs={"literal_binds": True}))
    assert 'FROM "tpch"."s.1"."Tiny"."t"' in text
    assert re.search(r"OFFSET 2\s+LIMIT 5", text)


def test_type_texts_are_parsed():
    assert str(type_of("decimal(10,2)")) == "NUMERIC(10, 2)"
    assert isinstance(type_of("array<struct<a:int,b:string>>"), sa.ARRAY)
    kind = type_of("array(varchar(7))")
    assert isinstance(kind, sa.ARRAY)
    assert str(kind.item_type) == "VARCHAR(7)"
    zoned = type_of("timestamp(3) with time zone")
    assert isinstance(zoned, sa.TIMESTAMP)
    assert zoned.timezone
    assert isinstance(type_of("map<string,int>"), sa.types.NullType)
    assert str(interval_value("1 day -02:00:00")) == "22:00:00"
    assert interval_value("1 year") == "1 year"


def test_connector_names_are_resolved_as_on_server():
    listed = [
        {"type": "warehouse", "id": "warehouse", "dialect": "trino", "is_sql": True},
        {"type": "7", "id": "7", "dialect": "hive", "is_sql": True},
    ]
    config = {"app_config": {"editor": {"default_sql_interpreter": "warehouse", "interpreters": listed}}}
    named = {
        "": "trino",
        "WAREHOUSE": "trino",
        "hive": "hive",
        "beeswax": "hive",
        "7": "hive",
        "hive-7": "hive",
        "x": None,
    }
    assert {name: named_interpreter(config, name) for name in named} == named
    assert named_interpreter(config, "trino-7") is None


@pytest.fixture
async def suite_url(tmp_path: Path, database_dsn: str, tcp_open: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of a new server. The suite drops all tables that it finds, so no other test uses the server."""
    admin, name = tcp_open.admin_dsn(), f"suite_{uuid4().hex[:8]}"
    await execute(admin, f"CREATE ROLE {name} LOGIN PASSWORD 'planted-secret'")
    await execute(admin, f"CREATE DATABASE {name} TEMPLATE template0 OWNER {name}")
    users = f"postgresql://{name}:planted-secret@127.0.0.1:{tcp_open.address.port}/{name}"
    async with (
        open_api(make_settings(tmp_path, database_dsn, users, max_sessions_per_user=500)) as api,
        served(api) as url,
    ):
        server = Server(api, url)
        yield f"queryserver+%s://:{await server.token()}@{url.removeprefix('http://')}/%s?scheme=http"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ENGINES if WIDTH else ENGINES[:1])
async def test_sqlalchemy_dialect_suite_passes(suite_url: str, engine: str):
    """Runs the whole suite, which takes about three minutes. `make dialects` also runs it on the other engines."""
    await run_suite(suite_url % (engine, engine))
