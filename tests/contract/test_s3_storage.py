"""The Storage contract over a real S3 server, and what is particular to object stores."""

import pytest
from tests.contract.storage_basis import USER
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_facts import StorageFacts
from tests.engines.versitygw import S3Address

from queryserver.files.stores.s3.connection import S3Keys, S3Options
from queryserver.files.stores.s3.storage import S3FileSystem

BUCKET = "contract"


def options(address: S3Address, **changes) -> S3Options:
    keys = S3Keys(address.access_key_id, address.secret_access_key)
    settings = {"endpoint": address.url, "path_style": True, "keys": keys, "allow_bucket_creation": True}
    return S3Options(**{**settings, **changes})


@pytest.fixture(scope="module")
async def shared_file_system(s3_server):
    """One for all tests: making its client reads the description of the whole API."""
    file_system = S3FileSystem(options(s3_server))
    await file_system.as_user(USER).mkdir(BUCKET)
    yield file_system
    await file_system.close()


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
