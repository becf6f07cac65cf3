"""Defines the options of connectors, with one model per interface (Contract platform 5.11).

A model describes an interface's options: names, types, ranges, defaults and meaning. The catalog lists the model's
options in addition to those in its own table. `read_options` validates values with the model, and the engine builder
receives an instance. docs/engines.md contains each model as a table, with the docstrings of the options. A new
interface needs a model here; a new dialect of HiveServer2 needs a row in `HS2_OPTIONS`.
"""

import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from queryserver.connectors.model import SettingValue
from queryserver.errors.base import ConfigurationError
from queryserver.errors.statements import ConnectorRefused, driver_not_allowed, host_not_allowed, option_not_allowed
from queryserver.platform.addresses import AddressRules, Endpoint, HttpServer
from queryserver.platform.settings.editor import ConnectorPolicySettings
from queryserver.platform.text import parse_boolean, parse_byte_amount

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_MAX_SHOWN_CHARACTERS = 60  # messages contain at most this much of a client's name
_MAX_PORT = 65535
_WEEK_S = 7 * 24 * 3600
_USER_PLACEHOLDER = "${USER}"


Kind: TypeAlias = Callable[[Mapping[str, Sequence[str]]], ConnectorRefused]
_KINDS: Sequence[Kind] = (driver_not_allowed, option_not_allowed, host_not_allowed, ConnectorRefused)
"""Problem kinds in order of precedence. With several problems, the first kind decides the response's code."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with an option. `text` follows the name, has no final period, and contains no secret."""

    setting: str
    text: str
    kind: Kind = ConnectorRefused

    @property
    def sentence(self) -> str:
        """The text for responses, which show the name separately."""
        return f"{self.text[:1].upper()}{self.text[1:]}."


class OptionsRefused(ConfigurationError):
    """Invalid options. The message names their keys in the settings file."""

    def __init__(self, key: str, found: Sequence[Problem]) -> None:
        super().__init__(sorted(f"notebook.interpreters.{key}.options.{one.setting}: {one.text}." for one in found))
        self.found = tuple(found)

    def refusal(self) -> ConnectorRefused:
        """Return the error for the client that sent the connector."""
        texts = dict[str, list[str]]()
        for one in self.found:
            texts.setdefault(one.setting, []).append(one.sentence)
        return min((one.kind for one in self.found), key=_KINDS.index)(texts)


class Refused(ValueError):
    """Raised by validators with the texts and kinds of an option's problems."""

    def __init__(self, *found: tuple[str, Kind]) -> None:
        super().__init__("refused")
        self.found = found


def invalid(text: str) -> Refused:
    return Refused((text, ConnectorRefused))


@dataclass(frozen=True, slots=True)
class OptionRules:
    """The limits that the server's settings impose on options. Validators receive them as their context."""

    policy: ConnectorPolicySettings
    addresses: AddressRules
    is_stored: bool = False
    """Whether the connector is stored, so that hosts are checked here.

    For configured connectors, hosts are checked only at each connection.
    """
    is_own_database: Callable[[str, int, str], bool] = lambda _host, _port, _name: False
    """Whether host, port and name literally match the service's own database."""

    def refused_host(self, host: str, port: int) -> list[tuple[str, Kind]]:
        """Return a problem if connections to the address are not permitted (Contract platform 5.11: Hosts)."""
        reason = self.addresses.refusal(host, port) if self.is_stored else None
        return [(reason, host_not_allowed)] if reason else []


def context_rules(info: ValidationInfo) -> OptionRules:
    rules: OptionRules = info.context  # type: ignore[assignment]
    return rules


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


Model = TypeVar("Model", bound=Options)


def read_options(
    model: type[Model], key: str, values: Mapping[str, SettingValue], rules: OptionRules | None = None
) -> Model:
    """Validate the connector's options. Raises OptionsRefused with every problem, including unknown names."""
    try:
        return model.model_validate(dict(values), context=rules)
    except ValidationError as error:
        raise OptionsRefused(key, validation_problems(error)) from None


