"""The SQLAlchemy dialects on separately started engines: types, parameters, reflection, and pandas."""

import datetime as dt
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from uuid import uuid4

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from tests.client.sqlalchemy_suite.running import WIDTH, run_suite
from tests.client.threads import in_thread
from tests.e2e.harness import running_server
from tests.engines.servers import HttpAddress, ServerAddress

PASSWORD = "correct horse battery"
ROW = {
    "id": 7,
    "name": "a'b\\ ß😀",
    "price": Decimal("12345.67"),
    "ratio": 0.1,
    "day": dt.date(2024, 2, 29),
    "moment": dt.datetime.fromisoformat("2024-02-29T23:59:58.123456"),
    "is_new": True,
    "picture": b"\x00\xff'",
    "big": 2**62,
}


async def url_of(
    tmp_path_factory: pytest.TempPathFactory, name: str, settings: dict[str, object]
) -> AsyncIterator[str]:
    """Start a server that has a connector with this name; yield the connector's URL."""
    environment = {
        "QUERYSERVER_ADMIN_PASSWORD": PASSWORD,
        "QUERYSERVER__EDITOR__MAX_SESSIONS_PER_USER": "500",
        f"QUERYSERVER__NOTEBOOK__INTERPRETERS__{name.upper()}": json.dumps(settings),
    }
    async with running_server(tmp_path_factory.mktemp(name) / "data", settings=environment) as server:
        where = server.base_url.removeprefix("http://").partition("/")[0]
        host, port = where.split(":")
        made = sa.URL.create("queryserver", "admin", PASSWORD, host, int(port), name, {"scheme": "http"})
        yield made.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
async def mariadb_url(tmp_path_factory: pytest.TempPathFactory, mariadb: ServerAddress) -> AsyncIterator[str]:
    login = f"{mariadb.user}:{mariadb.password}"
    options = {"url": f"mysql://{login}@{mariadb.host}:{mariadb.port}/users"}
    settings = {"interface": "sqlalchemy", "dialect": "mysql", "options": options}
    async for url in url_of(tmp_path_factory, "mysql", settings):
        yield url


@pytest.fixture(scope="module")
async def trino_url(tmp_path_factory: pytest.TempPathFactory, trino_server: HttpAddress) -> AsyncIterator[str]:
    options = {"url": trino_server.url, "catalog": "memory", "schema": "default"}
    async for url in url_of(tmp_path_factory, "trino", {"interface": "trino", "options": options}):
        yield url


@pytest.fixture(scope="module")
async def hive_url(tmp_path_factory: pytest.TempPathFactory, hive_server: ServerAddress) -> AsyncIterator[str]:
    async for url in url_of(tmp_path_factory, "hive", hiveserver2(hive_server)):
        yield url


@pytest.fixture(scope="module")
async def spark_url(tmp_path_factory: pytest.TempPathFactory, spark_server: ServerAddress) -> AsyncIterator[str]:
    async for url in url_of(tmp_path_factory, "sparksql", hiveserver2(spark_server)):
        yield url


@pytest.fixture(scope="module")
async def phoenix_url(tmp_path_factory: pytest.TempPathFactory, phoenix_server: HttpAddress) -> AsyncIterator[str]:
    settings = {"interface": "phoenix", "options": {"url": phoenix_server.url}}
    async for url in url_of(tmp_path_factory, "phoenix", settings):
        yield url


def hiveserver2(address: ServerAddress) -> dict[str, object]:
    options = {"server_host": address.host, "server_port": address.port, "username": address.user}
    return {"interface": "hiveserver2", "options": options}


def values_table(name: str, **key: bool) -> sa.Table:
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", sa.Integer, autoincrement=False, **key),
        sa.Column("name", sa.String(40), nullable=not key),
        sa.Column("price", sa.Numeric(10, 2)),
        sa.Column("ratio", sa.Double),
        sa.Column("day", sa.Date),
        sa.Column("moment", sa.DateTime),
        sa.Column("is_new", sa.Boolean),
        sa.Column("picture", sa.LargeBinary),
        sa.Column("big", sa.BigInteger),
    )


