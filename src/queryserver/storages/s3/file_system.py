"""One S3 account as a FileSystem."""

from queryserver.domain.files import Scheme, StorageUser
from queryserver.interfaces.storage import StorageTraits
from queryserver.storages.s3.blocks import MIN_PART_BYTES
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.options import S3Options
from queryserver.storages.s3.storage import S3Storage

_TRAITS = StorageTraits(lists_in_order=True, container_levels=1, min_part_bytes=MIN_PART_BYTES)


class S3FileSystem:
    """The store `s3a`. Its first call connects. To be closed by its owner."""

    def __init__(self, options: S3Options) -> None:
        self._connection = S3Connection(options)
        self._storage = S3Storage(self._connection)

    @property
    def scheme(self) -> Scheme:
        """See the Protocol."""
        return Scheme.S3A

    @property
    def traits(self) -> StorageTraits:
        """See the Protocol."""
        return _TRAITS

    def as_user(self, user: StorageUser) -> S3Storage:  # noqa: ARG002 one login serves all users
        """See the Protocol."""
        return self._storage

    async def close(self) -> None:
        """See the Protocol."""
        await self._connection.close()
