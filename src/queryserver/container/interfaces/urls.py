"""The url of a driver: what may be in it (Contract platform 5.11: sqlalchemy, options in urls)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.container.interfaces.options import Options
from queryserver.container.interfaces.problems import Kind
from queryserver.settings.connectors import ConnectorPolicySettings

_ALIASES = {"postgres": "postgresql"}
_NO_URL = "none"
_LONGEST_S = 7 * 24 * 3600
_SHOWN = 60  # characters of a text that a client gave
_OWN_INTERFACES = frozenset({"sqlite", "duckdb", "jdbc"})

_USER, _GIVEN_LATER = "${USER}", "${PASSWORD}"

_ALLOWED = {
    "postgresql": "sslmode connect_timeout application_name target_session_attrs"
    " keepalives keepalives_idle keepalives_interval keepalives_count",
    "mysql": "charset connect_timeout read_timeout write_timeout ssl_mode",
    "trino": "source timezone client_tags",
    "awsathena": "s3_staging_dir work_group region_name",
}
_NEVER = (
    "host hostaddr port unixsocket service passfile options localinfile allowlocalinfile allowloadlocalinfile"
    " allowurlinlocalinfile autodeserialize queryinterceptors initcommand readdefaultfile readdefaultgroup plugindir"
    " socketfactory creator connectionfactory"
)
"""Without regard to case and to anything but letters and digits."""
_IS_NAME = re.compile(r"[\w.-]+")
"""Anything else may be a piece of a password that was not percent-encoded."""
_LEADS_ELSEWHERE = re.compile(
    r"(?:file(?:name)?|path(?:name)?|dir|directory|directorie|conf|config|cnf|bundle|pem|cert|key|ca|crl|keytab|store"
    r"|wallet|location|verify|socket|class(?:e|name)?|factory|factorie|plugin|interceptor|module|hook|library|librarie"
    r"|script|command|cmd|host(?:name)?|server|addr|address|addresse|proxy|proxie|endpoint|url|uri|dsn)s?$"
)
"""To a file of this server, to code, or to another host."""


@dataclass(frozen=True, slots=True)
class DriverUrl:
    """A url whose driver and options are allowed. `dialect` is the driver's part before the `+`."""

    driver: str
    dialect: str
    host: str
    port: int | None
    path: str
    """Unquoted, without the slashes around it."""
    username: str | None
    """None: users give theirs through create_session, or there is none."""
    password: str | None = field(repr=False)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    wants_credentials: bool = False


def driver_url(options: Options, policy: ConnectorPolicySettings) -> DriverUrl:
    """The option `url`; what is wrong with it is remembered in `options`."""
    text = options.required("url")
    parts, port = _parts(options, text)
    driver, dialect = driver_of(parts.scheme)
    if dialect in _OWN_INTERFACES:
        options.refuse("url", f"{dialect} urls are not taken; use the interface {dialect}", Kind.DRIVER)
    elif parts.scheme != _NO_URL and driver not in {name.lower() for name in policy.allowed_drivers}:
        text = f"the driver {driver[:_SHOWN] or '(none)'} is not in desktop.connector_policy.allowed_drivers"
        options.refuse("url", text, Kind.DRIVER)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if not _is_allowed(name, driver, dialect, policy):
            shown = name[:_SHOWN] if _IS_NAME.fullmatch(name) else "(no name)"
            options.refuse("url", f"the option {shown} is not allowed", Kind.OPTION)
    user, password = _unquoted(parts.username), _unquoted(parts.password)
    return DriverUrl(
        driver=driver,
        dialect=dialect,
        host=parts.hostname or "",
        port=port,
        path=unquote(parts.path.strip("/")),
        username=None if user == _USER else user,
        password=None if password == _GIVEN_LATER else password,
        options=MappingProxyType(given),
        wants_credentials=user == _USER or password == _GIVEN_LATER,
    )


def driver_of(scheme: str) -> tuple[str, str]:
    """The driver that the scheme of a url names, and its part before the `+`, both in their usual form."""
    dialect, plus, rest = scheme.lower().partition("+")
    dialect = _ALIASES.get(dialect, dialect)
    return f"{dialect}{plus}{rest}", dialect


def _parts(options: Options, text: str) -> tuple[SplitResult, int | None]:
    """The parts of a url and its port; those of no url at all when it is none."""
    try:
        parts = urlsplit(text)
        # A password with raw reserved characters tears a url, and errors about what follows would show parts of it.
        behind = (
            f"{parts.path}{parts.fragment}" if "@" in parts.netloc else f"{parts.path}{parts.query}{parts.fragment}"
        )
        if text and "@" not in behind and parts.scheme != _NO_URL and parts.port != 0:
            return parts, parts.port
    except ValueError:
        pass
    if text:
        options.refuse("url", "is not a url; reserved characters in it must be percent-encoded")
    return urlsplit(f"{_NO_URL}://"), None


def whole_in_url(options: Options, url: DriverUrl, name: str, default: int, *, most: int = _LONGEST_S) -> int:
    """A positive integer among the options of a url; by default seconds."""
    text = url.options.get(name, str(default))
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
        return int(text)
    options.refuse("url", f"the option {name} must be a whole number from 1 to {most}")
    return default


def word_in_url(options: Options, url: DriverUrl, name: str, words: str, default: str) -> str:
    """One of some words among the options of a url, whatever its case; `words` are divided by blanks."""
    text = url.options.get(name, default)
    for word in words.split():
        if word.casefold() == text.casefold():
            return word
    options.refuse("url", f"the option {name} must be one of {', '.join(words.split())}")
    return default


def _is_allowed(name: str, driver: str, dialect: str, policy: ConnectorPolicySettings) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain in _NEVER.split():
        return False
    if name in _ALLOWED.get(dialect, "").split():
        return True
    extra = (*policy.extra_url_options.get(driver, ()), *policy.extra_url_options.get(dialect, ()))
    return name in extra and _LEADS_ELSEWHERE.search(plain) is None


def _unquoted(part: str | None) -> str | None:
    return None if part is None else unquote(part)
