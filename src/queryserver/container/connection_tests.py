"""Drafts of connectors to what a test tries."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

from queryserver.container.auditing import AUDIT
from queryserver.container.connectors import (
    EMBEDDED,
    drafted_connector,
    refusals,
    require_database_folder,
    rest_options,
)
from queryserver.container.interfaces.context import BuildContext
from queryserver.domain.connector import Connector
from queryserver.domain.connector_types import Runs
from queryserver.engines.local_files import MEMORY
from queryserver.interfaces.connection_trials import Trial
from queryserver.interfaces.engine import Engine
from queryserver.network.addresses import HttpServer
from queryserver.network.reaching import TcpReach
from queryserver.network.rest_trials import RestAttempt, RestQuestion, basic
from queryserver.services.connection_tests import ConnectionTests
from queryserver.services.connector_auditing import ConnectorAudit
from queryserver.services.connector_instances import ConnectorInstances, Draft
from queryserver.services.connector_options import HdfsOptions, flag_of
from queryserver.services.engine_trials import EngineAttempt
from queryserver.settings import Settings

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
    from queryserver.engines.sqlalchemy import SqlalchemyEngine  # noqa: PLC0415 as in its builder

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
