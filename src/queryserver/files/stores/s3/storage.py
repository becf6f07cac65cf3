"""Implements `Storage` for S3."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queryserver import errors
from queryserver.files.model import Escapes, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart, empty_body
from queryserver.files.stores.s3 import uploads
from queryserver.files.stores.s3.connection import (
    MultipartUploadMissing,
    ObjectLocation,
    S3Connection,
    S3Keys,
    S3Options,
    label,
    parse_location,
    parse_object_location,
)
from queryserver.files.stores.s3.objects import MAX_KEYS, Objects
from queryserver.files.stores.transfer_blocks import Blocks
from queryserver.platform.settings.stores import AwsAccountSettings
from queryserver.platform.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """Maps the parts of a plan to S3 part numbers. To save memory, a large part is split into blocks, each of which has
    its own S3 part number.
    """

    plan: PartPlan

    @property
    def per_part(self) -> int:
        wanted = -(-self.plan.part_bytes // uploads.UPLOAD_BYTES)
        return max(1, min(wanted, uploads.MAX_PARTS // max(self.plan.parts, 1)))

    @property
    def block_bytes(self) -> int:
        """The size of the blocks into which each part is split. The last block of a part may be smaller."""
        return max(1, -(-self.plan.part_bytes // self.per_part))

    def of(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the S3 part numbers of a part and the sizes of their blocks. An empty part also has one number."""
        first, whole = index * self.per_part + 1, self.plan.size_of(index)
        for number, start in enumerate(range(0, max(whole, 1), self.block_bytes), start=first):
            yield number, min(self.block_bytes, whole - start)


