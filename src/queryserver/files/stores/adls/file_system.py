"""The file system for an Azure storage account."""

from dataclasses import replace
from urllib.parse import urlsplit

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import Escapes, Scheme, StorageUser
from queryserver.files.protocol import FileSystem, StorageTraits
from queryserver.files.stores.adls.dfs import HierarchicalStorage
from queryserver.files.stores.adls.flat import AzureFlatStorage
from queryserver.files.stores.adls.http import AzureAccount, AzureClient, ClientCredentials, SasToken, SharedKey
from queryserver.platform.settings.stores import AbfsClusterSettings
from queryserver.platform.settings.tree import Settings


class AdlsFileSystem:
    """The store `abfs`. Connects on the first call. Must be closed."""

    scheme = Scheme.ABFS

    def __init__(self, account: AzureAccount) -> None:
        self._client = AzureClient(account)
        escapes = Escapes.NONE if account.is_hierarchical else Escapes.DOTLESS_KEYS
        self.traits = StorageTraits(container_levels=1, escapes=escapes)
        kind = HierarchicalStorage if account.is_hierarchical else AzureFlatStorage
        self._storage = kind(account, self._client)

    def as_user(self, user: StorageUser) -> HierarchicalStorage | AzureFlatStorage:  # noqa: ARG002 shared credentials
        return self._storage

    async def close(self) -> None:
        await self._client.close()


def build(settings: Settings) -> FileSystem | None:
    """Return the store for the first configured cluster and account, or None if no cluster is configured. Raises
    ConfigurationError.
    """
    clusters = {**settings.azure.abfs_clusters, **settings.azure.adls_clusters}
    if not clusters:
        return None
    name, cluster = next(iter(clusters.items()))
    dfs_url, blob_url = _addresses(name, cluster)
    browser = settings.filebrowser
    return AdlsFileSystem(
        AzureAccount(
            dfs_url=dfs_url,
            blob_url=blob_url,
            credential=_credential(settings, _account_name(cluster)),
            is_hierarchical=cluster.hierarchical_namespace,
            umask=int(browser.umask, 8),
            allow_container_creation=browser.allow_bucket_creation,
        )
    )


def account_at(host: str, credential: SharedKey | ClientCredentials, settings: Settings) -> AzureAccount:
    """Return the account for a host name. If a cluster is configured for the account, its URLs and its kind apply.

    Otherwise, a host of the form `<account>.blob.…` denotes an account without a hierarchical namespace, as in Hadoop.
    Raises ConfigurationError.
    """
    for name, cluster in {**settings.azure.abfs_clusters, **settings.azure.adls_clusters}.items():
        if _account_name(cluster) == host.partition(".")[0]:
            dfs_url, blob_url = _addresses(name, cluster)
            is_hierarchical = cluster.hierarchical_namespace
            break
    else:
        dfs_url = f"https://{host.replace('.blob.', '.dfs.', 1)}"
        blob_url = f"https://{host.replace('.dfs.', '.blob.', 1)}"
        is_hierarchical = ".blob." not in host
    if isinstance(credential, ClientCredentials):
        for account in settings.azure.azure_accounts.values():
            credential = replace(credential, login_url=account.login_url)
            break
    return AzureAccount(dfs_url=dfs_url, blob_url=blob_url, credential=credential, is_hierarchical=is_hierarchical)


def _addresses(name: str, cluster: AbfsClusterSettings) -> tuple[str, str]:
    account = _account_name(cluster)
    if not account:
        raise ConfigurationError([f"azure.abfs_clusters.{name}.fs_defaultfs: must name an account."])
    host = urlsplit(cluster.fs_defaultfs).netloc.rpartition("@")[2]
    dfs_url = cluster.webhdfs_url or f"https://{host if '.' in host else f'{account}.dfs.core.windows.net'}"
    blob_url = cluster.blob_url or dfs_url.replace(".dfs.", ".blob.", 1)
    for key, url in (("webhdfs_url", dfs_url), ("blob_url", blob_url)):
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise ConfigurationError([f"azure.abfs_clusters.{name}.{key}: must be an http or https URL."])
    return dfs_url.rstrip("/"), blob_url.rstrip("/")


def _account_name(cluster: AbfsClusterSettings) -> str:
    """Return the account name from `abfs://container@account.dfs.core.windows.net` or from the service URL."""
    host = urlsplit(cluster.fs_defaultfs or cluster.webhdfs_url).netloc.rpartition("@")[2]
    return host.partition(".")[0]


def _credential(settings: Settings, account_name: str) -> SharedKey | SasToken | ClientCredentials:
    for account in settings.azure.azure_accounts.values():
        if key := account.account_key.get_secret_value():
            return SharedKey(account_name, key)
        if token := account.sas_token.get_secret_value():
            return SasToken(token)
        if account.tenant_id and account.client_id.get_secret_value():
            return ClientCredentials(
                tenant_id=account.tenant_id,
                client_id=account.client_id.get_secret_value(),
                client_secret=account.client_secret.get_secret_value(),
                login_url=account.login_url,
            )
        break
    raise ConfigurationError(["azure.azure_accounts: account_key, sas_token, or tenant_id and client_id are required."])
