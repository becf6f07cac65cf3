"""Accounts on the object stores that the tests start: Azurite and the Versity gateway."""

from typing import Any

from tests.engines.azurite import ACCOUNT, ACCOUNT_KEY
from tests.engines.versitygw import S3Address

from queryserver.files.stores.adls.http import AzureAccount, AzureTimeouts, SharedKey
from queryserver.files.stores.s3.connection import S3Keys, S3Options

PATIENT = AzureTimeouts(connect_s=30, answer_s=30, commit_s=30, first_retry_s=0.01)


def flat_account(port: int) -> AzureAccount:
    return AzureAccount(
        dfs_url="http://127.0.0.1:9",
        blob_url=f"http://127.0.0.1:{port}/{ACCOUNT}",
        credential=SharedKey(ACCOUNT, ACCOUNT_KEY),
        is_hierarchical=False,
        allow_container_creation=True,
        timeouts=PATIENT,
    )


def s3_options(address: S3Address, **changes: Any) -> S3Options:
    keys = S3Keys(address.access_key_id, address.secret_access_key)
    settings = {"endpoint": address.url, "path_style": True, "keys": keys, "allow_bucket_creation": True}
    return S3Options(**{**settings, **changes})