class S3Storage:
    """Accesses the store with the configured credentials, which are the same for all users."""

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection
        self._objects = Objects(connection)

    async def stat(self, path: str) -> FileStatus:
        """Return the status. A key prefix is a directory, whether it has a marker or not."""
        return await self._objects.status(parse_location(path))

    def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = MAX_KEYS
    ) -> AsyncGenerator[Batch]:
        """Yield the entries. Key segments that cannot occur in paths are escaped; reserved names are omitted."""
        return self._objects.batches(path, cursor, batch_size)

    def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        return self._objects.below(path)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        location = await self._file_location(path)
        with self._connection.read_sizes.reader():
            async for piece in self._objects.pieces(location, offset, length, version):
                yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        await self._check_target(parse_object_location(path), overwrite=overwrite)
        return await self.write_checked(path, body, overwrite=overwrite, size_bytes=size_bytes)

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        location = parse_object_location(path)
        overwrite = overwrite or location.is_marker
        upload = uploads.S3Upload(self._objects, location, overwrite=overwrite, announced_bytes=size_bytes)
        return await upload.run(body)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:  # noqa: ARG002 a flat account has none
        """Create a directory. Raises PermissionDenied for a bucket unless the settings allow creating buckets."""
        location = parse_location(path)
        if not location.segments:
            await self._make_bucket(location)
        else:
            await self._check_target(location, overwrite=False)
            await self._objects.make_marker(location)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Copy a file within the store, without transferring its bytes through queryserver."""
        if source == target:
            raise errors.same_path("Source and target are the same.")
        location = parse_object_location(target)
        origin = await self._file_location(source)
        await self._check_target(location, overwrite=overwrite)
        # If the target is a marker, an empty marker object may exist, which does not count as a file.
        return await uploads.copy(self._objects, origin, location, overwrite=overwrite or location.is_marker)

    async def is_ambiguous(self, path: str) -> bool:
        location = parse_location(path)
        return bool(location.key and await self._objects.find(location) and await self._objects.keys_below(location, 1))

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry. If this empties the parent directory, a marker preserves it."""
        location = parse_location(path)
        if not location.bucket:
            raise errors.root_not_allowed("The root of the store cannot be deleted.")
        if not location.segments:
            if await self._objects.keys_below(location, 1):
                raise errors.DirectoryNotEmpty(f"{location.label} is not empty.")
            await self._connection.call(
                "delete_bucket", {"Bucket": location.bucket}, about=location.label, repeatable=False
            )
        else:
            await uploads.delete(self._objects, location, recursive=recursive)

    async def begin_parts(self, plan: PartPlan) -> str:
        """Begin a multipart upload. Its id is the name of the staging area."""
        target = parse_object_location(plan.path)
        parent = await self._objects.status(target.parent)
        if not parent.is_directory:
            raise errors.NotADirectory(f"{label(parent.path)} is a file.")
        return (await uploads.MultipartUpload.begin(self._objects, target)).upload_id

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Store a part. Keeps one block of the part in memory at a time."""
        upload, blocks, sent = self._upload(plan, staging), Blocks(body), list[uploads.SentPart]()
        for number, size in PartNumbers(plan).of(index):
            block = await blocks.take(size)
            is_last = sum(part.size_bytes for part in sent) + size == plan.size_of(index)
            if len(block) < size or (is_last and await blocks.take(1)):
                raise errors.VerificationFailed("A part does not have the declared size.")
            sent.append(await upload.send(number, block))
        return StoredPart(index, plan.size_of(index), ",".join(part.tag for part in sent))

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """Join the parts. A repeated call returns the same result."""
        upload, target = self._upload(plan, staging), parse_object_location(plan.path)
        if not parts:
            # S3 cannot join an empty list of parts.
            status = await self.write(plan.path, empty_body(), overwrite=overwrite)
            await upload.discard()
            return status
        if sum(part.size_bytes for part in parts) != plan.size_bytes:
            raise errors.VerificationFailed("The total size of the parts does not match the declared size of the file.")
        numbers = PartNumbers(plan)
        sent = [
            uploads.SentPart(number, size, tag)
            for part in sorted(parts, key=lambda part: part.index)
            for (number, size), tag in zip(numbers.of(part.index), part.receipt.split(","), strict=False)
        ]
        try:
            return await upload.complete(sent, overwrite=overwrite)
        except MultipartUploadMissing:
            # An earlier call may have joined the parts without receiving the response.
            if not await upload.is_complete(sent):
                raise
        return await self._objects.status(target)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        await self._upload(plan, staging).discard()

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Do nothing, because unfinished uploads do not appear under any name in this store."""
        del older_than_s
        parse_location(path)
        return 0

    async def abort_unlisted_uploads(self, path: str, older_than_s: float) -> int:
        """Abort uploads to this key whose last part was stored more than `older_than_s` ago.

        Uploads of other programs are included, because S3 does not report which program started an upload.
        """
        before, swept, target = datetime.now(UTC) - timedelta(seconds=older_than_s), 0, parse_object_location(path)
        pages = self._connection.pages(
            "list_multipart_uploads",
            {"Bucket": target.bucket, "Prefix": target.key},
            about=target.label,
            follow={"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
        )
        with suppress(errors.NotSupported):
            async for page in pages:
                for entry in page.get("Uploads", ()):
                    if entry["Key"] != target.key or entry["Initiated"] >= before:
                        continue
                    upload = uploads.MultipartUpload(self._objects, target, entry["UploadId"])
                    with suppress(MultipartUploadMissing):  # completed in the meantime
                        if await upload.last_sent_at(entry["Initiated"]) < before:
                            await upload.discard()
                            swept += 1
        return swept

    def _upload(self, plan: PartPlan, staging: str) -> uploads.MultipartUpload:
        return uploads.MultipartUpload(self._objects, parse_object_location(plan.path), staging)

    async def _file_location(self, path: str) -> ObjectLocation:
        """Parse the path of a file. Raises NotAFile for the root and for buckets, PathNotFound."""
        location = parse_location(path)
        if not location.key:
            await self._objects.status(location)
            raise errors.NotAFile(f"{location.label} is a directory.")
        return location

    async def _check_target(self, target: ObjectLocation, *, overwrite: bool) -> None:
        """Raise PathExists for an existing directory (or file, unless `overwrite` is set), and NotADirectory if the
        parent is a file.
        """
        found = await asyncio.gather(
            self._objects.find(target),
            self._objects.keys_below(target, 1),
            # The parent need not be checked if it is a bucket.
            self._objects.find(target.parent) if target.parent.key else asyncio.sleep(0),
            return_exceptions=True,
        )
        for each in found:
            if isinstance(each, BaseException):
                raise each
        file, keys, above = found
        if above:
            raise errors.NotADirectory(f"{label(target.parent.path)} is a file.")
        if keys or (file and not overwrite):
            raise errors.PathExists(f"{target.label} already exists.")

    async def _make_bucket(self, location: ObjectLocation) -> None:
        """Create a bucket. Raises PathExists, InvalidName, PermissionDenied."""
        try:
            await self._objects.status(location)
        except errors.PathNotFound:
            if not self._connection.options.allow_bucket_creation:
                raise errors.PermissionDenied("Creating buckets is not allowed on this server.") from None
            region = self._connection.options.region
            arguments: dict[str, object] = {"Bucket": location.bucket}
            # AWS rejects the name of its default region here.
            if region not in {"", "us-east-1"}:
                arguments["CreateBucketConfiguration"] = {"LocationConstraint": region}
            await self._connection.call("create_bucket", arguments, about=location.label, repeatable=False)
            return
        raise errors.PathExists(f"{location.label or 's3a://'} already exists.")


class S3FileSystem:
    """The store `s3a`. Connects on the first call. Must be closed."""

    scheme = Scheme.S3A
    traits = StorageTraits(
        lists_in_order=True, container_levels=1, escapes=Escapes.KEYS, min_part_bytes=uploads.MIN_PART_BYTES
    )

    def __init__(self, options: S3Options) -> None:
        self._connection = S3Connection(options)
        self._storage = S3Storage(self._connection)

    def as_user(self, user: StorageUser) -> S3Storage:  # noqa: ARG002 one login serves all users
        return self._storage

    async def close(self) -> None:
        await self._connection.close()


def build(settings: Settings) -> FileSystem | None:
    """Return the store for the first configured account, or None if there is no account. Raises ConfigurationError if
    its access keys are missing or incomplete.
    """
    options = options_of(settings)
    return None if options is None else S3FileSystem(options)


def options_of(settings: Settings) -> S3Options | None:
    """Return the options of the first configured account, or None. Raises ConfigurationError."""
    for name, account in settings.aws.aws_accounts.items():
        return S3Options(
            region=account.region,
            endpoint=account.endpoint,
            is_secure=account.is_secure,
            path_style=account.path_style,
            keys=_keys(f"aws.aws_accounts.{name}", account),
            buckets=_buckets(settings),
            allow_bucket_creation=settings.filebrowser.allow_bucket_creation,
        )
    return None


def _keys(table: str, account: AwsAccountSettings) -> S3Keys | None:
    key_id, secret = (given.get_secret_value().strip() for given in (account.access_key_id, account.secret_access_key))
    if key_id and secret:
        return S3Keys(key_id, secret, account.security_token.get_secret_value().strip())
    if key_id or secret:
        raise errors.ConfigurationError([f"{table}: access_key_id and secret_access_key must be set together."])
    if not account.allow_environment_credentials:
        raise errors.ConfigurationError(
            [f"{table}: keys are required, because credentials from the environment are not allowed."]
        )
    return None


def _buckets(settings: Settings) -> tuple[str, ...]:
    """Return the configured buckets with an S3 scheme or no scheme. The setting may also list buckets of other
    stores.
    """
    named = (name.partition("://") for name in settings.filebrowser.buckets)
    return tuple(
        (rest if marker else scheme).strip("/")
        for scheme, marker, rest in named
        if not marker or scheme.lower() in {"s3", "s3a", "s3n"}
    )
