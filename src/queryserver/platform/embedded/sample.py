"""The sample data of `serve --embedded`: in files, SQLite, DuckDB and the private PostgreSQL."""

import asyncio
import csv
import gzip
import random
import re
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq

from queryserver.platform.embedded.cluster import (
    DUCKDB_FILE,
    SAMPLE_DATABASE,
    SAMPLE_LOGIN,
    SAMPLE_OWNER,
    SAMPLE_ROLE,
    SERVICE_ROLE,
    SQLITE_FILE,
    sync,
)
from queryserver.platform.embedded.postgres import EmbeddedPostgres

Value = int | float | str | bool | Decimal | date | datetime | None

_SEED = 20_240_229
_FIRST_DAY = date(2023, 1, 1)
_DAYS = 730

CUSTOMERS, PRODUCTS, ORDERS, REQUESTS = 400, 80, 2500, 4000

_FIRST_NAMES = (
    "Ana", "Björn", "Chloé", "Dmitri", "Eda", "Fatima", "Giulia", "Håkon", "Inês", "Jürgen", "Kenji", "Łucja", "María",
    "Nguyễn", "Oğuz", "Zoë", "美咲", "Σοφία",
)  # fmt: skip
_LAST_NAMES = (
    "Almeida", "Brûlé", "Çelik", "Dvořák", "Eriksson", "García", "Høeg", "Ivanova", "Jørgensen", "Kowalski", "Müller",
    "O'Neill", "Papadópoulos", "佐藤",
)  # fmt: skip
_CITIES = (
    ("PT", "Lisboa"), ("FR", "Orléans"), ("DE", "Köln"), ("PL", "Łódź"), ("JP", "札幌"), ("TR", "İzmir"),
    ("SE", "Malmö"), ("GR", "Αθήνα"), ("BR", "São Paulo"), ("US", "Portland"),
)  # fmt: skip
_PRODUCT_NAMES = (
    ("kitchen", "Kettle", "Pan", "Knife", "Teapot"),
    ("garden", "Spade", "Watering can", "Rose", "Hose"),
    ("office", "Lamp", "Chair", "Notebook", "Stapler"),
    ("toys", "Puzzle", "Kite", "Train", "Yo-yo"),
)
_COLORS = ("red", "green", "blue", "crème", "black")
_STATUSES = ("delivered", "delivered", "delivered", "shipped", "returned", "cancelled", "new")
_NOTES = (*[None] * 4, "gift", "leave at the neighbour's", 'ring twice, say "hello"', "fragile; ünïcode, ok?")
_PATHS = ("/", "/products", "/products/{}", "/cart", "/checkout", "/search?q=caf%C3%A9", "/login")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Macintosh)", "curl/8.11.1", "python-httpx/0.28.1")


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A sample table. Its column types are valid in PostgreSQL, DuckDB and SQLite."""

    name: str
    columns: str
    constraint: str
    rows: Sequence[tuple[Value, ...]]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.split()[0] for column in re.split(r",\s", self.columns))

    def create_statement(self) -> str:
        return f"CREATE TABLE {self.name} ({self.columns}, {self.constraint})"


Tables = Callable[[], tuple[SampleTable, ...]]
"""Returns the tables, parents first. Called only if sample data is missing."""


def sample_tables() -> tuple[SampleTable, ...]:
    """Generate the tables, parents first. Each call generates the same rows and takes 60 ms."""
    chance = random.Random(_SEED)  # noqa: S311 fictional shop data, which should be the same on every machine
    customers, products = _customers(chance), _products(chance)
    orders = _orders(chance, customers)
    return (customers, products, orders, _order_items(chance, orders, products), _web_requests(chance))


def _customers(chance: random.Random) -> SampleTable:
    rows: list[tuple[Value, ...]] = []
    for number in range(1, CUSTOMERS + 1):
        country, city = chance.choice(_CITIES)
        email = f"customer{number}@shop.example" if chance.random() > 0.1 else None
        limit = _money(chance, 10_000, 500_000) if chance.random() > 0.3 else None
        name = f"{chance.choice(_FIRST_NAMES)} {chance.choice(_LAST_NAMES)}"
        rows.append((number, name, email, country, city, _day(chance), chance.random() > 0.15, limit))
    columns = """
        id INTEGER NOT NULL, name VARCHAR(80) NOT NULL, email VARCHAR(120), country CHAR(2) NOT NULL,
        city VARCHAR(60), signed_up_on DATE NOT NULL, is_active BOOLEAN NOT NULL,
        credit_limit DECIMAL(10,2)
    """
    return SampleTable("customers", columns, "PRIMARY KEY (id)", rows)


def _products(chance: random.Random) -> SampleTable:
    goods = [(kind, f"{color} {thing}") for kind, *things in _PRODUCT_NAMES for thing in things for color in _COLORS]
    rows: list[tuple[Value, ...]] = []
    for number, (kind, name) in enumerate(goods[:PRODUCTS], start=1):
        weight = round(chance.uniform(0.05, 12), 3) if chance.random() > 0.1 else None
        rows.append((number, name.capitalize(), kind, _money(chance, 299, 19_999), weight, chance.random() < 0.1))
    columns = """
        id INTEGER NOT NULL, name VARCHAR(80) NOT NULL, category VARCHAR(20) NOT NULL,
        price DECIMAL(10,2) NOT NULL, weight_kg DOUBLE PRECISION, is_discontinued BOOLEAN NOT NULL
    """
    return SampleTable("products", columns, "PRIMARY KEY (id)", rows)


def _orders(chance: random.Random, customers: SampleTable) -> SampleTable:
    rows: list[tuple[Value, ...]] = []
    for number in range(1, ORDERS + 1):
        ordered_at, status = _moment(chance), chance.choice(_STATUSES)
        shipped_on = None
        if status in {"delivered", "shipped", "returned"}:
            shipped_on = ordered_at.date() + timedelta(days=chance.randint(1, 9))
        customer = chance.randint(1, len(customers.rows))
        rows.append((number, customer, ordered_at, status, shipped_on, chance.choice(_NOTES)))
    columns = """
        id INTEGER NOT NULL, customer_id INTEGER NOT NULL REFERENCES customers (id),
        ordered_at TIMESTAMP NOT NULL, status VARCHAR(12) NOT NULL, shipped_on DATE, note TEXT
    """
    return SampleTable("orders", columns, "PRIMARY KEY (id)", rows)


def _order_items(chance: random.Random, orders: SampleTable, products: SampleTable) -> SampleTable:
    rows: list[tuple[Value, ...]] = []
    for order in orders.rows:
        for line, product in enumerate(chance.sample(products.rows, chance.randint(1, 4)), start=1):
            discount = Decimal(chance.choice((5, 10, 25))) / 100 if chance.random() < 0.2 else None
            rows.append((order[0], line, product[0], chance.randint(1, 6), product[3], discount))
    columns = """
        order_id INTEGER NOT NULL REFERENCES orders (id), line SMALLINT NOT NULL,
        product_id INTEGER NOT NULL REFERENCES products (id), quantity INTEGER NOT NULL,
        unit_price DECIMAL(10,2) NOT NULL, discount DECIMAL(3,2)
    """
    return SampleTable("order_items", columns, "PRIMARY KEY (order_id, line)", rows)


def _web_requests(chance: random.Random) -> SampleTable:
    rows: list[tuple[Value, ...]] = []
    moments = sorted(_moment(chance) for _ in range(REQUESTS))
    for number, at in enumerate(moments, start=2**33):
        path = chance.choice(_PATHS).format(chance.randint(1, PRODUCTS))
        status = chance.choice((200, 200, 200, 200, 304, 302, 404, 500))
        sent = chance.randint(120, 90_000) if status == 200 else None
        took_ms = round(chance.lognormvariate(3, 1), 3)
        client = f"192.0.2.{chance.randint(1, 254)}"
        rows.append((number, at.replace(tzinfo=UTC), client, path, status, sent, took_ms, chance.choice(_AGENTS)))
    columns = """
        id BIGINT NOT NULL, requested_at TIMESTAMP WITH TIME ZONE NOT NULL, client VARCHAR(45) NOT NULL,
        path TEXT NOT NULL, status SMALLINT NOT NULL, bytes_sent BIGINT,
        took_ms DOUBLE PRECISION NOT NULL, user_agent TEXT
    """
    return SampleTable("web_requests", columns, "PRIMARY KEY (id)", rows)


def _money(chance: random.Random, min_cents: int, max_cents: int) -> Decimal:
    return Decimal(chance.randint(min_cents, max_cents)) / 100


def _day(chance: random.Random) -> date:
    return _FIRST_DAY + timedelta(days=chance.randrange(_DAYS))


def _moment(chance: random.Random) -> datetime:
    return datetime.combine(_day(chance), time()) + timedelta(seconds=chance.randrange(86_400))


def ensure_sample_files(directory: Path, tables: Tables) -> None:
    """Create the DuckDB and SQLite files if they are missing. Existing files keep the changes that users made."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _ensure(directory / DUCKDB_FILE, _write_duckdb, tables)
    _ensure(directory / SQLITE_FILE, _write_sqlite, tables)


