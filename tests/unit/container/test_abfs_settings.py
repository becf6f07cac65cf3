"""Which Azure account the settings mean."""

import pytest
from tests.cases import each

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.protocol import ModeStorage, RenamingStorage
from queryserver.files.stores.adls import file_system as abfs
from queryserver.files.stores.adls.credentials import AzureAccount, ClientCredentials, SasToken, SharedKey
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.platform.settings.tree import Settings

NAME = "abfs://lake@acc.dfs.core.windows.net"
KEY = {"account_key": "a2V5"}


@pytest.fixture
def built(monkeypatch):
    """The account that the file system was made for."""
    accounts: list[AzureAccount] = []
    made = AdlsFileSystem.__init__

    def remembering(self: AdlsFileSystem, account: AzureAccount) -> None:
        accounts.append(account)
        made(self, account)

    monkeypatch.setattr(AdlsFileSystem, "__init__", remembering)

    def build(cluster: dict[str, object], account: dict[str, object], **filebrowser: object) -> AzureAccount:
        assert abfs.build(settings(cluster, account, **filebrowser)) is not None
        return accounts.pop()

    return build


def settings(cluster: dict[str, object], account: dict[str, object], **filebrowser: object) -> Settings:
    azure = {"abfs_clusters": {"default": cluster}, "azure_accounts": {"default": account}}
    return Settings.model_validate({"azure": azure, "filebrowser": filebrowser})


def test_without_a_cluster_there_is_no_store():
    assert abfs.build(Settings.model_validate({})) is None


def test_addresses_follow_from_the_name_of_the_file_system(built):
    account = built({"fs_defaultfs": NAME}, KEY, umask="027", allow_bucket_creation=True)
    assert (account.dfs_url, account.blob_url) == (
        "https://acc.dfs.core.windows.net",
        "https://acc.blob.core.windows.net",
    )
    assert account.credential == SharedKey("acc", "a2V5")
    assert (account.is_hierarchical, account.umask, account.allow_container_creation) == (True, 0o027, True)


def test_addresses_may_be_given(built):
    cluster = {"fs_defaultfs": NAME, "webhdfs_url": "http://dfs.test:1/", "blob_url": "http://blob.test:2/acc/"}
    account = built({**cluster, "hierarchical_namespace": False}, KEY)
    assert (account.dfs_url, account.blob_url) == ("http://dfs.test:1", "http://blob.test:2/acc")
    assert account.url == account.blob_url


@each(
    ("account", "credential"),
    ({**KEY, "sas_token": "sig=1"}, SharedKey("acc", "a2V5")),
    ({"sas_token": "?sig=1", "tenant_id": "t", "client_id": "c"}, SasToken("?sig=1")),
    (
        {"tenant_id": "t", "client_id": "c", "client_secret": "s", "login_url": "https://login.test"},
        ClientCredentials("t", "c", "s", "https://login.test"),
    ),
)
def test_the_first_login_that_is_given_counts(built, account, credential):
    assert built({"fs_defaultfs": NAME}, account).credential == credential


@each(
    ("cluster", "account", "key"),
    ({"fs_defaultfs": NAME}, {}, "azure_accounts"),
    ({"fs_defaultfs": NAME}, {"tenant_id": "t"}, "azure_accounts"),
    ({}, KEY, "fs_defaultfs"),
    ({"fs_defaultfs": NAME, "webhdfs_url": "acc.dfs.core.windows.net"}, KEY, "webhdfs_url"),
    ({"fs_defaultfs": NAME, "blob_url": "file:///etc"}, KEY, "blob_url"),
)
def test_what_is_missing_is_told_by_its_key(cluster, account, key):
    with pytest.raises(ConfigurationError, match=key):
        abfs.build(settings(cluster, account))


@each("is_hierarchical", True, False)
def test_only_a_hierarchical_account_renames_and_has_permissions(is_hierarchical):
    cluster = {"fs_defaultfs": NAME, "hierarchical_namespace": is_hierarchical}
    file_system = abfs.build(settings(cluster, KEY))
    assert file_system is not None
    storage = file_system.as_user(StorageUser("alice"))
    assert isinstance(storage, RenamingStorage) is is_hierarchical
    assert isinstance(storage, ModeStorage) is is_hierarchical
    assert (file_system.scheme, file_system.traits.container_levels) == (Scheme.ABFS, 1)
    assert not file_system.traits.changes_modes_of_trees
