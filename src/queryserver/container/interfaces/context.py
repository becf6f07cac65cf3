"""What builders need besides the connector."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from queryserver.engines.shared_files import SharedFiles
from queryserver.network.addresses import AddressRules
from queryserver.settings import Settings
from queryserver.settings.connectors import ConnectorPolicySettings
from queryserver.settings.engines import BeeswaxSettings, ImpalaSettings, SparkSettings

_POSTGRESQL_PORT = 5432
_BROKER_PORT = 6379


@dataclass(frozen=True, slots=True)
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
    files: SharedFiles = field(default_factory=SharedFiles)
    """What engines of one file agree by."""

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
            addresses=AddressRules(
                blocked=policy.blocked_networks, allowed=policy.allowed_networks, own=_own_addresses(settings)
            ),
        )


def _own_addresses(settings: Settings) -> frozenset[tuple[str, int]]:
    """Host and port of the service's own database and broker; a unix socket is out of everybody's reach anyway."""
    urls = [(settings.desktop.database.dsn or "", _POSTGRESQL_PORT)]
    if settings.desktop.task_server.enabled:
        urls.append((settings.desktop.task_server.broker_url.get_secret_value(), _BROKER_PORT))
    return frozenset(place for url, port in urls for place in _places(url, port))


def _places(url: str, usual_port: int) -> Iterator[tuple[str, int]]:
    """Hosts and ports of a url: one, several with commas between, or those among its options."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts = (parts.netloc.rpartition("@")[2] or options.get("host", "")).split(",")
    ports = options.get("port", "").split(",")
    for number, text in enumerate(hosts):
        place = urlsplit(f"//{text}")
        own = ports[number] if number < len(ports) else ports[-1]
        if place.hostname and not unquote(place.hostname).startswith("/"):
            yield place.hostname, place.port or (int(own) if own.isdecimal() else usual_port)
