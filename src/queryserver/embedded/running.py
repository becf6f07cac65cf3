"""The embedded default of a server that is running, as seen by another process: commands of the operator."""

from pathlib import Path
from urllib.parse import quote

from queryserver.domain.sample_database import SAMPLE_DATABASE, SAMPLE_ROLE
from queryserver.embedded.cluster import SERVICE_ROLE
from queryserver.embedded.passwords import kept_secrets
from queryserver.embedded.places import STORAGE_DIRECTORY, EmbeddedDefaults
from queryserver.embedded.postmaster import LOOPBACK, recorded_address


def running_defaults(state_dir: Path) -> EmbeddedDefaults | None:
    """Where the server of a state directory has its databases; None when none runs there.

    After a kill -9 the answer is stale, and connecting fails. Raises EmbeddedPostgresError.
    """
    home = state_dir.resolve() / "postgresql"
    address = recorded_address(home)
    if address is None:
        return None
    secrets = kept_secrets(home / "secrets.json", may_create=False)
    host = quote(address.socket_directory, safe="")
    service, sample = quote(secrets.service, safe=""), quote(secrets.sample, safe="")
    return EmbeddedDefaults(
        service_dsn=f"postgresql://{SERVICE_ROLE}:{service}@/{SERVICE_ROLE}?host={host}&port={address.port}",
        sample_dsn=f"postgresql://{SAMPLE_ROLE}:{sample}@{LOOPBACK}:{address.port}/{SAMPLE_DATABASE}",
        databases_dir=home.parent / "databases",
        files_dir=home.parent / STORAGE_DIRECTORY,
    )
