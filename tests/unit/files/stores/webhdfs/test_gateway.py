"""The HDFS gateway: settings, user identities and calls."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.contract.storage_basis import batches, body, content
from tests.engines.certificates import Authority
from tests.fakes.webhdfs import Answer, ReceivedRequest, scripted_name_node

from queryserver.errors.base import ConfigurationError, PermissionDenied
from queryserver.errors.files import EntryChanged, StorageError, StorageUnavailable, VerificationFailed
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.stores import ozone as ofs
from queryserver.files.stores.webhdfs import storage as hdfs
from queryserver.files.stores.webhdfs.gateway import Timeouts, Tokens, WebHdfsAddress, acting_name
from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem, cluster_address
from queryserver.platform.settings.stores import HdfsClusterSettings
from queryserver.platform.settings.tree import Settings

ANA = StorageUser("ana")
QUICK = Timeouts(connect_s=2, silence_s=0.3, call_s=1.5)
"""Timeouts for stores that do not respond."""
PATIENT = Timeouts(connect_s=30, silence_s=30, call_s=60)
FILE = {
    "pathSuffix": "", "type": "FILE", "length": 5, "owner": "ana", "group": "g", "permission": "644",
    "accessTime": 1, "modificationTime": 2, "blockSize": 3, "replication": 1, "fileId": 4,
}  # fmt: skip
STATUS = Answer(body=json.dumps({"FileStatus": FILE}).encode())


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def failure(name: str, status: int = 403) -> Answer:
    return Answer(status, json.dumps({"RemoteException": {"exception": name, "message": "no"}}).encode())


def file_system(*urls: str, timeouts: Timeouts = PATIENT, **options) -> WebHdfsFileSystem:
    return WebHdfsFileSystem(WebHdfsAddress(urls, "svc", timeouts=timeouts, **options))


@pytest.mark.security("S12")
@pytest.mark.parametrize("scheme", ["http", "https", "file"])
async def test_redirects_to_unlisted_hosts_are_not_followed(scheme):
    async def elsewhere(_: ReceivedRequest) -> Answer:
        return Answer(body=b"other")

    async with scripted_name_node(elsewhere) as foreign:
        where = f"{scheme}://localhost:{foreign.port}/webhdfs/v1/f?op=OPEN"

        async def script(asked: ReceivedRequest) -> Answer:
            if asked.op == "GETFILESTATUS":
                return STATUS
            if asked.op == "CREATE":
                return Answer(body=json.dumps({"Location": where}).encode())
            return Answer(307, headers={"Location": where})

        async with scripted_name_node(script) as node:
            store = file_system(node.url)
            storage = store.as_user(ANA)
            for call in (content(storage, "f"), storage.write("f", body(b"x"), overwrite=True)):
                with pytest.raises(StorageError) as told:
                    await call
                assert "localhost" not in told.value.message
            await store.close()
        assert foreign.asked == []


async def test_redirects_to_listed_hosts_are_followed():
    async def data(_: ReceivedRequest) -> Answer:
        return Answer(body=b"bytes")

    async with scripted_name_node(data) as data_node:

        async def script(asked: ReceivedRequest) -> Answer:
            if asked.op == "GETFILESTATUS":
                return STATUS
            return Answer(307, headers={"Location": f"http://LOCALHOST:{data_node.port}/webhdfs/v1/f?op=OPEN&token=t"})

        async with scripted_name_node(script) as node:
            store = file_system(node.url, redirect_hosts=["localhost"])
            assert await content(store.as_user(ANA), "f") == b"bytes"
            assert data_node.asked[0].query["token"] == "t"
            await store.close()


async def test_standby_or_unreachable_name_node_fails_over():
    async def standby(_: ReceivedRequest) -> Answer:
        return failure("StandbyException")

    async def active(_: ReceivedRequest) -> Answer:
        return STATUS

    async with scripted_name_node(standby) as first, scripted_name_node(active) as second:
        store = file_system("http://127.0.0.1:1/webhdfs/v1", first.url, second.url)
        for _ in range(3):
            assert (await store.as_user(ANA).stat("f")).size_bytes == 5
        # From now on, the client first calls the node that responded.
        assert (len(first.asked), len(second.asked)) == (1, 3)
        await store.close()
        store = file_system(first.url)
        with pytest.raises(StorageUnavailable):
            await store.as_user(ANA).mkdir("d")
        await store.close()


@pytest.mark.storage(9)
async def test_hanging_store_is_unavailable_after_the_call_timeout():
    async def silent(_: ReceivedRequest) -> Answer:
        await asyncio.sleep(60)
        return STATUS

    async with scripted_name_node(silent) as node:
        store = file_system(node.url, timeouts=QUICK)
        async with asyncio.timeout(60):
            for call in (store.as_user(ANA).stat("f"), store.as_user(ANA).delete("f", recursive=True)):
                with pytest.raises(StorageUnavailable):
                    await call
            with pytest.raises(StorageUnavailable):
                await store.facts(ANA)
        await store.close()


async def test_reads_are_retried_and_writes_are_not():
    async def busy(_: ReceivedRequest) -> Answer:
        return failure("RetriableException")

    async with scripted_name_node(busy) as node:
        store = file_system(node.url)
        with pytest.raises(StorageUnavailable):
            await store.as_user(ANA).stat("f")
        assert len(node.asked) == 3
        with pytest.raises(StorageUnavailable):
            await store.as_user(ANA).set_permissions("f", 0o600)
        assert len(node.asked) == 4
        await store.close()


@pytest.mark.security("S10")
async def test_huge_listing_response_uses_little_memory():
    before, after = json.dumps({**FILE, "pathSuffix": "NAME"}).split("NAME")

    async def all_entries() -> AsyncIterator[bytes]:
        yield b'{"DirectoryListing":{"partialListing":{"FileStatuses":{"FileStatus":['
        for start in range(0, 200_000, 500):
            entries = (f"{before}{number:06}{after}" for number in range(start, start + 500))
            yield ("," if start else "").encode() + ",".join(entries).encode()
        yield b']}},"remainingEntries":0}}'

    async def script(_: ReceivedRequest) -> Answer:
        return Answer(body=all_entries())

    async with scripted_name_node(script) as node:
        store, count, largest = WebHdfsFileSystem(WebHdfsAddress([node.url], "svc")), 0, 0
        before_bytes = max_bytes = resident_bytes()
        async with aclosing(store.as_user(ANA).list_directory("d", cursor="099999")) as listing:
            async for batch in listing:
                count += len(batch.entries)
                largest = max(largest, len(batch.entries))
                max_bytes = max(max_bytes, resident_bytes())
        # Like HttpFS, the store ignored the start position.
        assert (count, largest) == (100_000, 1000)
        # All entries together would take at least 80 MB.
        assert max_bytes - before_bytes < 24 * 1024 * 1024
        await store.close()


async def test_listing_without_progress_fails_instead_of_looping():
    async def same(_: ReceivedRequest) -> Answer:
        entries = [{**FILE, "pathSuffix": "a"}]
        partial = {"FileStatuses": {"FileStatus": entries}}
        listing = {"DirectoryListing": {"partialListing": partial, "remainingEntries": 5}}
        return Answer(body=json.dumps(listing).encode())

    async with scripted_name_node(same) as node:
        store = file_system(node.url)
        with pytest.raises(StorageError):
            await batches(store.as_user(ANA), "d")
        await store.close()


async def test_truncated_or_replaced_file_fails_the_read():
    sent = [Answer(body=b"four"), Answer(body=b"four", content_length=5)]

    async def script(asked: ReceivedRequest) -> Answer:
        return STATUS if asked.op == "GETFILESTATUS" else sent[0]

    async with scripted_name_node(script) as node:
        store = file_system(node.url)
        storage = store.as_user(ANA)
        with pytest.raises(StorageError):
            await content(storage, "f")
        del sent[0]
        with pytest.raises(StorageUnavailable):
            await content(storage, "f")
        sent[0] = Answer(body=b"bytes")
        version = await storage.stat("f")
        assert await content(storage, "f", version=version) == b"bytes"
        FILE["fileId"] = 5
        answers = Answer(body=json.dumps({"FileStatus": FILE}).encode())
        node.script = _always(answers, Answer(body=b"bytes"))
        with pytest.raises(EntryChanged):
            # The last chunk, which here is the only one, is returned only after the file has been checked again.
            await anext(storage.read("f", version=version))
        FILE["fileId"] = 4
        await store.close()


def _always(status: Answer, data: Answer):
    async def script(asked: ReceivedRequest) -> Answer:
        return status if asked.op == "GETFILESTATUS" else data

    return script


@pytest.mark.storage(88)
async def test_store_losing_bytes_is_detected_and_its_file_removed():
    async def script(asked: ReceivedRequest) -> Answer:
        if asked.op == "GETFILESTATUS" and "._qs_upload_" in asked.path:
            return STATUS
        if asked.op == "GETFILESTATUS":
            return failure("FileNotFoundException", 404)
        if asked.op == "CREATE" and "noredirect" in asked.query:
            return Answer(body=json.dumps({"Location": f"{node.url}/x?op=CREATE&data=true"}).encode())
        return Answer(201) if asked.op == "CREATE" else Answer(body=b'{"boolean":true}')

    async with scripted_name_node(script) as node:
        store = file_system(node.url)
        with pytest.raises(VerificationFailed):
            await store.as_user(ANA).write("d/f", body(b"more than five"), overwrite=False)
        assert node.asked[-1].op == "DELETE"
        assert "._qs_upload_" in node.asked[-1].path
        assert not [asked for asked in node.asked if asked.op == "RENAME"]
        await store.close()


async def test_empty_redirect_is_not_a_successful_rename():
    async def script(asked: ReceivedRequest) -> Answer:
        if asked.op == "RENAME":
            return Answer(307, headers={"Location": f"{node.url}/elsewhere"})
        return failure("FileNotFoundException", 404) if asked.path.endswith("/b") else STATUS

    async with scripted_name_node(script) as node:
        store = file_system(node.url)
        with pytest.raises(StorageError):
            await store.as_user(ANA).rename("a", "b")
        await store.close()


@pytest.mark.storage(94)
async def test_each_call_names_its_user_and_sends_no_cookie():
    async def script(_: ReceivedRequest) -> Answer:
        return Answer(body=STATUS.body, headers={"Set-Cookie": 'hadoop.auth="u=ana&t=simple"; Path=/; HttpOnly'})

    async with scripted_name_node(script) as node:
        store = file_system(node.url)
        for name in ("ana", "bo", "ana"):
            await store.as_user(StorageUser(name)).stat("f")
        assert [(asked.query["user.name"], asked.query["doas"]) for asked in node.asked] == [
            ("svc", "ana"),
            ("svc", "bo"),
            ("svc", "ana"),
        ]
        assert not any("cookie" in asked.headers for asked in node.asked)
        with pytest.raises(PermissionDenied):
            store.as_user(StorageUser("ana/admin@REALM"))
        await store.close()


@pytest.mark.security("S12")
async def test_certificates_are_verified_and_https_is_never_downgraded(tmp_path):
    authority = Authority()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*authority.certify("127.0.0.1").write(tmp_path))

    async def script(asked: ReceivedRequest) -> Answer:
        if asked.op == "GETFILESTATUS":
            return STATUS
        if asked.op == "OPEN" and asked.path.endswith("plain"):
            return Answer(307, headers={"Location": f"http://127.0.0.1:{node.port}/webhdfs/v1/f?op=OPEN"})
        return Answer(body=b"bytes")

    async with scripted_name_node(script, server) as node:
        url = node.url.replace("http:", "https:")
        trusting = ssl.create_default_context(cadata=authority.certificate)
        for tls, is_trusted in ((trusting, True), (True, False), (False, True)):
            store = file_system(url, tls=tls)
            if is_trusted:
                assert await content(store.as_user(ANA), "f") == b"bytes"
                with pytest.raises(StorageError):
                    await content(store.as_user(ANA), "plain")
            else:
                with pytest.raises(StorageUnavailable):
                    await store.as_user(ANA).stat("f")
            await store.close()


@pytest.mark.parametrize("name", ["", "alice/host", "alice@REALM", "alice/host@REALM", "a\nb"])
def test_names_that_hadoop_would_shorten_are_denied(name):
    with pytest.raises(PermissionDenied):
        acting_name(name)


async def test_call_names_service_user_and_caller():
    async def script(_: ReceivedRequest) -> Answer:
        return STATUS

    async with scripted_name_node(script) as node:
        store = file_system(node.url)
        await store.as_user(ANA).stat("f")
        await store.close()
    assert node.asked[0].query == {"op": "GETFILESTATUS", "user.name": "svc", "doas": "ana"}


class Store:
    def __init__(self) -> None:
        self.now = 0.0
        self.obtained: list[str] = []
        self.renewed: list[str] = []

    async def obtain(self, user: str) -> str:
        self.obtained.append(user)
        return f"{user}{len(self.obtained)}"

    async def renew(self, token: str) -> None:
        self.renewed.append(token)

    def tokens(self) -> Tokens:
        return Tokens(self.obtain, self.renew, lambda: self.now)


async def test_each_caller_has_a_token_that_is_renewed_and_replaced():
    store = Store()
    tokens = store.tokens()
    for _ in range(2):
        assert await tokens.get("ana") == "ana1"
        assert await tokens.get("bo") == "bo2"
    store.now = 10 * 3600
    assert await tokens.get("ana") == "ana1"
    assert store.renewed == ["ana1"]
    store.now = 6 * 24 * 3600
    assert await tokens.get("ana") == "ana3"
    assert store.obtained == ["ana", "bo", "ana"]


async def test_rejected_token_is_replaced_once():
    tokens = Store().tokens()
    await tokens.get("ana")
    assert tokens.discard("ana")
    assert not tokens.discard("ana")
    assert await tokens.get("ana") == "ana2"


def settings(**tables: object) -> Settings:
    return Settings.model_validate(tables)


def test_missing_table_means_no_store():
    assert hdfs.build(settings()) is None
    assert ofs.build(settings()) is None


async def test_cluster_may_have_several_name_nodes():
    given = HdfsClusterSettings.model_validate(
        {"webhdfs_url": "http://a:9870/webhdfs/v1, http://b:9870/webhdfs/v1", "redirect_hosts": "*.data, dn"}
    )
    read = cluster_address("t", given, settings(filebrowser={"umask": "027"}))
    assert read.urls == ["http://a:9870/webhdfs/v1", "http://b:9870/webhdfs/v1"]
    assert (read.redirect_hosts, read.umask, read.service_user) == (("*.data", "dn"), 0o027, "queryserver")
    store = hdfs.build(settings(hadoop={"hdfs_clusters": {"default": given.model_dump()}}))
    assert store is not None
    assert store.scheme is Scheme.HDFS
    await store.close()


@pytest.mark.parametrize("url", ["", "nn:9870", "ftp://nn/webhdfs/v1", "http://", "http://user@nn/webhdfs/v1"])
def test_invalid_address_is_rejected(url):
    with pytest.raises(ConfigurationError):
        hdfs.build(settings(hadoop={"hdfs_clusters": {"default": {"webhdfs_url": url}}}))


async def test_each_ozone_table_is_a_service():
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


def test_kerberos_without_its_package_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigurationError):
        hdfs.build(settings(hadoop={"hdfs_clusters": {"default": {"security_enabled": True}}}))