def _ensure(target: Path, write: Callable[[Path, tuple[SampleTable, ...]], None], tables: Tables) -> None:
    """Write the file under a temporary name and then rename it, so that it is either complete or missing."""
    if target.exists():
        return
    partial = target.with_name(f"{target.name}.unfinished")
    for unfinished in partial.parent.glob(f"{partial.name}*"):  # also matches the write-ahead logs of both engines
        unfinished.unlink()
    write(partial, tables())
    partial.chmod(0o600)
    sync(partial)
    partial.rename(target)
    sync(target.parent)


def _write_duckdb(file: Path, tables: tuple[SampleTable, ...]) -> None:
    import duckdb  # noqa: PLC0415 needed only once per data directory

    with duckdb.connect(str(file)) as connection:
        for table in tables:
            connection.execute(table.create_statement())
            connection.register("loaded", _arrow_table(table))
            connection.execute(f"INSERT INTO {table.name} SELECT * FROM loaded")  # noqa: S608 our own table name
            connection.unregister("loaded")


def _write_sqlite(file: Path, tables: tuple[SampleTable, ...]) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in tables:
            connection.execute(table.create_statement())
            marks = ", ".join("?" * len(table.column_names))
            rows = (tuple(map(_to_sqlite_value, row)) for row in table.rows)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)  # noqa: S608 our own table name


