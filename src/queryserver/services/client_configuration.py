"""What a client is told about this server and the caller (Contract platform 7.1)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from queryserver.db.statements.overview import HistoryFacts
from queryserver.domain.connector import Connector
from queryserver.domain.connector_types import Flags
from queryserver.domain.files import Scheme
from queryserver.domain.user import DOWNLOAD, IMPORTER, User
from queryserver.services.connector_catalogue import flags_of
from queryserver.services.connectors import Connectors
from queryserver.services.storage.stores import Caller, Stores
from queryserver.settings import Settings

_STORES: Mapping[Scheme, tuple[str, str]] = MappingProxyType(
    {
        Scheme.HDFS: ("hdfs", "Files"),
        Scheme.S3A: ("s3", "S3"),
        Scheme.ABFS: ("abfs", "ABFS"),
        Scheme.OFS: ("ofs", "Ozone"),
        Scheme.FILE: ("file", "Local Files"),
    }
)
"""Type and label of the browser of a store, in the order of the contract."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A data source that the caller may use and this server can run."""

    connector: Connector
    flags: Flags

    @property
    def is_sql(self) -> bool:
        """Whether it takes SQL."""
        return bool(self.flags.get("is_sql"))


@dataclass(frozen=True, slots=True)
class Browser:
    """Something to browse, with the page of Hue clients for it."""

    type: str
    label: str
    page: str
    button: str = "Browse"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that depends on the caller."""

    is_admin: bool
    interpreters: Sequence[Interpreter]
    main: Interpreter | None
    default_sql: Interpreter | None
    """What a statement runs in that names none."""
    browsers: Sequence[Browser]
    document_types: Sequence[str]
    may_import: bool
    may_download: bool

    @property
    def first_sql(self) -> Interpreter | None:
        """The first interpreter that takes SQL."""
        return next((one for one in self.interpreters if one.is_sql), None)


class ClientConfiguration:
    """Put together anew for each call: a new connector, or another right, shows at once."""

    def __init__(self, settings: Settings, connectors: Connectors, stores: Stores, history: HistoryFacts) -> None:
        self._settings = settings
        self._connectors = connectors
        self._stores = stores
        self._history = history

    async def of(self, user: User) -> Configuration:
        """The configuration for a caller. Raises DatabaseUnavailable."""
        main, default_sql = self._connectors.main(user), self._connectors.default_sql(user)
        interpreters = [_interpreter(one) for one in self._connectors.visible(user)]
        may_import = self._settings.importer.is_enabled and user.may(IMPORTER)
        return Configuration(
            is_admin=user.is_admin,
            interpreters=interpreters,
            main=None if main is None else _interpreter(main),
            default_sql=None if default_sql is None else _interpreter(default_sql),
            browsers=list(self._browsers(user, has_sql=any(one.is_sql for one in interpreters), importer=may_import)),
            document_types=["directory", *(f"query-{dialect}" for dialect in await self._history.dialects(user.id))],
            may_import=may_import,
            may_download=self._settings.desktop.enable_download and user.may(DOWNLOAD),
        )

    def _browsers(self, user: User, *, has_sql: bool, importer: bool) -> Iterator[Browser]:
        caller = Caller.of(user)
        permitted = {file_system.scheme for file_system in self._stores.permitted(caller)}
        for scheme, (kind, label) in _STORES.items():
            if scheme in permitted:
                home = quote(str(self._stores.home(caller, scheme)), safe="")
                yield Browser(kind, label, f"/filebrowser/view={home}")
        if has_sql:
            yield Browser("tables", "Tables", "/metastore/tables")
        if any(cluster.resourcemanager_api_url for cluster in self._settings.hadoop.yarn_clusters.values()):
            yield Browser("yarn", "Jobs", "/jobbrowser/")
        if importer:
            yield Browser("importer", "Importer", "/indexer/importer", "Import")


def _interpreter(connector: Connector) -> Interpreter:
    return Interpreter(connector, flags_of(connector.dialect, connector.interface))
