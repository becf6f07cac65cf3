"""The S3 adapter's handling of responses that real test servers do not send."""

import asyncio

import pytest
from tests.contract.storage_basis import USER, batches, content, names, put
from tests.engines.scripted_s3 import Reply, scripted_s3
from tests.refusals import raises_code

from queryserver.errors.base import NotSupported, PermissionDenied, QueryServerError
from queryserver.errors.files import (
    DirectoryNotEmpty,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    VerificationFailed,
)
from queryserver.files.model import escaped_file_name, escaped_name
from queryserver.files.stores.s3.connection import S3Keys, S3Options
from queryserver.files.stores.s3.storage import S3FileSystem
from queryserver.platform.logs import Redactor

EMPTY_LIST = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
MISSING = Reply(404)
NOTHING = Reply(200, EMPTY_LIST)
FILE = Reply(200, headers={"ETag": '"9dd4e461268c8034f5c8564e155c67a6"'}, content_length=1)


def listed(*keys: str, prefixes: tuple[str, ...] = (), token: str = "") -> Reply:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    entries += "".join(f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>" for prefix in prefixes)
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return Reply(200, f"<ListBucketResult><EncodingType>url</EncodingType>{more}{entries}</ListBucketResult>")


@pytest.fixture(scope="module")
async def peer():
    async with scripted_s3() as peer:
        yield peer


@pytest.fixture(scope="module")
async def storage(peer):
    keys = S3Keys("AKIA0", "secret")
    file_system = S3FileSystem(S3Options(endpoint=peer.url, path_style=True, keys=keys, timeout_s=30))
    yield file_system.as_user(USER)
    await file_system.close()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply.refusal(403, "AccessDenied"), PermissionDenied),
        (Reply.refusal(403, "InvalidAccessKeyId"), StorageError),
        (Reply.refusal(403, "SignatureDoesNotMatch"), StorageError),
        (Reply.refusal(400, "ExpiredToken"), StorageError),
        (Reply.refusal(403, "RequestTimeTooSkewed"), StorageError),
        (Reply.refusal(404, "NoSuchBucket"), PathNotFound),
        (Reply.refusal(503, "SlowDown"), StorageUnavailable),
        (Reply.refusal(500, "InternalError"), StorageUnavailable),
        (Reply.refusal(502, "SomethingNew"), StorageUnavailable),
        (Reply.refusal(400, "SomethingNew"), StorageError),
        (Reply.refusal(409, "BucketNotEmpty"), DirectoryNotEmpty),
        (Reply.refusal(507, "XMinioStorageFull"), StorageError),
        (Reply.refusal(403, "QuotaExceeded"), StoreQuotaExceeded),
        (Reply.refusal(501, "NotImplemented"), NotSupported),
        (Reply(502, "<html><body>Bad Gateway http://10.1.2.3</body></html>"), StorageUnavailable),
        (Reply(200, "<html><body>Welcome to http://10.1.2.3</body>"), StorageUnavailable),
    ],
)
@pytest.mark.storage(9, 10)
@pytest.mark.security("S13")
async def test_refusals_have_error_kind_and_no_secrets_in_message(storage, peer, reply, expected):
    peer.will_answer(reply)
    with pytest.raises(QueryServerError) as told:
        await names(storage, "bucket")
    assert type(told.value) is expected
    for word in ("10.1.2.3", "127.0.0.1", "AKIA0", "4442587FB7D0", "http", "<"):
        assert word not in told.value.message


@pytest.mark.storage(37)
async def test_refused_bucket_list_is_reported(storage, peer):
    peer.will_answer(Reply.refusal(403, "AccessDenied"))
    with raises_code("bucket_listing_denied", match=r"^Bucket listing is not allowed: ."):
        await names(storage, "")


