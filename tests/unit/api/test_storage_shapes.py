"""The human-readable forms of file attributes."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from queryserver.api.v1.storage.dependencies import (
    EntryShapes,
    breadcrumbs,
    epoch_seconds,
    human_size,
    mode_of,
    rwx,
    time_text,
)
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath

pytestmark = pytest.mark.storage(38)


@pytest.mark.parametrize(("kind", "permissions", "has_acl", "mode", "text"),
    [(EntryKind.DIRECTORY, 0o777, False, 16895, "drwxrwxrwx"),
    (EntryKind.DIRECTORY, 0o1755, False, 17389, "drwxr-xr-xt"),
    (EntryKind.FILE, 0o644, False, 33188, "-rw-r--r--"), (EntryKind.FILE, 0o640, True, 0o100640, "-rw-r-----+"),
    (EntryKind.DIRECTORY, 0o1777, True, 17407, "drwxrwxrwxt+"), (EntryKind.UNKNOWN, 0o661, False, 0o661, "?rw-rw---x"),
    (EntryKind.LINK, 0o777, False, 0o120777, "lrwxrwxrwx")])  # fmt: skip
def test_rwx_shows_type_permissions_sticky_bit_and_acl(
    kind: EntryKind, permissions: int, has_acl: bool, mode: int, text: str
) -> None:
    status = FileStatus("a", kind, 0, None, permissions=permissions, has_acl=has_acl)
    assert (mode_of(status), rwx(status)) == (mode, text)


@pytest.mark.parametrize(
    ("kind", "permissions", "text"),
    [(EntryKind.DIRECTORY, 0o777, "40777"), (EntryKind.FILE, 0o644, "100644"), (EntryKind.DIRECTORY, 0o1755, "41755")],
)
def test_mode_is_octal_without_prefix(kind: EntryKind, permissions: int, text: str) -> None:
    shapes = EntryShapes("/", UTC, "", ())
    assert shapes.entry(FileStatus("a", kind, 0, None, permissions=permissions))["mode"] == text


@pytest.mark.parametrize(("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (1023, "1023 bytes"), (1024, "1.0 KB"), (6_200_000, "5.9 MB"),
    (1024**2 - 1, "1024.0 KB"), (1024**2, "1.0 MB"), (1024**3, "1.0 GB"), (1024**4, "1.0 TB"), (1024**5, "1.0 PB"),
    (1024**6, "1024.0 PB")])  # fmt: skip
def test_sizes_use_base_1024_and_a_no_break_space(size: int, text: str) -> None:
    assert human_size(size) == text.replace(" ", "\u00a0")


@pytest.mark.parametrize(("seconds", "text"),
    [(1477928040, "October 31, 2016 03:34 PM"), (1731527620, "November 13, 2024 07:53 PM"),
    (1735689600, "January 01, 2025 12:00 AM"), (1735732800, "January 01, 2025 12:00 PM"),
    (-1, "December 31, 1969 11:59 PM"), (0, ""), (None, ""), (10**15, "")])  # fmt: skip
def test_times_are_in_english_and_empty_if_unknown(seconds: int | None, text: str) -> None:
    assert time_text(seconds, UTC) == text


def test_times_use_the_configured_time_zone() -> None:
    assert time_text(1477928040, ZoneInfo("Europe/Berlin")) == "October 31, 2016 04:34 PM"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (datetime(2024, 11, 13, 19, 53, 40, 999_999, tzinfo=UTC), 1731527620),
        (datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (None, None),
    ],
)
def test_seconds_are_rounded_down(time: datetime | None, seconds: int | None) -> None:
    assert epoch_seconds(time) == seconds


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/user/ana/d", "%2Fuser%2Fana%2Fd"),
        ("s3a://b/k", "s3a%3A%2F%2Fb%2Fk"),
        ("a?b#c%d e", "a%3Fb%23c%25d%20e"),
        ("é日", "%C3%A9%E6%97%A5"),
        ("Az09_-~@$&()*!+=;,.'", "Az09_-~@$&()*!+=;,.'"),
        ('"<>[]{}|\\^`', "%22%3C%3E%5B%5D%7B%7D%7C%5C%5E%60"),
    ],
)
def test_links_encode_all_but_a_few_characters(path: str, part: str) -> None:
    assert EntryShapes("/", UTC, "/filebrowser/view=", ()).url(path) == f"/filebrowser/view={part}"


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        (
            StoragePath(Scheme.S3A, "b/bar/foo?x"),
            [("s3a://", "s3a://"), ("s3a://b", "b"), ("s3a://b/bar", "bar"), ("s3a://b/bar/foo?x", "foo?x")],
        ),
        (StoragePath(Scheme.HDFS, "user/ana"), [("/", "/"), ("/user", "user"), ("/user/ana", "ana")]),
        (StoragePath(Scheme.FILE, ""), [("file:///", "file:///")]),
        (StoragePath(Scheme.ABFS, "c"), [("abfs://", "abfs://"), ("abfs://c", "c")]),
        (StoragePath(Scheme.OFS, "om"), [("ofs://", "ofs://"), ("ofs://om", "om")]),
    ],
)
def test_breadcrumbs_start_at_the_root(path: StoragePath, steps: list[tuple[str, str]]) -> None:
    assert [(step.url, step.label) for step in breadcrumbs(path)] == steps
