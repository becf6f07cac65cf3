"""Logging: one line per event, without secrets, forged lines or blocking (security T29)."""

import json
import logging
import time
from pathlib import Path

import pytest
import structlog
from tests.timing import processor_s

from queryserver.platform.logs import (
    AUDIT,
    MAX_LINE_CHARACTERS,
    Redactor,
    SharedLogFile,
    configure_logging,
    stop_logging,
)
from queryserver.platform.settings.desktop import LoggingSettings

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJ1c2VyX2lkIjoxfQ.c2lnbmF0dXJl"


class Log:
    """A log configuration, and the lines that it writes to the log file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def configure(self, **settings: object) -> None:
        configure_logging(LoggingSettings.model_validate({"file": self.file, **settings}))

    @property
    def lines(self) -> list[str]:
        stop_logging()
        return self.file.read_text().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log" / "server.log")


def test_structlog_and_logging_events_carry_call_ids(log: Log) -> None:
    log.configure()
    with structlog.contextvars.bound_contextvars(request_id="r-1", operation_id="o-1"):
        structlog.get_logger("queryserver.x").info("statement 100% done", rows=3, engine="duck db")
        logging.getLogger("uvicorn.error").warning("port %d", 80)
    logging.getLogger("uvicorn.error").debug("never seen")
    first, second = log.lines
    assert first.endswith(
        'Z INFO     queryserver.x: statement 100% done operation_id=o-1 request_id=r-1 rows=3 engine="duck db"'
    )
    assert second.endswith("Z WARNING  uvicorn.error: port 80 operation_id=o-1 request_id=r-1")


def test_json_format_writes_json_lines(log: Log) -> None:
    log.configure(format="json")
    structlog.get_logger("x").error("a\nb", password='q"uote', path=Path("/p"), lone="\ud800")
    [line] = log.lines
    value = json.loads(line)
    assert (value["event"], value["password"], value["path"], value["level"]) == ("a\nb", "********", "/p", "error")


@pytest.mark.platform(13)
@pytest.mark.security("T29")
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("sign", ["\n", "\r\n", "\x1b[2J", "\u2028", "\x85", "\x00", "\u202e"])
def test_control_characters_never_start_a_new_line(log: Log, form: str, sign: str) -> None:
    log.file.unlink(missing_ok=True)
    log.configure(format=form)
    structlog.get_logger("x").info(f"a{sign}b", value=f"c{sign}d")
    logging.getLogger("y").warning("%s", f"e{sign}f")
    lines = log.lines
    assert len(lines) == 2
    assert sign not in "".join(lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.security("T29")
def test_traceback_lines_are_marked_and_masked(log: Log) -> None:
    log.configure()
    try:
        int("bad\r2026-01-01T00:00:00Z INFO forged: line token=abc")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    first, *trace = log.lines
    assert first.endswith("x: failed")
    assert all(line.startswith("    | ") for line in trace)
    assert "abc" not in "\n".join(trace).rpartition("forged")[2]


@pytest.mark.security("T29")
@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer planted.secret-1",
        "authorization='bearer planted_secret'",
        "Basic cGxhbnRlZDpzZWNyZXQ=planted",
        "password=planted",
        "password: 'planted secret'",
        '{"password": "plan\\"ted", "api_key":"planted"}',
        '{\\"client_secret\\": \\"planted\\"}',
        "postgresql://user:planted@host/db",
        "https://b.s3.amazonaws.com/k?X-Amz-Credential=planted&X-Amz-Signature=planted&X-Amz-Expires=60",
        "https://a.blob.core.windows.net/c/b?sv=1&sig=planted%3D&se=planted",
        "refresh_token=planted&secret_key=planted",
        "token: Bearer planted-secret",
        "headers={'X-Amz-Security-Token': b'planted', 'X-Other': b'x'}",
        f"token {JWT} was refused",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    line = Redactor()(text)
    assert "plan" not in line
    assert JWT[-8:] not in line


@pytest.mark.importer(61)
@pytest.mark.security("T21")
@pytest.mark.parametrize("form", ["file_path=upload/{}/a.csv", "GET /x?file_path=upload%2F{}%2Fa.csv", "upload/{}"])
def test_upload_references_are_shortened(form: str) -> None:
    secret = "ab-_" + "planted" * 5 + "xyz0"
    assert len(secret) == 43
    line = Redactor()(form.format(secret))
    assert "plan" not in line
    assert "ab-_****" in line
    assert line.endswith(form.rpartition("}")[2])


def test_text_without_secrets_is_unchanged() -> None:
    line = "Expires=60 tokens 5 secretly https://host/path?x=1 a@b.example monkey=1 the password was wrong"
    assert Redactor()(line) == line
    assert Redactor(["b[0-9]+"])("a1 b22") == "a1 ********"


@pytest.mark.parametrize("around", ["{}", "got {} there", "x={}&y", '{{"text": "{}"}}', "/path/{}/more"])
def test_api_token_is_masked_in_any_context(around: str) -> None:
    value = "qst_" + "a-Z_9" * 8 + "xyz"
    assert Redactor()(around.format(value)) == around.format("qst_********")
    assert Redactor()("a qst_ and qst_1") == "a qst_ and qst_1"


@pytest.mark.parametrize("piece", [
    "a", "qst_", "eyJ", "eyJaaaaaaa.", "token ", "password=", "://", "://:", "secret='", "bearer ",
    'token="\\', "sig="])  # fmt: skip
def test_masking_takes_linear_time(piece: str) -> None:
    line = piece * (MAX_LINE_CHARACTERS // len(piece))
    assert processor_s(lambda: Redactor()(line)) < 0.2


def test_long_line_is_truncated() -> None:
    assert len(Redactor()("x" * 10_000_000)) < MAX_LINE_CHARACTERS + 100


def test_full_log_file_is_rotated(log: Log) -> None:
    log.configure(max_bytes=1000, backup_count=2)
    for number in range(40):
        structlog.get_logger("x").info("event", number=number)
    assert log.lines[-1].endswith("number=39")
    files = sorted(path.name for path in log.file.parent.iterdir())
    assert files == ["server.log", "server.log.1", "server.log.2", "server.log.lock"]
    assert all(path.stat().st_size <= 1000 for path in log.file.parent.iterdir())
    assert log.file.stat().st_mode & 0o777 == 0o640


def test_file_rotated_by_another_process_is_reopened(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    one, other = (SharedLogFile(file, max_bytes=100, backup_count=3) for _ in range(2))
    record = logging.LogRecord("x", logging.INFO, "", 0, "z" * 60, None, None)
    for handler in (one, other, one, other):
        handler.handle(record)
    one.close()
    other.close()
    files = [file, *(tmp_path / f"server.log.{number}" for number in (1, 2, 3))]
    assert [len(path.read_text().splitlines()) for path in files] == [1, 1, 1, 1]


def test_logging_never_blocks_on_a_stuck_reader(log: Log) -> None:
    log.configure(max_bytes=0)
    began = time.perf_counter()
    for _ in range(1000):
        structlog.get_logger("x").info("event", rows=1)
    assert time.perf_counter() - began < 60, "who waits for a reader that is stuck waits for ever"


def record_event() -> None:
    AUDIT.record_path("ana", "storage.delete", "/user/bob/a\nb", effective_user="bob", size_bytes=3)


@pytest.mark.security("S15")
def test_audit_event_is_logged_once_regardless_of_level(log: Log) -> None:
    log.configure(level="ERROR")
    record_event()
    [line] = log.lines
    assert line.endswith(
        "queryserver.audit: storage.delete user=ana effective_user=bob path=/user/bob/a\\nb outcome=ok size=3"
    )


def test_audit_event_without_file_has_no_path(log: Log, tmp_path: Path) -> None:
    log.configure(level="ERROR")
    AUDIT.record("ana", "statement.start", "hive")
    [line] = log.lines
    assert line.endswith("queryserver.audit: statement.start user=ana effective_user=ana outcome=ok subject=hive")


@pytest.mark.security("S15")
def test_audit_file_replaces_log_lines_with_json_lines(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    log.configure(audit_file=file)
    record_event()
    assert log.lines == []
    [line] = file.read_text().splitlines()
    value = json.loads(line)
    del value["time"]
    assert value == {
        "level": "info",
        "logger": "queryserver.audit",
        "event": "storage.delete",
        "user": "ana",
        "effective_user": "bob",
        "path": "/user/bob/a\nb",
        "outcome": "ok",
        "size": 3,
    }
