"""The FileSystem of one HDFS cluster."""

import asyncio
from collections.abc import Mapping

import httpx

from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.errors.files import StorageError, StorageUnavailable
from queryserver.domain.files import ClusterFacts, Scheme, StorageUser
from queryserver.interfaces.storage import StorageTraits
from queryserver.storages.webhdfs import spnego
from queryserver.storages.webhdfs.address import WebHdfsAddress
from queryserver.storages.webhdfs.errors import RemoteFailure
from queryserver.storages.webhdfs.gateway import Call, ErrorOf, Gateway
from queryserver.storages.webhdfs.identity import Identity, NamedIdentity, TokenIdentity, acting_name
from queryserver.storages.webhdfs.replacing import Renaming
from queryserver.storages.webhdfs.storage import WebHdfsStorage
from queryserver.storages.webhdfs.tree import ListingOperation, Tree

_FACTS_S = 2.0


class WebHdfsCluster:
    """Connections to one cluster or gateway, and what was learned of it. To be closed by its owner."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        login: httpx.Auth | None = None,
        error_of: ErrorOf = RemoteFailure.error,
        has_attributes: bool = True,
        listing: ListingOperation | None = None,
    ) -> None:
        """`login` is how the service logs in where there are tokens; None: by its Kerberos ticket.

        Raises ConfigurationError: the package for that is missing.
        """
        self._named = NamedIdentity(address.service_user)
        if address.uses_tokens:
            if login is None and not spnego.is_installed():
                raise ConfigurationError(["Kerberos of a file store needs the extra queryserver[kerberos]."])
            self._login = Gateway(address, self._named, auth=login or spnego.Negotiate(), error_of=error_of)
            identity: Identity = TokenIdentity(self._obtain, self._renew)
            self.gateway = Gateway(address, identity, error_of=error_of)
        else:
            self._login = self.gateway = Gateway(address, self._named, error_of=error_of)
        self._service_user = address.service_user
        self._umask = address.umask
        self._has_attributes = has_attributes
        self._listing = listing or ListingOperation()
        self._renaming = Renaming()

    def tree(self, user: StorageUser) -> Tree:
        """Raises PermissionDenied: a name that the store would read as another one's."""
        return Tree(self.gateway, acting_name(user.name), self._listing, has_attributes=self._has_attributes)

    def storage(self, user: StorageUser) -> WebHdfsStorage:
        """As `tree`."""
        return WebHdfsStorage(self.tree(user), self._renaming, umask=self._umask)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        await self.gateway.close()
        await self._login.close()

    async def _obtain(self, user: str) -> str:
        call = Call("GET", "GETDELEGATIONTOKEN", parameters={"renewer": self._service_user}, is_repeatable=True)
        token = await self._login.told(user, call, "Token")
        if not isinstance(token, Mapping) or not isinstance(text := token.get("urlString"), str):
            raise StorageError("The store gives no delegation tokens.")
        return text

    async def _renew(self, token: str) -> None:
        call = Call("PUT", "RENEWDELEGATIONTOKEN", parameters={"token": token}, is_repeatable=True)
        await self._login.answer(self._service_user, call)


class WebHdfsFileSystem:
    """See the Protocols FileSystem and ClusterFileSystem."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        superuser: str = "hdfs",
        supergroup: str = "supergroup",
        trash_interval_min: int = 0,
        login: httpx.Auth | None = None,
    ) -> None:
        """Connects to nothing. `trash_interval_min` 0: the cluster is asked. Raises ConfigurationError."""
        self._cluster = WebHdfsCluster(address, login=login)
        self._superuser = superuser
        self._supergroup = supergroup
        self._trash_interval_min = trash_interval_min

    @property
    def scheme(self) -> Scheme:
        """See the Protocol."""
        return Scheme.HDFS

    @property
    def traits(self) -> StorageTraits:
        """See the Protocol."""
        return StorageTraits(
            lists_in_order=True,
            acts_as_user=True,
            deletes_to_trash=True,
            changes_modes_of_trees=True,
            home_parent="user",
        )

    def as_user(self, user: StorageUser) -> WebHdfsStorage:
        """See the Protocol. Raises PermissionDenied."""
        return self._cluster.storage(user)

    async def facts(self, user: StorageUser) -> ClusterFacts:
        """See the Protocol. The superuser is the owner of the root."""
        tree = self._cluster.tree(user)
        try:
            async with asyncio.timeout(_FACTS_S):
                superuser = (await tree.stat("")).owner or self._superuser
                minutes = self._trash_interval_min or await self._interval(tree)
        except TimeoutError as error:
            raise StorageUnavailable("The store does not answer in time.") from error
        return ClusterFacts(
            is_trash_enabled=minutes > 0,
            is_superuser=user.name == superuser,
            superuser=superuser,
            supergroup=self._supergroup,
        )

    async def close(self) -> None:
        """See the Protocol."""
        await self._cluster.close()

    async def _interval(self, tree: Tree) -> int:
        told = await tree.told("GETSERVERDEFAULTS", "", "FsServerDefaults", "trashInterval")
        return told if isinstance(told, int) else 0
