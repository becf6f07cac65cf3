"""The locations, entries and block sizes of Azure accounts."""

from datetime import UTC, datetime

import pytest

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import (
    DirectoryNotEmpty,
    EntryChanged,
    InvalidPath,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
)
from queryserver.files.stores.adls import shared as entries
from queryserver.files.stores.adls.flat import block_size
from queryserver.files.stores.adls.http import UNREACHABLE, AzureFailure, azure_errors
from queryserver.files.stores.adls.shared import (
    AzureLocation,
    is_container_name,
    parse_file_location,
    parse_location,
    staging_location,
)


@pytest.mark.parametrize(("text", "bits", "has_acl"),
    [("rwxr-x---", 0o750, False), ("rw-r--r--", 0o644, False), ("rwxrwxrwt", 0o1777, False),
    ("rwxr-x--T", 0o1750, False), ("rwxr-x---+", 0o750, True), ("---------", 0, False), ("", 0, False)])  # fmt: skip
def test_permissions_are_parsed(text, bits, has_acl):
    assert entries.permission_bits(text) == (bits, has_acl)


def test_times_and_etags_are_parsed():
    assert entries.parse_time("Sun, 22 Nov 2026 06:04:08 GMT") == datetime(2026, 11, 22, 6, 4, 8, tzinfo=UTC)
    assert entries.parse_time("") is None
    assert [entries.plain_tag(text) for text in ('"0x8D"', "0x8D", 'W/"0x8D"')] == ["0x8D"] * 3


@pytest.mark.parametrize("name", ["abc", "a-b-c", "123", "a" * 63])
def test_valid_container_name_is_accepted(name):
    assert is_container_name(name)


@pytest.mark.parametrize("name", ["ab", "a" * 64, "a--b", "-ab", "ab-", "Abc", "a_b", "a.b", "$root", "é" * 3])
def test_invalid_container_name_is_rejected(name):
    assert not is_container_name(name)


def test_system_containers_are_readable():
    assert parse_location("$web/index.html") == AzureLocation(("$web", "index.html"))
    with pytest.raises(PathNotFound):
        parse_location("Not A Container/x")


def test_files_must_lie_in_containers():
    assert parse_location("") is None
    for path in ("", "container"):
        with pytest.raises(InvalidPath):
            parse_file_location(path)
    assert parse_file_location("container/d/f").parent == AzureLocation(("container", "d"))


@pytest.mark.security("T1")
@pytest.mark.parametrize("token", ["", "x", "../" * 10, "0" * 31, "0" * 32 + "/x", "G" * 32])
def test_staging_token_must_be_valid(token):
    with pytest.raises(InvalidPath):
        staging_location(parse_file_location("container/d/f"), token)


@pytest.mark.parametrize(("status", "code", "error"),
    [(404, "BlobNotFound", PathNotFound), (404, "PathNotFound", PathNotFound), (404, "ContainerNotFound", PathNotFound),
    (404, "", PathNotFound), (409, "BlobAlreadyExists", PathExists), (409, "DirectoryNotEmpty", DirectoryNotEmpty),
    (412, "ConditionNotMet", EntryChanged), (403, "AuthenticationFailed", StorageError),
    (403, "SomethingNew", PermissionDenied), (401, "", StorageError), (503, "ServerBusy", StorageUnavailable),
    (503, "", StorageUnavailable), (0, UNREACHABLE, StorageUnavailable), (409, "QuotaExceeded", StoreQuotaExceeded),
    (409, "BlobArchived", StorageError), (302, "", StorageError)])  # fmt: skip
def test_service_errors_map_to_storage_errors(status, code, error):
    with pytest.raises(error) as told, azure_errors("container/{x}"):
        raise AzureFailure(status, code)
    assert type(told.value) is error
    assert told.value.message.endswith(".")


MIB = 1024 * 1024
TIB = MIB * MIB


@pytest.mark.parametrize("size", [None, 0, 100 * MIB, TIB, 4 * TIB])
def test_blocks_of_an_announced_file_stay_within_the_service_limit(size: int | None):
    assert block_size(8 * MIB, size) >= 8 * MIB
    assert -(-(size or 0) // block_size(8 * MIB, size)) <= 50_000


@pytest.mark.security("S10")
def test_excessive_announced_size_does_not_enlarge_blocks():
    assert block_size(8 * MIB, 10**18) <= 100 * MIB