def validation_problems(error: ValidationError) -> list[Problem]:
    found = list[Problem]()
    for one in error.errors(include_url=False, include_input=False):
        setting = str(one["loc"][0])
        if one["type"] == "extra_forbidden":
            found.append(Problem(setting, "is not an option of this interface"))
        elif one["type"] == "missing":
            found.append(Problem(setting, "must be set"))
        else:
            refused: Refused = one["ctx"]["error"]  # pyright: ignore[reportTypedDictNotRequiredAccess] ours only
            found += (Problem(setting, text, kind) for text, kind in refused.found)
    return found


UNLISTED: Final = "unlisted"
"""Marks options that are hidden in listings of types and not available to stored connectors."""

MULTILINE: Final = "multiline"
"""Marks strings that may have several lines."""


class FormSection(StrEnum):
    """The part of a form that contains an option. Marks options of other sections than `MAIN`."""

    MAIN = "main"
    ADVANCED = "advanced"
    GENERAL = "general"
    """Settings that connectors of all interfaces have."""
    UNUSED = "unused"
    """Options without effect, or with a single permitted value. Forms need not show them."""


def listed_options(model: type[Options]) -> dict[str, SettingValue]:
    """Return the options for type listings, each with its example or, if it has none, its default value."""
    listed = dict[str, SettingValue]()
    for name, field in model.model_fields.items():
        if UNLISTED not in field.metadata:
            default = field.default if isinstance(field.default, str | int | bool) else ""
            listed[field.alias or name] = field.examples[0] if field.examples else default
    return listed


# Option types. All types except secrets ignore surrounding blanks; booleans and numbers may be given as strings.


def _text(value: Any) -> str:
    return str(value).strip()


def _required(value: Any) -> str:
    if not (text := _text(value)):
        raise invalid("must be set")
    return text


def parse_flag(value: object) -> bool | None:
    """Return an option's boolean value, which may be given as a string; None if the value is not a boolean.

    An empty string means false.
    """
    return value if isinstance(value, bool) else parse_boolean(str(value).strip() or "false")


