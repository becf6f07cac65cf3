"""What builders need besides the connector."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.container.disk import disk_floor
from queryserver.domain.connector import Connector
from queryserver.domain.disk_floor import NO_FLOOR, DiskFloor
from queryserver.engines.shared_files import SharedFiles
from queryserver.network.addresses import AddressRules, Place
from queryserver.services.connector_options import Model, OptionRules, read_options
from queryserver.settings import Settings
from queryserver.settings.connectors import ConnectorPolicySettings
from queryserver.settings.engines import BeeswaxSettings, ImpalaSettings, SparkSettings

if TYPE_CHECKING:
    from queryserver.engines.postgresql import OwnDatabase

_POSTGRESQL_PORT = 5432
_BROKER_PORT = 6379


@dataclass(frozen=True)
class BuildContext:
    """Settings of the whole server that builders may use; in tests `BuildContext.of(Settings())`."""

    policy: ConnectorPolicySettings
    beeswax: BeeswaxSettings
    """For hive without options."""
    impala: ImpalaSettings
    """For impala without options."""
    spark: SparkSettings
    """For sparksql without options."""
    use_thrift_http_jwt: bool
    addresses: AddressRules
    """Every adapter that opens connections resolves through it."""
    cell_max_bytes: int
    """Largest value of a result: adapters refuse larger ones before they are in memory, where the engine can."""
    service_dsn: str | None = field(default=None, repr=False)
    """The service's own database, which no connector may use."""
    embedded_database: bool = False
    """Its server is the private PostgreSQL, which has the users' sample database, too."""
    disk_floor: DiskFloor = NO_FLOOR
    """Engines that write temporary files on this machine refuse statements below it."""
    files: SharedFiles = field(default_factory=SharedFiles)
    """What engines of one file agree by."""

    @cached_property
    def own_database(self) -> "OwnDatabase | None":
        """The service's own database, by which all connectors know it; its adapter is imported at the first use."""
        from queryserver.engines.postgresql import OwnDatabase

        return OwnDatabase(self.service_dsn) if self.service_dsn else None

    def rules(self, connector: Connector) -> OptionRules:
        """What the options of a connector are validated with."""
        return OptionRules(
            self.policy, self.addresses, is_stored=connector.is_stored, is_own_database=self._is_own_database
        )

    def options(self, model: type[Model], connector: Connector) -> Model:
        """The connector's options. Raises OptionsRefused with every problem."""
        return read_options(model, connector.key, connector.options, self.rules(connector))

    def is_named_as_own_database(self, name: str) -> bool:
        """Whether a PostgreSQL database has the name of the service's."""
        return bool(self.service_dsn) and name == database_name(self.service_dsn or "")

    def _is_own_database(self, host: str, port: int, name: str) -> bool:
        """Calls no resolver: each connection is checked, too."""
        is_server = (host.lower(), port) in self.addresses.service_database
        return self.is_named_as_own_database(name) and (is_server or self.addresses.is_literal_server(host, port))

    @property
    def databases_dir(self) -> Path | None:
        """Directory of the files of duckdb and sqlite; None: only `:memory:`."""
        return self.policy.local_database_dir

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The part of the settings that builders may use."""
        policy = settings.desktop.connector_policy
        return cls(
            policy=policy,
            beeswax=settings.beeswax,
            impala=settings.impala,
            spark=settings.spark,
            use_thrift_http_jwt=settings.desktop.use_thrift_http_jwt,
            cell_max_bytes=settings.editor.cell_max_bytes,
            disk_floor=disk_floor(settings),
            addresses=AddressRules(
                blocked=policy.blocked_networks,
                allowed=policy.allowed_networks,
                own=_own_places(settings),
                service_database=database_servers(settings.desktop.database.dsn or ""),
            ),
            service_dsn=settings.desktop.database.dsn,
            embedded_database=settings.desktop.database.embedded,
        )


def _own_places(settings: Settings) -> frozenset[Place]:
    """Host and port of the listener and of the broker."""
    desktop = settings.desktop
    found = {(desktop.http_host, desktop.http_port)}
    if desktop.task_server.enabled:
        found.update(_places(desktop.task_server.broker_url.get_secret_value(), _BROKER_PORT))
    return frozenset(found)


def database_servers(dsn: str) -> frozenset[Place]:
    """Host and port of each server that a PostgreSQL address names; that of a unix socket listens on loopback, too."""
    return frozenset(_places(dsn, _POSTGRESQL_PORT)) if dsn else frozenset()


def database_name(dsn: str) -> str:
    """The database that a PostgreSQL address names; by default that of the login's name."""
    _, parts = _hosts_apart(dsn)
    options = dict(parse_qsl(parts.query))
    return options.get("dbname") or options.get("database") or unquote(parts.path.strip("/")) or database_login(dsn)


def database_login(dsn: str) -> str:
    """The login that a PostgreSQL address names; empty without one."""
    _, parts = _hosts_apart(dsn)
    return dict(parse_qsl(parts.query)).get("user") or unquote(parts.username or "")


def _places(url: str, usual_port: int) -> Iterator[Place]:
    """Hosts and ports of a url: one, several with commas between, or those among its options."""
    named, parts = _hosts_apart(url)
    options = dict(parse_qsl(parts.query))
    hosts = (named or options.get("host", "")).split(",")
    ports = options.get("port", "").split(",")
    for number, text in enumerate(hosts):
        place = urlsplit(f"//{text}")
        own = ports[number] if number < len(ports) else ports[-1]
        host = unquote(place.hostname or "")
        port = place.port or (int(own) if own.isdecimal() else usual_port)
        yield "localhost" if not host or host.startswith("/") else host, port


def _hosts_apart(url: str) -> tuple[str, SplitResult]:
    """The hosts of a url, and the url without them: urlsplit of Python 3.14 refuses several when one is in brackets."""
    scheme, _, rest = url.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    return hosts, urlsplit(f"{scheme}://{login}{at}{rest[len(place) :]}")
