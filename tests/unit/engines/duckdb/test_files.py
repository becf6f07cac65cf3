"""DuckDB statements that read and write files on a store, in sessions with different permissions."""

import gzip
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.directory_files import DirectoryFiles, FileChannel

from queryserver.engines.blocking_drivers import DriverAnswer, Interrupted
from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.database import DuckdbDatabase
from queryserver.engines.duckdb.file_claims import FileClaims, FileStatement, Stop
from queryserver.engines.duckdb.limits import DuckdbLimits
from queryserver.engines.duckdb.session_files import SessionFileAccess
from queryserver.engines.process.calls import RemoteFiles
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.storage_watch import StorageLimits
from queryserver.errors.base import PermissionDenied
from queryserver.errors.statements import EngineError

ANA, BOB = 1, 2
GIB = 1024**3


@dataclass
class Setting:
    """A store, a database, and sessions that use both. `files` maps each session to its view of the store."""

    store: Path
    database: DuckdbDatabase
    files: dict[int, DirectoryFiles]
    channel: FileChannel
    connections: list[DuckdbConnection] = field(default_factory=list[DuckdbConnection])

    def connect(self, session: int = ANA) -> DuckdbConnection:
        called = RemoteFiles(self.channel, session)
        connection = self.database.connect(SessionOptions(), is_private=False, files=called)
        self.connections.append(connection)
        return connection

    @property
    def claims(self) -> FileClaims:
        systems = self.database.files
        assert systems is not None
        return systems.claims

    @property
    def written(self) -> list[str]:
        return sorted(str(one.relative_to(self.store)) for one in self.store.rglob("*"))


def opened(tmp_path: Path, scheme: str = "s3a", **rights: dict[int, Callable[[str], bool]]) -> Setting:
    store = tmp_path / "store"
    store.mkdir()
    files = {
        session: DirectoryFiles(store, scheme=scheme, **{name: by[session] for name, by in rights.items()})
        for session in (ANA, BOB)
    }
    database = DuckdbDatabase(
        tmp_path,
        tmp_path / "own.duckdb",
        {"threads": 4},
        read_only=False,
        limits=DuckdbLimits(temporary_max_bytes=GIB, storage=StorageLimits(quota_bytes=GIB)),
        schemes=frozenset({scheme}),
    )
    return Setting(store, database, files, FileChannel(files))


def closed(setting: Setting) -> None:
    for connection in setting.connections:
        connection.close()
    setting.database.close()
    setting.channel.close()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    found = opened(tmp_path)
    yield found
    closed(found)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Setting]:
    """Provide a store in which Ana may read the files in `ana` and `both`, and Bob those in `bob` and `both`. Both
    users may list every directory.
    """
    found = opened(
        tmp_path,
        may_read={
            ANA: lambda name: name.startswith(("ana", "both")),
            BOB: lambda name: name.startswith(("bob", "both")),
        },
    )
    for owner in ("ana", "bob", "both"):
        (found.store / owner).mkdir()
        for number in range(4):
            table = pa.table({"owner": [owner] * 20_000, "i": range(20_000)})
            pq.write_table(table, found.store / owner / f"{number}.parquet", row_group_size=2_000)
            (found.store / owner / f"{number}.csv").write_text("owner,i\n" + f"{owner},1\n" * 500)
    yield found
    closed(found)


def rows(connection: DuckdbConnection, statement: str) -> list[tuple[Any, ...]]:
    answer = connection.run(statement)
    found = list[tuple[Any, ...]]()
    try:
        while answer.columns is not None and (batches := answer.next_batches()):
            for batch in batches:
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    finally:
        answer.close()
    return found


def refusal(connection: DuckdbConnection, statement: str) -> EngineError:
    with pytest.raises(EngineError) as caught:
        rows(connection, statement)
    return caught.value


def tree(store: Path) -> None:
    for year in (2023, 2024):
        for month in (1, 2):
            directory = store / f"sales/year={year}/month={month}"
            directory.mkdir(parents=True)
            pq.write_table(pa.table({"amount": [year * month] * 3}), directory / "part.parquet")
    (store / "names.csv").write_text("id,name\n1,Ana\n2,Bob\n")
    (store / "names.csv.gz").write_bytes(gzip.compress(b"id,name\n1,Ana\n2,Bob\n"))
    (store / "lines.json").write_text("".join(json.dumps({"id": one, "name": f"n{one}"}) + "\n" for one in range(3)))


