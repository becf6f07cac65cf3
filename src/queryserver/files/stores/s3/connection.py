"""The connection to an S3 store: the driver's client, calls with timeouts, and error conversion."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from aiohttp import ClientError as HttpError
from aiohttp import ClientResponse, ClientSession
from botocore import exceptions as botocore_errors
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth
from botocore.awsrequest import AWSRequest

from queryserver import errors
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath, is_escaped_file, names_of
from queryserver.files.stores.keys import MARKER_NAME, key_segment, relative_path
from queryserver.files.stores.transfer_blocks import ReadSizes, call_with_retries

_SLICE_BYTES = 512 * 1024


class DirectSession(AIOHTTPSession):
    """The driver's HTTP session, which does not follow redirects (security T8)."""

    def __init__(self, read_sizes: ReadSizes, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._read_sizes = read_sizes

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _DirectClient(await super()._get_session(proxy_url), self._read_sizes)


class _DirectClient:
    def __init__(self, session: ClientSession, read_sizes: ReadSizes) -> None:
        self._session = session
        self._read_sizes = read_sizes

    async def request(self, method: str, *, data: Any, **options: Any) -> ClientResponse:
        return await self._session.request(
            method,
            data=_in_slices(data) if isinstance(data, bytes | bytearray) and len(data) > _SLICE_BYTES else data,
            allow_redirects=False,
            # A reader takes about twice this much memory. With the library's default of 64 KiB, reads are a third
            # slower.
            read_bufsize=self._read_sizes.piece_bytes,
            **options,
        )


async def _in_slices(content: bytes | bytearray) -> AsyncGenerator[memoryview]:
    """Yield a large body in slices, so that other tasks can run while it is sent. Its length has already been set in
    the headers.
    """
    whole = memoryview(content)
    for start in range(0, len(whole), _SLICE_BYTES):
        yield whole[start : start + _SLICE_BYTES]


ErrorOverrides = Mapping[str, type[errors.QueryServerError]]
"""Domain errors by S3 error code, for calls in which these codes have a special meaning."""


class MultipartUploadMissing(errors.PathNotFound):
    """The multipart upload does not exist, or has already been completed or aborted."""


class RangePastEnd(errors.StorageError):
    """The requested range starts past the end of the object."""


_TABLE: tuple[tuple[type[errors.QueryServerError], str, str], ...] = (
    (errors.PathNotFound, "{path} does not exist.", "NoSuchKey NoSuchBucket 404 NoSuchVersion"),
    (
        errors.PermissionDenied,
        "The store denied access to {path}.",
        "AccessDenied 403 AllAccessDisabled AccountProblem",
    ),
    (
        errors.PathExists,
        "{path} already exists.",
        "BucketAlreadyExists BucketAlreadyOwnedByYou ExistingObjectIsDirectory",
    ),
    # Users cannot correct these errors, so the status is 502 rather than 403.
    (
        errors.StorageError,
        "The store rejected the credentials of this service.",
        """SignatureDoesNotMatch InvalidAccessKeyId InvalidSecurity InvalidToken ExpiredToken TokenRefreshRequired
        NotSignedUp CredentialsNotSupported InvalidClientTokenId""",
    ),
    (
        errors.StorageUnavailable,
        "The store is overloaded or reported an internal error.",
        """SlowDown ServiceUnavailable Throttling ThrottlingException RequestLimitExceeded TooManyRequests InternalError
        BandwidthLimitExceeded RequestTimeout Busy 500 502 503 504 429 XMinioServerNotInitialized""",
    ),
    (
        errors.StorageError,
        "The bucket of {path} is not in the configured region.",
        """PermanentRedirect 301 AuthorizationHeaderMalformed IllegalLocationConstraintException IncorrectEndpoint
        WrongRegion""",
    ),
    (
        errors.StorageError,
        "The store sent a redirect; redirects are not followed.",
        "TemporaryRedirect Redirect 302 307 308",
    ),
    (
        errors.StorageError,
        "The clocks of this service and the store differ too much.",
        "RequestTimeTooSkewed RequestExpired RequestInTheFuture",
    ),
    (errors.StoreQuotaExceeded, "A quota of the store is exhausted.", "QuotaExceeded XMinioAdminBucketQuotaExceeded"),
    (errors.StorageError, "The store has no space left.", "XMinioStorageFull InsufficientStorage 507"),
    (
        errors.VerificationFailed,
        "The bytes that the store received for {path} do not match the bytes that were sent.",
        "BadDigest XAmzContentSHA256Mismatch IncompleteBody",
    ),
    (errors.NotSupported, "The store does not support this operation.", "NotImplemented 501 MethodNotAllowed 405"),
    (errors.EntryChanged, "{path} was modified concurrently.", "PreconditionFailed 412"),
    (
        errors.EntryChanged,
        "{path} is being modified by another request.",
        "ConditionalRequestConflict OperationAborted",
    ),
    (errors.DirectoryNotEmpty, "{path} is not empty.", "BucketNotEmpty"),
    (errors.NotADirectory, "A parent of {path} is a file.", "ObjectParentIsFile"),
    (errors.InvalidPath, "The path is longer than the store allows.", "KeyTooLongError"),
    (errors.InvalidName, "The store does not support the bucket name of {path}.", "InvalidBucketName"),
    (errors.StoreQuotaExceeded, "The store does not allow more buckets.", "TooManyBuckets"),
    (errors.StorageError, "{path} is larger than the store allows.", "EntityTooLarge"),
    (errors.StorageError, "A part of {path} is smaller than the store allows.", "EntityTooSmall"),
    (errors.PermissionDenied, "{path} is archived and must be restored in the store first.", "InvalidObjectState"),
    (MultipartUploadMissing, "The upload does not exist, or has ended.", "NoSuchUpload"),
    (RangePastEnd, "The range is outside the file.", "InvalidRange 416"),
)
_KINDS: Mapping[str, tuple[type[errors.QueryServerError], str]] = {
    code: (kind, text) for kind, text, codes in _TABLE for code in codes.split()
}
_TEXTS: Mapping[type[errors.QueryServerError], str] = {kind: text for kind, text, _ in _TABLE}
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_FIRST_SERVER_ERROR = 500


@contextmanager
def s3_errors(path: str, error_overrides: ErrorOverrides = MappingProxyType({})) -> Generator[None]:
    """Convert driver errors to domain errors. Their messages contain `path`, which must be in the form that users
    write.
    """
    try:
        yield
    except botocore_errors.ClientError as error:
        raise _client_error(error, path, error_overrides) from error
    except (
        botocore_errors.NoCredentialsError,
        botocore_errors.PartialCredentialsError,
        botocore_errors.CredentialRetrievalError,
        botocore_errors.ProfileNotFound,
    ) as error:
        raise errors.StorageError("The credentials for the store are missing or could not be read.") from error
    except botocore_errors.IncompleteReadError as error:
        raise errors.StorageError(f"The store closed the connection while sending {path}.") from error
    except botocore_errors.SSLError as error:
        raise errors.StorageUnavailable("No trusted TLS connection to the store could be established.") from error
    except (
        botocore_errors.HTTPClientError,
        botocore_errors.ConnectionError,
        HttpError,
        TimeoutError,
        OSError,
    ) as error:
        raise errors.StorageUnavailable("The store is not responding.") from error
    except (botocore_errors.BotoCoreError, ValueError) as error:
        raise errors.StorageError("The store sent an invalid response or rejected the request as invalid.") from error


def _client_error(
    error: botocore_errors.ClientError, path: str, error_overrides: ErrorOverrides
) -> errors.QueryServerError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if kind := error_overrides.get(code):
        return kind(_TEXTS.get(kind, "{path} is not valid for this operation.").format(path=path))
    if code in _KINDS:
        kind, text = _KINDS[code]
        return kind(text.format(path=path))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    safe_code = code if _CODE.fullmatch(code) else "an unknown code"
    kind = errors.StorageUnavailable if status >= _FIRST_SERVER_ERROR else errors.StorageError
    return kind(f"The store rejected a request for {path}: {safe_code}.")


@dataclass(frozen=True, slots=True)
class S3Keys:
    """The access keys of queryserver, which are used for all users."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class S3Options:
    """The address and credentials of a store. Empty strings mean the defaults of AWS."""

    region: str = "us-east-1"
    endpoint: str = ""
    """`https://host:port` of a store other than AWS. If it has no scheme, `is_secure` determines the scheme."""
    is_secure: bool = True
    path_style: bool = False
    keys: S3Keys | None = None
    """If None, the credentials of the environment are used: variables, files, or the role of the machine."""
    buckets: tuple[str, ...] = ()
    """The buckets shown in the root; if empty, all buckets that the store lists."""
    allow_bucket_creation: bool = False
    encryption: str = ""
    """`x-amz-server-side-encryption` for new objects; if empty, the default of the bucket applies."""
    max_connections: int = 50
    timeout_s: float = 30.0
    """Timeout per call or read. Calls that transfer data have proportionally longer timeouts."""

    @property
    def endpoint_url(self) -> str | None:
        if not self.endpoint:
            return None
        if "://" in self.endpoint:
            return self.endpoint
        return f"{'https' if self.is_secure else 'http'}://{self.endpoint}"


_CONNECT_TIMEOUT_S = 5.0
# Minimum transfer rate, from which the timeouts of transfers are computed.
_MIN_BYTES_PER_S = 256 * 1024
# Socket read timeout, which must suffice for slow calls such as joining parts.
_READ_TIMEOUT_S = 300.0
_READ_BYTES = 512 * 1024
_TRIES = 3
_CREATING = frozenset({"put_object", "create_multipart_upload", "copy_object"})
_FIRST_PAUSE_S = 0.2

_NO_OVERRIDES: ErrorOverrides = MappingProxyType({})


class S3Connection:
    """Owns the driver's client, which the first call creates. Must be closed.

    The driver sends each request once; `call` retries idempotent calls. The client connects only to the configured
    store: redirects are not followed, and bucket regions are not looked up.
    """

    def __init__(self, options: S3Options) -> None:
        self.options = options
        self.read_sizes = ReadSizes(max_bytes=_READ_BYTES)
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._client: Any = None
        self._closed = False
        self._unconditional_operations = set[str]()

    def time_for(self, size_bytes: int) -> float:
        """Return the timeout in seconds for a call that transfers that many bytes."""
        return self.options.timeout_s + size_bytes / _MIN_BYTES_PER_S

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, object],
        *,
        about: str,
        error_overrides: ErrorOverrides = _NO_OVERRIDES,
        timeout_s: float | None = None,
        repeatable: bool = True,
    ) -> Mapping[str, Any]:
        """Make one API call and return its response. `operation` and `arguments` are named as in the driver.

        `about` is the path for error messages. A `repeatable` call is tried up to three times if the store does not
        respond or is overloaded. `timeout_s` limits all tries together; by default, the timeout of the options applies.
        Raises the errors of `s3_errors`.
        """
        if self.options.encryption and operation in _CREATING:
            arguments = {**arguments, "ServerSideEncryption": self.options.encryption}
        with s3_errors(about, error_overrides):
            async with asyncio.timeout(timeout_s or self.options.timeout_s):
                client = await self._open_client()

                async def attempt() -> Mapping[str, Any]:
                    with s3_errors(about, error_overrides):
                        return await getattr(client, operation)(**arguments)

                tries = _TRIES if repeatable else 1
                return await call_with_retries(
                    attempt, errors.StorageUnavailable, tries=tries, first_pause_s=_FIRST_PAUSE_S
                )

    async def create_object(
        self,
        operation: str,
        arguments: Mapping[str, object],
        *,
        about: str,
        overwrite: bool,
        error_overrides: ErrorOverrides = _NO_OVERRIDES,
        timeout_s: float | None = None,
        repeatable: bool = True,
    ) -> Mapping[str, Any]:
        """Like `call`, for operations that create an object. Unless `overwrite` is set, the call fails if the key
        exists, and it is not retried.

        If the store does not support conditional writes, the call is sent without the condition, so callers must also
        check the key first.
        """
        if overwrite:
            return await self.call(operation, arguments, about=about, timeout_s=timeout_s, repeatable=repeatable)
        create = partial(
            self.call, operation, about=about, error_overrides=error_overrides, timeout_s=timeout_s, repeatable=False
        )
        if operation not in self._unconditional_operations:
            try:
                return await create({**arguments, "IfNoneMatch": "*"})
            except errors.NotSupported:
                self._unconditional_operations.add(operation)
        return await create(arguments)

    async def pages(
        self, operation: str, arguments: Mapping[str, object], *, about: str, follow: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the pages of a listing. `follow` maps the arguments of the next call to the response keys that contain
        their values.
        """
        while True:
            page = await self.call(operation, arguments, about=about)
            if not page.get("IsTruncated"):
                yield page
                return
            following = {name: page[key] for name, key in follow.items() if page.get(key)}
            if not following or following.items() <= arguments.items():
                raise errors.StorageError("The store sent a truncated listing without a continuation token.")
            yield page
            arguments = {**arguments, **following}

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        async with self._opening:
            self._client = None
            await self._resources.aclose()

    async def _open_client(self) -> Any:
        """Return the client, creating it if necessary. Creation loads the API description of the driver in threads."""
        async with self._opening:
            if self._closed:
                raise errors.StorageError("The store is closed.")
            if self._client is None:
                self._client = await self._resources.enter_async_context(self._new_client())
                self._client.meta.events.register("before-call.s3", _suppress_region_redirect)
                for operation in ("PutObject", "UploadPart"):
                    self._client.meta.events.register(f"choose-signer.s3.{operation}", _choose_hashed_payload)
                    self._client.meta.events.register(f"before-sign.s3.{operation}", _hash_payload)
        return self._client

    def _new_client(self) -> Any:
        keys = self.options.keys
        return get_session().create_client(
            "s3",
            region_name=self.options.region or None,
            endpoint_url=self.options.endpoint_url,
            use_ssl=self.options.is_secure,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=(keys.session_token or None) if keys else None,
            config=_configuration(self.options, self.read_sizes),
        )


def _configuration(options: S3Options, read_sizes: ReadSizes) -> AioConfig:
    return AioConfig(
        signature_version="s3v4",
        # Signed payloads already protect every byte, so additional checksums would only cost time.
        s3={"addressing_style": "path" if options.path_style else "auto", "payload_signing_enabled": True},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        max_pool_connections=options.max_connections,
        # If keys are configured, endpoints from the environment are ignored as well.
        ignore_configured_endpoint_urls=options.keys is not None,
        http_session_cls=partial(DirectSession, read_sizes),
        warm_up_loader_caches=True,
    )


def _suppress_region_redirect(params: Mapping[str, Any], **_further: object) -> None:
    """Mark the call as already redirected, so that the driver does not look up the region of the bucket."""
    params["context"].get("s3_redirect", {})["redirected"] = True


_SIGNATURE, _HASHED_SIGNATURE = "s3v4", "s3v4-hashed"
_DIGEST = "queryserver_payload_sha256"


class _HashedPayloadAuth(S3SigV4Auth):
    """The driver's signature, with the SHA-256 of the payload that `_hash_payload` has computed for the request."""

    def payload(self, request: AWSRequest) -> str:
        return request.context.get(_DIGEST) or super().payload(request)


# The driver documents the events below, but not how to add a signature. `test_s3_objects.py` fails if that changes.
cast("dict[str, type[S3SigV4Auth]]", AUTH_TYPE_MAPS)[_HASHED_SIGNATURE] = _HashedPayloadAuth


def _choose_hashed_payload(signature_version: object, **_further: object) -> str | None:
    return _HASHED_SIGNATURE if signature_version == _SIGNATURE else None


async def _hash_payload(request: AWSRequest, **_further: object) -> None:
    """Hash the body in a thread. The driver would hash it on the event loop, which blocks the loop for 3 ms per part of
    5 MiB and takes a third of the loop's time for an upload.
    """
    request.context.pop(_DIGEST, None)
    if isinstance(body := request.data, bytes | bytearray):
        request.context[_DIGEST] = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())