def check_reading_and_writing(engine: sa.Engine, table: sa.Table, row: dict[str, object] = ROW) -> None:
    """Check that a row with a value of every type, a row of nulls, and several hundred further rows are written and
    read.
    """
    table.create(engine)
    nulls = dict.fromkeys(row) | {"id": 8, "name": "none"}
    with engine.begin() as connection:
        connection.execute(table.insert(), [row, nulls])
        connection.execute(table.insert(), {"id": 99, "name": "n99"})
        connection.execute(table.insert(), [{"id": n, "name": f"n{n}"} for n in range(100, 400)])
    with engine.connect() as connection:
        found = connection.execute(sa.select(table).where(table.c.id == 7)).mappings().one()
        assert dict(found) == row
        assert dict(connection.execute(sa.select(table).where(table.c.name == "none")).mappings().one()) == nulls
        # Phoenix cannot compare strings with timestamps.
        compared = row if engine.dialect.name != "phoenix" else row | {"moment": None}
        same = sa.and_(*(table.c[name] == value for name, value in compared.items() if value is not None))
        assert connection.scalars(sa.select(table.c.id).where(same)).all() == [7]
        page = sa.select(table.c.id).order_by(table.c.id).limit(3).offset(4)
        assert connection.scalars(page).all() == [101, 102, 103]
        assert (
            connection.scalar(sa.text("SELECT count(*) FROM items WHERE name IN (:a, :b)"), {"a": "n1", "b": "n399"})
            == 1
        )
        assert connection.scalar(sa.select(sa.func.count()).where(table.c.id.in_([7, 8, 9]))) == 2


def check_reflection(engine: sa.Engine, table: sa.Table) -> None:
    found = sa.inspect(engine)
    assert table.name in found.get_table_names()
    assert found.has_table(table.name)
    assert not found.has_table("nowhere")
    read = sa.Table(table.name, sa.MetaData(), autoload_with=engine)
    assert [column.name for column in read.columns] == [column.name for column in table.columns]
    kinds = (sa.Integer, sa.String, sa.Numeric, sa.Float, sa.Date, sa.DateTime)
    assert [isinstance(column.type, kind) for column, kind in zip(read.columns, kinds, strict=False)] == [True] * 6
    assert (read.c.price.type.precision, read.c.price.type.scale) == (10, 2)
    with pytest.raises(sa.exc.NoSuchTableError):
        found.get_columns("nowhere")


def check_names(engine: sa.Engine) -> None:
    """Check that names work if they are reserved words or are valid only in quotes."""
    names = "select", "order", "value", "user", "timestamp", "column", "_hidden", "2nd"
    columns = [sa.Column(name, sa.Integer, autoincrement=False) for name in names]
    table = sa.Table("table", sa.MetaData(), sa.Column("key", sa.Integer, primary_key=True), *columns)
    table.create(engine)
    rows = [{"key": key} | dict.fromkeys(names, key) for key in (1, 2)]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
        found = sa.select(table).where(table.c.value > 1).order_by(table.c.order)
        assert [dict(row) for row in connection.execute(found).mappings()] == rows[1:]
        grouped = sa.select(table.c.user, sa.func.max(table.c.column).label("end")).group_by(table.c.user)
        assert {row.user: row.end for row in connection.execute(grouped)} == {1: 1, 2: 2}
    assert {column["name"] for column in sa.inspect(engine).get_columns("table")} == {"key", *names}
    table.drop(engine)


def check_pandas(engine: sa.Engine, *, counts_rows: bool = True) -> None:
    frame = pd.DataFrame({"n": range(250), "word": [f"w{n}" for n in range(250)], "share": [n / 8 for n in range(250)]})
    written = frame.to_sql("frame", engine, index=False, chunksize=100)
    assert written == 250 or not counts_rows
    pd.testing.assert_frame_equal(pd.read_sql("SELECT * FROM frame ORDER BY n", engine), frame)
    pd.testing.assert_frame_equal(pd.read_sql_table("frame", engine).sort_values("n", ignore_index=True), frame)
    sizes = [len(part) for part in pd.read_sql("SELECT n FROM frame", engine, chunksize=100)]
    assert sizes == [100, 100, 50]
    frame.head(3).to_sql("frame", engine, if_exists="replace")  # the frame's index becomes a column
    assert pd.read_sql("SELECT * FROM frame", engine, index_col="index")["word"].sort_index().to_list() == [
        "w0",
        "w1",
        "w2",
    ]
    assert pd.read_sql(sa.text("SELECT count(*) AS c FROM frame WHERE n > :n"), engine, params={"n": 0})["c"][0] == 2


