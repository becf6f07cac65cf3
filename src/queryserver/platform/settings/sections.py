"""Building blocks for settings, and the tables of the database, the search and the task server."""

import ast
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo

from queryserver.platform.networks import Network

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# The options of a data source depend on its interface. These options are secrets: they are masked, and can be read from
# a file or script.
SECRET_OPTIONS = frozenset({"url", "password", "auth_password", "credentials_json", "token"})


class Section(BaseModel):
    """A table of the settings file."""

    # Values in the file have types, and values from the environment are converted while reading. Strict types therefore
    # report mistakes that lenient conversion would accept.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name for part in value.replace("\n", ",").split(",") if (name := part.strip()))
    return tuple(value) if isinstance(value, list) else value


def _path_or_none(value: Any) -> Any:
    if isinstance(value, str) and value:
        return Path(value).expanduser()
    if isinstance(value, Path):
        return value
    raise ValueError("must be a path.")


Flag: TypeAlias = StrictBool
Text: TypeAlias = StrictStr
Whole: TypeAlias = StrictInt
Count: TypeAlias = Annotated[StrictInt, Field(ge=0)]
Positive: TypeAlias = Annotated[StrictInt, Field(ge=1)]
Port: TypeAlias = Annotated[StrictInt, Field(ge=1, le=65535)]
Names: TypeAlias = Annotated[tuple[StrictStr, ...], BeforeValidator(_names)]
"""A comma-separated list or an array."""
SettingPath: TypeAlias = Annotated[Path, BeforeValidator(_path_or_none)]
"""A path; relative paths are resolved against the working directory."""
OptionalPath: TypeAlias = Annotated[
    Path | None, BeforeValidator(lambda value: None if value is None or value == "" else _path_or_none(value))
]
"""A path; an empty string means none."""
Secret: TypeAlias = SecretStr
"""Can also be set as `<key>_file` or `<key>_script`."""
Secrets: TypeAlias = Annotated[tuple[SecretStr, ...], BeforeValidator(_names)]

NO_SECRET = SecretStr("")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section."""

    name: str
    """The name in the settings file."""
    attribute: str
    """The name of the Python attribute; it differs if Pydantic has a method with the key's name."""
    field: FieldInfo
    kind: Any
    """The type of the value, without `| None`."""
    section: type[Section] | None
    entries: type[Section] | None
    """The type of the entries, if the key is a table of tables whose names can be chosen freely."""

    @property
    def has_free_names(self) -> bool:
        """Whether the key is a table of plain values whose names can be chosen freely."""
        return get_origin(self.kind) is dict and self.entries is None

    @property
    def is_table(self) -> bool:
        """Whether the key is a table, or a table of tables."""
        return self.section is not None or get_origin(self.kind) is dict

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_secret(self) -> bool:
        extra = self.field.json_schema_extra
        return SecretStr in (self.kind, *get_args(self.kind)) or (isinstance(extra, dict) and bool(extra.get("secret")))

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values; empty if the type is not limited to certain values."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@cache
def keys(section: type[Section]) -> Mapping[str, Key]:
    """Return the keys of a section by their names in the file. Inherited keys come last."""
    fields = section.model_fields
    own_first = (name for name in dict.fromkeys([*section.__annotations__, *fields]) if name in fields)
    return {(fields[name].alias or name): _key(name, fields[name]) for name in own_first}


def _key(attribute: str, field: FieldInfo) -> Key:
    kind: Any = field.annotation
    if get_origin(kind) in {Union, types.UnionType}:
        kinds = [part for part in get_args(kind) if part is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else kind
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    entries = _section(get_args(kind)[-1]) if get_origin(kind) is dict else None
    return Key(field.alias or attribute, attribute, field, kind, _section(kind), entries)


def _section(kind: Any) -> type[Section] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def leaves(section: Section, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key, Any]]:
    """Yield the path, key and value of each setting. In each table, plain values come first, as TOML requires."""
    for key in sorted(keys(type(section)).values(), key=lambda key: key.is_table):
        value, place = getattr(section, key.attribute), (*path, key.name)
        if key.section:
            yield from leaves(value, place)
        elif key.entries:
            for name, entry in value.items():
                yield from leaves(entry, (*place, name))
        elif key.has_free_names:
            yield from (((*place, name), key, option) for name, option in value.items())
        else:
            yield place, key, value


