"""The FileSystem of all Ozone services, a gateway for each."""

from collections.abc import Mapping

import httpx

from queryserver.domain.files import Scheme, StorageUser
from queryserver.interfaces.storage import StorageTraits
from queryserver.storages.ozone.errors import error_of
from queryserver.storages.ozone.storage import BUCKET_LEVELS, OzoneStorage, ServiceView
from queryserver.storages.webhdfs import WebHdfsAddress
from queryserver.storages.webhdfs.file_system import WebHdfsCluster
from queryserver.storages.webhdfs.tree import ListingOperation


class OzoneFileSystem:
    """See the Protocol FileSystem."""

    def __init__(
        self, services: Mapping[str, WebHdfsAddress], *, max_copy_bytes: int, login: httpx.Auth | None = None
    ) -> None:
        """Gateways by the name of their service. Connects to nothing. Raises ConfigurationError."""
        self._services = {
            name: WebHdfsCluster(
                address,
                login=login,
                error_of=error_of,
                has_attributes=False,
                listing=ListingOperation(is_signed=False),
            )
            for name, address in services.items()
        }
        self._max_copy_bytes = max_copy_bytes

    @property
    def scheme(self) -> Scheme:
        """See the Protocol."""
        return Scheme.OFS

    @property
    def traits(self) -> StorageTraits:
        """See the Protocol."""
        return StorageTraits(
            lists_in_order=True,
            container_levels=BUCKET_LEVELS,
            acts_as_user=True,
            changes_modes_of_trees=True,
            max_copy_bytes=self._max_copy_bytes,
        )

    def as_user(self, user: StorageUser) -> OzoneStorage:
        """See the Protocol. Raises PermissionDenied."""
        return OzoneStorage(
            {name: ServiceView(service.storage(user), service.tree(user)) for name, service in self._services.items()}
        )

    async def close(self) -> None:
        """See the Protocol."""
        for service in self._services.values():
            await service.close()
