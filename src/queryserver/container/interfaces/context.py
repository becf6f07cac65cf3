"""What builders need besides the connector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from queryserver.engines.addresses import AddressRules
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
            addresses=AddressRules(
                blocked=policy.blocked_networks, allowed=policy.allowed_networks, own=_own_addresses(settings)
            ),
        )


def _own_addresses(settings: Settings) -> frozenset[tuple[str, int]]:
    """Host and port of the service's own database and broker; a unix socket is out of everybody's reach anyway."""
    urls = [(settings.desktop.database.dsn or "", _POSTGRESQL_PORT)]
    if settings.desktop.task_server.enabled:
        urls.append((settings.desktop.task_server.broker_url.get_secret_value(), _BROKER_PORT))
    parts = [(urlsplit(url), port) for url, port in urls]
    return frozenset((url.hostname, url.port or port) for url, port in parts if url.hostname)
