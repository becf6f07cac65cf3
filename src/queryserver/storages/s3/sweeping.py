"""What crashed processes left: multipart uploads that nobody goes on with."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

from queryserver.domain.errors.base import NotSupported
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.errors import UploadGone
from queryserver.storages.s3.multipart import MultipartUpload
from queryserver.storages.s3.objects import Objects
from queryserver.storages.s3.places import Place


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
