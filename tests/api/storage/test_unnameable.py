"""Names that no API path can express. Each call either processes a tree with such names completely or refuses it."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.contract.store_accounts import flat_account, s3_options
from tests.engines.servers import HttpAddress
from tests.engines.store_tables import flat_azure_tables, s3_tables
from tests.engines.versitygw import S3Address

from queryserver.files.model import escaped_file_name, escaped_name
from queryserver.files.stores.adls.flat import BlobCalls
from queryserver.files.stores.adls.http import AzureCall, AzureClient
from queryserver.files.stores.adls.shared import AzureLocation
from queryserver.files.stores.s3.connection import S3Connection

_EMPTY, _DOT, _DOTS = escaped_name(b""), escaped_name(b"."), escaped_name(b"..")
_MARKER = escaped_file_name(b"")


@dataclass(frozen=True, slots=True)
class Keys:
    """A bucket whose keys are flat. `user` calls the API, whereas `plant` and `all` act like an external program."""

    user: Caller
    root: str
    plant: Callable[[str], Awaitable[None]]
    """Creates an object whose content is its key."""
    all: Callable[[], Awaitable[dict[str, bytes]]]
    """Returns the content of all objects that are not empty, by key."""

    async def fill(self, *keys: str) -> None:
        for key in keys:
            await self.plant(key)

    async def post(self, call: str, source: str, target: str = "") -> httpx.Response:
        fields = {"src_path": f"{self.root}/{source}", "dest_path": f"{self.root}/{target}"}
        return await self.user.post(f"storage/{call}", **(fields if target else {"path": fields["src_path"]}))

    async def names(self, path: str = "") -> list[str]:
        answer = await self.user.get("storage/list", path=f"{self.root}/{path}")
        assert answer.status_code == 200, answer.text
        return [entry["name"] for entry in answer.json()["files"]]


@pytest.fixture
async def s3_keys(flat_s3_server: S3Address, tmp_path: Path, shared_database_dsn: str) -> AsyncIterator[Keys]:
    bucket, connection = f"keys{uuid4().hex[:8]}", S3Connection(s3_options(flat_s3_server))
    client = await connection._open_client()
    await client.create_bucket(Bucket=bucket)

    async def plant(key: str) -> None:
        await client.put_object(Bucket=bucket, Key=key, Body=key.encode())

    async def everything() -> dict[str, bytes]:
        listed = (await client.list_objects_v2(Bucket=bucket)).get("Contents", ())
        keys = [entry["Key"] for entry in listed if entry["Size"]]
        return {key: await (await client.get_object(Bucket=bucket, Key=key))["Body"].read() for key in keys}

    async with open_api(storage_settings(tmp_path, shared_database_dsn, tables=s3_tables(flat_s3_server))) as api:
        yield Keys(await api.user("ana"), f"s3a://{bucket}", plant, everything)
    await connection.close()


@pytest.fixture
async def azure_keys(azurite: HttpAddress, tmp_path: Path, shared_database_dsn: str) -> AsyncIterator[Keys]:
    container, client = f"keys{uuid4().hex[:8]}", AzureClient(flat_account(azurite.port))
    calls = BlobCalls(client)
    await client.change(AzureCall("PUT", (container,), {"restype": "container"}))

    async def plant(key: str) -> None:
        await calls.put(AzureLocation((container, *key.split("/"))), key.encode(), {})

    async def everything() -> dict[str, bytes]:
        listed = [item async for page, _ in calls.pages(container) for item in page]
        keys = [item.name for item in listed if item.size_bytes]
        return {key: (await client.read(AzureCall("GET", (container, *key.split("/"))))).body for key in keys}

    async with open_api(
        storage_settings(tmp_path, shared_database_dsn, tables=flat_azure_tables(azurite, container))
    ) as api:
        yield Keys(await api.user("ana"), f"abfs://{container}", plant, everything)
    await client.close()


class FlatKeysContract:
    """Tests of keys that no API path can express.

    A subclass provides the fixture `keys`, which is a bucket, and the attribute `odd`, which contains such keys below
    `d/`.
    """

    odd: tuple[str, ...]

    @pytest.mark.storage(99)
    async def test_copy_includes_every_key_and_source_deletion_loses_nothing(self, keys: Keys) -> None:
        await keys.fill("d/plain", *self.odd)
        copied = await keys.post("copy", "d", "e")
        assert copied.status_code == 200, copied.text
        left = await keys.all()
        assert left == {
            key: name.encode() for name in ("d/plain", *self.odd) for key in (name, name.replace("d/", "e/", 1))
        }
        deleted = await keys.post("rmtree", "d")
        assert deleted.status_code == 200, deleted.text
        assert await keys.all() == {key: content for key, content in left.items() if key.startswith("e/")}

    @pytest.mark.storage(99)
    @pytest.mark.parametrize("call", ["rename", "move"])
    async def test_rename_and_move_carry_every_key(self, keys: Keys, call: str) -> None:
        await keys.fill("d/plain", *self.odd)
        moved = await keys.post(call, "d", "e")
        assert moved.status_code == 200, moved.text
        expected = {name.replace("d/", "e/", 1): name.encode() for name in ("d/plain", *self.odd)}
        assert await keys.all() == expected
        assert await keys.names() == ["e"]

    @pytest.mark.storage(99)
    async def test_keys_with_a_leading_slash_can_be_listed_read_and_renamed(self, keys: Keys) -> None:
        await keys.fill("/lead.txt", "other")
        assert sorted(await keys.names()) == sorted([_EMPTY, "other"])
        assert await keys.names(_EMPTY) == ["lead.txt"]
        shown = await keys.user.get("storage/display", path=f"{keys.root}/{_EMPTY}/lead.txt")
        assert shown.json()["contents"] == "/lead.txt"
        renamed = await keys.post("rename", f"{_EMPTY}/lead.txt", "lead.txt")
        assert renamed.status_code == 200, renamed.text
        assert await keys.all() == {"lead.txt": b"/lead.txt", "other": b"other"}

    @pytest.mark.storage(100)
    @pytest.mark.parametrize("path", ["d", "p"])
    async def test_file_beside_a_directory_of_the_same_name_is_refused_before_any_change(
        self, keys: Keys, path: str
    ) -> None:
        planted = ("d", "d/x", "d-x", "p/d", "p/d-x", "p/d/x", "p/a")
        await keys.fill(*planted)
        for call in ("copy", "rename", "move"):
            refused = await keys.post(call, path, "new")
            assert (refused.status_code, refused.json()["code"]) == (409, "ambiguous_name"), (call, refused.text)
        if path == "d":
            refused = await keys.post("rmtree", path)
            assert (refused.status_code, refused.json()["code"]) == (409, "ambiguous_name"), refused.text
        assert await keys.all() == {key: key.encode() for key in planted}
        assert "new" not in await keys.names()

    @pytest.mark.storage(100)
    async def test_file_sharing_a_directory_name_has_an_escaped_path(self, keys: Keys) -> None:
        await keys.fill("d", "d/x")
        assert await keys.names() == ["d", "d"]
        renamed = await keys.post("rename", escaped_file_name(b"d"), "file")
        assert renamed.status_code == 200, renamed.text
        assert await keys.all() == {"file": b"d", "d/x": b"d/x"}
        assert (await keys.post("rename", "d", "e")).status_code == 200
        assert await keys.all() == {"file": b"d", "e/x": b"d/x"}

    @pytest.mark.storage(99)
    async def test_tree_with_unusable_names_is_refused_as_a_whole(self, keys: Keys) -> None:
        await keys.fill("d/plain", *self.odd)
        before = await keys.all()
        for call in ("copy", "move"):
            fields = {"src_path": f"{keys.root}/d", "dest_path": "file:///shared/carried"}
            refused = await keys.user.post(f"storage/{call}", **fields)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name"), refused.text
        assert await keys.all() == before
        assert (await keys.user.get("storage/list", path="file:///shared")).json()["files"] == []
        # A single file with such a name can be copied to the local root under another name.
        fields = {"src_path": f"{keys.root}/d/{_EMPTY}/x", "dest_path": "file:///shared/x"}
        assert (await keys.user.post("storage/copy", **fields)).status_code == 200
        assert (await keys.user.get("storage/display", path="file:///shared/x")).json()["contents"] == "d//x"


@pytest.mark.engine("s3")
@pytest.mark.engine("azurite")
class TestS3Keys(FlatKeysContract):
    odd = ("d//x", "d//y//z", "d/./x", "d/a/../x", "d/../x", "d/sub/", "d/" + "l" * 300, "d/t/" + "é" * 128 + "/x")

    @pytest.fixture
    def keys(self, s3_keys: Keys) -> Keys:
        return s3_keys

    @pytest.mark.storage(99)
    async def test_listings_show_escaped_names(self, keys: Keys) -> None:
        await keys.fill("d//x", "d/./x", "d/a/../x", "d/sub/", "d/sub/y")
        assert sorted(await keys.names("d")) == sorted([_EMPTY, _DOT, "a", "sub"])
        assert await keys.names("d/a") == [_DOTS]
        assert await keys.names("d/sub") == [_MARKER, "y"]


@pytest.mark.engine("azurite")
class TestAzureKeys(FlatKeysContract):
    odd = ("d//x", "d//y//z", "d/sub/", "d/" + "l" * 300, "d/t/" + "é" * 128 + "/x")

    @pytest.fixture
    def keys(self, azure_keys: Keys) -> Keys:
        return azure_keys


@pytest.mark.engine("s3")
@pytest.mark.engine("azurite")
async def test_dot_names_in_azure_are_listed_and_their_tree_is_refused_before_any_change(
    azure_keys: Keys, flat_s3_server: S3Address
) -> None:
    """An S3 gateway to the same account creates these names, because the Azure client cannot create them."""
    container, connection = azure_keys.root.removeprefix("abfs://"), S3Connection(s3_options(flat_s3_server))
    client = await connection._open_client()
    planted = ("d/./x", "d/a/../x", "d/plain", "x")
    for key in planted:
        await client.put_object(Bucket=container, Key=key, Body=key.encode())
    assert await azure_keys.names("d") == [_DOT, "a", "plain"]
    for call, target in (("copy", "e"), ("rename", "e"), ("move", "e"), ("rmtree", "")):
        refused = await azure_keys.post(call, "d", target)
        assert refused.status_code == 400, refused.text
        assert refused.json()["code"] in {"invalid_name", "not_a_file"}, refused.text
    listed = (await client.list_objects_v2(Bucket=container))["Contents"]
    assert sorted(entry["Key"] for entry in listed if entry["Size"]) == sorted(planted)
    await connection.close()


@pytest.fixture
def strange(files: Files, folder: str) -> Path:
    """A directory in the local root that contains names which are not valid UTF-8."""
    top = files.root / folder
    (top / "d" / os.fsdecode(b"in\xff")).mkdir(parents=True)
    try:
        (top / "d" / os.fsdecode(b"in\xff") / os.fsdecode(b"\xe9")).write_bytes(b"inner")
        (top / "d" / os.fsdecode(b"caf\xe9.csv")).write_bytes(b"outer")
    except OSError:
        pytest.skip("this file system accepts UTF-8 names only")
    return top


def _found(top: Path) -> dict[bytes, bytes]:
    return {os.fsencode(file.relative_to(top)): file.read_bytes() for file in top.rglob("*") if file.is_file()}


_OUTER, _INNER = b"caf\xe9.csv", b"in\xff/\xe9"


@pytest.mark.storage(101)
async def test_local_non_utf8_names_are_listed_and_carried_by_every_call(
    strange: Path, folder: str, ana: Caller
) -> None:
    root = f"file:///{folder}"
    listed = (await ana.get("storage/list", path=f"{root}/d")).json()["files"]
    assert sorted(entry["name"] for entry in listed) == [escaped_name(b"caf\xe9.csv"), escaped_name(b"in\xff")]
    file = f"{root}/d/{escaped_name(_OUTER)}"
    assert (await ana.get("storage/display", path=file)).json()["contents"] == "outer"
    assert (await ana.get("storage/download", path=file)).content == b"outer"
    for call, target in (("copy", "e"), ("move", "f"), ("rename", "g")):
        source = "d" if call != "rename" else "f"
        done = await ana.post(f"storage/{call}", src_path=f"{root}/{source}", dest_path=f"{root}/{target}")
        assert done.status_code == 200, done.text
    whole = {_OUTER: b"outer", _INNER: b"inner"}
    assert _found(strange) == {b"%s/%s" % (top, name): data for top in (b"e", b"g") for name, data in whole.items()}
    renamed = await ana.post("storage/rename", src_path=f"{root}/g/{escaped_name(_OUTER)}", dest_path="café.csv")
    assert renamed.status_code == 200, renamed.text
    assert (strange / "g" / "café.csv").read_bytes() == b"outer"


@pytest.mark.storage(101)
async def test_local_non_utf8_names_are_trashed_and_restored(strange: Path, folder: str, ana: Caller) -> None:
    root = f"file:///{folder}"
    for path in (f"{root}/d", f"{root}/d/{escaped_name(_OUTER)}"):
        before = _found(strange)
        trashed = (await ana.post("storage/rmtree", path=path, skip_trash=False)).json()
        assert trashed["trashed"] is True
        restored = await ana.post("storage/trash/restore", path=trashed["trash_path"])
        assert restored.status_code == 200, restored.text
        assert _found(strange) == before
    for content in (b"outer", b"again"):  # the second file gets a different name in the trash
        (strange / "d" / os.fsdecode(_OUTER)).write_bytes(content)
        trashed = (await ana.post("storage/rmtree", path=f"{root}/d/{escaped_name(_OUTER)}", skip_trash=False)).json()
        assert (await ana.get("storage/download", path=trashed["trash_path"])).content == content


@pytest.mark.storage(101)
async def test_new_entries_cannot_have_escaped_names(folder: str, ana: Caller) -> None:
    path = f"file:///{folder}/{escaped_name(_OUTER)}"
    for call in ("mkdir", "touch"):
        assert (await ana.post(f"storage/{call}", path=path)).json()["code"] == "invalid_name"
    other = await ana.post("storage/rename", src_path=f"file:///{folder}", dest_path=escaped_name(_OUTER))
    assert other.json()["code"] == "invalid_name"
    assert (await ana.get("storage/stat", path=f"file:///{folder}/{_DOTS}")).json()["code"] == "invalid_path"