def check_keys_and_constraints(engine: sa.Engine, default: str | None) -> None:
    """Check that a table with all kinds of constraints can be created and filled, even if the engine ignores the
    constraints.
    """
    tables = sa.MetaData()
    sa.Table("other", tables, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False))
    keyed = sa.Table(
        "keyed",
        tables,
        sa.Column("id", sa.Integer, sa.CheckConstraint("id > 1"), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(20), nullable=False, unique=True),
        sa.Column("other_id", sa.Integer, sa.ForeignKey("other.id", ondelete="CASCADE"), nullable=False),
        sa.Column("price", sa.Numeric),
        sa.Column("mark", sa.Uuid),
        sa.Column("kind", sa.Text, nullable=False, server_default=default),
        sa.CheckConstraint("id > 0"),
    )
    tables.create_all(engine)
    row = {"id": 7, "name": "n", "other_id": 1, "price": Decimal("1.25"), "mark": uuid4(), "kind": "k"}
    with engine.begin() as connection:
        connection.execute(tables.tables["other"].insert(), {"id": 1})
        connection.execute(keyed.insert(), row)
        assert connection.execute(sa.select(keyed)).mappings().one() == row
    tables.drop_all(engine)
    assert not set(tables.tables) & set(sa.inspect(engine).get_table_names())


@contextmanager
def written_and_reflected(
    url: str, name: str, table: sa.Table, row: dict[str, object] = ROW, default: str | None = None
) -> Iterator[sa.Engine]:
    """Write, read and reflect the table, and yield the engine. Afterward, drop the table and check a table with
    constraints.

    `default` is the default of a column if the engine supports defaults.
    """
    engine = sa.create_engine(url)
    assert engine.dialect.name == name
    check_reading_and_writing(engine, table, row)
    check_reflection(engine, table)
    check_names(engine)
    yield engine
    table.drop(engine)
    assert not sa.inspect(engine).has_table(table.name)
    check_keys_and_constraints(engine, default)
    engine.dispose()


@pytest.mark.engine("mariadb")
@in_thread
def test_mariadb_is_read_written_and_reflected(mariadb_url: str):
    engine = sa.create_engine(mariadb_url)
    assert engine.dialect.name == "mysql"
    table = values_table("items", primary_key=True)
    table.c.moment.type = mysql.DATETIME(fsp=6)
    check_reading_and_writing(engine, table)
    check_reflection(engine, table)
    assert sa.inspect(engine).get_pk_constraint("items")["constrained_columns"] == ["id"]
    check_pandas(engine)
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(table.insert(), ROW)
    engine.dispose()


@pytest.mark.engine("mariadb")
@in_thread
def test_mariadb_transaction_continues_after_implicit_commit(mariadb_url: str):
    engine = sa.create_engine(mariadb_url)
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE TABLE half (id INTEGER PRIMARY KEY)"))
        connection.execute(sa.text("INSERT INTO half VALUES (1)"))
        connection.rollback()
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM half")) == 0
        connection.execute(sa.text("INSERT INTO half VALUES (2)"))
    with engine.connect() as connection, connection.execution_options(isolation_level="AUTOCOMMIT") as committing:
        committing.execute(sa.text("INSERT INTO half VALUES (3)"))
    with engine.connect() as connection:
        assert connection.scalars(sa.text("SELECT id FROM half ORDER BY id")).all() == [2, 3]
    engine.dispose()


@pytest.mark.engine("mariadb")
@in_thread
def test_mariadb_times_and_bits_are_read_and_only_changed_rows_counted(mariadb_url: str):
    class Base(DeclarativeBase):
        pass

    class Shift(Base):
        __tablename__ = "shifts"
        id: Mapped[int] = mapped_column(primary_key=True)
        begins: Mapped[dt.time] = mapped_column(mysql.TIME(fsp=6))
        flag: Mapped[int] = mapped_column(mysql.BIT(1))
        flags: Mapped[int] = mapped_column(mysql.BIT(9))

    engine = sa.create_engine(mariadb_url)
    Base.metadata.create_all(engine)
    begins = dt.time(6, 30, 0, 5)
    with sa.orm.Session(engine) as one, sa.orm.Session(engine) as other:
        one.add(Shift(id=1, begins=begins, flag=1, flags=261))
        one.commit()
        shift, same = one.get_one(Shift, 1), other.get_one(Shift, 1)
        assert (shift.begins, shift.flag, shift.flags) == (begins, 1, 261)
        shift.flags = same.flags = 7
        one.commit()
        with pytest.raises(sa.orm.exc.StaleDataError):
            other.commit()
        other.rollback()
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE shifts SET begins = '-100:00:00'"))
        assert connection.scalar(sa.select(Shift.begins)) == "-100:00:00.000000"
    engine.dispose()