def test_statement_reads_store_files(setting: Setting, subtests: pytest.Subtests) -> None:
    for statement, expected in [
        ("FROM 's3a://sales/year=2023/month=1/part.parquet'", [(2023, 1, 2023)] * 3),
        ("SELECT count(*) FROM 's3a://sales/*/*/*.parquet'", [(12,)]),
        (
            "SELECT sum(amount), year FROM 's3a://sales/**/*.parquet' WHERE month = 2 GROUP BY year ORDER BY year",
            [(12138, 2023), (12144, 2024)],
        ),
        (
            """SELECT count(*) FROM read_parquet(
                    ['s3a://sales/year=2023/*/*.parquet', 's3a://sales/year=2024/*/*.parquet'])""",
            [(12,)],
        ),
        (
            """SELECT count(*) FROM read_parquet(
                    ['s3a://sales/year=2023/*/*', 's3a://sales/*/*/*'], union_by_name = true)""",
            [(18,)],
        ),
        ("FROM 's3a://names.csv'", [(1, "Ana"), (2, "Bob")]),
        ("FROM 's3a://names.csv.gz'", [(1, "Ana"), (2, "Bob")]),
        ("FROM 's3a://lines.json'", [(0, "n0"), (1, "n1"), (2, "n2")]),
        ("SELECT content FROM read_text('s3a://names.csv')", [("id,name\n1,Ana\n2,Bob\n",)]),
        ("SELECT DISTINCT filename FROM read_csv('s3a://names.csv', filename = true)", [("s3a://names.csv",)]),
        ("FROM glob('s3a://*.csv*')", [("s3a://names.csv",), ("s3a://names.csv.gz",)]),
        ("SELECT delimiter FROM sniff_csv('s3a://names.csv')", [(",",)]),
        ("SELECT count(*) FROM parquet_metadata('s3a://sales/*/*/*.parquet')", [(4,)]),
        ("SELECT count(*) FROM parquet_schema(['s3a://sales/year=2023/*/*', 's3a://sales/year=2024/*/*'])", [(8,)]),
        ("FROM query('SELECT count(*) FROM ''s3a://names.csv''')", [(2,)]),
        ("SELECT count(*) FROM 's3a://names.csv' JOIN 's3a://lines.json' USING (id)", [(2,)]),
        ("SELECT count(*) FROM (PIVOT 's3a://names.csv' ON name USING count(*))", [(2,)]),
        ("FROM read_csv(concat('s3a://', 'names', '.csv'))", [(1, "Ana"), (2, "Bob")]),
    ]:
        with subtests.test(statement=statement, expected=expected):
            if not setting.written:
                tree(setting.store)
            assert rows(setting.connect(), statement) == expected
            assert setting.claims.is_empty


def test_views_macros_prepared_statements_and_inserts_read_files(setting: Setting) -> None:
    tree(setting.store)
    ana, bob = setting.connect(ANA), setting.connect(BOB)
    for statement in (
        "CREATE VIEW names AS FROM 's3a://names.csv'",
        "CREATE MACRO counted(path) AS TABLE SELECT count(*) FROM read_csv(path)",
        "CREATE TABLE own AS FROM 's3a://names.csv'",
        "INSERT INTO own FROM 's3a://names.csv'",
        "COPY own FROM 's3a://names.csv'",
    ):
        assert rows(ana, statement) == []
    assert rows(bob, "FROM names") == [(1, "Ana"), (2, "Bob")]
    assert rows(bob, "FROM counted('s3a://names.csv')") == [(2,)]
    assert rows(bob, "SELECT count(*) FROM own") == [(6,)]
    rows(bob, "PREPARE later AS SELECT count(*) FROM read_csv($1)")
    assert rows(bob, "EXECUTE later('s3a://names.csv')") == [(2,)]
    assert rows(bob, "EXECUTE later('s3a://names.csv.gz')") == [(2,)]
    assert setting.claims.is_empty


