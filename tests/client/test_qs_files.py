"""`qs` with files: transfers between this machine and the server's stores, and imports (issue 20, section 4)."""

import datetime as dt
import os
import signal
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from openpyxl import Workbook
from tests.client.conftest import Server, stored
from tests.client.proxies import proxy
from tests.client.shell import Make, Qs
from tests.timing import until

from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import show
from queryserver_client.cli.stores import name_of
from queryserver_client.cli.transfers import Options, copy, move
from queryserver_client.errors import NotFound
from queryserver_client.uploads import PART_BYTES


async def test_files_are_copied_to_another_store_and_back(qs: Qs, folder: str):
    here = qs.directory / "here"
    (here / "below").mkdir(parents=True)
    (here / "big.bin").write_bytes(os.urandom(300_000))
    (here / "below" / "ä b.txt").write_text("hello\n")
    there = f"{folder}/new"
    assert (await qs("cp", str(here), there)).code == 2
    assert (await qs("cp", "-r", str(here), there)).code == 0
    assert (await qs("ls", there)).text == "below/\nbig.bin\n"
    (entry,) = (await qs("ls", f"{there}/big.bin", "-o", "csv")).records
    assert entry["size"] == "300000"
    assert (await qs("cat", f"{there}/below/ä b.txt")).text == "hello\n"

    back = qs.directory / "back"
    assert (await qs("cp", "-r", there, str(back))).code == 0
    assert (back / "big.bin").read_bytes() == (here / "big.bin").read_bytes()
    assert (back / "below" / "ä b.txt").read_text() == "hello\n"

    (back / "big.bin").write_bytes(b"other")
    kept = await qs("cp", f"{there}/big.bin", str(back))
    assert (kept.code, (back / "big.bin").read_bytes()) == (1, b"other")
    assert (await qs("cp", "-r", "-f", "-c", f"{there}/big.bin", str(back))).code == 0
    assert (back / "big.bin").stat().st_size == 300_000

    assert (await qs("cp", "-", f"{there}/piped.txt", stdin="from a pipe\n")).code == 0
    assert (await qs("mv", f"{there}/piped.txt", f"{there}/moved.txt")).code == 0
    assert (await qs("mv", f"{there}/moved.txt", str(back))).code == 0
    assert (back / "moved.txt").read_text() == "from a pipe\n"
    assert (await qs("rm", there)).code == 1
    assert (await qs("rm", "-r", there)).code == 0
    assert (await qs("ls", there)).code == 1
    assert (await qs("rm", str(back))).code == 2
    assert back.is_dir()


async def test_killed_upload_is_resumed_by_next_process(server: Server, make: Make, folder: str, tmp_path: Path):
    content = os.urandom(3 * PART_BYTES + 1000)
    (tmp_path / "big.bin").write_bytes(content)
    async with proxy(server.url) as line:
        qs = make(QUERYSERVER_URL=line.url, QUERYSERVER_TOKEN=await server.token())
        line.holds_answers_after = PART_BYTES
        killed = await qs.start("cp", str(tmp_path / "big.bin"), f"{folder}/")
        # By then the server has received three parts. `qs` sends three parts concurrently, and none has been confirmed.
        await until(lambda: line.held_answers == 3)
        os.kill(killed.pid, signal.SIGKILL)
        assert (await killed.end()).code == -signal.SIGKILL
        assert stored(server, folder).get("big.bin") is None
        line.holds_answers_after, before = None, line.requested_bytes
        assert before > 3 * PART_BYTES
        again = await qs("cp", str(tmp_path / "big.bin"), f"{folder}/")
        assert again.code == 0, again.err
        assert 1000 < line.requested_bytes - before < PART_BYTES
    assert stored(server, folder) == {"big.bin": content}