def _flag(value: Any) -> bool:
    if (found := parse_flag(value)) is None:
        raise invalid("must be true or false")
    return found


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Reads an integer from `least` to `most`."""

    least: int
    most: int | None

    def __call__(self, value: Any) -> int:
        text = "" if isinstance(value, bool) else _text(value)
        if _WHOLE.fullmatch(text) and self.least <= int(text) and (self.most is None or int(text) <= self.most):
            return int(text)
        limits = f"an integer from {self.least} to {self.most}" if self.most else f"at least {self.least}"
        raise invalid(f"must be {limits}")


def whole_number(least: int, most: int | None = None) -> BeforeValidator:
    return BeforeValidator(WholeNumber(least, most))


@dataclass(frozen=True, slots=True)
class Choice:
    """Reads one of `words` in any case, and returns it as spelled in `words`."""

    words: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        folded = _text(value).casefold()
        for word in self.words:
            if word.casefold() == folded:
                return word
        raise invalid(f"must be one of {', '.join(word or 'empty' for word in self.words)}")


def choice(*words: str) -> BeforeValidator:
    return BeforeValidator(Choice(words))


def _http_url(value: Any, info: ValidationInfo) -> str:
    """Accept a URL without credentials whose host the rules permit."""
    text = _text(value)
    found: list[tuple[str, Kind]] = [] if text else [("must be set", ConnectorRefused)]
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise Refused(*found, ("must be an http or https url", ConnectorRefused))
    server = HttpServer(text)
    if "?" in text or "#" in text:
        found.append(("must not contain a query or fragment", ConnectorRefused))
    elif "@" in text:
        found.append(("must not contain credentials: use username and password", ConnectorRefused))
    found += context_rules(info).refused_host(server.host, server.port)
    if found:
        raise Refused(*found)
    return text


def _authorities(value: Any) -> str:
    text = _text(value)
    try:
        if text:
            ssl.create_default_context(cadata=text)
    except (ValueError, ssl.SSLError):
        raise invalid("must contain certificates in PEM format") from None
    return text


def _caller(value: Any) -> str | None:
    return None if _text(value) == _USER_PLACEHOLDER else _text(value)


def _pairs(value: Any, info: ValidationInfo) -> Mapping[str, str]:
    """Parse `k=v;k=v`. The policy must allow the names."""
    allowed: Collection[str] = context_rules(info).policy.session_conf_allowed
    pairs, found = dict[str, str](), list[tuple[str, Kind]]()
    for part in filter(str.strip, _text(value).split(";")):
        key, equals, values = (piece.strip() for piece in part.partition("="))
        if not key or not equals:
            found.append(("must have the form name=value;name=value", ConnectorRefused))
        elif key not in allowed:
            text = f"the name {key[:_MAX_SHOWN_CHARACTERS]} is not in desktop.connector_policy.session_conf_allowed"
            found.append((text, ConnectorRefused))
        else:
            pairs[key] = values
    if found:
        raise Refused(*found)
    return pairs


def allow_only(allowed: Collection[object], otherwise: str) -> AfterValidator:
    """Accept only the allowed values; `otherwise` is the text of the problem."""

    def check(value: Any) -> Any:
        if value not in allowed:
            raise invalid(otherwise)
        return value

    return AfterValidator(check)


Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
Required: TypeAlias = Annotated[str, BeforeValidator(_required)]
Secret: TypeAlias = Annotated[str, BeforeValidator(str), Field(repr=False)]
"""Keeps surrounding blanks."""
Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag)]
Port: TypeAlias = Annotated[int, whole_number(1, _MAX_PORT)]
Seconds: TypeAlias = Annotated[int, whole_number(0, _WEEK_S)]
HttpUrl: TypeAlias = Annotated[str, BeforeValidator(_http_url)]
Authorities: TypeAlias = Annotated[str, BeforeValidator(_authorities), MULTILINE, FormSection.ADVANCED]
Caller: TypeAlias = Annotated[str | None, BeforeValidator(_caller)]
"""A login name; None if callers supply their logins through create_session."""
Pairs: TypeAlias = Annotated[Mapping[str, str], BeforeValidator(_pairs), FormSection.ADVANCED]
Tunnel: TypeAlias = Annotated[
    bool, BeforeValidator(_flag), allow_only({False}, "must be false: tunnels are not supported"), FormSection.UNUSED
]


def _bytes(value: Any) -> int | None:
    """Parse a number of bytes with a unit; None if the value is empty. `0B` disables temporary files."""
    if not (text := _text(value)):
        return None
    if (amount := parse_byte_amount(text)) is None:
        raise invalid("must be a number with a unit, such as 512MB or 20GB")
    return amount


class SqliteOptions(Options):
    """Interface `sqlite`."""

    path: Text = ":memory:"
    """Database file below `desktop.connector_policy.local_database_dir`, or `:memory:`."""
    read_only: Flag = False
    """Whether changes are refused."""
    max_database_size: Annotated[int | None, BeforeValidator(_bytes), UNLISTED] = None
    """Maximum size of the database file; default: `desktop.connector_policy.local_database_max_bytes`."""


def _amount(value: Any) -> str:
    if parse_byte_amount(text := _text(value)) is None:
        raise invalid("must be a number with a unit, such as 512MB or 2GB")
    return text


class DuckdbOptions(SqliteOptions):
    """Interface `duckdb`."""

    memory_limit: Annotated[str, BeforeValidator(_amount)] = Field("", examples=["1GB"])
    """Memory limit of the database; default: 256MB. Its process may use twice that plus 1 GiB."""
    threads: Annotated[int, whole_number(1, 256)] = 2
    """Number of threads per statement."""
    max_temp_directory_size: Annotated[int | None, BeforeValidator(_bytes), UNLISTED] = None
    """Maximum size of the temporary files; default: 10GiB."""


def _over_tls(value: str, info: ValidationInfo) -> str:
    if value == "NONE" or not (url := info.data.get("url", "")):
        return value
    server = HttpServer(url)
    try:
        is_loopback = ip_address(server.host).is_loopback
    except ValueError:
        is_loopback = server.host == "localhost"
    if not (server.is_tls or is_loopback):
        raise invalid("requires an https url unless the host is a loopback address")
    return value


class TrinoOptions(Options):
    """Interface `trino`."""

    url: HttpUrl = Field(examples=["http://localhost:8080"])
    """URL of the coordinator, http or https."""
    catalog: Text = ""
    """Initial catalog of a session."""
    schema_: Text = Field("", alias="schema")
    """Initial schema of a session."""
    username: Caller = ""
    """Login name; empty: the caller's name; `${USER}`: callers supply their login through create_session."""
    password: Secret = ""
    """Password for `username`."""
    auth_mechanism: Annotated[str, choice("NONE", "BASIC", "JWT"), AfterValidator(_over_tls)] = "NONE"
    """`NONE`, `BASIC` or `JWT` (the caller's own token); the last two require https except on loopback addresses."""
    has_impersonation: Flag = False
    """Whether to log in as `username` but run statements as the caller."""
    ssl_validate: Flag = True
    """Whether certificates are verified."""
    ssl_ca: Authorities = ""
    """Trusted certificate authorities as PEM text; empty: those of the system."""
    session_properties: Pairs = Field(default_factory=dict[str, str])
    """`name=value;name=value`, with names allowed by `desktop.connector_policy.session_conf_allowed`."""
    client_tags: Annotated[Text, FormSection.ADVANCED] = ""
    """Comma-separated tags for each statement."""
    source: Annotated[Text, UNLISTED] = ""
    """Source name reported to the coordinator; empty: `queryserver`."""
    timezone: Annotated[Text, UNLISTED] = ""
    """Time zone of sessions; empty: the coordinator's."""


