"""The name of the exception decides, and messages are for people."""

import json

import pytest
from tests.cases import each

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
from queryserver.files.stores.webhdfs.statuses import RemoteFailure


def told(name: str, message: str | None, status: int = 403) -> bytes:
    return json.dumps(
        {"RemoteException": {"exception": name, "javaClassName": f"x.{name}", "message": message}}
    ).encode()


@each("status", 400, 403, 404, 500)
@each(
    ("name", "message", "kind"),
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
)
def test_the_exception_decides_and_not_the_status(status, name, message, kind):
    error = RemoteFailure.of(status, told(name, message)).error("a")
    assert type(error) is kind
    assert error.message


@pytest.mark.storage(10)
@each(
    "message",
    "org.apache.hadoop.ipc.RemoteException(java.io.IOException): broken\n\tat org.apache.Hadoop.x(X.java:3)",
    "java.lang.IllegalArgumentException: broken",
    "Call From node7/10.1.2.3 to nn1.corp.example.com:8020 failed: broken",
    "namenode:8020 is broken",
    "see http://wiki.example.com/hadoop for broken",
)
def test_messages_hold_no_classes_no_traces_and_no_hosts(message):
    shown = RemoteFailure.of(500, told("IOException", message)).error("a").message
    assert "broken" in shown
    for word in ("Exception", "java", "org.apache", "\n", "10.1.2.3", "8020", "example.com", "node7/"):
        assert word not in shown


@each(("status", "kind"), (500, StorageError), (401, StorageError), (404, StorageError), (503, StorageUnavailable))
def test_pages_of_html_say_nothing(status, kind):
    page = b"<html><head><title>Error 500 java.io.EOFException: x</title></head></html>"
    error = RemoteFailure.of(status, page).error("a")
    assert type(error) is kind
    assert "html" not in error.message
    assert "EOF" not in error.message
