"""Azure storage: accounts with a hierarchical namespace through DFS REST, flat ones through Blob REST."""

from queryserver.storages.adls.account import AzureAccount as AzureAccount
from queryserver.storages.adls.credentials import ClientCredentials as ClientCredentials
from queryserver.storages.adls.credentials import SasToken as SasToken
from queryserver.storages.adls.credentials import SharedKey as SharedKey
from queryserver.storages.adls.file_system import AdlsFileSystem as AdlsFileSystem
