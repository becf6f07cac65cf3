"""Defines the options of the interface `sqlalchemy`: the driver URL and its options (Contract platform 5.11)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo

from queryserver.connectors.options import (
    Flag,
    FormSection,
    Kind,
    OptionRules,
    Options,
    Refused,
    Secret,
    TagOptions,
    Text,
    Tunnel,
    allow_only,
    choice,
    context_rules,
    invalid,
    validation_problems,
    whole_number,
)
from queryserver.errors.statements import driver_not_allowed, host_not_allowed, option_not_allowed
from queryserver.platform.settings.editor import ConnectorPolicySettings

_ALIASES = {"postgres": "postgresql"}
_MAX_S = 7 * 24 * 3600
_MAX_SHOWN_CHARACTERS = 60  # messages contain at most this much of a client's text
_OWN_INTERFACES = frozenset({"sqlite", "duckdb", "jdbc"})
_USER, _SUPPLIED_LATER = "${USER}", "${PASSWORD}"
_MAX_IDLE_S, _MAX_PROBES = 32767, 127  # the kernel's limits for TCP keepalive
PORTS = MappingProxyType({"postgresql": 5432, "mysql": 3306, "trino": 8080, "phoenix": 8765})
"""Default ports by dialect."""

_FORBIDDEN_OPTIONS = (
    "host hostaddr port unixsocket service passfile options localinfile allowlocalinfile allowloadlocalinfile"
    " allowurlinlocalinfile autodeserialize queryinterceptors initcommand readdefaultfile readdefaultgroup plugindir"
    " socketfactory creator connectionfactory"
)
"""Options that are never allowed. Comparisons ignore case and all characters except letters and digits."""
_IS_NAME = re.compile(r"[\w.-]+")
"""Option names that messages may contain.

Any other string may be part of a password that was not percent-encoded.
"""
_FORBIDDEN_OPTION_NAMES = re.compile(
    r"(?:file(?:name)?|path(?:name)?|dir|directory|directorie|conf|config|cnf|bundle|pem|cert|key|ca|crl|keytab|store"
    r"|wallet|location|verify|socket|class(?:e|name)?|factory|factorie|plugin|interceptor|module|hook|library|librarie"
    r"|script|command|cmd|host(?:name)?|server|addr|address|addresse|proxy|proxie|endpoint|url|uri|dsn)s?$"
)
"""Option names that refer to a file on this server, to code, or to another host."""


class PostgresqlUrlOptions(Options):
    """Options of `postgresql://` URLs."""

    sslmode: Annotated[str, choice("disable", "allow", "prefer", "require", "verify-ca", "verify-full")] = "prefer"
    connect_timeout: Annotated[int, whole_number(1, _MAX_S)] = 10
    application_name: str = "queryserver"
    target_session_attrs: Annotated[
        str, choice("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
    ] = "any"
    keepalives: Annotated[str, choice("0", "1")] = "1"
    keepalives_idle: Annotated[int, whole_number(1, _MAX_IDLE_S)] = 60
    keepalives_interval: Annotated[int, whole_number(1, _MAX_IDLE_S)] = 15
    keepalives_count: Annotated[int, whole_number(1, _MAX_PROBES)] = 4


class MysqlUrlOptions(Options):
    """Options of `mysql://` URLs.

    `charset` and `write_timeout` are accepted but have no effect: strings are always UTF-8, and writing never waits
    for long.
    """

    charset: str = ""
    connect_timeout: Annotated[int, whole_number(1, _MAX_S)] = 10
    read_timeout: Annotated[int | None, whole_number(1, _MAX_S)] = None
    write_timeout: Annotated[int | None, whole_number(1, _MAX_S)] = None
    ssl_mode: Annotated[str, choice("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")] = "DISABLED"


class TrinoUrlOptions(Options):
    """Options of `trino://` URLs."""

    source: str = ""
    timezone: str = ""
    client_tags: str = ""


class AthenaUrlOptions(Options):
    """Options of `awsathena://` URLs."""

    s3_staging_dir: str = ""
    work_group: str = ""
    region_name: str = ""


URL_OPTIONS: Mapping[str, type[Options]] = MappingProxyType(
    {
        "postgresql": PostgresqlUrlOptions,
        "mysql": MysqlUrlOptions,
        "trino": TrinoUrlOptions,
        "awsathena": AthenaUrlOptions,
    }
)
"""Options that need no operator permission, by dialect."""


@dataclass(frozen=True, slots=True)
class DriverUrl:
    """A URL with an allowed driver and allowed options. `dialect` is the part of the driver before the `+`."""

    driver: str
    dialect: str
    host: str
    port: int | None
    path: str
    """Unquoted, without surrounding slashes."""
    username: str | None
    """None if users provide their logins through create_session, or if the URL has no login."""
    password: str | None = field(repr=False)
    query: Mapping[str, str] = field(repr=False)
    """All options, as unparsed strings."""
    options: Options
    """The typed options, from the model in `URL_OPTIONS`."""
    wants_credentials: bool

    @property
    def database(self) -> str:
        """The database in a `postgresql://` URL; defaults to the user name."""
        return self.path or self.username or ""

    def rules(self, rules: OptionRules) -> OptionRules:
        """Return the rules for the URL's hosts. Only the PostgreSQL adapter can exclude a single database."""
        is_allowed = not rules.is_stored or rules.policy.allow_service_database_server
        if self.dialect != "postgresql" or not is_allowed:
            return rules
        return replace(rules, addresses=rules.addresses.allowing_database_server())


