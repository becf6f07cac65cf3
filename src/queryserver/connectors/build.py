"""The connectors of the settings and the stored ones as data sources, and whether they are valid and can run here."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

import structlog

from queryserver.connectors.connection_tests import ConnectionTests, EngineAttempt, Trial
from queryserver.connectors.engine_builders import BuildContext, build_engine, section_defaults
from queryserver.connectors.failures import RestAttempt, RestQuestion, basic
from queryserver.connectors.instances import (
    ConnectorAudit,
    ConnectorExamples,
    ConnectorInstances,
    Draft,
    Example,
    GivenConnector,
)
from queryserver.connectors.model import Connector, ConnectorInstance, ConnectorLimits, SettingValue, connector_right
from queryserver.connectors.options import (
    AtlasOptions,
    GeneralOptions,
    HdfsOptions,
    OptionsRefused,
    flag_of,
    read_options,
)
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sqlalchemy import InstalledDrivers
from queryserver.connectors.types import ConnectorType, Runs, catalogue_of
from queryserver.connectors.urls import driver_of
from queryserver.engines.connections import MEMORY, require_folder
from queryserver.engines.protocol import Engine
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import ConnectorRefused, DriverNotInstalled
from queryserver.identity.keys import FINGERPRINT_FACT, AesSealer, Keyring, load_keyring, require_known_key
from queryserver.platform.addresses import HttpServer, TcpReach
from queryserver.platform.database import Database, open_database, pool_limits, required_dsn
from queryserver.platform.deployment import FactRepository, Resealing
from queryserver.platform.logs import AUDIT
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_IMPALA_TIMEOUT_S = 600
_HS2_DIALECTS = frozenset({"hive", "hplsql", "sparksql", "impala"})
_NATIVE = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""Dialects of urls that adapters of this server speak by themselves."""
_OF_KERBEROS = frozenset({"GSSAPI", "SPNEGO"})
_PLACE = re.compile(r"notebook\.interpreters\.[^.]+\.(?:options\.)?")

EMBEDDED = frozenset({"duckdb", "sqlite"})
"""Interfaces whose database is a file of this machine."""


def configured_connectors(settings: Settings) -> list[Connector]:
    """The interpreters of the settings file, in file order."""
    return [_configured(settings, key, table) for key, table in settings.notebook.interpreters.items()]


def _configured(settings: Settings, key: str, table: InterpreterSettings) -> Connector:
    dialect = (table.dialect or key).lower()
    return Connector(
        key=key,
        dialect=dialect,
        interface=table.interface,
        nice_name=table.name or key,
        limits=_limits(dialect, settings, table),
        options=MappingProxyType(dict(table.options)),
        groups=None if table.groups is None else frozenset(table.groups),
        read_only=table.read_only,
        close_queries=_closes_queries(dialect, table.options, settings),
    )


async def read_stored(records: ConnectorRepository, settings: Settings) -> tuple[int, Sequence[Connector]]:
    """The valid ones of the stored connectors, and the number of their state. Raises DatabaseUnavailable."""
    stored = await records.all()
    found = list[Connector]()
    for instance in stored.instances:
        try:
            found.append(_stored(instance, settings))
        except ConfigurationError as error:
            log.warning("stored connector is not understood", connector=instance.id, problems=error.problems)
    return stored.version, found


def _stored(instance: ConnectorInstance, settings: Settings) -> Connector:
    """Whether it can run here is for `build_engine` to say. Raises OptionsRefused."""
    return replace(
        drafted_connector(str(instance.id), instance.dialect, instance.interface, instance.settings, settings),
        nice_name=instance.nice_name,
        right=connector_right(instance.id),
        version=instance.version,
    )


def drafted_connector(
    key: str, dialect: str, interface: str, values: Mapping[str, SettingValue], settings: Settings
) -> Connector:
    """A data source of these settings that no user may use. Raises OptionsRefused for the settings of all types."""
    lifted = {name: value for name, value in values.items() if name in GeneralOptions.model_fields}
    own = {name: value for name, value in values.items() if name not in lifted}
    general = read_options(GeneralOptions, key, lifted)
    return Connector(
        key=key,
        dialect=dialect,
        interface=interface,
        nice_name=key,
        limits=_limits(dialect, settings, general),
        options=MappingProxyType(own),
        groups=frozenset(),
        read_only=general.read_only,
        close_queries=_closes_queries(dialect, own, settings),
        right=connector_right(0),
    )


