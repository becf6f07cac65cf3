"""The result stores that the setting `result_file_storage` describes; building them opens no connection."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_commands import command_in

from queryserver.errors.base import ConfigurationError
from queryserver.files.stores.adls.dfs import HierarchicalStorage
from queryserver.files.stores.adls.flat import AzureFlatStorage
from queryserver.files.stores.adls.http import ClientCredentials, SharedKey
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.platform.settings.tree import Settings
from queryserver.results.stores import build_result_files, is_remote

_KEY = "a2V5IG9mIGFuIGFjY291bnQ="  # valid base64, but no real key


def settings(backend: str | None, tables: dict[str, Any] | None = None, **properties: str) -> Settings:
    task_server = {}
    if backend is not None:
        task_server = {"result_file_storage": json.dumps({"backend": backend, "properties": properties})}
    return Settings.model_validate({"desktop": {"task_server": task_server}, **(tables or {})})


@pytest.fixture
async def built():
    """Provide a function that builds the store that the settings describe; close these stores at the end."""
    opened = []

    def build(*arguments: Any, **properties: str):
        opened.append(build_result_files(settings(*arguments, **properties)))
        return opened[-1]

    yield build
    for files in opened:
        await files.close()


async def test_default_results_are_below_the_data_directory(tmp_path, monkeypatch, built):
    monkeypatch.chdir(tmp_path)
    files = built(None)
    assert isinstance(files.storage, PrivateStorage)
    assert (files.root, files.is_remote) == ("", False)
    assert (tmp_path / "queryserver-data" / "results").is_dir()


@pytest.mark.platform(111)
@pytest.mark.parametrize("name", ["local", "django.core.files.storage.FileSystemStorage"])
async def test_local_store_uses_its_own_private_directory(tmp_path, built, name):
    files = built(name, location=str(tmp_path / name))
    assert isinstance(files.storage, PrivateStorage)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.platform(111)
async def test_settings_reach_the_s3_client(built):
    files = built(
        "s3",
        location="s3a://results/of/ours/",
        region="eu-west-3",
        endpoint="https://s3.example.org:9000",
        access_key_id="one",
        secret_access_key="two",
        session_token="three",
        sse="aws:kms",
    )
    options = files.storage._connection.options
    assert (files.root, files.is_remote) == ("results/of/ours", True)
    assert (options.region, options.endpoint_url, options.path_style) == (
        "eu-west-3",
        "https://s3.example.org:9000",
        True,
    )
    assert (options.keys.access_key_id, options.keys.secret_access_key, options.keys.session_token) == (
        "one",
        "two",
        "three",
    )
    assert options.encryption == "aws:kms"


async def test_s3_defaults_to_aws_with_environment_credentials(built):
    files = built("storages.backends.s3boto3.S3Boto3Storage", location="s3a://results")
    options = files.storage._connection.options
    assert (options.keys, options.endpoint_url, options.region, options.path_style) == (None, None, "", False)


async def test_aws_host_names_contain_the_bucket(built):
    files = built("s3", location="s3a://results", endpoint="https://s3.eu-west-3.amazonaws.com")
    assert not files.storage._connection.options.path_style


CLUSTERS = {
    "hadoop": {
        "hdfs_clusters": {
            "first": {"fs_defaultfs": "hdfs://one:8020", "webhdfs_url": "http://one:9870/webhdfs/v1"},
            "second": {
                "fs_defaultfs": "hdfs://two:8020",
                "webhdfs_url": "http://two:9870/webhdfs/v1",
                "service_user": "svc",
            },
        }
    }
}


@pytest.mark.platform(111)
@pytest.mark.parametrize(
    ("properties", "address", "user"),
    [
        ({"location": "hdfs:///results"}, "http://one:9870/webhdfs/v1", "queryserver"),
        ({"location": "hdfs://two:8020/results"}, "http://two:9870/webhdfs/v1", "svc"),
        ({"location": "hdfs:///results", "user": "spool"}, "http://one:9870/webhdfs/v1", "spool"),
        (
            {"location": "hdfs:///results", "webhdfs_url": "http://other:9870/webhdfs/v1"},
            "http://other:9870/webhdfs/v1",
            "queryserver",
        ),
    ],
)
async def test_hdfs_uses_the_configured_cluster_unless_overridden(built, properties, address, user):
    files = built("hdfs", CLUSTERS, **properties)
    tree, path = files.storage.at(f"{files.root}/x")
    assert (files.root, path) == ("results", "results/x")
    assert list(tree._gateway._urls) == [address]
    assert (tree._gateway._service_user, tree.user) == (user, user)


@pytest.mark.platform(111)
@pytest.mark.parametrize(
    ("location", "kind", "url"),
    [
        ("abfs://c@acc.dfs.core.windows.net/a/b", HierarchicalStorage, "https://acc.dfs.core.windows.net"),
        ("abfss://c@acc.blob.core.windows.net/a/b", AzureFlatStorage, "https://acc.blob.core.windows.net"),
    ],
)
async def test_host_determines_the_kind_of_azure_account(built, location, kind, url):
    files = built("abfs", location=location, account_key=_KEY)
    assert isinstance(files.storage, kind)
    assert (files.root, files.storage._account.url) == ("c/a/b", url)
    assert files.storage._account.credential == SharedKey("acc", _KEY)


async def test_configured_cluster_provides_the_account_addresses(built):
    cluster = {
        "fs_defaultfs": "abfs://other@acc.dfs.core.windows.net",
        "blob_url": "http://127.0.0.1:10000/acc",
        "hierarchical_namespace": False,
    }
    files = built(
        "abfs",
        {"azure": {"abfs_clusters": {"default": cluster}}},
        location="abfs://c@acc.dfs.core.windows.net/a",
        tenant_id="tenant",
        client_id="client",
        client_secret="planted",
    )
    account = files.storage._account
    assert account.url == "http://127.0.0.1:10000/acc"
    assert account.credential == ClientCredentials("tenant", "client", "planted")


@pytest.mark.platform(111)
@pytest.mark.parametrize(
    ("backend", "properties"),
    [
        ("s3", {"location": "s3a://key:planted@bucket/x"}),
        ("s3", {"location": "s3a://bucket/a//b"}),
        ("s3", {"location": "s3a://bucket/../x"}),
        ("s3", {"location": "s3a://bucket", "access_key_id": "planted"}),
        ("s3", {"location": "s3a://bucket", "secret_access_key": "planted"}),
        ("s3", {"location": "s3a://bucket", "session_token": "planted"}),
        ("s3", {"location": "s3a://bucket", "endpoint": "https://me:planted@host"}),
        ("s3", {"location": "s3a://bucket", "endpoint": "host:9000"}),
        ("hdfs", {"location": "hdfs:///results"}),
        ("hdfs", {"location": "hdfs:///", "webhdfs_url": "http://one:9870/webhdfs/v1"}),
        ("hdfs", {"location": "hdfs://three:8020/x"}),
        ("hdfs", {"location": "hdfs:///x", "webhdfs_url": "http://me:planted@one/webhdfs/v1"}),
        ("abfs", {"location": "abfs://c@acc.dfs.core.windows.net/x"}),
        ("abfs", {"location": "abfs://c@acc.dfs.core.windows.net/x", "account_key": "planted!"}),
        ("abfs", {"location": "abfs://c@acc.dfs.core.windows.net/x", "client_id": "a", "client_secret": "planted"}),
    ],
)
def test_unusable_value_is_a_settings_problem_without_secrets(backend, properties):
    with pytest.raises(ConfigurationError) as failed:
        build_result_files(settings(backend, **properties))
    text = str(failed.value) + " ".join(failed.value.problems)
    assert text.count("desktop.task_server.result_file_storage") >= 1
    assert "planted" not in text


@pytest.mark.parametrize("kind", ["a dangling link", "a file"])
def test_unusable_directory_is_a_settings_problem(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "results"
    if kind == "a file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "unmounted" / "results")
    with pytest.raises(ConfigurationError, match="result_file_storage"):
        build_result_files(settings("local", location=str(place)))


@pytest.mark.platform(111)
@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        '"s3"',
        '{"backend": "s3"}',
        '{"backend": "gcs", "properties": {"location": "gs://x"}}',
        '{"backend": "s3", "properties": {"location": "s3a://x", "acl": "planted"}}',
        '{"backend": "s3", "properties": {"location": "s3a://x", "sse": "planted"}}',
        '{"backend": "s3", "properties": {"location": "/x"}}',
        '{"backend": "local", "properties": {"location": ""}}',
        '{"backend": "local", "properties": {"location": "/x"}, "planted": 1}',
    ],
)
def test_invalid_store_is_an_invalid_setting(value):
    with pytest.raises(ValueError, match="result_file_storage") as failed:
        Settings.model_validate({"desktop": {"task_server": {"result_file_storage": value}}})
    assert "planted" not in str(failed.value).replace("unknown key planted", "").replace("property", "")


def test_only_local_directories_are_not_remote():
    assert not is_remote(settings(None))
    assert not is_remote(settings("local", location="/x"))
    assert is_remote(settings("s3", location="s3a://x"))


@pytest.mark.platform(111)
@pytest.mark.parametrize(
    "value",
    [
        "{",
        '{"backend": "gcs", "properties": {"location": "gs://x"}}',
        '{"backend": "s3", "properties": {}}',
        '{"backend": "s3", "properties": {"location": "s3a://bucket", "access_key_id": "planted"}}',
    ],
)
async def test_configuration_check_exits_with_3(tmp_path, value):
    command = command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL="postgresql://nobody@127.0.0.1:1/none",
        QUERYSERVER__DESKTOP__TASK_SERVER__RESULT_FILE_STORAGE=value,
    )
    ended = await command("config", "check", "--offline")
    assert ended.code == 3
    assert "error desktop.task_server.result_file_storage: " in ended.out + ended.err
    assert "planted" not in ended.out + ended.err
