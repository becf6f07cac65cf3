"""Trino, and Presto by its headers, over the client protocol (trino.io/docs/current/develop/client-protocol.html)."""

from queryserver.engines.trino.address import PRESTO as PRESTO
from queryserver.engines.trino.address import TRINO as TRINO
from queryserver.engines.trino.address import Authentication as Authentication
from queryserver.engines.trino.address import Patience as Patience
from queryserver.engines.trino.address import TrinoAddress as TrinoAddress
from queryserver.engines.trino.engine import TrinoEngine as TrinoEngine
