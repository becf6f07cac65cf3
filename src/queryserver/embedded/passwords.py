"""The passwords of the private PostgreSQL."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from queryserver.embedded.errors import EmbeddedPostgresError
from queryserver.embedded.files import replace_private


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """Random at the first start and kept; nobody types them."""

    superuser: str = field(repr=False)
    service: str = field(repr=False)
    sample: str = field(repr=False)
    cluster_id: str


def kept_secrets(file: Path, *, may_create: bool) -> ClusterSecrets:
    """What the file holds; new ones, on disk before this returns, when there is none and no database yet.

    Raises EmbeddedPostgresError for a lost or damaged file of a database that exists.
    """
    try:
        return ClusterSecrets(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        if may_create:
            return _created(file)
        message = f"{file} is gone: without its passwords the embedded database cannot be opened. Restore it."
        raise EmbeddedPostgresError(message) from None
    except (ValueError, TypeError) as error:
        message = f"{file} is damaged: without its passwords the embedded database cannot be opened. Restore it."
        raise EmbeddedPostgresError(message) from error


def _created(file: Path) -> ClusterSecrets:
    made = ClusterSecrets(
        superuser=secrets.token_urlsafe(32),
        service=secrets.token_urlsafe(32),
        sample=secrets.token_urlsafe(32),
        cluster_id=secrets.token_hex(8),
    )
    replace_private(file, json.dumps(asdict(made)))
    return made
