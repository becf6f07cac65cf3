"""Request bodies and query parameters of all calls."""

from queryserver.api.schemas.requests.editor import *  # noqa: F403 this package shows all names of its chapters
from queryserver.api.schemas.requests.importer import *  # noqa: F403 this package shows all names of its chapters
from queryserver.api.schemas.requests.metadata import *  # noqa: F403 this package shows all names of its chapters
from queryserver.api.schemas.requests.platform import *  # noqa: F403 this package shows all names of its chapters
from queryserver.api.schemas.requests.schedules import *  # noqa: F403 this package shows all names of its chapters
from queryserver.api.schemas.requests.storage import *  # noqa: F403 this package shows all names of its chapters
