"""The storage contract on a real S3 server, and tests specific to object stores."""

from contextlib import suppress
from uuid import uuid4

import pytest
from tests.contract.storage_basis import USER, content, entries, names
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_escapes import EscapesContract, Plant, Raw
from tests.contract.storage_facts import StorageFacts
from tests.contract.store_accounts import s3_options

from queryserver.errors.files import AmbiguousName, DirectoryNotEmpty, PathExists
from queryserver.files.model import escaped_file_name
from queryserver.files.stores.s3.storage import S3FileSystem

BUCKET = "contract"


@pytest.fixture(scope="module")
async def shared_file_system(s3_server):
    """Share one file system among all tests, because each new client parses the whole API description."""
    file_system = S3FileSystem(s3_options(s3_server))
    await file_system.as_user(USER).mkdir(BUCKET)
    yield file_system
    await file_system.close()


@pytest.fixture(scope="module")
async def flat_file_system(flat_s3_server):
    file_system = S3FileSystem(s3_options(flat_s3_server))
    with suppress(PathExists):
        await file_system.as_user(USER).mkdir(BUCKET)
    yield file_system
    await file_system.close()


@pytest.mark.engine("s3")
@pytest.mark.engine("azurite")
class TestFlatS3(EscapesContract):
    """The tests for unrepresentable names, with a gateway that stores keys in a flat account. In a directory, the
    gateway cannot store keys that are not valid file paths.
    """

    facts = StorageFacts(
        "S3",
        place=BUCKET,
        unnameable=(b"d//x", b"d/./x", b"d/../x", b"d/a/../x", b"//two", b"d/sub/", b"l" * 300 + b"/x", b"l" * 256),
    )
    tested_with = "Versity S3 Gateway 1.8 over Azurite 3.37"

    @pytest.fixture
    def file_system(self, flat_file_system):
        return flat_file_system

    @pytest.fixture
    async def client(self, flat_file_system):
        return await flat_file_system._connection._open_client()

    @pytest.fixture
    def plant(self, client) -> Plant:
        async def plant(directory: str, name: bytes) -> None:
            key = f"{directory.removeprefix(f'{BUCKET}/')}/{name.decode()}"
            await client.put_object(Bucket=BUCKET, Key=key, Body=name)

        return plant

    @pytest.fixture
    def raw(self, client) -> Raw:
        async def raw(directory: str) -> set[bytes]:
            prefix = f"{directory}/".removeprefix(f"{BUCKET}/")
            found = (await client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)).get("Contents", ())
            return {entry["Key"].removeprefix(prefix).encode() for entry in found if entry["Size"]}

        return raw

    @pytest.mark.storage(99)
    async def test_key_with_leading_slash_is_shown_and_moved(self, storage, client):
        bucket = f"lead{uuid4().hex[:8]}"
        await storage.mkdir(bucket)
        await client.put_object(Bucket=bucket, Key="/lead.txt", Body=b"led")
        (directory,) = await entries(storage, bucket)
        assert (directory.path, directory.is_directory) == (f"{bucket}/._qs_name_", True)
        assert (await storage.stat(directory.path)).is_directory
        (file,) = await entries(storage, directory.path)
        assert (file.path, await content(storage, file.path)) == (f"{bucket}/._qs_name_/lead.txt", b"led")
        with pytest.raises(DirectoryNotEmpty):
            await storage.delete(bucket, recursive=True)
        await storage.copy(file.path, f"{bucket}/lead.txt")
        await storage.delete(directory.path, recursive=True)
        assert await names(storage, bucket) == ["lead.txt"]

    @pytest.mark.storage(100)
    async def test_file_beside_directory_of_same_name_is_refused_unless_named_exactly(self, storage, base, client):
        for key in ("d", "d/x", "d-x"):
            await client.put_object(Bucket=BUCKET, Key=f"{base.removeprefix(f'{BUCKET}/')}/{key}", Body=key.encode())
        shown = [(entry.name, entry.is_directory) for entry in await entries(storage, base)]
        assert sorted(shown) == [("d", False), ("d", True), ("d-x", False)]
        assert await storage.is_ambiguous(f"{base}/d")
        assert not await storage.is_ambiguous(f"{base}/d-x")
        with pytest.raises(AmbiguousName, match=f"the path of the file is .*/{escaped_file_name(b'd')}"):
            await storage.delete(f"{base}/d", recursive=True)
        alone = f"{base}/{escaped_file_name(b'd')}"
        assert await content(storage, alone) == b"d"
        await storage.copy(alone, f"{base}/file")
        await storage.delete(alone, recursive=True)
        assert await names(storage, base) == ["d", "d-x", "file"]
        assert await names(storage, f"{base}/d") == ["x"]

    @pytest.mark.storage(99)
    async def test_directory_marker_with_content_is_not_empty(self, storage, base, plant):
        await plant(base, b"sub/")
        with pytest.raises(DirectoryNotEmpty):
            await storage.delete(f"{base}/sub", recursive=False)
        await storage.delete(f"{base}/sub/{escaped_file_name(b'')}", recursive=False)
        assert (await storage.stat(f"{base}/sub")).is_directory
        await storage.delete(f"{base}/sub", recursive=False)
        assert await names(storage, base) == []


@pytest.mark.engine("s3")
class TestS3(StorageContract):
    facts = StorageFacts(
        "S3",
        place=BUCKET,
        reads_parts=False,
        has_directories=False,
        default_permissions=(0o777, 0o666),
        server_words=("127.0.0.1", "RequestId", "arn:", "<", "Error"),
    )
    tested_with = "Versity S3 Gateway 1.8"

    @pytest.fixture
    def file_system(self, shared_file_system):
        return shared_file_system