def test_view_reads_with_permissions_of_querying_session(shared: Setting) -> None:
    ana, bob = shared.connect(ANA), shared.connect(BOB)
    rows(ana, "CREATE VIEW mine AS FROM 's3a://ana/0.csv'")
    assert len(rows(ana, "FROM mine")) == 500
    assert refusal(bob, "FROM mine").code == "permission_denied"


def test_unpermitted_file_access_is_refused(setting: Setting, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for statement, code, named in [
        ("FROM read_text('{here}/secret.txt')", "permission_denied", "{here}/secret.txt"),
        ("FROM read_text('file://{here}/secret.txt')", "permission_denied", "file://{here}/secret.txt"),
        ("FROM read_text('file:{here}/secret.txt')", "permission_denied", "secret.txt"),
        ("FROM read_text('s3a://../secret.txt')", "invalid_path", "s3a://../secret.txt"),
        ("FROM read_text('hdfs:///a')", "permission_denied", "hdfs:///a"),
        ("FROM read_text('https://localhost/a')", "permission_denied", "https://localhost/a"),
        ("FROM 's3a://nothing.parquet'", "path_not_found", "s3a://nothing.parquet"),
        ("FROM 's3a://nothing*.parquet'", "path_not_found", "s3a://nothing*.parquet"),
        ("ATTACH 's3a://x.db'", "engine_error", "ATTACH"),
        ("EXPORT DATABASE 's3a://x'", "engine_error", "EXPORT"),
        ("IMPORT DATABASE 's3a://x'", "permission_denied", "s3a://x/schema.sql"),
        ("COPY FROM DATABASE own TO own", "engine_error", "COPY"),
        ("COPY (SELECT 1) TO '{here}/new.csv'", "permission_denied", "{here}/new.csv"),
        ("COPY (SELECT 1) TO 'file://{here}/new.csv'", "permission_denied", "new.csv"),
        ("COPY (SELECT 1) TO '{here}/own.duckdb.wal'", "permission_denied", "own.duckdb.wal"),
        ("COPY t FROM '{here}/secret.txt'", "permission_denied", "secret.txt"),
        ("COPY (SELECT 1) TO (concat('s3a://', 'new.csv'))", "engine_error", "literal"),
        ("COPY (SELECT 1) TO 'target://00/file.csv'", "permission_denied", "target://00/file.csv"),
        ("FROM read_text('target://00/file')", "permission_denied", "target"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 's3a://new.csv'", "engine_error", "COPY"),
        ("PREPARE a AS COPY (SELECT 1) TO 's3a://new.csv'", "engine_error", "COPY"),
        ("FROM read_single_csv_file('s3a://a.csv')", "engine_error", "read_single_csv_file"),
        ("FROM \"read_single_json_file\"('s3a://a.json')", "engine_error", "read_single_json_file"),
        ("FROM query('FROM read_single_csv_file(''s3a://a'')')", "engine_error", "read_single_csv_file"),
        ("CREATE MACRO m(p) AS TABLE FROM read_single_parquet_file(p)", "engine_error", "read_single_parquet_file"),
    ]:
        with subtests.test(statement=statement, code=code, named=named):
            (tmp_path / "secret.txt").write_text("secret")
            before = sorted(one.name for one in tmp_path.iterdir())
            connection = setting.connect()
            rows(connection, "CREATE TABLE IF NOT EXISTS t(a VARCHAR)")
            error = refusal(connection, statement.format(here=tmp_path))
            assert error.code == code
            assert named.format(here=tmp_path) in error.message
            assert "Traceback" not in error.message
            assert setting.written == []
            assert set(before) >= {one.name for one in tmp_path.iterdir()} - {"own.duckdb.wal"}
            assert rows(connection, "SELECT count(*) FROM t") == [(0,)]
            assert setting.claims.is_empty


def test_every_function_with_path_parameter_is_known() -> None:
    """Every function that a DuckDB update adds must be entered in one of these sets: functions that list their files
    while they are bound, functions that list them later, refused functions, and functions without paths.
    """
    listing = {"glob", "read_blob", "read_csv", "read_csv_auto", "read_duckdb", "read_json", "read_json_auto",
               "read_json_objects", "read_json_objects_auto", "read_ndjson", "read_ndjson_auto", "read_ndjson_objects",
               "read_parquet", "parquet_scan", "read_text"}  # fmt: skip
    late = {"sniff_csv", "parquet_bloom_probe", "parquet_file_metadata", "parquet_full_metadata", "parquet_kv_metadata",
            "parquet_metadata", "parquet_schema"}  # fmt: skip
    refused = {"read_single_csv_file", "read_single_json_file", "read_single_parquet_file"}
    pathless = {
        "import_database",
        "which_secret",
    }  # the first belongs to a refused statement; the second lists secrets, and there are none
    with duckdb.connect() as plain:
        found = plain.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'pragma', 'scalar')"
            " AND NOT regexp_matches(function_name, '^json_|extract_path')"
            " AND list_has_any(parameters, ['path', 'paths', 'file', 'files', 'filename', 'pattern', 'uri', 'url'])"
            " AND function_type <> 'scalar' OR regexp_matches(function_name, '^(read|scan|open|load|write)_')"
        ).fetchall()
    assert {name for (name,) in found} - {"register_external_resource", "json_each", "json_tree", "write_log"} == (
        listing | late | refused | pathless
    )


