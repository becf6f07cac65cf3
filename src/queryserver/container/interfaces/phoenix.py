"""Interface `phoenix`: a Phoenix Query Server."""

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import Options, options_of
from queryserver.container.interfaces.problems import Kind
from queryserver.domain.connector import Connector
from queryserver.engines.phoenix import Authentication, PhoenixAddress, PhoenixEngine
from queryserver.engines.phoenix.spnego import is_installed
from queryserver.interfaces.engine import Engine

_LATER = "${USER}"
_MECHANISMS = tuple(Authentication)


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder."""
    with options_of(connector) as options:
        username = options.text("username")
        address = PhoenixAddress(
            url=options.http_url("url", context.addresses),
            username=None if username == _LATER else username,
            password=options.secret("password"),
            authentication=_authentication(options),
            ssl_validate=options.flag("ssl_validate", default=True),
            ssl_ca=options.authorities("ssl_ca"),
            cell_max_bytes=context.cell_max_bytes,
            rules=context.addresses,
        )
        if options.choice("serialization", ("PROTOBUF", "JSON"), "PROTOBUF") == "JSON":
            options.refuse("serialization", "must be PROTOBUF: this server does not speak Avatica's JSON")
    return PhoenixEngine(address, read_only=connector.read_only)


def _authentication(options: Options) -> Authentication:
    mechanism = Authentication(options.choice("auth_mechanism", _MECHANISMS, Authentication.NONE))
    if mechanism is Authentication.SPNEGO and not is_installed():
        options.refuse("auth_mechanism", "SPNEGO needs the extra `kerberos` of this server", Kind.LACK)
    return mechanism
