"""A flat Azure account on a real Azurite: network faults, shared access signatures, and folders."""

import base64
import hashlib
import hmac
import itertools
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from tests.contract.adls_faults import USER, AzureFaults, changed, tidy
from tests.contract.storage_basis import batches, content, names, put
from tests.contract.store_accounts import flat_account
from tests.engines.azurite import ACCOUNT, ACCOUNT_KEY
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import EntryChanged, PathExists, upload_aborted
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.flat import BlobCalls, is_folder
from queryserver.files.stores.adls.http import AzureAccount, AzureClient, SasToken
from queryserver.files.stores.adls.shared import AzureLocation

pytestmark = pytest.mark.engine("azurite")


@pytest.fixture
def account(azurite) -> AzureAccount:
    return flat_account(azurite.port)


class TestFlatFaults(AzureFaults):
    # For a wrong key, Azurite reports a missing permission, whereas Azure itself reports a failed authentication.
    of_a_wrong_key = PermissionDenied

    container = "flat-faults"

    @pytest.fixture
    def account(self, azurite) -> AzureAccount:
        return flat_account(azurite.port)

    @pytest.fixture
    def server(self, azurite):
        return azurite.host, azurite.port

    def at(self, account, port):
        return changed(account, blob_url=flat_account(port).blob_url)


@pytest.fixture
async def storage(account):
    file_system = AdlsFileSystem(account)
    storage = file_system.as_user(USER)
    if "flat" not in await names(storage, ""):
        await storage.mkdir("flat")
    await storage.mkdir("flat/work")
    try:
        yield storage
    finally:
        await storage.delete("flat/work", recursive=True)
        await file_system.close()


@pytest.fixture
async def calls(account):
    """Yield low-level blob calls, which create no folder entries, like the writes of other programs."""
    client = AzureClient(account)
    yield BlobCalls(client)
    await client.close()


def shared_access(*, permissions: str, ends_in: timedelta) -> SasToken:
    """Return an account SAS, signed as specified in "Create an account SAS"."""
    ends_at = (datetime.now(UTC) + ends_in).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = "2020-08-04"
    text = f"{ACCOUNT}\n{permissions}\nb\nsco\n\n{ends_at}\n\nhttps,http\n{version}\n"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    fields = {"sv": version, "ss": "b", "srt": "sco", "sp": permissions, "se": ends_at, "spr": "https,http"}
    return SasToken("?" + urlencode({**fields, "sig": base64.b64encode(digest).decode()}))


async def test_shared_access_signature_suffices(account, storage):
    signed = AdlsFileSystem(changed(account, credential=shared_access(permissions="rwdlac", ends_in=timedelta(1))))
    await put(signed.as_user(USER), "flat/work/a b/ü?#%", b"by SAS")
    assert await names(signed.as_user(USER), "flat/work/a b") == ["ü?#%"]
    assert await content(storage, "flat/work/a b/ü?#%") == b"by SAS"
    assert "flat" in await names(signed.as_user(USER), "")
    await signed.close()


@pytest.mark.security("S13")
async def test_expired_signature_is_denied_and_never_shown(account, storage):
    token = shared_access(permissions="rwdlac", ends_in=timedelta(hours=-1))
    ended = AdlsFileSystem(changed(account, credential=token))
    for call in (ended.as_user(USER).stat("flat/work"), put(ended.as_user(USER), "flat/work/x")):
        with pytest.raises(PermissionDenied) as told:
            await call
        tidy(told.value)
        assert token.token not in repr(told.value.__cause__)
    assert token.token not in repr(changed(account, credential=token))
    await ended.close()
    assert await names(storage, "flat/work") == []


async def test_read_only_signature_denies_other_operations(account, storage):
    await put(storage, "flat/work/file")
    reading = AdlsFileSystem(changed(account, credential=shared_access(permissions="r", ends_in=timedelta(1))))
    assert await content(reading.as_user(USER), "flat/work/file") == b"x"
    with pytest.raises(PermissionDenied):
        await put(reading.as_user(USER), "flat/work/other")
    with raises_code("bucket_listing_denied", match=r"^Bucket listing is not allowed: "):
        await names(reading.as_user(USER), "")
    await reading.close()


async def test_folder_with_distant_marker_and_entries_is_listed_once(storage):
    for path in ("d/file", "d-x", "d!", "d.txt", "da/file", "d0", "e/f/file"):
        await put(storage, f"flat/work/{path}")
    expected = ["d", "d!", "d-x", "d.txt", "d0", "da", "e"]
    for size in (1, 2, 3, 1000):
        whole = await batches(storage, "flat/work", batch_size=size)
        assert sorted(entry.name for batch in whole for entry in batch.entries) == expected
        # Each page is fetched again, starting at the cursor of the previous page.
        for before, batch in itertools.pairwise(whole):
            again = await anext(storage.list_directory("flat/work", cursor=before.cursor, batch_size=size))
            assert again == batch


async def test_unmarked_folders_exist_and_remain_when_emptied(storage, calls):
    await calls.put(AzureLocation(("flat", "work", "made", "elsewhere", "file")), b"x", {})
    assert await names(storage, "flat/work") == ["made"]
    assert (await storage.stat("flat/work/made/elsewhere")).is_directory
    with pytest.raises(PathExists):
        await put(storage, "flat/work/made", overwrite=True)
    with pytest.raises(PathExists):
        await storage.mkdir("flat/work/made")
    await storage.delete("flat/work/made/elsewhere/file", recursive=False)
    assert await names(storage, "flat/work/made") == ["elsewhere"]
    assert await names(storage, "flat/work/made/elsewhere") == []


async def test_folder_markers_match_those_of_other_programs(storage, calls):
    await storage.mkdir("flat/work/d/e")
    for place in (("flat", "work", "d"), ("flat", "work", "d", "e")):
        facts = await calls.facts(AzureLocation(place))
        assert is_folder(facts)
        assert facts["content-length"] == "0"


async def test_names_with_empty_segments_are_listed_and_deleted_with_folder(storage, calls):
    for names_below in (("d", "", "x"), ("d", "file"), ("d", "")):
        await calls.put(AzureLocation(("flat", "work", *names_below)), b"x", {})
    assert await names(storage, "flat/work/d") == ["._qs_file_", "._qs_name_", "file"]
    await storage.delete("flat/work/d", recursive=True)
    assert await names(storage, "flat/work") == []


async def test_tree_of_many_pages_is_deleted_whole(storage, calls):
    for number in range(60):
        await calls.put(AzureLocation(("flat", "work", "tree", f"{number % 7}", f"{number}")), b"x", {})
    await storage.delete("flat/work/tree", recursive=True)
    assert [page async for page in calls.pages("flat", "work/tree")] == [([], "")]


async def test_write_whose_blocks_were_dropped_by_another_commit_fails(storage, calls):
    async def overtaken():
        yield b"x" * (9 * 1024 * 1024)
        await calls.commit(AzureLocation(("flat", "work", "file")), [], {})

    for overwrite, error in ((False, PathExists), (True, EntryChanged)):
        with pytest.raises(error):
            await storage.write("flat/work/file", overtaken(), overwrite=overwrite)
        assert await content(storage, "flat/work/file") == b""


async def test_blocks_of_aborted_write_do_not_reserve_name(storage):
    async def broken():
        yield b"x" * (9 * 1024 * 1024)
        raise upload_aborted("gone")

    with raises_code("upload_aborted"):
        await storage.write("flat/work/file", broken(), overwrite=False)
    assert await names(storage, "flat/work") == []
    await put(storage, "flat/work/file", b"small")
    assert await content(storage, "flat/work/file") == b"small"
