"""A stand-in for Azure Storage's DFS service, with a login service, because no emulator offers that interface.

Written from the public REST reference (Azure Data Lake Storage Gen2 REST API; Authorize with Shared Key; OAuth 2.0
client credentials). Tests against it verify that the adapter follows the reference, not that Azure does.
"""

from tests.engines.standin_dfs.server import DfsServer as DfsServer
from tests.engines.standin_dfs.server import dfs_server as dfs_server
