"""Interface `trino`: a coordinator of Trino, or of Presto when that is the connector's dialect."""

from ipaddress import ip_address

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import Options, options_of
from queryserver.domain.connector import Connector
from queryserver.engines.trino import PRESTO, TRINO, Authentication, TrinoAddress, TrinoEngine
from queryserver.interfaces.engine import Engine

_LATER = "${USER}"
_SOURCE = "queryserver"


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder. `source` and `timezone` are options of `trino://` urls."""
    with options_of(connector) as options:
        username = options.text("username")
        address = TrinoAddress(
            url=options.http_url("url", context.addresses),
            catalog=options.text("catalog"),
            schema=options.text("schema"),
            username=None if username == _LATER else username,
            password=options.secret("password"),
            authentication=Authentication(options.choice("auth_mechanism", tuple(Authentication), Authentication.NONE)),
            has_impersonation=options.flag("has_impersonation"),
            ssl_validate=options.flag("ssl_validate", default=True),
            ssl_ca=options.authorities("ssl_ca"),
            session_properties=options.pairs("session_properties", context.policy.session_conf_allowed),
            client_tags=options.text("client_tags"),
            source=options.text("source") or _SOURCE,
            time_zone=options.text("timezone"),
            cell_max_bytes=context.cell_max_bytes,
            rules=context.addresses,
        )
        _check_login(options, address)
    variant = PRESTO if connector.dialect == PRESTO.dialect else TRINO
    return TrinoEngine(address, variant, read_only=connector.read_only)


def _check_login(options: Options, address: TrinoAddress) -> None:
    if address.authentication is not Authentication.NONE and not (address.is_tls or _is_loopback(address.host)):
        options.refuse("auth_mechanism", "needs an https url unless the host is this machine")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