@pytest.mark.engine("mariadb")
@in_thread
def test_objects_with_keys_transactions_and_savepoints_work_on_mariadb(mariadb_url: str):
    class Base(DeclarativeBase):
        pass

    class Author(Base):
        __tablename__ = "authors"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(sa.String(20), unique=True)
        books: Mapped[list["Book"]] = relationship(order_by="Book.id")

    class Book(Base):
        __tablename__ = "books"
        id: Mapped[int] = mapped_column(primary_key=True)
        author_id: Mapped[int] = mapped_column(sa.ForeignKey("authors.id", ondelete="CASCADE"))
        title: Mapped[str] = mapped_column(sa.String(20), index=True)

    engine = sa.create_engine(mariadb_url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Author(name="ana", books=[Book(title="one"), Book(title="two")]))
        session.flush()
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.execute(sa.insert(Author).values(name="ana"))
        session.commit()
        author = session.scalars(sa.select(Author)).one()
        assert [(book.id, book.title) for book in author.books] == [(1, "one"), (2, "two")]
        session.execute(sa.update(Book).where(Book.id == 1).values(title="changed"))
        session.rollback()
        assert session.scalars(sa.select(Book.title).order_by(Book.id)).all() == ["one", "two"]
    (key,) = sa.inspect(engine).get_foreign_keys("books")
    assert (key["constrained_columns"], key["referred_table"]) == (["author_id"], "authors")
    assert key["options"] == {"ondelete": "CASCADE"}
    assert {index["name"] for index in sa.inspect(engine).get_indexes("books")} >= {"ix_books_title"}
    engine.dispose()


@pytest.mark.engine("trino")
@in_thread
def test_trino_is_read_written_and_reflected(trino_url: str):
    with written_and_reflected(trino_url, "trino", values_table("items")) as engine:
        check_pandas(engine)
        with engine.connect() as connection:
            nations = sa.Table("nation", sa.MetaData(), schema="tpch.tiny", autoload_with=connection)
            assert [column.name for column in nations.columns] == ["nationkey", "name", "regionkey", "comment"]
            names = sa.select(nations.c.name).where(nations.c.regionkey == 3).order_by(nations.c.name)
            assert connection.execute(names).scalars().first() == "FRANCE"
            assert connection.scalar(sa.select(sa.func.count()).select_from(nations)) == 25
            halves = sa.select(nations.c.nationkey / 2).where(nations.c.nationkey == 7)
            assert connection.scalar(halves) == Decimal("3.5")


@pytest.mark.engine("hive")
@in_thread
def test_hive_is_read_written_and_reflected(hive_url: str):
    with written_and_reflected(hive_url, "hive", values_table("items"), default="x") as engine:
        check_pandas(engine)
        joined = (
            "SELECT * FROM items a JOIN (SELECT id, name AS other FROM items) b ON b.id = a.id + 1 WHERE a.id = 100"
        )
        with engine.connect() as connection:
            row = connection.execute(sa.text("SELECT * FROM items WHERE id = 7")).mappings().one()
            assert row["name"] == row["items.name"] == ROW["name"]
            row = connection.execute(sa.text(joined)).mappings().one()
            assert [row[name] for name in ("a.id", "b.id", "name", "other")] == [100, 101, "n100", "n101"]


@pytest.mark.engine("sparksql")
@in_thread
def test_spark_is_read_written_and_reflected(spark_url: str):
    with written_and_reflected(spark_url, "sparksql", values_table("items")) as engine:
        check_pandas(engine, counts_rows=False)


@pytest.mark.engine("phoenix")
@in_thread
def test_phoenix_is_read_written_and_reflected(phoenix_url: str):
    table = values_table("items", primary_key=True)
    row = ROW | {"moment": dt.datetime.fromisoformat("2024-02-29T23:59:58.123")}
    with written_and_reflected(phoenix_url, "phoenix", table, row, default="x") as engine:
        pd.DataFrame({"id": [900, 901], "name": ["a", "b"]}).to_sql("items", engine, index=False, if_exists="append")
        name = sa.sql.quoted_name("items", quote=True)
        sensitive = sa.Table(name, sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True))
        sensitive.create(engine)
        found = sa.inspect(engine)
        assert {getattr(one, "quote", None) for one in found.get_table_names() if one == "items"} == {None, True}
        assert [column["name"] for column in found.get_columns(name)] == ["n"]
        assert len(found.get_columns("items")) == len(table.columns)
        sensitive.drop(engine)


@pytest.mark.engine("mariadb")
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not WIDTH, reason="SQLAlchemy's dialect suite takes five minutes; run it with `make dialects`")
async def test_sqlalchemy_dialect_suite_passes_on_mariadb(mariadb_url: str):
    await run_suite(mariadb_url.replace("queryserver:", "queryserver+mysql:"))