def test_scheme_in_different_case_never_reaches_local_disk(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DuckDB accepts a scheme in upper or lower case, but looks up file systems by the exact spelling. It could
    therefore read a path such as `S3A://x` from the local disk.
    """
    directory = tmp_path / "here"
    (directory / "S3a:").mkdir(parents=True)
    (directory / "S3a:" / "secret.txt").write_text("secret")
    monkeypatch.chdir(directory)
    for scheme in ("S3a", "s3A", "S3A"):
        assert refusal(setting.connect(), f"FROM read_text('{scheme}://secret.txt')").code == "permission_denied"


def test_local_store_files_have_their_own_scheme(tmp_path: Path) -> None:
    """A local store uses the scheme `local`, because DuckDB would read `file://` URLs from its process's own disk."""
    setting = opened(tmp_path, scheme="file")
    tree(setting.store)
    connection = setting.connect()
    assert rows(connection, "SELECT * FROM read_csv('local:///names.csv', filename = true)") == [
        (1, "Ana", "local:///names.csv"),
        (2, "Bob", "local:///names.csv"),
    ]
    rows(connection, "COPY (SELECT 7 a) TO 'local:///new/a.csv'")
    assert (setting.store / "new/a.csv").read_text() == "a\n7\n"
    error = refusal(connection, "FROM 'file:///names.csv'")
    assert "local://" in error.message
    closed(setting)


def test_file_changed_while_read_is_a_conflict(setting: Setting) -> None:
    path = setting.store / "big.csv"
    path.write_text("a\n" + "1\n" * 3_000_000)
    changed = threading.Event()

    def change(_: str) -> None:
        if len(setting.files[ANA].reads) == 2 and not changed.is_set():
            changed.set()
            path.write_text("a\n" + "2\n" * 3_000_000)

    setting.files[ANA].before_read = change
    assert refusal(setting.connect(), "SELECT sum(a) FROM 's3a://big.csv'").code == "conflict"
    assert changed.is_set()
    assert setting.claims.is_empty


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("big.csv", "SELECT count(*), sum(a), sum(b) FROM 's3a://big.csv'"),
        ("big.csv.gz", "SELECT count(*), sum(a), sum(b) FROM 's3a://big.csv.gz'"),
        ("big.json", "SELECT count(*), sum(a), sum(b) FROM 's3a://big.json'"),
        ("big.parquet", "SELECT count(*), sum(a), sum(b) FROM 's3a://big.parquet'"),
    ],
)
def test_large_files_are_read_completely(setting: Setting, name: str, statement: str) -> None:
    """DuckDB reads one open file from several threads at once, and each thread calls `seek` and then `read`."""
    with duckdb.connect() as plain:
        plain.execute(f"COPY (SELECT range a, range % 7 b FROM range(1_000_000)) TO '{setting.store / name}'")
    connection = setting.connect()
    for _ in range(3):
        assert rows(connection, statement) == [(1_000_000, 499_999_500_000, 2_999_997)]
    assert setting.claims.is_empty
    assert setting.claims.held_bytes == 0


