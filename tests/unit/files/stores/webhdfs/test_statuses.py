"""WebHDFS responses: directory listings and errors."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.errors.base import NotSupported, PermissionDenied
from queryserver.errors.files import (
    DirectoryNotEmpty,
    InvalidPath,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
)
from queryserver.files.stores.webhdfs.statuses import RemoteFailure, file_status
from queryserver.files.stores.webhdfs.tree import ListingScanner

EPOCH = datetime.fromtimestamp(0, UTC)


def scanned(answer: bytes, cut: int) -> tuple[list[dict[str, Any]], int]:
    scanner, found = ListingScanner(), []
    for start in range(0, len(answer), cut):
        found += [dict(entry) for entry in scanner.feed(answer[start : start + cut])]
    return found, scanner.end()


def listing(entries: list[dict[str, Any]], remaining: int, **style: Any) -> bytes:
    partial = {"FileStatuses": {"FileStatus": entries}}
    return json.dumps(
        {"DirectoryListing": {"partialListing": partial, "remainingEntries": remaining}}, **style
    ).encode()


@given(
    names=st.lists(st.text(min_size=1), max_size=6),
    cut=st.integers(1, 40) | st.just(10_000),
    remaining=st.integers(0, 10**12),
    is_ascii=st.booleans(),
    comma=st.sampled_from([",", ",\n", ", "]),
)
def test_all_entries_are_found_at_any_chunk_boundary(names, cut, remaining, is_ascii, comma):
    entries = [{"pathSuffix": name, "length": 7, "nested": {"FileStatus": [name]}} for name in names]
    text = listing(entries, remaining, ensure_ascii=is_ascii, separators=(comma, ":")).decode("utf-8", "surrogatepass")
    assert scanned(text.encode("utf-8", "replace"), cut) == (
        [json.loads(json.dumps(entry).encode("utf-8", "replace")) for entry in entries],
        remaining,
    )


def test_missing_attributes_are_unset():
    told = {"type": "FILE", "length": 3, "modificationTime": 1_700_000_000_000, "permission": "1644"}
    status = file_status(told, "a")
    assert (status.permissions, status.has_acl, status.owner, status.group) == (0o1644, False, "", "")
    assert (status.accessed_at, status.block_size, status.replication, status.file_id) == (EPOCH, 0, 0, "")
    assert file_status({**told, "aclBit": True}, "a").has_acl


def test_listing_without_batches_has_nothing_remaining():
    answer = b'{"FileStatuses":{"FileStatus":[\n{"pathSuffix":"a"},\n{"pathSuffix":"b\\/c"}\n]}}'
    assert scanned(answer, 5) == ([{"pathSuffix": "a"}, {"pathSuffix": "b/c"}], 0)


def test_names_resembling_the_response_syntax_are_parsed_as_names():
    entries = [
        {"pathSuffix": name} for name in ('"remainingEntries":5', '"FileStatus":[{}]', "},{", 'a"},{"b', "},\n{")
    ]
    for cut in (1, 7, 1000):
        for separators in ((",", ":"), (", ", ": ")):
            assert scanned(listing(entries, 3, separators=separators), cut) == (entries, 3)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html><body>Login</body></html>",
        b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"a"}',
        b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"a"},{"pathSu',
        b'{"FileStatuses":{"FileStatus":[7]}}',
        b'{"FileStatuses":{"FileStatus":[{},7,{},{}]}}',
        b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"\xff"}]}}',
        b'{"RemoteException":{"exception":"X"}}',
    ],
)
def test_incomplete_or_foreign_listing_is_a_store_error(answer):
    with pytest.raises(StorageError):
        scanned(answer, 1000)


def test_endless_entry_is_not_buffered():
    scanner = ListingScanner()
    pieces = [b'{"FileStatuses":{"FileStatus":[{"pathSuffix":"', *([b"x" * 65536] * 100)]
    with pytest.raises(StorageError):
        all(list(scanner.feed(piece)) == [] for piece in pieces)


def told(name: str, message: str | None, status: int = 403) -> bytes:
    return json.dumps(
        {"RemoteException": {"exception": name, "javaClassName": f"x.{name}", "message": message}}
    ).encode()


@pytest.mark.parametrize("status", [400, 403, 404, 500])
@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("FileNotFoundException", "File does not exist: /a", PathNotFound),
        ("FileNotFoundException", "Path is not a file: /a\n\tat org.x.Y(Y.java:1)", NotAFile),
        ("AccessControlException", "Permission denied: user=bob, access=WRITE", PermissionDenied),
        ("AccessControlException", "/a/file (is not a directory)", NotADirectory),
        ("ParentNotDirectoryException", "/a/file (is not a directory)", NotADirectory),
        ("AuthorizationException", "User: a is not allowed to impersonate b", PermissionDenied),
        ("SecurityException", "Failed to obtain user group information", PermissionDenied),
        ("FileAlreadyExistsException", "exists", PathExists),
        ("PathIsNotEmptyDirectoryException", "`/a is non empty'", DirectoryNotEmpty),
        ("NSQuotaExceededException", "The NameSpace quota is exceeded", StoreQuotaExceeded),
        ("DSQuotaExceededException", "The DiskSpace quota is exceeded", StoreQuotaExceeded),
        ("SafeModeException", "Cannot create file. Name node is in safe mode.", StorageUnavailable),
        ("StandbyException", "Operation category READ is not supported in state standby", StorageUnavailable),
        ("InvalidPathException", "Invalid path name", InvalidPath),
        ("IllegalArgumentException", "Pathname /a:b from /a:b is not a valid DFS filename.", InvalidPath),
        ("UnsupportedOperationException", "not supported", NotSupported),
        ("OddException", "something", StorageError),
        ("WebApplicationException", None, StorageError),
    ],
)
def test_exception_name_decides_over_the_status(status, name, message, kind):
    error = RemoteFailure.parse(status, told(name, message)).error("a")
    assert type(error) is kind
    assert error.message


@pytest.mark.storage(10)
@pytest.mark.parametrize(
    "message",
    [
        "org.apache.hadoop.ipc.RemoteException(java.io.IOException): broken\n\tat org.apache.Hadoop.x(X.java:3)",
        "java.lang.IllegalArgumentException: broken",
        "Call From node7/10.1.2.3 to nn1.corp.example.com:8020 failed: broken",
        "namenode:8020 is broken",
        "see http://wiki.example.com/hadoop for broken",
    ],
)
def test_messages_contain_no_classes_traces_or_hosts(message):
    shown = RemoteFailure.parse(500, told("IOException", message)).error("a").message
    assert "broken" in shown
    for word in ("Exception", "java", "org.apache", "\n", "10.1.2.3", "8020", "example.com", "node7/"):
        assert word not in shown


@pytest.mark.parametrize(
    ("status", "kind"), [(500, StorageError), (401, StorageError), (404, StorageError), (503, StorageUnavailable)]
)
def test_html_pages_are_not_included_in_messages(status, kind):
    page = b"<html><head><title>Error 500 java.io.EOFException: x</title></head></html>"
    error = RemoteFailure.parse(status, page).error("a")
    assert type(error) is kind
    assert "html" not in error.message
    assert "EOF" not in error.message