def driver_of(scheme: str) -> tuple[str, str]:
    """Return the normalized driver of a URL scheme, and its dialect, which is the part before the `+`."""
    dialect, plus, rest = scheme.lower().partition("+")
    dialect = _ALIASES.get(dialect, dialect)
    return f"{dialect}{plus}{rest}", dialect


def server_of(url: str) -> tuple[str, int | None, str] | None:
    """Return host, port and path of a connector's URL, without the login. None if the URL is not valid or has no host.

    The port defaults to that of the dialect.
    """
    try:
        parts, port = _parts(url.strip())
    except Refused:
        return None
    if not parts.hostname:
        return None
    return parts.hostname, port or PORTS.get(driver_of(parts.scheme)[1]), unquote(parts.path.strip("/"))


def _driver_url(value: Any, info: ValidationInfo) -> DriverUrl:
    text, rules = str(value).strip(), context_rules(info)
    parts, port = _parts(text)
    driver, dialect = driver_of(parts.scheme)
    found = list[tuple[str, Kind]]()
    if dialect in _OWN_INTERFACES:
        found.append((f"{dialect} urls are not supported here: use the interface {dialect}", driver_not_allowed))
    elif driver not in {name.lower() for name in rules.policy.allowed_drivers}:
        shown = driver[:_MAX_SHOWN_CHARACTERS] or "(none)"
        refused = f"the driver {shown} is not in desktop.connector_policy.allowed_drivers"
        found.append((refused, driver_not_allowed))
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in query:
        if not _is_allowed(name, driver, dialect, rules.policy):
            shown = name[:_MAX_SHOWN_CHARACTERS] if _IS_NAME.fullmatch(name) else "(no name)"
            found.append((f"the option {shown} is not allowed", option_not_allowed))
    options, problems = _typed(dialect, query)
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    url = DriverUrl(
        driver=driver,
        dialect=dialect,
        host=parts.hostname or "",
        port=port,
        path=unquote(parts.path.strip("/")),
        username=None if user == _USER else user,
        password=None if password == _SUPPLIED_LATER else password,
        query=MappingProxyType(query),
        options=options,
        wants_credentials=user == _USER or password == _SUPPLIED_LATER,
    )
    found += url.rules(rules).refused_host(url.host, port or PORTS.get(dialect, 0))
    found += problems
    is_own = rules.is_own_database(url.host or "localhost", port or PORTS["postgresql"], url.database)
    if dialect == "postgresql" and rules.is_stored and is_own:
        found.append(("this is the service's own database", host_not_allowed))
    if found:
        raise Refused(*found)
    return url


def _parts(text: str) -> tuple[SplitResult, int | None]:
    if not text:
        raise invalid("must be set")
    try:
        parts = urlsplit(text)
        # Unescaped reserved characters in a password split the URL, so errors would reveal parts of the password.
        behind = (
            f"{parts.path}{parts.fragment}" if "@" in parts.netloc else f"{parts.path}{parts.query}{parts.fragment}"
        )
        if "@" not in behind and parts.port != 0:
            return parts, parts.port
    except ValueError:
        pass
    raise invalid("is not a valid url; reserved characters must be percent-encoded")


def _is_allowed(name: str, driver: str, dialect: str, policy: ConnectorPolicySettings) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain in _FORBIDDEN_OPTIONS.split():
        return False
    if dialect in URL_OPTIONS and name in URL_OPTIONS[dialect].model_fields:
        return True
    extra = (*policy.extra_url_options.get(driver, ()), *policy.extra_url_options.get(dialect, ()))
    return name in extra and _FORBIDDEN_OPTION_NAMES.search(plain) is None


def _typed(dialect: str, query: Mapping[str, str]) -> tuple[Options, list[tuple[str, Kind]]]:
    """Validate the options with the model in `URL_OPTIONS`. Return the options and their problems."""
    model = URL_OPTIONS.get(dialect, Options)
    try:
        return model.model_validate({name: text for name, text in query.items() if name in model.model_fields}), []
    except ValidationError as error:
        return model(), [(f"the option {one.setting} {one.text}", one.kind) for one in validation_problems(error)]


def _of_trino(value: bool, info: ValidationInfo) -> bool:
    url: DriverUrl | None = info.data.get("url")
    if value and url is not None and url.dialect != "trino":
        raise invalid("must be false: only trino supports impersonation")
    return value


EXAMPLE_KEY = '{"type": "service_account", ...}'
_NO_KEY = allow_only(
    {"", EXAMPLE_KEY}, "must be empty: keys are not passed to drivers, but the server's environment can configure one"
)
"""Refuses keys, which would be stored but never used, except for the catalog's example."""


class UrlOptions(TagOptions):
    """Interface `sqlalchemy`."""

    url: Annotated[DriverUrl, PlainValidator(_driver_url)]
    """`driver://user:password@host:port/database?option=value`; `${USER}` and `${PASSWORD}`: callers supply both."""
    has_ssh: Tunnel = False
    """Must be false: tunnels are not supported."""
    ssh_server_host: Annotated[Text, FormSection.UNUSED] = "127.0.0.1"
    """No effect."""
    has_impersonation: Annotated[Flag, AfterValidator(_of_trino)] = False
    """Whether to log in as the URL's user but run statements as the caller; only for trino."""
    credentials_json: Annotated[Secret, _NO_KEY, FormSection.UNUSED] = Field("", examples=[EXAMPLE_KEY])
    """Must be empty: keys are not passed to drivers."""