MAX_KEY_BYTES = 1024
# The most permissive rule of all stores. It excludes access points, which have separate addresses, and directory
# buckets, whose listings are unordered.
BUCKET_NAME = re.compile(r"(?!.*--x-s3$)[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

DIRECTORY_PERMISSIONS = 0o777
FILE_PERMISSIONS = 0o666


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A path split into a bucket and key segments. The root has no bucket; a bucket has no segments."""

    path: str
    bucket: str
    segments: tuple[str, ...] = ()
    is_object: bool = False
    """Whether the path denotes an object, even if a directory has the same name."""

    @property
    def key(self) -> str:
        """The object key. Empty for the root, for buckets, and for the directory of all keys that start with a
        slash.
        """
        return "/".join(self.segments)

    @property
    def is_marker(self) -> bool:
        """Whether the object's key ends with a slash, like the keys of directory markers."""
        return self.is_object and self.key.endswith("/")

    @property
    def marker(self) -> "ObjectLocation":
        """The location of this directory's marker object."""
        return ObjectLocation(f"{self.path}/{MARKER_NAME}", self.bucket, (*self.segments, ""), is_object=True)

    @property
    def label(self) -> str:
        return label(self.path)

    @property
    def names(self) -> dict[str, object]:
        """Bucket and key as arguments of driver calls."""
        return {"Bucket": self.bucket, "Key": self.key}

    @property
    def prefix(self) -> str:
        """The prefix of all keys below this location, which is also the key of its marker; empty for a bucket."""
        return f"{self.key}/" if self.segments else ""

    @property
    def parent(self) -> "ObjectLocation":
        return ObjectLocation(self.path.rpartition("/")[0], self.bucket, self.segments[:-1])

    def path_of(self, key: str) -> str | None:
        """Return the path of a key below this location, or None if it contains a reserved name. The key of a directory
        ends with a slash.
        """
        below = relative_path(key[len(self.prefix) :])
        return None if below is None else f"{self.path}/{below}"


def label(path: str) -> str:
    return str(StoragePath(Scheme.S3A, path))


def parse_location(path: str) -> ObjectLocation:
    """Parse a path. Raises InvalidPath, and PathNotFound for an invalid bucket name."""
    names = names_of(path, escapes=True)
    if not names:
        return ObjectLocation("", "")
    segments = tuple(key_segment(name, is_last=number == len(names)) for number, name in enumerate(names[1:], start=2))
    location = ObjectLocation(path, names[0], segments, is_object=is_escaped_file(names[-1]))
    if len(location.key.encode()) > MAX_KEY_BYTES:
        raise errors.InvalidPath(f"The object key is longer than {MAX_KEY_BYTES} bytes.")
    if not BUCKET_NAME.fullmatch(names[0]):
        raise errors.PathNotFound(f"{label(path)} does not exist.")
    return location


def parse_object_location(path: str) -> ObjectLocation:
    """Parse the path of an object. Raises the errors of `parse_location`, and InvalidPath for the root and for
    buckets.
    """
    location = parse_location(path)
    if not location.key:
        raise errors.InvalidPath(f"{location.label} is not a file; files must be inside a bucket.")
    return location


def directory_status(path: str) -> FileStatus:
    """Return the status of a bucket or key prefix, which has no modification time."""
    return FileStatus(path, EntryKind.DIRECTORY, 0, None, permissions=DIRECTORY_PERMISSIONS)
