"""The first calls of a session."""

import re
from contextlib import suppress

from queryserver.domain.errors.statements import EngineUnavailable, StatementRejected
from queryserver.domain.user import User
from queryserver.engines.hiveserver2.address import Hs2Address
from queryserver.engines.hiveserver2.connection import Connection
from queryserver.engines.hiveserver2.errors import CALL_FAILURES, Purpose, call_errors, check
from queryserver.engines.hiveserver2.protocol.calls import TCloseSessionReq, TGetOperationStatusReq, TOpenSessionReq
from queryserver.engines.hiveserver2.protocol.methods import CLOSE_SESSION, GET_OPERATION_STATUS, OPEN_SESSION
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TProtocolVersion, TSessionHandle
from queryserver.engines.hiveserver2.variants import Variant
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.interfaces.engine import SessionOptions

_DATABASE_KEY = "use:database"
_SETTING_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,200}", re.ASCII)


async def open_session(
    connection: Connection, address: Hs2Address, variant: Variant, user: User, options: SessionOptions
) -> TSessionHandle:
    """A new session. Raises EngineUnavailable, CredentialsRequired, StatementRejected (database, setting)."""
    request = TOpenSessionReq(
        client_protocol=TProtocolVersion.V11,
        username=(options.credentials.username if options.credentials else address.username) or user.username,
        configuration=session_configuration(address, variant, user, options),
    )
    with call_errors(Purpose.OPEN):
        reply = await connection.call(OPEN_SESSION, request, limit_s=address.limits.execute_s)
        check(reply.status)
    if reply.session_handle is None:
        raise EngineUnavailable("The server opened a session without a handle for it.")
    if reply.server_protocol_version < TProtocolVersion.V6:
        with suppress(*CALL_FAILURES):
            farewell = TCloseSessionReq(session_handle=reply.session_handle)
            await connection.call(CLOSE_SESSION, farewell, limit_s=address.limits.end_s)
        raise EngineUnavailable("The server speaks a version of HiveServer2 that is too old.")
    return reply.session_handle


def session_configuration(address: Hs2Address, variant: Variant, user: User, options: SessionOptions) -> dict[str, str]:
    """What OpenSession is told; the settings of the session go before those of the address.

    Raises StatementRejected for a setting whose name cannot be one: servers would take it without a word.
    """
    chosen = {**address.session_conf, **options.settings}
    for name in chosen:
        if not _SETTING_NAME.fullmatch(name):
            raise StatementRejected(f'"{name[:100]}" is not the name of a setting.')
    configuration = {f"{variant.setting_prefix}{name}": value for name, value in chosen.items()}
    configuration.update(variant.session_conf)
    if variant.timeout_keys is not None:
        limits = zip(variant.timeout_keys, (address.query_timeout_s, address.session_timeout_s), strict=True)
        configuration.update({key: str(seconds) for key, seconds in limits if seconds})
    database = options.database or address.database
    if database:
        configuration[_DATABASE_KEY] = variant.database_name(database)
    if proxied := address.proxied(user, options):
        configuration[variant.proxy_user_key] = proxied
    return configuration


async def check_known(wire: Wire, handle: TOperationHandle) -> None:
    """Raises OutcomeUnknown when the server no longer knows the operation."""
    request = TGetOperationStatusReq(operation_handle=handle)
    with call_errors(Purpose.FOLLOW):
        reply = await wire.call_until_answered(GET_OPERATION_STATUS, request, limit_s=wire.limits.status_s)
        check(reply.status)
