"""Settings to the stores `hdfs` and `ofs`."""

import pytest
from tests.cases import each

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import Scheme
from queryserver.files.stores import ozone as ofs
from queryserver.files.stores.webhdfs import storage as hdfs
from queryserver.files.stores.webhdfs.storage import address
from queryserver.platform.settings.stores import HdfsClusterSettings
from queryserver.platform.settings.tree import Settings


def settings(**tables: object) -> Settings:
    return Settings.model_validate(tables)


def test_there_is_no_store_without_a_table():
    assert hdfs.build(settings()) is None
    assert ofs.build(settings()) is None


async def test_a_cluster_may_have_several_name_nodes():
    given = HdfsClusterSettings.model_validate(
        {"webhdfs_url": "http://a:9870/webhdfs/v1, http://b:9870/webhdfs/v1", "redirect_hosts": "*.data, dn"}
    )
    read = address("t", given, settings(filebrowser={"umask": "027"}))
    assert read.urls == ["http://a:9870/webhdfs/v1", "http://b:9870/webhdfs/v1"]
    assert (read.redirect_hosts, read.umask, read.service_user) == (("*.data", "dn"), 0o027, "queryserver")
    store = hdfs.build(settings(hadoop={"hdfs_clusters": {"default": given.model_dump()}}))
    assert store is not None
    assert store.scheme is Scheme.HDFS
    await store.close()


@each("url", "", "nn:9870", "ftp://nn/webhdfs/v1", "http://", "http://user@nn/webhdfs/v1")
def test_an_address_that_is_none_is_told(url):
    with pytest.raises(ConfigurationError):
        hdfs.build(settings(hadoop={"hdfs_clusters": {"default": {"webhdfs_url": url}}}))


async def test_every_table_of_ozone_is_a_service():
    tables = {
        name: {"fs_defaultfs": f"ofs://{name}", "webhdfs_url": f"http://{name}:9778/webhdfs/v1", "ofs_chunk_size": size}
        for name, size in (("one", 5), ("two", 7))
    }
    store = ofs.build(settings(desktop={"ozone": tables}))
    assert store is not None
    assert (store.scheme, store.traits.max_copy_bytes, store.traits.container_levels) == (Scheme.OFS, 5, 3)
    await store.close()
    with pytest.raises(ConfigurationError):
        ofs.build(settings(desktop={"ozone": {"x": {"webhdfs_url": "http://x:1/webhdfs/v1"}}}))


def test_kerberos_without_its_package_is_told(monkeypatch):
    monkeypatch.setattr("queryserver.files.stores.webhdfs.storage.has_kerberos", lambda: False)
    with pytest.raises(ConfigurationError):
        hdfs.build(settings(hadoop={"hdfs_clusters": {"default": {"security_enabled": True}}}))