def _arrow_table(table: SampleTable) -> pa.Table:
    columns = zip(*table.rows, strict=True)
    return pa.table(dict(zip(table.column_names, map(pa.array, columns), strict=True)))


def _to_sqlite_value(value: Value) -> int | float | str | None:
    """Convert dates to text that SQLite's date functions accept, and decimals to floats, because SQLite has neither
    type.
    """
    match value:
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case _:
            return value


SAMPLES = "shared/samples"
_README = """Samples

The tables of the sample databases as files: customers, products, orders and order_items as CSV, web_requests as
compressed CSV, order_items as Parquet too. Everyone may change what lies in /shared.
"""


def ensure_sample_storage(root: Path, tables: Tables) -> None:
    """Create the local root with sample files if it is missing. An existing root is not changed.

    The root is created under a temporary name and then renamed, so that it is either complete or missing.
    """
    if root.exists():
        return
    partial = root.with_name(f"{root.name}.unfinished")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700, parents=True)
    samples = partial / SAMPLES
    samples.mkdir(parents=True)
    for name, content in _contents(tables()):
        (samples / name).write_bytes(content)
        (samples / name).chmod(0o644)
        sync(samples / name)
    for directory in (samples, samples.parent, partial):
        sync(directory)
    partial.rename(root)
    sync(root.parent)


def _contents(tables: tuple[SampleTable, ...]) -> list[tuple[str, bytes]]:
    contents = [("README.txt", _README.encode())]
    for table in tables:
        written = StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([_cell(value) for value in row] for row in table.rows)
        text = written.getvalue().encode()
        if table.name == "web_requests":
            # mtime=0 keeps the timestamp out of the gzip header, so the bytes are the same on every machine.
            contents.append((f"{table.name}.csv.gz", gzip.compress(text, mtime=0)))
        else:
            contents.append((f"{table.name}.csv", text))
        if table.name == "order_items":
            stored = pa.BufferOutputStream()
            pq.write_table(_arrow_table(table), stored)
            contents.append((f"{table.name}.parquet", stored.getvalue().to_pybytes()))
    return contents


def _cell(value: Value) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date():  # includes datetime, which is a subclass
            return value.isoformat()
        case _:
            return str(value)


LOGINS = rf"^{SAMPLE_ROLE}(_\d+)?$"
UNFINISHED = f"{SAMPLE_DATABASE}_unfinished"
_CONNECT_S = 10
_COMMAND_S = 60
# PostgreSQL lets a role change its own password and settings, so both are reset at each start.
_SAMPLE_ROLE_RULES = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 10"
_OWNER_RULES = "NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD NULL"
# Default privileges that a user sets for the shared owner would apply to tables that other users create later, and DROP
# OWNED would revoke the owner's right to connect. REASSIGN OWNED fires no event trigger, but logins may not run it.
_PROTECT_OWNED_OBJECTS = """
    CREATE OR REPLACE FUNCTION pg_catalog.queryserver_refuse() RETURNS event_trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = session_user) THEN
            RAISE insufficient_privilege USING MESSAGE = 'permission denied: ' || tg_tag || ' changes what others make';
        END IF;
    END $$;
    DROP EVENT TRIGGER IF EXISTS queryserver_refuse;
    CREATE EVENT TRIGGER queryserver_refuse ON ddl_command_start
        WHEN TAG IN ('ALTER DEFAULT PRIVILEGES', 'DROP OWNED')
        EXECUTE FUNCTION pg_catalog.queryserver_refuse();
"""


async def ensure_service_database(server: EmbeddedPostgres) -> None:
    """Create the service's empty database and its role if missing. Idempotent."""
    async with connected(server.admin_dsn()) as connection:
        await _ensure_service_role(server, connection)
        if not await has_database(connection, SERVICE_ROLE):
            await connection.execute(f"CREATE DATABASE {SERVICE_ROLE} OWNER {SERVICE_ROLE}")
        for database in (SERVICE_ROLE, "postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")