def tables(section: type[Section], entry: str, name: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield the dotted name and type of each table. `entry` is the placeholder for names that can be chosen freely."""
    yield name, section
    for key in keys(section).values():
        if inner := key.section or key.entries:
            below = [*filter(None, [name]), key.name, *([entry] if key.entries else [])]
            yield from tables(inner, entry, ".".join(below))


@cache
def attribute_docstrings(owner: type) -> Mapping[str, str]:
    """Return the docstrings of the class's own attributes, each on one line.

    They are read from the source, because Python drops them. Pydantic's `use_attribute_docstrings` would parse the
    source of all classes at each start.
    """
    body = next(node for node in ast.parse(inspect.getsource(owner)).body if isinstance(node, ast.ClassDef)).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def descriptions(section: type[Section]) -> Mapping[str, str]:
    """Return each key's docstring on one line."""
    texts = attribute_docstrings(section)
    own = {name: texts[key.attribute] for name, key in keys(section).items() if key.attribute in texts}
    base = section.__base__
    return {**descriptions(base), **own} if base and issubclass(base, Section) and base is not Section else own


def _networks(value: Any) -> Any:
    names = _names(value)
    return tuple(map(_network, names)) if isinstance(names, tuple) else names


def _network(name: Any) -> Network:
    if isinstance(name, IPv4Network | IPv6Network):
        return name
    try:
        return ip_network(str(name), strict=False)
    except ValueError:
        raise ValueError(f"contains {str(name)[:60]!r}, which is not an address range such as 10.0.0.0/8.") from None


Networks: TypeAlias = Annotated[tuple[Network, ...], BeforeValidator(_networks)]
"""Addresses and networks, as a comma-separated list or an array."""

SCHEMES = ("postgresql", "postgres")

DRIVER_DEFAULT = "prefer"
"""Leaves the choice of encryption to the driver."""

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


class DatabaseSettings(Section):
    """The service database, a PostgreSQL database, specified by `url` or by its parts."""

    url: Secret = NO_SECRET
    """`postgresql://user:password@host:port/name`."""
    host: Text = ""
    """Host name, or the directory of a Unix socket."""
    port: Port = 5432
    """Port."""
    name: Text = ""
    """Database name."""
    user: Text = ""
    """Login name."""
    password: Secret = NO_SECRET
    """Password for the login."""
    sslmode: SslMode = DRIVER_DEFAULT
    """How the connection is encrypted, as in libpq; `sslmode` in `url` takes precedence."""
    embedded: Flag = False
    """Whether to run a private PostgreSQL in `desktop.data_dir`."""
    auto_migrate: Flag = False
    """Whether to migrate the schema at each start. Embedded mode always does."""
    pool_min: Count = 1
    """Minimum number of connections that each process keeps open."""
    pool_max: Positive = 10
    """Maximum number of connections per process."""
    connect_timeout_s: Positive = 5
    """Timeout for opening a connection, and for waiting for a free one."""
    statement_timeout_s: Positive = 30
    """Timeout for one of the service's own statements."""

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, url: Secret) -> Secret:
        text = url.get_secret_value()
        scheme = text.partition(":")[0].lower()
        if text and scheme not in SCHEMES:
            raise ValueError(
                f"must be a PostgreSQL address (postgresql://…), not {scheme[:20]}: "
                "the service needs a database with concurrent writes."
            )
        return url

    @property
    def dsn(self) -> str | None:
        """The DSN for the driver; None if no database is configured. It contains the password, so never log it."""
        url = self.url.get_secret_value()
        if not url and (self.host or self.name):
            password = self.password.get_secret_value()
            login = quote(self.user, safe="") + (f":{quote(password, safe='')}" if password else "")
            # A socket directory cannot precede the port in a URL, so the host is always a query parameter.
            place = f"?host={quote(self.host or 'localhost', safe='')}&port={self.port}"
            url = f"postgresql://{login}{'@' if login else ''}/{quote(self.name or self.user, safe='')}{place}"
        if not url or self.sslmode == DRIVER_DEFAULT or "sslmode" in parse_qs(urlsplit(url).query):
            return url or None
        return f"{url}{'&' if '?' in url else '?'}sslmode={self.sslmode}"