def _limits(dialect: str, settings: Settings, given: InterpreterSettings | GeneralOptions) -> ConnectorLimits:
    """What holds for a connector: what it says itself, else the section `editor` (Contract editor 13)."""
    editor = settings.editor
    statement_s = _IMPALA_TIMEOUT_S if dialect == "impala" else editor.statement_timeout_s
    return ConnectorLimits(
        statement_timeout=timedelta(seconds=given.statement_timeout_s or statement_s),
        session_idle=timedelta(seconds=given.session_idle_s or editor.session_idle_s),
        metadata_timeout=timedelta(seconds=given.metadata_timeout_s or editor.metadata_timeout_s),
        sample_timeout=timedelta(seconds=given.sample_timeout_s or editor.sample_timeout_s),
        shared_session=editor.shared_session if given.shared_session is None else given.shared_session,
        sample_views=editor.sample_views if given.sample_views is None else given.sample_views,
    )


def _closes_queries(dialect: str, options: Mapping[str, SettingValue], settings: Settings) -> bool:
    """As the connector says itself, else the section of its engine (Contract editor 13)."""
    usual = section_defaults(dialect, settings).get("close_queries", False)
    return dialect in _HS2_DIALECTS and bool(flag_of(options.get("close_queries", usual)))


@contextmanager
def refusals() -> Generator[None]:
    """Around the building of an engine. Raises ConnectorRefused for what its settings were refused for."""
    try:
        yield
    except InvalidPath as error:
        raise ConnectorRefused({"path": [error.message]}) from error
    except OptionsRefused as refused:
        raise refused.refusal() from refused
    except ConfigurationError as error:
        raise ConnectorRefused(by_setting(error.problems)) from error


def by_setting(problems: Sequence[str]) -> Mapping[str, list[str]]:
    """Adapters say `<setting>: <text>`, before it may stand the place of the connector in the settings."""
    found = dict[str, list[str]]()
    for problem in problems:
        setting, _, text = _PLACE.sub("", problem).partition(": ")
        found.setdefault(setting, []).append(f"{text[:1].upper()}{text[1:]}")
    return found


def rest_options(connector: Connector, context: BuildContext) -> HdfsOptions | AtlasOptions:
    """The options of a server that is tested and searched, and takes no statements. Raises OptionsRefused."""
    model = HdfsOptions if connector.dialect == "hdfs" else AtlasOptions
    return context.options(model, connector)


def require_database_folder(connector: Connector, context: BuildContext) -> None:
    """Raises InvalidPath when the file of an embedded engine lies in a folder that does not exist. Blocks."""
    if connector.interface in EMBEDDED:
        require_folder(context.databases_dir, str(connector.options.get("path") or MEMORY).strip())