def test_statement_never_reads_with_permissions_of_another_session(shared: Setting) -> None:
    """Ana and Bob query the same database in concurrent sessions, with thousands of reads."""
    asked = {ANA: 0, BOB: 0}
    shared.channel.close()
    files = {ANA: shared.files[ANA], BOB: shared.files[BOB]}
    sessions = {number: files[ANA if number % 2 else BOB] for number in range(1, 9)}
    shared.channel = FileChannel(sessions)
    names = {ANA: "ana", BOB: "bob"}

    def work(session: int) -> int:
        owner = ANA if session % 2 else BOB
        own, other = names[owner], names[BOB if owner == ANA else ANA]
        connection, chance, done = shared.connect(session), random.Random(session), 0
        for _ in range(60):
            place, number = chance.choice([own, own, "both", other]), chance.randrange(4)
            statement = chance.choice([
                f"SELECT DISTINCT owner FROM 's3a://{place}/{number}.parquet'",
                f"SELECT DISTINCT owner FROM 's3a://{place}/*.parquet' WHERE i % 2 = 0",
                f"SELECT DISTINCT owner FROM read_csv(['s3a://{place}/*.csv', 's3a://{place}/{number}.csv'])",
                f"SELECT DISTINCT owner FROM read_csv('s3a://{place}/*.csv', all_varchar = true, header = true)",
                f"SELECT owner FROM 's3a://{place}/*.parquet' LIMIT 1",
            ])  # fmt: skip
            if place == other:
                assert refusal(connection, statement).code == "permission_denied", statement
            else:
                assert rows(connection, statement) == [(place,)], statement
            done += 1
        return done

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, sessions)) == 480
    assert shared.claims.is_empty
    assert asked == {ANA: 0, BOB: 0}
    for owner in (ANA, BOB):
        other = names[BOB if owner == ANA else ANA]
        assert len(files[owner].reads) > 500
        assert not [path for path, _, _ in files[owner].reads if path.startswith(f"s3a://{other}/")]


