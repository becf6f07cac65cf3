"""The S3 store that is built from the account in the settings."""

import pytest

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import Scheme
from queryserver.files.stores.s3 import storage as s3a
from queryserver.files.stores.s3.connection import S3Keys
from queryserver.files.stores.s3.storage import options_of
from queryserver.platform.settings.tree import Settings

KEYS = {"access_key_id": "AKIA0", "secret_access_key": "very secret"}


def settings(account: dict[str, object], **filebrowser: object) -> Settings:
    return Settings.model_validate({"aws": {"aws_accounts": {"default": account}}, "filebrowser": filebrowser})


def test_no_account_means_no_store():
    assert s3a.build(Settings()) is None


async def test_account_builds_a_store_without_connecting():
    file_system = s3a.build(settings(KEYS))
    assert file_system is not None
    assert file_system.scheme is Scheme.S3A
    await file_system.close()


def test_keys_and_address_come_from_the_account():
    options = options_of(
        settings({**KEYS, "security_token": "t", "endpoint": "store:9000", "is_secure": False, "path_style": True})
    )
    assert options is not None
    assert options.keys == S3Keys("AKIA0", "very secret", "t")
    assert (options.endpoint_url, options.path_style) == ("http://store:9000", True)
    assert "secret" not in repr(options).replace("is_secure", "")


@pytest.mark.parametrize(("endpoint", "is_secure", "url"),
    [("", True, None), ("store", True, "https://store"), ("http://store:9000", True, "http://store:9000"),
    ("https://store", False, "https://store")])  # fmt: skip
def test_scheme_in_the_address_overrides_is_secure(endpoint, is_secure, url):
    options = options_of(settings({**KEYS, "endpoint": endpoint, "is_secure": is_secure}))
    assert options is not None
    assert options.endpoint_url == url


@pytest.mark.parametrize("half", [{"access_key_id": "AKIA0"}, {"secret_access_key": "very secret"}])
def test_incomplete_login_is_a_configuration_error(half):
    with pytest.raises(ConfigurationError, match="set together"):
        options_of(settings(half))


@pytest.mark.security("T8")
def test_environment_credentials_are_used_only_if_allowed():
    options = options_of(settings({}))
    assert options is not None
    assert options.keys is None
    with pytest.raises(ConfigurationError, match="not allowed"):
        options_of(settings({"allow_environment_credentials": False}))


def test_buckets_of_other_stores_are_ignored():
    options = options_of(settings(KEYS, buckets="lake, s3a://raw/, abfs://box, S3://old", allow_bucket_creation=True))
    assert options is not None
    assert options.buckets == ("lake", "raw", "old")
    assert options.allow_bucket_creation
