"""Fields of the calls of administrators (Contract platform 7.6, 7.7)."""

from queryserver.schemas.fields import Flag, TextOrNothing
from queryserver.schemas.snippets import Fields


class ServerLogsParameters(Fields):
    """Query of logs."""

    reverse: Flag = False


class InstallExamplesRequest(Fields):
    """Fields of install_app_examples."""

    app_name: TextOrNothing = None
