"""Whose view of a data source is indexed: that of all callers, or of each (Contract platform 8.4)."""

import hashlib
import re
from collections.abc import Sequence

import orjson

from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.user import User
from queryserver.interfaces.catalog import CatalogEngine
from queryserver.interfaces.engine import EngineCapabilities
from queryserver.interfaces.metadata_index import ScopeKey
from queryserver.services.connectors import Connectors

_PASSWORD = re.compile(r"://[^/@]*@")
_SECRET = re.compile(r"(?i)passw|passphrase|secret|token|private_key|credentials_json|access_key|api_key")


def scope_key(user: User, connector: Connector, *, as_caller: bool, places: Sequence[tuple[str, int]] = ()) -> ScopeKey:
    """Whose rows a look of the user belongs to. The address has no secret in it: its digest could be guessed.

    `places`: hosts and ports of the engine. A connector without options has them of other sections of the settings.
    """
    options = {
        name: _PASSWORD.sub("://", value) if isinstance(value, str) else value
        for name, value in connector.options.items()
        if not _SECRET.search(name)
    }
    told = [connector.dialect, connector.interface, connector.version, sorted(options.items()), sorted(places)]
    address = hashlib.sha256(orjson.dumps(told)).digest()
    return ScopeKey(connector.key, user.id if as_caller else None, address, connector.is_stored)


class Scoping:
    """Which connectors have metadata, and which of them show each caller something else."""

    def __init__(self, connectors: Connectors) -> None:
        self._connectors = connectors

    def key(self, user: User, connector: Connector) -> ScopeKey | None:
        """None: the connector tells no metadata."""
        try:
            engine = self._connectors.engine(connector)
        except QueryServerError:  # it cannot be run here
            return None
        if not isinstance(engine, CatalogEngine):
            return None
        capable = engine.capabilities
        return scope_key(user, connector, as_caller=_acts_as_caller(capable), places=capable.places)

    def acts_as_caller(self, connector: Connector) -> bool:
        """Whether the data source is asked under the name, or with the login or token, of each caller."""
        return _acts_as_caller(self._connectors.engine(connector).capabilities)


def _acts_as_caller(capable: EngineCapabilities) -> bool:
    return capable.wants_credentials or capable.wants_external_token or capable.acts_as_caller