async def test_root_content_is_copied_into_target_itself(qs: Qs, folder: str):
    here, back = qs.directory / "here", qs.directory / "back"
    here.mkdir()
    back.mkdir()
    (here / "a.txt").write_text("a")
    assert (await qs("cp", "-r", str(here), folder)).code == 0
    below = folder.removeprefix("file:///")
    for root, target in ((":/", back), ("file:///", back / "new")):
        assert (await qs("cp", root, str(target))).code == 2
        copied = await qs("cp", "-r", "-c", root, str(target))
        assert (copied.code, (target / below / "here" / "a.txt").read_text()) == (0, "a"), copied.err
    # The folder "user" contains the users' home directories.
    assert {path.name for path in back.iterdir()} - {"user"} == {"shared", "new"}

    inside = await qs("cp", "-r", ":/", f"{folder}/copy")
    assert (inside.code, inside.err) == (2, f"qs: {folder}/copy is inside /; nothing was copied\n")
    moved = await qs("mv", "-r", ":/", str(back))
    assert (moved.code, moved.err) == (2, "qs: :/ is a root, which cannot be moved\n")


def test_root_is_copied_to_another_store_entry_by_entry():
    db = Mock()
    db.files.stat = lambda path: Mock(path=path.rstrip("/"), is_directory=True)
    db.files.list.return_value = [Mock(path="s3a://bucket/day"), Mock(path="s3a://bucket/a.csv")]
    for entry, name in zip(db.files.list.return_value, ("day", "a.csv"), strict=True):
        entry.name = name
    copy(db, ["s3a://bucket"], "file:///shared/backup", Options(is_recursive=True, is_forced=True))
    assert db.files.copy.mock_calls == [
        call("s3a://bucket/day", "file:///shared/backup/day", overwrite=True),
        call("s3a://bucket/a.csv", "file:///shared/backup/a.csv", overwrite=True),
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (":/", ""),
        (":/a/b", "b"),
        ("file:///", ""),
        ("file:///shared/", "shared"),
        ("s3a://bucket", ""),
        ("s3a://bucket/", ""),
        ("s3a://bucket/a/", "a"),
        ("abfs://box@account/x", "x"),
    ],
)
def test_path_name_is_its_last_part_below_root(path: str, name: str):
    assert name_of(path) == name


async def test_mv_deletes_only_transferred_files(qs: Qs, folder: str):
    source = qs.directory / "new.bin"
    source.write_bytes(b"new")
    assert (await qs("cp", str(source), f"{folder}/new.bin")).code == 0
    source.write_bytes(b"NEW")
    assert (await qs("mv", "-c", str(source), f"{folder}/new.bin")).code == 2
    assert source.read_bytes() == b"NEW"


async def test_mv_keeps_file_that_changes_during_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    here = tmp_path / "here"
    here.mkdir()
    (here / "same.log").write_text("a")
    (here / "grows.log").write_text("a")
    os.mkfifo(here / "pipe")
    db = Mock()
    db.files.stat.side_effect = NotFound("none", status=404)

    def upload(source: str, *_: object, **__: object) -> None:
        if source.endswith("grows.log"):
            Path(source).write_text("ab")

    db.files.upload.side_effect = upload
    with pytest.raises(OSError, match="1 file was copied but not moved"):
        move(db, [str(here)], "file:///there", Options(is_recursive=True))
    assert sorted(path.name for path in here.iterdir()) == ["grows.log", "pipe"]
    said = capsys.readouterr().err
    assert f"{here / 'grows.log'} changed during the transfer and was not deleted" in said
    assert f"{here / 'pipe'} was skipped: it is neither a file nor a directory" in said


async def test_times_are_utc_for_programs(qs: Qs, folder: str):
    assert (await qs("cp", "-", f"{folder}/a.txt", stdin="a")).code == 0
    (entry,) = (await qs("ls", f"{folder}/a.txt", "-o", "csv")).records
    age = dt.datetime.now(dt.UTC) - dt.datetime.strptime(entry["modified"], "%Y-%m-%dT%H:%M:%S%z")
    assert abs(age) < dt.timedelta(minutes=10)


async def test_skipped_directory_links_are_reported(qs: Qs, folder: str):
    here, outside = qs.directory / "tree", qs.directory / "elsewhere"
    here.mkdir()
    outside.mkdir()
    (here / "a.txt").write_text("a")
    (outside / "b.txt").write_text("b")
    (here / "link").symlink_to(outside)
    moved = await qs("mv", "-r", str(here), f"{folder}/moved")
    assert (moved.code, "is a link to a directory" in moved.err) == (2, True)
    assert (here / "a.txt").exists()
    copied = await qs("cp", "-r", str(here), f"{folder}/copied")
    assert (copied.code, copied.err) == (0, f"qs: {here / 'link'} was skipped: it is a link to a directory\n")
    assert (await qs("ls", f"{folder}/copied")).text == "a.txt\n"