async def test_bucket_region_is_not_looked_up(storage, peer):
    elsewhere = {"x-amz-bucket-region": "eu-west-1"}
    for reply in (
        Reply(301, Reply.refusal(301, "PermanentRedirect").body, elsewhere),
        Reply(400, Reply.refusal(400, "AuthorizationHeaderMalformed").body, elsewhere),
    ):
        peer.will_answer(reply)
        with pytest.raises(StorageError, match="not in the configured region"):
            await names(storage, "bucket")
        assert len(peer.asked) == 1


@pytest.mark.security("S12", "T8")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(storage, peer, status):
    async with scripted_s3() as other:
        other.will_answer(listed("stolen"))
        peer.will_answer(Reply(status, headers={"Location": f"{other.url}/bucket?list-type=2"}))
        for call in (storage.stat("bucket/file"), names(storage, "bucket"), content(storage, "bucket/file")):
            with pytest.raises(StorageError):
                await call
        assert other.asked == []


@pytest.mark.storage(35)
async def test_unnameable_keys_are_escaped_and_reserved_ones_omitted(storage, peer):
    long = "x" * 256
    peer.will_answer(
        listed(
            *("d/", "d/.", "d/..", "d/%00", "d/._qs_upload_1", f"d/{long}", "d/ok", "d/a%0Ab"),
            prefixes=("d//", "d/./", "d/../", "d/._qs_x/", "d/e/"),
        )
    )
    (batch,) = await batches(storage, "bucket/d")
    files = {entry.path.removeprefix("bucket/d/") for entry in batch.entries if not entry.is_directory}
    directories = {entry.path.removeprefix("bucket/d/") for entry in batch.entries if entry.is_directory}
    names = (escaped_name(raw) for raw in (b".", b"..", b"\0", long.encode()))
    assert files == {escaped_file_name(b""), *names, "ok", "a\nb"}
    assert directories == {escaped_name(b""), escaped_name(b"."), escaped_name(b".."), "e"}
    assert len(files) + len(directories) == len(batch.entries)


async def test_listing_without_progress_is_an_error(storage, peer):
    peer.will_answer(listed("a", token="same"))
    with pytest.raises(StorageError, match="truncated listing"):
        await asyncio.wait_for(names(storage, "bucket"), 10)
    assert len(peer.asked) == 2


async def test_reads_are_tried_three_times_and_conditional_writes_once(storage, peer):
    peer.will_answer(Reply.refusal(503, "SlowDown"), Reply.refusal(503, "SlowDown"), listed("a"))
    assert await names(storage, "bucket") == ["a"]
    assert len(peer.asked) == 3
    peer.will_answer(NOTHING, Reply.refusal(503, "SlowDown"), heads=[MISSING])
    with pytest.raises(StorageUnavailable):
        await put(storage, "bucket/file")
    assert [asked.method for asked in peer.asked].count("PUT") == 1


