"""The Storage over buckets and keys."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queryserver.errors.base import ConfigurationError, NotSupported, PermissionDenied
from queryserver.errors.files import (
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    VerificationFailed,
    root_not_allowed,
    same_path,
)
from queryserver.files.model import FileStatus, Scheme, StorageUser
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart
from queryserver.files.stores.s3.connection import (
    Place,
    S3Connection,
    S3Keys,
    S3Options,
    UploadGone,
    label,
    object_place,
    place_of,
)
from queryserver.files.stores.s3.listing import MAX_KEYS, Listing, Objects, Reading
from queryserver.files.stores.s3.multipart import MAX_PARTS, MIN_PART_BYTES, Blocks, MultipartUpload, SentPart
from queryserver.files.stores.s3.writing import UPLOAD_BYTES, Copies, Deletion, Upload
from queryserver.platform.settings.stores import AwsAccountSettings
from queryserver.platform.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """Which numbers at the store the parts of a plan have. A part has several when memory is too small for it."""

    plan: PartPlan

    @property
    def per_part(self) -> int:
        """Numbers of one part."""
        return max(1, min(-(-self.plan.part_bytes // UPLOAD_BYTES), MAX_PARTS // max(self.plan.parts, 1)))

    @property
    def block_bytes(self) -> int:
        """Size of what has one number; the last one of a part may be smaller."""
        return max(1, -(-self.plan.part_bytes // self.per_part))

    def size_of(self, index: int) -> int:
        """Bytes of one part."""
        return max(0, min(self.plan.part_bytes, self.plan.size_bytes - index * self.plan.part_bytes))

    def of(self, index: int) -> Iterator[tuple[int, int]]:
        """Numbers of one part and the sizes of what they stand for; an empty part has one as well."""
        first, whole = index * self.per_part + 1, self.size_of(index)
        for number, start in enumerate(range(0, max(whole, 1), self.block_bytes), start=first):
            yield number, min(self.block_bytes, whole - start)


async def send_part(upload: MultipartUpload, plan: PartPlan, index: int, body: AsyncIterator[bytes]) -> StoredPart:
    """Store one part; holds a block of it at a time."""
    numbers, blocks = PartNumbers(plan), Blocks(body)
    sent: list[SentPart] = []
    for number, size in numbers.of(index):
        block = await blocks.take(size)
        is_last = sum(part.size_bytes for part in sent) + size == numbers.size_of(index)
        if len(block) < size or (is_last and await blocks.take(1)):
            raise VerificationFailed("A part is not as long as was agreed.")
        sent.append(await upload.send(number, block))
    return StoredPart(index, numbers.size_of(index), ",".join(part.tag for part in sent))


async def join(
    upload: MultipartUpload, plan: PartPlan, parts: Sequence[StoredPart], *, overwrite: bool
) -> FileStatus | None:
    """The file of all parts; None when the upload has become another file or is gone.

    Raises VerificationFailed, PathExists; the parts are still there then.
    """
    if sum(part.size_bytes for part in parts) != plan.size_bytes:
        raise VerificationFailed("The parts are not as long as the file was said to be.")
    sent = [number for part in sorted(parts, key=lambda part: part.index) for number in _sent(plan, part)]
    try:
        return await upload.complete(sent, overwrite=overwrite)
    except UploadGone:
        # An earlier call may have joined them and its answer may be lost.
        if not await upload.is_complete(sent):
            raise
        return None


def _sent(plan: PartPlan, part: StoredPart) -> Iterator[SentPart]:
    for (number, size), tag in zip(PartNumbers(plan).of(part.index), part.receipt.split(","), strict=False):
        yield SentPart(number, size, tag)


class Sweep:
    """Aborts old uploads of one key. S3 does not tell whose they are: whoever calls must have written to that key."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def run(self, target: Place, older_than_s: float) -> int:
        """Abort the uploads of a file that got their last part before that time; how many."""
        before, swept = datetime.now(UTC) - timedelta(seconds=older_than_s), 0
        async for upload, begun_at in self._uploads(target):
            try:
                if begun_at < before and await upload.last_sent_at(begun_at) < before:
                    await upload.discard()
                    swept += 1
            except UploadGone:
                continue  # completed meanwhile
        return swept

    async def _uploads(self, target: Place) -> AsyncGenerator[tuple[MultipartUpload, datetime]]:
        arguments: dict[str, object] = {"Bucket": target.bucket, "Prefix": target.key}
        while True:
            try:
                told = await self._connection.ask("list_multipart_uploads", arguments, about=target.label)
            except NotSupported:
                return
            for entry in told.get("Uploads", ()):
                if entry["Key"] == target.key:
                    upload = MultipartUpload(self._connection, self._objects, target, entry["UploadId"])
                    yield upload, entry["Initiated"]
            if not told.get("IsTruncated"):
                return
            arguments["KeyMarker"] = told["NextKeyMarker"]
            arguments["UploadIdMarker"] = told["NextUploadIdMarker"]