def test_column_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]):
    show(["na\x1b[31mme"], [["1"]], Form.TABLE)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "na\\x1b[31mme" in shown


async def test_file_becomes_table(qs: Qs):
    path = qs.directory / "sales.csv"
    path.write_text("id;amount\n1;1.5\n2;2.5\n")
    shown = await qs("import", str(path), "duckdb.qs_sales", "--preview")
    assert shown.text.splitlines()[0].split()[::2] == ["id", "amount"]
    (qs.directory / "odd.csv").write_text("id;amount\n1\n2;2.5\n3;3.5;x\n")
    odd = await qs("import", str(qs.directory / "odd.csv"), "duckdb.odd", "--preview", "--delimiter", ";")
    assert "short rows (1): record " in odd.err
    assert "long rows (1): record " in odd.err
    made = await qs("import", str(path), "duckdb.qs_sales")
    assert (made.code, made.text) == (0, "qs_sales: 2 rows\n"), made.err
    there = await qs("import", str(path), "duckdb.qs_sales")
    assert (there.code, "exist" in there.err) == (1, True)
    assert (await qs("import", str(path), "duckdb.qs_sales", "--if-exists", "append", "--delimiter", ";")).code == 0
    assert (await qs("sql", "duckdb", "SELECT count(*) AS n, sum(amount) AS s FROM qs_sales")).text == "n,s\n4,8.0\n"
    assert (await qs("import", "nothing.csv", "duckdb.t")).code == 2


async def test_lines_and_words_skipped_by_import_are_named(qs: Qs):
    path = qs.directory / "report.csv"
    path.write_text("Report\n\nid,v,w\n1,NA,2\n# note\n3,4,5\n")
    made = await qs("import", str(path), "duckdb.qs_report")
    assert (made.code, made.text) == (0, "qs_report: 2 rows\n"), made.err
    assert made.err.splitlines() == [
        "qs: Skipped the first 2 lines.",
        "qs: Left out 1 comment line: #",
        """qs: Read 1 cell of column "v" as NULL: 'NA'.""",
    ]


async def test_workbook_sheet_becomes_table(qs: Qs):
    book = Workbook()
    for title, amounts in (("2025", (1.5, 2.5)), ("2026", (10.25,))):
        sheet = book.create_sheet(title)
        sheet.append(["id", "day", "amount", "customer"])
        for number, amount in enumerate(amounts, 1):
            sheet.append([number, dt.date(int(title), 1, 30 + number % 2), amount, f"Ä{number}, & Söhne"])
    del book["Sheet"]
    path = qs.directory / "file.xlsx"
    book.save(path)

    made = await qs("import", str(path), "duckdb.sales")
    assert (made.code, made.text) == (0, "sales: 2 rows\n"), made.err
    more = await qs("import", str(path), "duckdb.sales", "--sheet", "2026", "--if-exists", "append")
    assert (more.code, more.text) == (0, "sales: 1 row\n"), more.err
    shown = await qs("sql", "duckdb", "SELECT id, day::DATE AS day, amount, customer FROM sales ORDER BY amount")
    assert shown.records == [
        {"id": "1", "day": "2025-01-31", "amount": "1.5", "customer": "Ä1, & Söhne"},
        {"id": "2", "day": "2025-01-30", "amount": "2.5", "customer": "Ä2, & Söhne"},
        {"id": "1", "day": "2026-01-31", "amount": "10.25", "customer": "Ä1, & Söhne"},
    ], shown.err
    types = await qs("sql", "duckdb", "SELECT typeof(id) AS i, typeof(amount) AS a FROM sales LIMIT 1")
    assert types.records == [{"i": "INTEGER", "a": "DOUBLE"}]
    none = await qs("import", str(path), "duckdb.other", "--sheet", "2027")
    assert (none.code, "2027" in none.err) == (1, True), none.err
