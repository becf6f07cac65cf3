"""What the settings say about an Azure storage account."""

from dataclasses import dataclass, field

from queryserver.storages.adls.credentials import ClientCredentials, SasToken, SharedKey

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the account is waited for. Seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """Between two signs of life, and to the first byte of a read with all its tries."""
    commit_s: float = 120.0
    """For a call that changes many things: a commit of blocks, a rename or delete of a tree."""
    first_retry_s: float = 0.2


@dataclass(frozen=True, slots=True)
class AzureAccount:
    """One account and how this service logs in. Addresses are without a slash at their end."""

    dfs_url: str
    """`https://<account>.dfs.core.windows.net`; of hierarchical accounts."""
    blob_url: str
    """`https://<account>.blob.core.windows.net`; of flat accounts."""
    credential: SharedKey | SasToken | ClientCredentials
    is_hierarchical: bool = True
    umask: int = 0o022
    """Bits that new files and directories lack, where the account has permissions."""
    allow_container_creation: bool = False
    block_bytes: int = 4 * MIB
    """Uploads hold up to three times as much in memory."""
    patience: Patience = field(default_factory=Patience)

    @property
    def url(self) -> str:
        """The service that is spoken to."""
        return self.dfs_url if self.is_hierarchical else self.blob_url