class S3Storage:
    """The store as all users see it: it knows one login only."""

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection
        self._objects = Objects(connection)

    async def stat(self, path: str) -> FileStatus:
        """See the Protocol. A prefix of keys is a directory, with its marker or without."""
        return await self._objects.status(place_of(path))

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = MAX_KEYS
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. Keys that no path can name are left out."""
        listing = Listing(self._connection, self._objects)
        async for batch in listing.batches(place_of(path), cursor, batch_size):
            yield batch

    async def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        async for entries in Listing(self._connection, self._objects).below(place_of(path)):
            yield entries

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        place = await self._file_place(path)
        with self._connection.read_sizes.reader():
            async for piece in Reading(self._connection, self._objects).pieces(place, offset, length, version):
                yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        await self._check_target(object_place(path), overwrite=overwrite)
        return await self.write_checked(path, body, overwrite=overwrite, size_bytes=size_bytes)

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        target = object_place(path)
        upload = Upload(self._connection, self._objects, target, overwrite=overwrite, announced_bytes=size_bytes)
        return await upload.run(body)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:  # noqa: ARG002 a flat account has none
        """See the Protocol. Raises PermissionDenied for a bucket, unless the settings allow new ones."""
        place = place_of(path)
        if not place.key:
            await self._make_bucket(place)
            return
        await self._check_target(place, overwrite=False)
        await self._objects.make_marker(place)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. The store copies, the bytes do not pass through here."""
        if source == target:
            raise same_path("Source and target are one.")
        place = object_place(target)
        origin = await self._file_place(source)
        await self._check_target(place, overwrite=overwrite)
        return await Copies(self._connection, self._objects).copy(origin, place, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. A directory that becomes empty stays, by a marker."""
        place = place_of(path)
        if not place.bucket:
            raise root_not_allowed("The root of the store cannot be deleted.")
        if not place.key:
            await self._objects.delete_bucket(place)
            return
        await Deletion(self._connection, self._objects).delete(place, recursive=recursive)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol. The staging place is the id of a multipart upload."""
        target = object_place(plan.path)
        await self._check_parent(target)
        return (await MultipartUpload.begin(self._connection, self._objects, target)).upload_id

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        return await send_part(self._upload(plan, staging), plan, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See the Protocol. A repeated call gives the same answer."""
        upload, target = self._upload(plan, staging), object_place(plan.path)
        if not parts:
            # S3 joins no parts at all to nothing.
            status = await self.write(plan.path, _nothing(), overwrite=overwrite)
            await upload.discard()
            return status
        return await join(upload, plan, parts, overwrite=overwrite) or await self._objects.status(target)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        await self._upload(plan, staging).discard()

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """See the Protocol. Nothing of ours has a name here before it is complete."""
        del older_than_s
        place_of(path)
        return 0

    async def discard_unseen(self, path: str, older_than_s: float) -> int:
        """See `UnseenUploads`. What counts is the last part."""
        return await Sweep(self._connection, self._objects).run(object_place(path), older_than_s)

    def _upload(self, plan: PartPlan, staging: str) -> MultipartUpload:
        return MultipartUpload(self._connection, self._objects, object_place(plan.path), staging)

    async def _file_place(self, path: str) -> Place:
        """The place of what should be a file. Raises NotAFile: roots and buckets are none."""
        place = place_of(path)
        if not place.key:
            await self._objects.status(place)
            raise NotAFile(f"{place.label} is a directory.")
        return place

    async def _check_target(self, target: Place, *, overwrite: bool) -> None:
        """Raises PathExists: there is a directory of that name, or a file without `overwrite`; NotADirectory."""
        found = await asyncio.gather(
            self._objects.find(target),
            self._objects.keys_below(target, 1),
            self._file_above(target),
            return_exceptions=True,
        )
        file, keys, above = [_outcome(each) for each in found]
        if above:
            raise NotADirectory(f"{label(target.parent.path)} is a file.")
        if keys or (file and not overwrite):
            raise PathExists(f"{target.label} exists.")

    async def _file_above(self, target: Place) -> FileStatus | None:
        return await self._objects.find(target.parent) if target.parent.key else None

    async def _check_parent(self, target: Place) -> None:
        parent = await self._objects.status(target.parent)
        if not parent.is_directory:
            raise NotADirectory(f"{label(parent.path)} is a file.")

    async def _make_bucket(self, place: Place) -> None:
        try:
            await self._objects.status(place)
        except PathNotFound:
            if not self._connection.options.allow_bucket_creation:
                raise PermissionDenied("New buckets are not allowed here.") from None
            await self._objects.make_bucket(place)
            return
        raise PathExists(f"{place.label or 's3a://'} exists.")


def _outcome(found: object) -> object:
    if isinstance(found, BaseException):
        raise found
    return found


async def _nothing() -> AsyncGenerator[bytes]:
    for piece in ():
        yield piece


_TRAITS = StorageTraits(lists_in_order=True, container_levels=1, min_part_bytes=MIN_PART_BYTES)


class S3FileSystem:
    """The store `s3a`. Its first call connects. To be closed by its owner."""

    def __init__(self, options: S3Options) -> None:
        self._connection = S3Connection(options)
        self._storage = S3Storage(self._connection)

    @property
    def scheme(self) -> Scheme:
        return Scheme.S3A

    @property
    def traits(self) -> StorageTraits:
        return _TRAITS

    def as_user(self, user: StorageUser) -> S3Storage:  # noqa: ARG002 one login serves all users
        return self._storage

    async def close(self) -> None:
        await self._connection.close()


def build(settings: Settings) -> FileSystem | None:
    """The first account; None without any. Raises ConfigurationError: it has no keys, or half of them."""
    options = options_of(settings)
    return None if options is None else S3FileSystem(options)


def options_of(settings: Settings) -> S3Options | None:
    """What the settings say about the first account. Raises ConfigurationError."""
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
        raise ConfigurationError([f"{table}: access_key_id and secret_access_key belong together."])
    if not account.allow_environment_credentials:
        raise ConfigurationError([f"{table}: keys are needed, since those of the environment are not allowed."])
    return None


def _buckets(settings: Settings) -> tuple[str, ...]:
    """Of a list that may name containers of other stores as well, those without a scheme or with that of S3."""
    named = (name.partition("://") for name in settings.filebrowser.buckets)
    return tuple(
        (rest if marker else scheme).strip("/")
        for scheme, marker, rest in named
        if not marker or scheme.lower() in {"s3", "s3a", "s3n"}
    )