def large(connection: DuckdbConnection) -> None:
    rows(connection, "CREATE OR REPLACE TABLE big AS SELECT range a, 'x' || range b, range % 3 c FROM range(300_000)")


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("new/a.parquet", "", ["new", "new/a.parquet"]),
        ("a.csv", "", ["a.csv"]),
        ("a.csv.gz", "", ["a.csv.gz"]),
        ("a.json", "", ["a.json"]),
        ("a", "(FORMAT parquet)", ["a"]),
        ("it''s a.csv", "(HEADER false)", ["it's a.csv"]),
        (
            "parts",
            "(FORMAT parquet, PARTITION_BY (c))",
            ["parts", *(f"parts/c={c}{rest}" for c in range(3) for rest in ("", "/data_0.parquet"))],
        ),
        ("sized", "(FORMAT parquet, FILE_SIZE_BYTES '2MB')", None),
    ],
)
def test_copy_writes_files_to_store(setting: Setting, target: str, options: str, expected: list[str] | None) -> None:
    connection = setting.connect()
    large(connection)
    answer = connection.run(f"COPY big TO 's3a://{target}' {options}")
    assert (answer.columns, answer.modified_rows) == (None, 300_000)
    assert expected is None or setting.written == expected
    path = target.replace("''", "'")
    files = [one for one in (setting.store / path, *(setting.store / path).rglob("*")) if one.is_file()]
    reader = next((one for one in ("parquet", "json") if one in f"{target}{options}"), "csv")
    with duckdb.connect() as plain:
        read = f"SELECT count(*), sum(a) FROM read_{reader}({[str(one) for one in files]!r})"
        if "HEADER" in options:
            read = read.replace("sum(a)", "sum(column0)").replace("])", "], header = false)")
        assert plain.execute(read).fetchall() == [(300_000, 44_999_850_000)]
    for file in sorted(setting.store.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    assert setting.claims.is_empty


def test_copy_replaces_file_only_on_success(setting: Setting) -> None:
    connection = setting.connect()
    (setting.store / "a.csv").write_text("before")
    failing = "SELECT CASE WHEN range = 1_000_000 THEN error('boom') END FROM range(1_000_001)"
    refusal(connection, f"COPY ({failing}) TO 's3a://a.csv'")
    assert (setting.store / "a.csv").read_text() == "before"
    rows(connection, "COPY (SELECT 1 a) TO 's3a://a.csv'")
    assert (setting.store / "a.csv").read_text() == "a\n1\n"
    rows(connection, "COPY (SELECT 2 a) TO 's3a://a.csv' (USE_TMP_FILE true)")
    assert (setting.store / "a.csv").read_text() == "a\n2\n"


def test_copy_returns_paths_as_the_statement_named_them(setting: Setting) -> None:
    connection = setting.connect()
    assert rows(connection, "COPY (SELECT 1 a) TO 's3a://new/a.csv' (RETURN_FILES)") == [(1, ["s3a://new/a.csv"])]
    ((path, *_),) = rows(connection, "COPY (SELECT 1 a) TO 's3a://b.parquet' (RETURN_STATS)")
    assert path == "s3a://b.parquet"
    found = rows(connection, "COPY (SELECT 1 a, 2 b) TO 's3a://c' (FORMAT csv, PARTITION_BY (b), RETURN_FILES)")
    assert found == [(1, ["s3a://c/b=2/data_0.csv"])]


@pytest.mark.parametrize(
    ("statement", "code", "named"),
    [
        ("COPY (SELECT 1) TO 's3a://there.csv/a.csv'", "already_exists", "s3a://there.csv"),
        (
            "COPY (SELECT 1 a, 2 b) TO 's3a://full' (FORMAT csv, PARTITION_BY (b))",
            "engine_error",
            '"s3a://full" is not empty',
        ),
        (
            "COPY (SELECT 1 a, 2 b) TO 's3a://full' (FORMAT csv, PARTITION_BY (b), OVERWRITE)",
            "engine_error",
            "s3a://full/a.csv",
        ),
        ("COPY (SELECT 1 a) TO 's3a://full'", "already_exists", "s3a://full"),
        ("COPY (SELECT 1 a) TO 's3a://b.nothing' (FORMAT nothing)", "engine_error", "nothing"),
        ("COPY (SELECT nothing) TO 's3a://b.csv'", "engine_error", "nothing"),
        ("COPY (SELECT 1) TO 's3a://b' (FORMAT csv, PER_THREAD_OUTPUT)", "engine_error", "PER_THREAD_OUTPUT"),
    ],
)
def test_refused_copy_writes_nothing(setting: Setting, statement: str, code: str, named: str) -> None:
    (setting.store / "there.csv").write_text("there")
    (setting.store / "full").mkdir(exist_ok=True)
    (setting.store / "full/a.csv").write_text("there")
    error = refusal(setting.connect(), statement)
    assert error.code == code, error.message
    assert named in error.message
    assert "target://" not in error.message
    assert setting.written == ["full", "full/a.csv", "there.csv"]
    assert setting.claims.is_empty


def test_append_to_partitioned_directory_keeps_existing_files(setting: Setting) -> None:
    connection = setting.connect()
    for options in ("", ", APPEND", ", OVERWRITE_OR_IGNORE"):
        ten = "SELECT range a, range % 2 b FROM range(10)"
        rows(connection, f"COPY ({ten}) TO 's3a://parts' (FORMAT csv, PARTITION_BY (b){options})")
    assert rows(connection, "SELECT count(*) FROM 's3a://parts/*/*.csv'") == [(20,)]


def test_copy_without_write_permission_writes_nothing(tmp_path: Path) -> None:
    setting = opened(tmp_path)
    setting.files[BOB].may_write = False
    error = refusal(setting.connect(BOB), "COPY (SELECT 1) TO 's3a://a.csv'")
    assert (error.code, error.sqlstate) == ("permission_denied", "42501")
    assert error.message.startswith("s3a://a.csv: ")
    assert setting.written == []
    closed(setting)


@pytest.mark.parametrize("options", ["", "(FORMAT csv, PARTITION_BY (c))", "(FORMAT parquet, FILE_SIZE_BYTES '1MB')"])
def test_failed_or_interrupted_copy_leaves_no_files(setting: Setting, options: str) -> None:
    connection = setting.connect()
    large(connection)
    failing = "SELECT *, CASE WHEN a = 299_999 THEN error('boom') END d FROM big"
    error = refusal(connection, f"COPY ({failing}) TO 's3a://failed' {options}")
    assert "boom" in error.message
    assert setting.written in ([], ["failed"])  # a store with directories keeps the empty directory

    def stop() -> None:
        while ("begin_write" if options != "(FORMAT csv, PARTITION_BY (c))" else "status") not in [
            method for _, method in setting.channel.calls[seen:]
        ]:
            time.sleep(0.001)
        connection.interrupt()

    seen = len(setting.channel.calls)
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    with pytest.raises(Interrupted):
        rows(connection, f"COPY (SELECT a.* FROM big a, range(20)) TO 's3a://stopped' {options}")
    stopping.join()
    assert set(setting.written) <= {"failed", "stopped"}
    assert not any(one.is_file() for one in setting.store.iterdir())
    assert setting.claims.is_empty
    assert not setting.database.files or not setting.database.files.copies


def test_late_failure_of_multi_file_copy_removes_files_already_written(setting: Setting) -> None:
    connection = setting.connect()
    failing = (
        "SELECT range a, range // 10_000 b, CASE WHEN range = 999_999 THEN error('boom') END FROM range(1_000_000)"
    )
    refusal(connection, f"COPY ({failing}) TO 's3a://parts' (FORMAT csv, PARTITION_BY (b))")
    assert [one for one in setting.written if one.endswith(".csv")] == []
    rows(
        connection,
        "COPY (SELECT range a, range % 200 b FROM range(1_000_000)) TO 's3a://parts' (FORMAT csv, PARTITION_BY (b))",
    )
    assert len([one for one in setting.written if one.endswith(".csv")]) >= 200


def test_statement_closed_early_releases_its_claims(setting: Setting) -> None:
    for number in range(50):
        (setting.store / f"{number}.csv").write_text("a\n" + "1\n" * 5_000)
    connection = setting.connect()
    for _ in range(3):
        answer = connection.run("SELECT a.* FROM 's3a://*.csv' a, range(100)")
        assert answer.next_batches()
        assert not setting.claims.is_empty
        answer.close()
        assert setting.claims.is_empty
        assert setting.claims.held_bytes == 0
    assert rows(connection, "SELECT sum(a) FROM 's3a://*.csv'") == [(250_000,)]


def test_unpermitted_listing_fails_when_another_session_reads_the_file(shared: Setting) -> None:
    """Bob may list Ana's file but not read it. While Ana reads it, DuckDB could also open it for Bob's statement."""
    ana, bob = shared.connect(ANA), shared.connect(BOB)
    listed = bob.run("SELECT * FROM glob('s3a://ana/0.csv'), range(10_000_000)")
    assert listed.next_batches()
    assert len(rows(ana, "FROM 's3a://ana/0.csv'")) == 500
    with pytest.raises(EngineError) as caught:
        listed.next_batches()
    assert (caught.value.code, caught.value.message) == ("permission_denied", "s3a://ana/0.csv: access is denied.")
    listed.close()
    assert rows(bob, "SELECT 1") == [(1,)]
    assert shared.claims.is_empty


def test_permitted_read_continues_while_another_session_is_refused(shared: Setting) -> None:
    ana, bob = shared.connect(ANA), shared.connect(BOB)
    reading = ana.run("SELECT a.* FROM 's3a://ana/*.csv' a, range(10_000)")
    assert reading.next_batches()
    assert refusal(bob, "FROM 's3a://ana/0.csv'").code == "permission_denied"
    assert refusal(bob, "FROM glob('s3a://ana/*')").code == "permission_denied"
    assert reading.next_batches()
    reading.close()


def test_two_permitted_sessions_read_the_same_file_concurrently(shared: Setting) -> None:
    ana, bob = shared.connect(ANA), shared.connect(BOB)
    reading = ana.run("SELECT a.* FROM 's3a://both/*.csv' a, range(10_000)")
    assert reading.next_batches()
    assert len(rows(bob, "FROM 's3a://both/*.csv'")) == 2_000
    assert sorted(shared.files[ANA].proofs) == sorted(shared.files[BOB].proofs)
    assert len(shared.files[ANA].proofs) == 4
    assert reading.next_batches()
    reading.close()
    assert rows(bob, "SELECT count(*) FROM 's3a://both/*.csv'") == [(2_000,)]
    assert len(shared.files[BOB].proofs) == 4  # if the statement runs alone, each read checks its own permissions


def test_sniffed_file_is_refused_while_another_session_runs_a_statement(shared: Setting) -> None:
    """DuckDB may list the path of sniff_csv in any of its threads, so a listing cannot be attributed to a statement
    while other statements are running.
    """
    ana, bob = shared.connect(ANA), shared.connect(BOB)
    for _ in range(20):
        assert rows(ana, "SELECT delimiter FROM sniff_csv('s3a://ana/0.csv')") == [(",",)]
    reading = ana.run("SELECT * FROM range(10_000_000)")
    assert reading.next_batches()
    for _ in range(50):
        message = refusal(bob, "SELECT delimiter FROM sniff_csv('s3a://ana/0.csv')").message
        assert message == "s3a://ana/0.csv: access is denied." or "other statements are running" in message
    assert not shared.files[ANA].patterns[20:]
    other = shared.claims.begin(RemoteFiles(shared.channel, BOB), lambda _: None)
    with ThreadPoolExecutor(1) as thread:
        named = thread.submit(shared.claims.listing_statement)
        with pytest.raises(EngineError, match="other statements are running"):
            named.result()
    other.end()
    reading.close()


def test_unresponsive_store_does_not_delay_interruption(setting: Setting) -> None:
    import asyncio

    (setting.store / "a.csv").write_text("a\n1\n")
    began = threading.Event()

    def never(_: str) -> Any:
        began.set()
        return asyncio.sleep(3600)

    setting.files[ANA].before_read = never
    connection = setting.connect()

    def stop() -> None:
        began.wait()
        connection.interrupt()
        setting.channel.interrupt(ANA)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    with pytest.raises(Interrupted):
        rows(connection, "FROM 's3a://a.csv'")
    stopping.join()
    assert setting.claims.is_empty


def test_preexisting_macro_cannot_open_files_that_no_statement_names(tmp_path: Path) -> None:
    """A database file from another program may contain a macro that calls functions that the guard refuses."""
    with duckdb.connect(tmp_path / "own.duckdb") as earlier:
        earlier.execute(
            "CREATE MACRO hidden(p) AS TABLE"
            " FROM read_single_csv_file(p, columns = {'a': 'VARCHAR'}, auto_detect = false)"
        )
    setting = opened(tmp_path)
    (setting.store / "ana.csv").write_text("secret\n" * 1000)
    setting.files[BOB].may_read = lambda _: False
    ana, bob = setting.connect(ANA), setting.connect(BOB)
    reading = ana.run("SELECT a.* FROM read_csv('s3a://ana.csv', all_varchar = true, header = false) a, range(100_000)")
    assert reading.next_batches()
    for _ in range(20):
        assert refusal(bob, "FROM hidden('s3a://ana.csv')").code == "permission_denied"
    reading.close()
    closed(setting)


def test_end_of_a_stopped_statement_does_not_end_the_next_one(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session stops a statement while its own session starts the next one."""
    claims, begin, begun = setting.claims, setting.claims.begin, threading.Event()
    statements = list[FileStatement]()

    def begin_and_tell(files: RemoteFiles, stop: Stop) -> FileStatement:
        statements.append(begin(files, stop))
        begun.set()
        return statements[-1]

    class NoResultSet(DriverAnswer):
        pass

    class Rows(DriverAnswer):
        columns = ()

        def close(self) -> None:
            begun.clear()
            later.append(threads.submit(access.run, NoResultSet))
            begun.wait(0.5)  # does not begin if it waits for the end of the first statement, as it must

    monkeypatch.setattr(claims, "begin", begin_and_tell)
    systems = setting.database.files
    assert systems is not None
    access = SessionFileAccess(systems, RemoteFiles(setting.channel, ANA), lambda: None)
    later = list[Future[DriverAnswer]]()
    with ThreadPoolExecutor(1) as threads:
        access.run(Rows)
        statements[0].fail(PermissionDenied("Bob may not read this."))
        assert later[0].result().columns is None
    assert [statement.has_ended for statement in statements] == [True, True]
