"""Interface `rest`: servers that are tested and searched, and take no statements (Contract platform 5.11)."""

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import options_of
from queryserver.domain.connector import Connector


def require_valid(connector: Connector, context: BuildContext) -> None:
    """Raises OptionsRefused."""
    with options_of(connector) as options:
        if connector.dialect == "hdfs":
            options.http_url("server_url", context.addresses)
            options.text("default_fs")
        else:
            options.http_url("url", context.addresses)
            options.text("username")
            options.secret("password")
