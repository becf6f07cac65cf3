"""Statements outside the API servers, and where results are kept: table `desktop.task_server`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from queryserver.settings.section import MIB, NO_SECRET, Count, Flag, Names, Positive, Secret, Section, Text


class LocalResults(Section):
    """A directory that all processes share."""

    backend: ClassVar[str] = "local"
    location: Annotated[Text, Field(min_length=1)]


class S3Results(Section):
    """Objects below a prefix; without keys the environment's credentials count."""

    backend: ClassVar[str] = "s3"
    location: Annotated[Text, Field(pattern=r"^s3a?://[^/]+")]
    region: Text = ""
    endpoint: Text = ""
    access_key_id: Secret = NO_SECRET
    secret_access_key: Secret = NO_SECRET
    session_token: Secret = NO_SECRET
    sse: Text = ""


class HdfsResults(Section):
    """Files below an HDFS directory; without an address the `hdfs` cluster of the settings counts."""

    backend: ClassVar[str] = "hdfs"
    location: Annotated[Text, Field(pattern=r"^hdfs://")]
    webhdfs_url: Text = ""
    user: Text = ""


class AbfsResults(Section):
    """Blobs below a prefix."""

    backend: ClassVar[str] = "abfs"
    location: Annotated[Text, Field(pattern=r"^abfss?://[^@/]+@[^/]+")]
    tenant_id: Text = ""
    client_id: Text = ""
    client_secret: Secret = NO_SECRET
    account_key: Secret = NO_SECRET


ResultStorage: TypeAlias = LocalResults | S3Results | HdfsResults | AbfsResults

_BACKENDS = (LocalResults, S3Results, HdfsResults, AbfsResults)
# Ends of the class names that older settings files hold.
_OLD_NAMES = {"FileSystemStorage": LocalResults, "S3Boto3Storage": S3Results}


def _result_storage(value: Any) -> Any:
    """`{"backend": …, "properties": {…}}`, as JSON text or as a table. The empty text is the default."""
    if value is None or value == "":
        return None
    given = _object(value)
    unknown = given.keys() - {"backend", "properties"}
    if unknown:
        message = f"has no key {min(unknown)}; it has backend and properties."
        raise ValueError(message)
    kind = _backend(given.get("backend"))
    try:
        return kind.model_validate(given.get("properties", {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        message = f"property {'.'.join(map(str, first['loc'])) or 'properties'}: {first['msg']}"
        raise ValueError(message) from None


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            message = "must be a JSON object."
            raise ValueError(message) from None
    if not isinstance(value, Mapping):
        message = "must be a JSON object."
        raise ValueError(message)  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
    return value


def _backend(name: Any) -> type[ResultStorage]:
    for kind in _BACKENDS:
        if name == kind.backend:
            return kind
    for ending, kind in _OLD_NAMES.items():
        if isinstance(name, str) and name.endswith(ending):
            return kind
    message = f"backend must be one of {', '.join(kind.backend for kind in _BACKENDS)}."
    raise ValueError(message)


class TaskServerSettings(Section):
    """Worker processes, the broker and the result store."""

    enabled: Flag = False
    """Whether statements are run by `queryserver worker` processes."""
    beat_enabled: Flag = False
    """Whether `queryserver beat` fires the schedules; needs `enabled`."""
    broker_url: Secret = Secret("redis://localhost:6379/0")
    """Redis."""
    result_file_storage: Annotated[ResultStorage | None, BeforeValidator(_result_storage)] = Field(
        default=None, json_schema_extra={"secret": True}
    )
    """JSON: `{"backend": "local" | "s3" | "hdfs" | "abfs", "properties": {"location": …}}`. Empty: local files in
    `<data_dir>/results`."""
    concurrency: Positive = 8
    """Statements that one worker runs at once."""
    heartbeat_s: Positive = 10
    """How often a worker renews its leases; at most a third of `editor.lease_timeout_s`."""
    queue: Text = "queryserver"
    """Name of the queue."""
    email_after_s: Count = 0
    """Owners get mail about statements that ran longer; 0: never."""
    email_max_rows: Count = 10_000
    """Most rows of an attached CSV file."""
    email_max_bytes: Count = 5 * MIB
    """Largest attached CSV file."""
    email_allowed_domains: Names = ()
    """Domains that mail may go to; empty: only addresses of known users."""

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: Secret) -> Secret:
        scheme = url.get_secret_value().partition(":")[0].lower()
        if scheme not in {"redis", "rediss", "unix"}:
            message = f"must be a Redis address (redis://…), not {scheme[:20]}."
            raise ValueError(message)
        return url