class CatalogSettings(Section):
    """The external catalog that the search uses."""

    interface: Literal["", "local", "atlas", "navigator", "dummy"] = ""
    """Type of the catalog; empty or `local`: none."""
    api_url: Text = ""
    """URL of the catalog."""
    server_user: Text = ""
    """Login name."""
    server_password: Secret = NO_SECRET
    """Password for the login."""
    search_cluster: Text = "cm"
    """Cluster whose objects are searched."""
    timeout_s: Positive = 10
    """Timeout for one call to the catalog."""


class IndexSettings(Section):
    """The search index of tables and columns."""

    enabled: Flag = True
    """Whether the index is maintained."""
    refresh_interval_s: Positive = 3600
    """Interval between refreshes of the index."""
    max_tables: Count = 50_000
    """Maximum number of indexed tables per data source."""
    max_columns: Count = 500
    """Maximum number of indexed columns per table."""


class SearchSettings(Section):
    """The live search in file stores."""

    max_entries: Positive = 5000
    """Maximum number of entries that a search reads."""
    max_dirs: Positive = 50
    """Maximum number of directories that a search lists."""
    max_seconds: Positive = 3
    """Time limit of a search."""


class MetadataSettings(Section):
    """The metadata search."""

    catalog: CatalogSettings = CatalogSettings()
    index: IndexSettings = IndexSettings()
    search: SearchSettings = SearchSettings()


class McpSettings(Section):
    """The endpoint for agents (Model Context Protocol)."""

    enabled: Flag = True
    """Whether `/mcp` is served. Every call needs the credentials of a user."""
    resource_url: Annotated[Text, Field(pattern=r"^(https?://[^/?#\s]+/[^?#\s]*)?$")] = ""
    """The URL of `/mcp` as clients reach it, for the metadata of the protected resource. Empty: derived from the scheme
    and the `Host` header of each call."""


class LocalResults(Section):
    """Results in a directory that all processes share."""

    backend: ClassVar[str] = "local"
    location: Annotated[Text, Field(min_length=1)]


class S3Results(Section):
    """Results as objects below a prefix. If no keys are set, credentials come from the environment."""

    backend: ClassVar[str] = "s3"
    location: Annotated[Text, Field(pattern=r"^s3a?://[^/]+")]
    region: Text = ""
    endpoint: Text = ""
    access_key_id: Secret = NO_SECRET
    secret_access_key: Secret = NO_SECRET
    session_token: Secret = NO_SECRET
    sse: Literal["", "AES256", "aws:kms", "aws:kms:dsse"] = ""


class HdfsResults(Section):
    """Results as files below an HDFS directory. If no address is set, the `hdfs` cluster of the settings is used."""

    backend: ClassVar[str] = "hdfs"
    location: Annotated[Text, Field(pattern=r"^hdfs://")]
    webhdfs_url: Text = ""
    user: Text = ""


class AbfsResults(Section):
    """Results as blobs below a prefix."""

    backend: ClassVar[str] = "abfs"
    location: Annotated[Text, Field(pattern=r"^abfss?://[^@/]+@[^/]+")]
    tenant_id: Text = ""
    client_id: Text = ""
    client_secret: Secret = NO_SECRET
    account_key: Secret = NO_SECRET


ResultStorage: TypeAlias = LocalResults | S3Results | HdfsResults | AbfsResults

_BACKENDS = (LocalResults, S3Results, HdfsResults, AbfsResults)
# Suffixes of class names that older settings files use.
_OLD_NAMES = {"FileSystemStorage": LocalResults, "S3Boto3Storage": S3Results}