async def test_writes_carry_condition_and_signed_payload(storage, peer):
    peer.will_answer(NOTHING, Reply.refusal(412, "PreconditionFailed"), heads=[MISSING])
    with pytest.raises(PathExists):
        await put(storage, "bucket/file", b"x")
    (sent,) = [asked for asked in peer.asked if asked.method == "PUT"]
    assert sent.headers["if-none-match"] == "*"
    # The signed SHA-256 of the body allows the store to detect a changed body.
    assert sent.headers["x-amz-content-sha256"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert "x-amz-content-sha256" in sent.headers["authorization"]


async def test_existence_is_checked_first_if_store_lacks_conditions(peer):
    keys = S3Keys("AKIA0", "secret")
    file_system = S3FileSystem(S3Options(endpoint=peer.url, path_style=True, keys=keys, timeout_s=5))
    stored = Reply(200, headers=FILE.headers)
    peer.will_answer(NOTHING, Reply.refusal(501, "NotImplemented"), stored, heads=[MISSING, FILE])
    assert (await put(file_system.as_user(USER), "bucket/file", b"x")).size_bytes == 1
    conditions = [asked.headers.get("if-none-match") for asked in peer.asked if asked.method == "PUT"]
    assert conditions == ["*", None]
    await file_system.close()


@pytest.mark.storage(88)
async def test_stored_size_mismatch_is_reported(storage, peer):
    peer.will_answer(NOTHING, Reply(200, headers=FILE.headers), heads=[MISSING, FILE])
    with pytest.raises(VerificationFailed):
        await put(storage, "bucket/file", b"two")


@pytest.mark.storage(51)
async def test_truncated_body_is_reported(storage, peer):
    peer.will_answer(Reply(200, "half", FILE.headers, content_length=8))
    with pytest.raises(StorageError):
        await content(storage, "bucket/file")


async def test_keys_invalid_in_xml_are_deleted_one_by_one(storage, peer):
    peer.will_answer(
        listed("d/%01", "d/a"),
        listed("d/%01", "d/a"),
        Reply(204),
        Reply(200, "<DeleteResult></DeleteResult>"),
        NOTHING,
        heads=[MISSING],
    )
    await storage.delete("bucket/d", recursive=True)
    assert ("DELETE", "/bucket/d/%01") in [(asked.method, asked.target) for asked in peer.asked]
    (batch,) = [asked.body for asked in peer.asked if asked.method == "POST"]
    assert b"<Key>d/a</Key>" in batch
    assert b"\x01" not in batch


async def test_entries_the_store_refuses_to_delete_are_reported(storage, peer):
    refused = "<DeleteResult><Error><Key>d/a</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    peer.will_answer(listed("d/a"), listed("d/a"), Reply(200, refused), heads=[MISSING])
    with pytest.raises(PermissionDenied):
        await storage.delete("bucket/d", recursive=True)


async def test_remaining_entries_are_reported(storage, peer):
    peer.will_answer(listed("d/a"), heads=[MISSING])
    with pytest.raises(StorageError, match="did not delete all entries"):
        await storage.delete("bucket/d", recursive=True)


async def asked_with(peer, **settings) -> str:
    """Return the Authorization header that a client with these settings sends."""
    file_system = S3FileSystem(S3Options(endpoint=peer.url, path_style=True, timeout_s=5, **settings))
    peer.will_answer(listed("a"))
    assert await names(file_system.as_user(USER), "bucket") == ["a"]
    await file_system.close()
    return peer.asked[0].headers["authorization"]


async def test_environment_keys_count_only_without_configured_keys(peer, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "Credential=ENVIRONMENT/" in await asked_with(peer)
    own = await asked_with(peer, keys=S3Keys("AKIA0", "secret"))
    assert "Credential=AKIA0/" in own
    assert "/us-east-1/s3/" in own


@pytest.mark.security("T8")
async def test_endpoint_from_environment_is_ignored(peer, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", peer.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", peer.url)
    file_system = S3FileSystem(S3Options(keys=S3Keys("AKIA0", "secret"), timeout_s=1))
    client = await file_system._connection._open_client()
    assert client.meta.endpoint_url == "https://s3.amazonaws.com"
    await file_system.close()


async def test_closed_store_is_reported(peer):
    file_system = S3FileSystem(S3Options(endpoint=peer.url, keys=S3Keys("AKIA0", "secret")))
    await file_system.close()
    await file_system.close()
    with pytest.raises(StorageError, match="closed"):
        await names(file_system.as_user(USER), "bucket")


@pytest.mark.security("S13", "T29")
async def test_store_secrets_are_logged_at_no_level(peer, caplog):
    caplog.set_level("DEBUG")
    keys = S3Keys("AKIA0", "planted-secret", "planted-token")
    authorization = await asked_with(peer, keys=keys)
    redact = Redactor()
    logged = "\n".join(redact(record.getMessage()) for record in caplog.records)
    assert "bucket" in logged
    for secret in ("planted-secret", "planted-token", authorization.rpartition("=")[2]):
        assert secret not in logged