class BuilderChecks:
    """See `connectors.repository.ConnectorChecks`: the very builders that make engines check settings."""

    def __init__(self, settings: Settings, context: BuildContext) -> None:
        self._settings = settings
        self._context = context
        self._drivers = InstalledDrivers(context.addresses)

    async def require_valid(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> None:
        """The engine that comes out is closed again; it connects to nothing."""
        with refusals(), suppress(DriverNotInstalled):
            connector = drafted_connector("new", row.dialect, row.interface, settings, self._settings)
            if row.runs is Runs.TEST:
                rest_options(connector, self._context)
            elif row.takes_statements:
                # Adapters are imported at their first use, and paths are looked at on the disk.
                await asyncio.to_thread(require_database_folder, connector, self._context)
                engine = await asyncio.to_thread(build_engine, connector, self._context)
                await engine.close()

    async def is_runnable(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> bool:
        """Whether what it needs is installed and allowed."""
        if not row.takes_statements or row.interface != "sqlalchemy":
            wanted = str(settings.get("auth_mechanism", "")).strip().upper()
            return row.takes_statements and (wanted not in _OF_KERBEROS or self._drivers.has_kerberos)
        driver, dialect = driver_of(str(settings.get("url", "")).partition("://")[0].strip())
        allowed = self._context.policy.allowed_drivers
        return driver in {name.lower() for name in allowed} and (dialect in _NATIVE or await self._drivers.has(driver))


@dataclass(frozen=True, slots=True)
class StoredConnectorServices:
    """What administers the connectors that are kept in the service database."""

    instances: ConnectorInstances
    examples: ConnectorExamples


_IN_MEMORY = tuple(
    Example(one, GivenConnector(nice_name=f"{name} (in memory)", dialect=one, interface=one, settings={}))
    for one, name in (("duckdb", "DuckDB"), ("sqlite", "SQLite"))
)
"""What is installed when the settings name nothing."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Secrets that were encrypted anew, and those that no key of the ring opens."""

    connectors: int
    others: int
    lost: int


def stored_connector_services(
    settings: Settings,
    records: ConnectorRepository,
    context: BuildContext,
    changed: Callable[[], Awaitable[None]],
) -> StoredConnectorServices:
    """`changed` is awaited after each change: when it returns, this process knows it."""
    desktop = settings.desktop
    checks = BuilderChecks(settings, context)
    catalogue = catalogue_of(lambda dialect: section_defaults(dialect, settings))
    audit = ConnectorAudit(AUDIT)
    default_groups = (desktop.auth.default_user_group,) if desktop.connector_policy.grant_to_default_group else ()
    hidden, only = frozenset(desktop.connectors_blacklist), frozenset(desktop.connectors_whitelist)
    instances = ConnectorInstances(
        records=records,
        checks=checks,
        catalogue=catalogue,
        audit=audit,
        changed=changed,
        default_groups=default_groups,
        offers=lambda dialect: dialect not in hidden and (not only or dialect in only),
    )
    examples = ConnectorExamples(
        _examples(settings) or _IN_MEMORY,
        records=records,
        instances=instances,
        audit=audit,
        changed=changed,
        default_groups=default_groups,
    )
    return StoredConnectorServices(instances=instances, examples=examples)


@asynccontextmanager
async def open_connectors(settings: Settings) -> AsyncGenerator[StoredConnectorServices]:
    """The administration alone, for commands. Servers hear of what it changes.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with _opened(settings) as (database, keyring):
        records = ConnectorRepository(database, AesSealer(keyring))
        yield stored_connector_services(settings, records, BuildContext.of(settings), _nobody_to_tell)


async def rotate_keys(settings: Settings) -> Rotation:
    """Encrypt everything anew with the present key; when nothing is lost, former keys may be forgotten.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with _opened(settings) as (database, keyring):
        sealer = AesSealer(keyring)
        connectors, lost = await ConnectorRepository(database, sealer).reseal()
        resealing = Resealing(database, sealer)
        others = await resealing.reseal()
        rotation = Rotation(connectors, others.done, lost + others.lost)
        if not rotation.lost:
            await resealing.know_key(FINGERPRINT_FACT, keyring.present.fingerprint)
    return rotation


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Database, Keyring]]:
    """The service database and the keys of what is sealed there. Raises as `open_connectors`."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    keyring = load_keyring(settings.desktop)
    async with open_database(dsn, pool_limits(settings)) as database:
        await require_known_key(keyring, FactRepository(database))
        yield database, keyring


async def _nobody_to_tell() -> None:
    pass


def _examples(settings: Settings) -> list[Example]:
    return [
        Example(
            key,
            GivenConnector(
                nice_name=table.nice_name or key,
                dialect=table.dialect,
                interface=table.interface,
                settings=table.settings,
                groups=table.groups,
            ),
        )
        for key, table in settings.desktop.connectors.items()
    ]


_NO_FILE = "The file does not exist yet: the first statement makes it"
_HELD_ELSEWHERE = "The file is in use by another server, which runs its statements: it was not opened"
_NOT_VERIFIED = "Certificates are not verified (ssl_validate is false)"

EngineMaker = Callable[[Connector, BuildContext], Engine]
Holding = Callable[[str], Awaitable[bool]]


def connection_tests(
    settings: Settings,
    context: BuildContext,
    instances: ConnectorInstances,
    engines: EngineMaker,
    may_hold: Holding,
) -> ConnectionTests:
    """`engines` makes the engine of a connector.

    `may_hold` tells whether this process has, or can get hold of, data that only one process can have open.
    """
    trials = _Trials(settings, context, engines, may_hold)
    is_allowed = context.policy.allow_service_database_server
    return ConnectionTests(
        instances=instances,
        audit=ConnectorAudit(AUDIT),
        prepare=trials.trial,
        # A test opens a connection before the login, which the rules of the engine decide about.
        reach=TcpReach(context.addresses.without_database_server() if is_allowed else context.addresses),
        timeout=timedelta(seconds=context.policy.test_timeout_s),
    )


@dataclass(frozen=True, slots=True)
class _Trials:
    """Makes what is to be tried."""

    settings: Settings
    context: BuildContext
    engines: EngineMaker
    may_hold: Holding

    async def trial(self, draft: Draft) -> Trial:
        """Raises ConnectorRefused, interface_not_supported, DriverNotInstalled."""
        row = draft.row
        with refusals():
            connector = drafted_connector("new", row.dialect, row.interface, draft.settings, self.settings)
            if row.runs is Runs.TEST:
                return _rest_trial(connector, self.context)
            # Adapters are imported at their first use, certificates read, and files looked for.
            await asyncio.to_thread(require_database_folder, connector, self.context)
            engine = await asyncio.to_thread(self.engines, connector, self.context)
        engine, further = await self._openable(engine, connector)
        return Trial(
            attempt=EngineAttempt(engine, row.dialect, passes_tokens=self.context.use_thrift_http_jwt),
            places=await asyncio.to_thread(_places, engine, connector),
            takes_own_logins=engine.capabilities.wants_credentials,
            warnings=[*_warnings(connector), *further],
        )

    async def _openable(self, engine: Engine, connector: Connector) -> tuple[Engine, list[str]]:
        """The engine to try, and what is to be said of it; one in memory where the file itself is not to be opened.

        A test makes no file, and takes none away from the server that has it.
        """
        path = str(connector.options.get("path", MEMORY))
        root = self.context.databases_dir
        if connector.interface not in EMBEDDED or path == MEMORY or root is None:
            return engine, []
        data = engine.capabilities.data_name
        if not await asyncio.to_thread((root / path).exists):
            reason = None if connector.read_only else _NO_FILE
        else:
            reason = _HELD_ELSEWHERE if data and not await self.may_hold(data) else None
        if reason is None:
            return engine, []
        await engine.close()
        options = MappingProxyType({**connector.options, "path": MEMORY})
        return self.engines(replace(connector, options=options, read_only=False), self.context), [reason]


def _places(engine: Engine, connector: Connector) -> Sequence[tuple[str, int]]:
    """Where the engine connects to; port 0 where only the driver knows which. Drivers are imported late."""
    known = engine.capabilities.places
    if known or connector.interface != "sqlalchemy":
        return known
    from queryserver.engines.sqlalchemy.engine import SqlalchemyEngine  # noqa: PLC0415 as in its builder

    host = engine.host if isinstance(engine, SqlalchemyEngine) else None
    return () if host is None else ((host, 0),)


def _rest_trial(connector: Connector, context: BuildContext) -> Trial:
    options = rest_options(connector, context)
    if isinstance(options, HdfsOptions):
        url = options.server_url.rstrip("/")
        question = RestQuestion(f"{url}?op=GETHOMEDIRECTORY", member="Path", as_user=True)
    else:
        url = options.url.rstrip("/")
        question = RestQuestion(
            f"{url}/api/atlas/admin/version",
            member="Version",
            tells_version=True,
            headers=basic(options.username, options.password),
        )
    server = HttpServer(url)
    return Trial(RestAttempt(context.addresses, question), [(server.host, server.port)])


def _warnings(connector: Connector) -> list[str]:
    return [_NOT_VERIFIED] if flag_of(connector.options.get("ssl_validate", True)) is False else []