def _result_storage(value: Any) -> Any:
    """Parse `{"backend": …, "properties": {…}}`, given as a JSON string or as a table. Empty: None, the default."""
    if value is None or value == "":
        return None
    given = _object(value)
    unknown = given.keys() - {"backend", "properties"}
    if unknown:
        raise ValueError(f"has the unknown key {min(unknown)}; valid are backend and properties.")
    name = given.get("backend")
    kind = next((one for one in _BACKENDS if name == one.backend), None)
    if kind is None and isinstance(name, str):
        kind = next((one for ending, one in _OLD_NAMES.items() if name.endswith(ending)), None)
    if kind is None:
        raise ValueError(f"backend must be one of {', '.join(one.backend for one in _BACKENDS)}.")
    try:
        return kind.model_validate(given.get("properties", {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"property {'.'.join(map(str, first['loc'])) or 'properties'}: {first['msg']}") from None


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("must be a JSON object.") from None
    if not isinstance(value, Mapping):
        raise ValueError("must be a JSON object.")  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
    return value


class TaskServerSettings(Section):
    """Worker processes, the broker and the result store."""

    enabled: Flag = False
    """Whether `queryserver worker` processes, instead of servers, run statements."""
    beat_enabled: Flag = False
    """Whether `queryserver beat` fires schedules; requires `enabled`."""
    broker_url: Secret = Secret("redis://localhost:6379/0")
    """URL of Redis or Valkey: `redis://user:password@host:6379/0`, `unix://…`, or `rediss://…?ssl_ca_certs=/path` for
    TLS. The certificate must be issued for that host; with `ssl_check_hostname=false`, any certificate signed by the CA
    is accepted."""
    result_file_storage: Annotated[ResultStorage | None, BeforeValidator(_result_storage)] = Field(
        default=None, json_schema_extra={"secret": True}
    )
    """JSON: `{"backend": "local" | "s3" | "hdfs" | "abfs", "properties": {"location": …}}`. Empty: local files in
    `<data_dir>/results`."""
    result_cache_max_bytes: Count = GIB
    """Maximum size of the cache that each process keeps in `<data_dir>/result-cache` for results in remote stores;
    0: no cache."""
    concurrency: Positive = 8
    """Statements that one worker runs concurrently. One slot in eight, but at least one if there are two or more, is
    reserved for users who have no running statement."""
    heartbeat_s: Positive = 10
    """Longest interval between the heartbeats of a process; at most a third of `editor.lease_timeout_s`."""
    queue: Text = "queryserver"
    """Name of the broker queue."""
    metrics_host: Text = "127.0.0.1"
    """Address on which workers and beats serve their metrics; see `metrics_port`."""
    metrics_port: Annotated[Count, Field(le=65535)] = 0
    """Port on which a worker or beat serves its metrics and health, with the access rules of `[desktop.metrics]`;
    0: none. Each process on a machine needs its own port: `queryserver worker --metrics-port`."""
    email_after_s: Count = 0
    """Owners of statements that ran longer than this get mail; 0 disables it."""
    email_max_rows: Count = 10_000
    """Maximum number of rows in an attached CSV file."""
    email_max_bytes: Count = 5 * MIB
    """Maximum size of an attached CSV file."""
    email_allowed_domains: Names = ()
    """Domains to which mail may be sent; empty: only to addresses of known users."""
    webhook_secret: Secret = NO_SECRET
    """Secret that signs webhooks (`notify.url`); at least 32 characters. Empty: webhooks are disabled."""
    webhook_allowed_networks: Networks = ()
    """Loopback, private and other internal networks to which webhooks may be sent; empty: none. Networks in
    `connector_policy.blocked_networks` stay blocked."""

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: Secret) -> Secret:
        scheme = url.get_secret_value().partition(":")[0].lower()
        if scheme not in {"redis", "rediss", "unix"}:
            raise ValueError(f"must be a Redis address (redis://…), not {scheme[:20]}.")
        try:
            _ = urlsplit(url.get_secret_value()).port
        except ValueError:  # its message would reveal part of the password
            raise ValueError("is not a valid URL: in a password, write / ? # @ and : as %2F %3F %23 %40 %3A.") from None
        return url