Fill = Callable[[asyncpg.Connection], Awaitable[None]]
"""Fills the empty database of the given connection with tables."""


async def ensure_sample_database(server: EmbeddedPostgres, make: Fill) -> None:
    """Create the sample database with `make` if it is missing, then repair roles and privileges. Idempotent.

    `make` receives a connection to an empty database.
    """
    secrets = server.cluster.secrets
    async with connected(server.admin_dsn()) as connection:
        await _ensure_service_role(server, connection)
        await connection.execute(f"GRANT CONNECT ON DATABASE postgres TO {SERVICE_ROLE}")
        await _ensure_role(connection, SAMPLE_ROLE, f"{_SAMPLE_ROLE_RULES} PASSWORD '{secrets.sample}'")
        await _ensure_role(connection, SAMPLE_OWNER, _OWNER_RULES)
        await _ensure_role(connection, SAMPLE_LOGIN, _OWNER_RULES)
        await connection.execute(f"GRANT {SAMPLE_OWNER} TO {SAMPLE_ROLE}")
        for group in (SAMPLE_OWNER, SAMPLE_LOGIN):
            await connection.execute(f"GRANT {group} TO {SERVICE_ROLE} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
        for database in ("postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        if not await has_database(connection, SAMPLE_DATABASE):
            await _make_sample(server, connection, make)
        await _repair_sample(server)


async def _ensure_service_role(server: EmbeddedPostgres, connection: asyncpg.Connection) -> None:
    """Create or update the role of the service, which can create users' logins but does not have their privileges."""
    # The passwords consist of URL-safe characters, so they need no escaping.
    await _ensure_role(connection, SERVICE_ROLE, f"LOGIN CREATEROLE PASSWORD '{server.cluster.secrets.service}'")


async def _ensure_role(connection: asyncpg.Connection, role: str, rules: str) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
        await connection.execute(f"CREATE ROLE {role}")
    await connection.execute(f"ALTER ROLE {role} {rules}")
    await connection.execute(f"ALTER ROLE {role} RESET ALL")


async def _repair_sample(server: EmbeddedPostgres) -> None:
    """Restore the owner's privileges and its ownership of tables, which logins could own in earlier versions."""
    async with connected(server.admin_dsn(SAMPLE_DATABASE)) as connection:
        await connection.execute(f"ALTER DATABASE {SAMPLE_DATABASE} RESET ALL")
        await connection.execute(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {SAMPLE_DATABASE} TO {SAMPLE_OWNER}")
        await connection.execute(f"GRANT ALL ON SCHEMA public TO {SAMPLE_OWNER}")
        await connection.execute(f"GRANT CONNECT ON DATABASE {SAMPLE_DATABASE} TO {SAMPLE_LOGIN}")
        for role in await connection.fetch("SELECT rolname FROM pg_roles WHERE rolname ~ $1", LOGINS):
            await connection.execute(f"REASSIGN OWNED BY {role['rolname']} TO {SAMPLE_OWNER}")
        await connection.execute(_PROTECT_OWNED_OBJECTS)


async def has_database(connection: asyncpg.Connection, database: str) -> bool:
    return bool(await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", database))


async def _make_sample(server: EmbeddedPostgres, connection: asyncpg.Connection, make: Fill) -> None:
    """Fill the database under a temporary name and then rename it, so that it is either complete or missing."""
    await connection.execute(f"DROP DATABASE IF EXISTS {UNFINISHED}")
    await connection.execute(f"CREATE DATABASE {UNFINISHED}")
    await connection.execute(f"REVOKE ALL ON DATABASE {UNFINISHED} FROM PUBLIC")
    await connection.execute(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {UNFINISHED} TO {SAMPLE_OWNER}")
    async with connected(server.admin_dsn(UNFINISHED)) as filling:
        await filling.execute(f"GRANT ALL ON SCHEMA public TO {SAMPLE_OWNER}")
        await make(filling)
        await filling.execute("ANALYZE")
    await connection.execute(f"ALTER DATABASE {UNFINISHED} RENAME TO {SAMPLE_DATABASE}")


async def fill_with_tables(filling: asyncpg.Connection, tables: Tables) -> None:
    for table in await asyncio.to_thread(tables):
        await filling.execute(table.create_statement())
        await filling.copy_records_to_table(table.name, records=table.rows, columns=table.column_names)
        await filling.execute(f"ALTER TABLE {table.name} OWNER TO {SAMPLE_OWNER}")


@asynccontextmanager
async def connected(dsn: str) -> AsyncGenerator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_S, command_timeout=_COMMAND_S)
    try:
        yield connection
    finally:
        await connection.close(timeout=_CONNECT_S)