class PhoenixOptions(Options):
    """Interface `phoenix`."""

    url: HttpUrl = Field(examples=["http://localhost:8765/"])
    """URL of the Query Server, http or https."""
    username: Caller = ""
    """Login name for `BASIC`; `${USER}`: callers supply their login through create_session."""
    password: Secret = ""
    """Password for `username`."""
    auth_mechanism: Annotated[str, choice("NONE", "BASIC", "SPNEGO")] = "NONE"
    """`NONE`, `BASIC` or `SPNEGO` (this server's Kerberos ticket; requires the `kerberos` extra)."""
    ssl_validate: Flag = True
    """Whether certificates are verified."""
    ssl_ca: Authorities = ""
    """Trusted certificate authorities as PEM text; empty: those of the system."""
    serialization: Annotated[
        str,
        choice("PROTOBUF", "JSON"),
        allow_only({"PROTOBUF"}, "must be PROTOBUF: JSON is not supported"),
        FormSection.UNUSED,
    ] = "PROTOBUF"
    """`PROTOBUF`; `JSON` is refused."""


class HdfsOptions(Options):
    """Interface `rest`, dialect `hdfs`."""

    server_url: HttpUrl = Field(examples=["http://localhost:9870/webhdfs/v1"])
    """URL of WebHDFS."""
    default_fs: Annotated[Text, FormSection.UNUSED] = "hdfs://localhost:8020"
    """Information only."""


class AtlasOptions(Options):
    """Interface `rest`, dialect `atlas`."""

    url: HttpUrl = Field(examples=["http://localhost:21000"])
    """URL of the Atlas server."""
    username: Text = ""
    """Login name; empty: no login."""
    password: Secret = ""
    """Password for `username`."""


def _members(value: Any, info: ValidationInfo) -> tuple[Endpoint, ...]:
    """Parse `host`, `host:port` or `[::1]:port`, separated by commas."""
    text, members, found = _required(value), list[Endpoint](), list[tuple[str, Kind]]()
    for part in filter(None, map(str.strip, text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]") or (":" in host and not host.endswith("]")):
            host, port = part, str(info.data.get("server_port", _MAX_PORT))
        if "@" in part or "/" in part or not host.strip("[]"):
            found.append(("must contain only hosts and ports", ConnectorRefused))
        elif not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) <= _MAX_PORT):
            found.append(
                (f"the port of {host[:_MAX_SHOWN_CHARACTERS]} must be a number from 1 to 65535", ConnectorRefused)
            )
        else:
            found += context_rules(info).refused_host(host, int(port))
            members.append((host.strip("[]"), int(port)))
    if not members and not found:
        raise invalid("must contain at least one host")
    if found:
        raise Refused(*found)
    return tuple(members)


