"""Drafts of connectors to what a test tries."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from queryserver.container.auditing import AUDIT
from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.problems import OptionsRefused
from queryserver.container.stored_connectors import drafted_connector
from queryserver.domain.connector import Connector
from queryserver.domain.connector_types import Runs
from queryserver.domain.errors import ConnectorRefused, InvalidPath
from queryserver.engines.local_files import MEMORY
from queryserver.interfaces.connection_trials import Trial
from queryserver.interfaces.engine import Engine
from queryserver.network.addresses import HttpServer
from queryserver.network.reaching import TcpReach
from queryserver.network.rest_trials import RestAttempt, RestQuestion, basic
from queryserver.services.connection_tests import ConnectionTests, TestParts
from queryserver.services.connector_auditing import ConnectorAudit
from queryserver.services.connector_drafts import ConnectorDrafts, Draft
from queryserver.services.engine_trials import EngineAttempt
from queryserver.settings import Settings

_EMBEDDED = frozenset({"duckdb", "sqlite"})
_NO_FILE = "The file does not exist yet: the first statement makes it"
_NOT_VERIFIED = "Certificates are not verified (ssl_validate is false)"


def connection_tests(
    settings: Settings,
    context: BuildContext,
    drafts: ConnectorDrafts,
    engines: Callable[[Connector, BuildContext], Engine],
) -> ConnectionTests:
    """`engines` makes the engine of a connector."""

    async def prepare(draft: Draft) -> Trial:
        return await _trial(draft, settings, context, engines)

    return ConnectionTests(
        TestParts(
            drafts=drafts,
            audit=ConnectorAudit(AUDIT),
            prepare=prepare,
            reach=TcpReach(context.addresses),
            timeout=timedelta(seconds=context.policy.test_timeout_s),
        )
    )


async def _trial(
    draft: Draft,
    settings: Settings,
    context: BuildContext,
    engines: Callable[[Connector, BuildContext], Engine],
) -> Trial:
    """Raises ConnectorRefused and its subclasses, DriverNotInstalled."""
    row = draft.row
    try:
        connector = drafted_connector("new", row.dialect, row.interface, draft.settings, settings)
        if row.runs is Runs.TEST:
            return _rest_trial(connector, context)
        # Adapters are imported at their first use, certificates read, and files looked for.
        engine, further = await asyncio.to_thread(_engine, connector, context, engines)
    except InvalidPath as error:
        raise ConnectorRefused({"path": [error.message]}) from error
    except OptionsRefused as refused:
        raise refused.refusal() from refused
    capabilities = engine.capabilities
    return Trial(
        attempt=EngineAttempt(engine, row.dialect, passes_tokens=context.use_thrift_http_jwt),
        places=capabilities.places,
        takes_own_logins=capabilities.wants_credentials,
        warnings=[*_warnings(connector), *further],
    )


def _engine(
    connector: Connector, context: BuildContext, engines: Callable[[Connector, BuildContext], Engine]
) -> tuple[Engine, list[str]]:
    """The engine to try, and what is to be said of it. A test makes no file: one that is missing is tried in memory."""
    engine = engines(connector, context)
    root, path = context.databases_dir, str(connector.options.get("path", MEMORY))
    if connector.interface not in _EMBEDDED or connector.read_only or path == MEMORY:
        return engine, []
    if root is None or (root / path).exists():
        return engine, []
    in_memory = replace(connector, options=MappingProxyType({**connector.options, "path": MEMORY}))
    return engines(in_memory, context), [_NO_FILE]


def _rest_trial(connector: Connector, context: BuildContext) -> Trial:
    options = connector.options
    if connector.dialect == "hdfs":
        url = str(options["server_url"]).rstrip("/")
        question = RestQuestion(f"{url}?op=GETHOMEDIRECTORY", member="Path", as_user=True)
    else:
        url = str(options["url"]).rstrip("/")
        question = RestQuestion(
            f"{url}/api/atlas/admin/version",
            member="Version",
            tells_version=True,
            headers=basic(str(options.get("username", "")), str(options.get("password", ""))),
        )
    server = HttpServer(url)
    return Trial(RestAttempt(context.addresses, question), [(server.host, server.port)])


def _warnings(connector: Connector) -> list[str]:
    given = str(connector.options.get("ssl_validate", True)).strip().lower()
    return [_NOT_VERIFIED] if given in {"false", "0", "no", "off", "n", "f", "nay"} else []
