"""Azure credentials: from the settings to the request headers."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.protocol import ModeStorage, RenamingStorage
from queryserver.files.stores.adls import file_system as abfs
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.http import (
    UNREACHABLE,
    AzureAccount,
    AzureFailure,
    ClientCredentials,
    SasToken,
    SharedKey,
    TokenAuthorizer,
    signature,
    string_to_sign,
)
from queryserver.platform.settings.tree import Settings

URL = httpx.URL("https://account.dfs.core.windows.net/c/a%20b?action=flush")
APPLICATION = ClientCredentials("tenant", "client", "secret", "https://login.example/")


class Login:
    """A login service with a clock that counts seconds."""

    def __init__(self, life: object = 3600) -> None:
        self.life = life
        self.now = 1000.0
        self.asked: list[tuple[str, bytes]] = []
        self.is_down = False

    async def ask(self, url: str, form: bytes) -> Mapping[str, object]:
        self.asked.append((url, form))
        await asyncio.sleep(0)
        if self.is_down:
            raise AzureFailure(0, UNREACHABLE)
        return {"access_token": f"token{len(self.asked)}", "expires_in": self.life}

    def clock(self) -> float:
        return self.now


async def bearer(granting) -> str:
    headers: dict[str, str] = {}
    assert await granting.authorize("GET", URL, headers) == URL
    return headers["authorization"]


async def test_token_is_renewed_before_it_expires():
    login = Login()
    granting = TokenAuthorizer(APPLICATION, login.ask, login.clock)
    assert await bearer(granting) == "Bearer token1"
    login.now += 3299
    assert await bearer(granting) == "Bearer token1"
    login.now += 2
    assert await bearer(granting) == "Bearer token2"


async def test_short_token_is_renewed_at_half_its_lifetime():
    login = Login(life="100")
    granting = TokenAuthorizer(APPLICATION, login.ask, login.clock)
    await bearer(granting)
    login.now += 49
    assert await bearer(granting) == "Bearer token1"
    login.now += 2
    assert await bearer(granting) == "Bearer token2"


async def test_token_stays_valid_during_a_login_service_outage():
    login = Login()
    granting = TokenAuthorizer(APPLICATION, login.ask, login.clock)
    await bearer(granting)
    login.is_down = True
    login.now += 3400
    assert await bearer(granting) == "Bearer token1"
    login.now += 201
    with pytest.raises(AzureFailure):
        await bearer(granting)


async def test_concurrent_callers_share_a_token_request():
    login = Login()
    granting = TokenAuthorizer(APPLICATION, login.ask, login.clock)
    assert set(await asyncio.gather(*(bearer(granting) for _ in range(20)))) == {"Bearer token1"}
    ((url, form),) = login.asked
    assert url == "https://login.example/tenant/oauth2/v2.0/token"
    assert b"scope=https%3A%2F%2Fstorage.azure.com%2F.default" in form


@pytest.mark.parametrize("life", [None, "soon"])
async def test_response_without_a_token_is_a_failure(life):
    login = Login(life)
    with pytest.raises(AzureFailure):
        await bearer(TokenAuthorizer(APPLICATION, login.ask, login.clock))


@pytest.mark.parametrize("token", ["?sv=1&sig=a%2Bb%3D", "sv=1&sig=a%2Bb%3D", " ?sv=1&sig=a%2Bb%3D\n"])
async def test_sas_token_is_appended_to_the_query_unchanged(token):
    signing = SasToken(token)
    signed = await signing.authorize("GET", URL, {})
    assert signed.raw_path == b"/c/a%20b?action=flush&sv=1&sig=a%2Bb%3D"
    bare = await signing.authorize("GET", URL.copy_with(query=None), {})
    assert bare.raw_path == b"/c/a%20b?sv=1&sig=a%2Bb%3D"


def test_invalid_base64_key_is_reported_at_startup():
    with pytest.raises(ConfigurationError, match="account_key"):
        SharedKey("account", "not base64!")


@pytest.mark.security("S13")
@pytest.mark.parametrize("credential", [APPLICATION, SasToken("sig=secret"), SharedKey("account", "secretly")])
def test_secrets_are_hidden_in_repr(credential):
    assert "secret" not in repr(credential)
    assert "client" not in repr(credential)


COMMON = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
REFERENCE = (
    "GET\n\n\n\n\n\n\n\n\n\n\n\n"
    "x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
    "/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
)


def test_reference_example_is_reproduced():
    """The example is from "Authorize with Shared Key", section "Constructing the signature string"."""
    query = [("restype", "container"), ("comp", "metadata"), ("timeout", "20")]
    assert string_to_sign("myaccount", "GET", "/mycontainer", query, COMMON) == REFERENCE


def test_headers_appear_on_their_lines():
    headers = {**COMMON, "content-length": "11", "content-type": "text/plain", "range": "bytes=0-9", "if-match": '"1"'}
    lines = string_to_sign("a", "PUT", "/c/%C3%BC", [], headers).split("\n")
    assert lines[:12] == ["PUT", "", "", "11", "", "text/plain", "", "", '"1"', "", "", "bytes=0-9"]
    assert lines[-1] == "/a/c/%C3%BC"


@pytest.mark.parametrize(("length", "line"), [("0", ""), ("1", "1")])
def test_zero_length_is_an_empty_line(length, line):
    assert string_to_sign("a", "PUT", "/c", [], {"content-length": length}).split("\n")[3] == line


def test_parameters_are_lowercased_and_sorted_and_values_joined():
    query = [("maxResults", "5"), ("b", "2"), ("a", "y"), ("a", "x")]
    assert string_to_sign("a", "GET", "/", query, {}).split("\n")[-3:] == ["a:x,y", "b:2", "maxresults:5"]


def test_signature_depends_on_the_key_and_not_on_header_order():
    first, second = (signature(key, "a", "GET", "/", [], COMMON) for key in (b"one", b"two"))
    assert first != second
    assert first == signature(b"one", "a", "GET", "/", [], dict(reversed(COMMON.items())))


NAME = "abfs://lake@acc.dfs.core.windows.net"
KEY = {"account_key": "a2V5"}


@pytest.fixture
def built(monkeypatch):
    """Return a function that builds the file system from settings and returns its account."""
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


def test_no_cluster_means_no_store():
    assert abfs.build(Settings.model_validate({})) is None


def test_addresses_are_derived_from_the_file_system_name(built):
    account = built({"fs_defaultfs": NAME}, KEY, umask="027", allow_bucket_creation=True)
    assert (account.dfs_url, account.blob_url) == (
        "https://acc.dfs.core.windows.net",
        "https://acc.blob.core.windows.net",
    )
    assert account.credential == SharedKey("acc", "a2V5")
    assert (account.is_hierarchical, account.umask, account.allow_container_creation) == (True, 0o027, True)


def test_addresses_may_be_configured(built):
    cluster = {"fs_defaultfs": NAME, "webhdfs_url": "http://dfs.test:1/", "blob_url": "http://blob.test:2/acc/"}
    account = built({**cluster, "hierarchical_namespace": False}, KEY)
    assert (account.dfs_url, account.blob_url) == ("http://dfs.test:1", "http://blob.test:2/acc")
    assert account.url == account.blob_url


@pytest.mark.parametrize(
    ("account", "credential"),
    [
        ({**KEY, "sas_token": "sig=1"}, SharedKey("acc", "a2V5")),
        ({"sas_token": "?sig=1", "tenant_id": "t", "client_id": "c"}, SasToken("?sig=1")),
        (
            {"tenant_id": "t", "client_id": "c", "client_secret": "s", "login_url": "https://login.test"},
            ClientCredentials("t", "c", "s", "https://login.test"),
        ),
    ],
)
def test_first_configured_login_is_used(built, account, credential):
    assert built({"fs_defaultfs": NAME}, account).credential == credential


@pytest.mark.parametrize(
    ("cluster", "account", "key"),
    [
        ({"fs_defaultfs": NAME}, {}, "azure_accounts"),
        ({"fs_defaultfs": NAME}, {"tenant_id": "t"}, "azure_accounts"),
        ({}, KEY, "fs_defaultfs"),
        ({"fs_defaultfs": NAME, "webhdfs_url": "acc.dfs.core.windows.net"}, KEY, "webhdfs_url"),
        ({"fs_defaultfs": NAME, "blob_url": "file:///etc"}, KEY, "blob_url"),
    ],
)
def test_missing_setting_is_named(cluster, account, key):
    with pytest.raises(ConfigurationError, match=key):
        abfs.build(settings(cluster, account))


@pytest.mark.parametrize("is_hierarchical", [True, False])
def test_only_hierarchical_accounts_rename_and_have_permissions(is_hierarchical):
    cluster = {"fs_defaultfs": NAME, "hierarchical_namespace": is_hierarchical}
    file_system = abfs.build(settings(cluster, KEY))
    assert file_system is not None
    storage = file_system.as_user(StorageUser("alice"))
    assert isinstance(storage, RenamingStorage) is is_hierarchical
    assert isinstance(storage, ModeStorage) is is_hierarchical
    assert (file_system.scheme, file_system.traits.container_levels) == (Scheme.ABFS, 1)
    assert not file_system.traits.changes_modes_of_trees