class Hs2Options(Options):
    """Interface `hiveserver2`, dialect `sparksql`."""

    server_port: Port = 10000
    """Port for hosts that are listed without a port; 21050 for impala."""
    server_host: Annotated[tuple[Endpoint, ...], BeforeValidator(_members)] = Field(examples=["localhost"])
    """Comma-separated list of `host` or `host:port`; each session uses one of them."""
    use_sasl: Annotated[Flag, FormSection.ADVANCED] = True
    """If `auth_mechanism` is empty: true means `NONE`, false means `NOSASL`. False for impala."""
    auth_mechanism: Annotated[str, choice("", "NONE", "NOSASL", "PLAIN", "LDAP", "GSSAPI", "JWT")] = ""
    """`NONE` (SASL, name only), `NOSASL`, `PLAIN`, `LDAP`, `GSSAPI` (binary), `JWT` (http); empty: by `use_sasl`."""
    transport_mode: Annotated[str, choice("binary", "http")] = "binary"
    """`binary` or `http`."""
    http_path: Annotated[Text, FormSection.ADVANCED] = "cliservice"
    """URL path for the transport `http`."""
    username: Text = ""
    """Login name of the service; empty: the caller's name."""
    password: Secret = ""
    """Password for `username`."""
    impersonation_enabled: Flag = False
    """Whether statements run as the caller. True for hive and hplsql."""
    kerberos_service_name: Annotated[Text, FormSection.ADVANCED] = "hive"
    """Service part of the server's principal; `impala` for impala."""
    kerberos_host: Annotated[Text, FormSection.ADVANCED] = ""
    """Host part of the server's principal; empty: the host of the connection."""
    use_ssl: Flag = False
    """Whether connections are encrypted."""
    ssl_validate: Flag = True
    """Whether certificates are verified."""
    ssl_ca: Authorities = ""
    """Trusted certificate authorities as PEM text; empty: those of the system."""
    allow_insecure_http: Annotated[Flag, FormSection.ADVANCED] = False
    """Permits `JWT` without TLS."""
    database: Text = "default"
    """Initial database of a session."""
    connect_timeout_s: Annotated[int, whole_number(1, 600), FormSection.ADVANCED] = 10
    """Timeout for connecting and logging in."""
    query_timeout_s: Annotated[Seconds, FormSection.ADVANCED] = 0
    """Statement timeout on the engine; 0: the engine's default. For impala, `[impala]` sets the default."""
    session_timeout_s: Annotated[Seconds, FormSection.ADVANCED] = 0
    """Idle session timeout on the engine; 0: the engine's default. For impala, `[impala]` sets the default."""
    close_queries: Annotated[Flag, FormSection.ADVANCED] = False
    """Whether close_session closes the session's results. `[beeswax]` or `[impala]` sets the default."""
    session_conf: Pairs = Field(default_factory=dict[str, str])
    """`name=value;name=value`, with names allowed by `desktop.connector_policy.session_conf_allowed`."""
    statement_tags: Annotated[Flag, UNLISTED] = True
    """Whether the engine's own views show operation, user and connector of a statement."""
    is_llap: Annotated[Flag, FormSection.UNUSED] = False
    """Information only."""
    has_ssh: Annotated[Tunnel, UNLISTED] = False
    """Must be false: tunnels are not supported."""
    ssh_server_host: Annotated[Text, UNLISTED, FormSection.UNUSED] = "127.0.0.1"
    """No effect."""


class TagOptions(Options):
    """Options of the adapters for `postgresql://` and `mysql://` URLs."""

    statement_tags: Annotated[Flag, FormSection.ADVANCED] = True
    """Whether the views of postgresql and mysql show user, operation and trace of each statement."""


class HiveOptions(Hs2Options):
    """Interface `hiveserver2`, dialects `hive` and `hplsql`."""

    impersonation_enabled: Flag = True


class ImpalaOptions(Hs2Options):
    """Interface `hiveserver2`, dialect `impala`."""

    server_port: Port = 21050
    use_sasl: Annotated[Flag, FormSection.ADVANCED] = False
    kerberos_service_name: Annotated[Text, FormSection.ADVANCED] = "impala"
    query_timeout_s: Annotated[Seconds, FormSection.ADVANCED] = 600
    session_timeout_s: Annotated[Seconds, FormSection.ADVANCED] = 3600


HS2_OPTIONS: Mapping[str, type[Hs2Options]] = MappingProxyType(
    {"hive": HiveOptions, "hplsql": HiveOptions, "sparksql": Hs2Options, "impala": ImpalaOptions}
)
"""Option models by dialect."""
