"""The sample data are the same rows in every engine, made once, whole."""

import sqlite3
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import asyncpg
import duckdb
import pytest

from queryserver.platform.embedded.cluster import DUCKDB_FILE, SQLITE_FILE
from queryserver.platform.embedded.sample import ensure_sample_files, sample_tables

REVENUE = "SELECT sum(quantity * unit_price * (1 - coalesce(discount, 0))) FROM order_items"
QUESTIONS = (
    "SELECT count(*), count(email), count(credit_limit) FROM customers",
    "SELECT count(*), count(weight_kg), sum(price) FROM products",
    "SELECT count(*), count(shipped_on), count(note) FROM orders",
    "SELECT count(*), count(discount), sum(quantity) FROM order_items",
    "SELECT count(*), count(bytes_sent), max(id) FROM web_requests",
    "SELECT name, city FROM customers ORDER BY id LIMIT 1",
    "SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.is_active",
)


def test_the_rows_are_the_same_at_each_call():
    assert [table.rows for table in sample_tables()] == [table.rows for table in sample_tables()]


def test_the_sample_holds_every_common_type_nulls_and_more_than_ascii():
    values = [value for table in sample_tables() for row in table.rows for value in row]
    assert {type(value) for value in values} == {int, float, str, bool, Decimal, date, datetime, type(None)}
    assert any(isinstance(value, str) and not value.isascii() for value in values)
    assert any(isinstance(value, datetime) and value.tzinfo for value in values)


async def test_the_same_sql_gives_the_same_answer_in_all_three_engines(sample_dsn: str, sample_directory: Path):
    postgresql = await asyncpg.connect(sample_dsn)
    try:
        with (
            duckdb.connect(str(sample_directory / DUCKDB_FILE)) as quack,
            closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite,
        ):
            for question in QUESTIONS:
                wanted = tuple(await postgresql.fetchrow(question))
                assert quack.execute(question).fetchone() == wanted, question
                floats = tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in wanted)
                assert lite.execute(question).fetchone() == pytest.approx(floats), question
            wanted = await postgresql.fetchval(REVENUE)
            assert quack.execute(REVENUE).fetchone()[0] == wanted
            assert lite.execute(REVENUE).fetchone()[0] == pytest.approx(float(wanted))
    finally:
        await postgresql.close()


def test_what_users_changed_in_the_files_stays(sample_directory: Path):
    with closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite, lite:
        lite.execute("DROP TABLE web_requests")
    ensure_sample_files(sample_directory, sample_tables())
    with closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite:
        tables = {name for (name,) in lite.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"customers", "products", "orders", "order_items"}


def test_files_that_a_killed_start_left_unfinished_are_made_anew(tmp_path: Path):
    for name in (f"{DUCKDB_FILE}.unfinished", f"{DUCKDB_FILE}.unfinished.wal", f"{SQLITE_FILE}.unfinished-journal"):
        (tmp_path / name).write_bytes(b"half a file")
    ensure_sample_files(tmp_path, sample_tables())
    assert sorted(file.name for file in tmp_path.iterdir()) == [DUCKDB_FILE, SQLITE_FILE]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as quack:
        assert quack.execute("SELECT count(*) FROM customers").fetchone() == (400,)
