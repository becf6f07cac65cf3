"""One Azure storage account as a file system."""

from queryserver.domain.files import Scheme, StorageUser
from queryserver.interfaces.storage import StorageTraits
from queryserver.storages.adls.account import AzureAccount
from queryserver.storages.adls.blob_storage import FlatStorage
from queryserver.storages.adls.dfs_storage import HierarchicalStorage
from queryserver.storages.adls.http import AzureClient


class AdlsFileSystem:
    """The store `abfs`. Connects at the first call. To be closed by its owner. Raises ConfigurationError."""

    def __init__(self, account: AzureAccount) -> None:
        self._client = AzureClient(account)
        kind = HierarchicalStorage if account.is_hierarchical else FlatStorage
        self._storage = kind(account, self._client)

    @property
    def scheme(self) -> Scheme:
        return Scheme.ABFS

    @property
    def traits(self) -> StorageTraits:
        """Folders of both kinds are listed elsewhere than in order of their names."""
        return StorageTraits(container_levels=1)

    def as_user(self, user: StorageUser) -> HierarchicalStorage | FlatStorage:  # noqa: ARG002 shared credentials
        """The account decides by this service's login, the same for every user."""
        return self._storage

    async def close(self) -> None:
        """Idempotent."""
        await self._client.close()
