"""The server itself: table `desktop` and most tables below it."""

import re
from contextlib import suppress
from datetime import UTC, timedelta, tzinfo
from functools import cache
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import AfterValidator, Field

from queryserver.platform.networks import LOOPBACK
from queryserver.platform.settings.editor import ConnectorPolicySettings, ExampleConnectorSettings
from queryserver.platform.settings.sections import (
    GIB,
    MIB,
    NO_SECRET,
    Count,
    DatabaseSettings,
    Flag,
    Names,
    Networks,
    OptionalPath,
    Port,
    Positive,
    Secret,
    Secrets,
    Section,
    SettingPath,
    TaskServerSettings,
    Text,
)
from queryserver.platform.settings.stores import OzoneSettings


class JwtSettings(Section):
    """External tokens (RS256)."""

    key_server_url: Names = ()
    """Address of a JWKS document, or a list tried in order. Empty: external tokens are not accepted."""
    issuer: Text = ""
    """The `iss` that a token must have; `*`: not compared. Required once a key server is set."""
    audience: Text = ""
    """What `aud` must equal or contain; `*`: not compared. Required once a key server is set."""
    username_header: Text = "sub"
    """The claim that holds the user name."""
    key_server_ca: OptionalPath = None
    """PEM file of additional authorities that are trusted for the key server."""
    timeout_s: Positive = 5
    """Timeout of one fetch of the keys."""
    cache_s: Count = 3600
    """How long fetched keys are used before they are fetched again."""
    refetch_floor_s: Count = 30
    """Minimum time between two fetches caused by unknown keys."""
    max_stale_s: Count = 86400
    """How long known keys stay usable while the key server is down."""
    leeway_s: Count = 30
    """Accepted clock skew."""
    create_users: Flag = True
    """Whether the first call of an unknown user creates the user."""


class AuthSettings(Section):
    """Logins and tokens."""

    backend: Names = ("local",)
    """Login back ends in their order: `local`, `ldap`, or a class as `package.module.Class`."""
    api_auth: Names = ()
    """Authenticators by priority. Empty: `jwt,api_token`, with a key server `custom_jwt,jwt,api_token`."""
    access_token_lifetime_s: Positive = 86400
    """Lifetime of an access token."""
    refresh_token_lifetime_s: Positive = 604800
    """Lifetime of a refresh token."""
    rotate_refresh_tokens: Flag = False
    """Whether each refresh also replaces the refresh token."""
    ignore_username_case: Flag = True
    """Whether user names are compared case-insensitively."""
    force_username_lowercase: Flag = True
    """Whether user names are stored in lower case."""
    force_username_uppercase: Flag = False
    """Whether user names are stored in upper case."""
    default_user_group: Text = "default"
    """The group that every new user joins."""
    recheck_s: Annotated[Positive, Field(le=60)] = 5
    """Interval at which a long call (a wait, an event stream, a download, an upload) checks the user and the rights
    again, and after which statements and sessions of disabled users are ended."""
    first_login_becomes_admin: Flag = False
    """Whether the first login creates an administrator if there is none."""
    password_min_length: Positive = 10
    """Minimum length of a new password, in characters."""
    password_min_score: Annotated[Count, Field(le=4)] = 2
    """Minimum zxcvbn score of a new password. 1: more than 1,000 guesses; 2: a million; 3: 100 million; 4: 10 billion;
    0: any."""
    login_window_s: Annotated[Positive, Field(le=86400)] = 300
    """Time in which failed logins are counted."""
    login_failures_per_user_and_address: Count = 5
    """Failed logins of one name from one address in that time; 0: no limit. To an address from which the user has
    logged in within 30 days, only this limit and that of the address apply."""
    login_failures_per_user: Count = 20
    """Failed logins of one name from all addresses from which the user has not logged in recently; 0: no limit."""
    login_failures_per_address: Count = 100
    """Failed logins from one address; 0: no limit. Refused API tokens of an address have a separate limit of the same
    size, in each process."""
    api_tokens_default_days: Annotated[Positive, Field(le=3650)] = 90
    """Default lifetime of an API token, in days; at most `api_tokens_max_days`."""
    api_tokens_max_days: Annotated[Positive, Field(le=3650)] = 365
    """Maximum lifetime of an API token, in days. A token without expiry cannot be created."""
    api_tokens_per_user: Positive = 100
    """API tokens that a user may have at a time, not counting those that have ended."""
    jwt: JwtSettings = JwtSettings()

    @property
    def authenticators(self) -> tuple[str, ...]:
        return self.api_auth or (*(("custom_jwt",) if self.jwt.key_server_url else ()), "jwt", "api_token")

    @property
    def recheck(self) -> timedelta:
        return timedelta(seconds=self.recheck_s)

    @property
    def login_window(self) -> timedelta:
        return timedelta(seconds=self.login_window_s)


class LdapUserSettings(Section):
    """How users are found in the directory."""

    user_filter: Text = "objectclass=*"
    """Filter that users must match."""
    user_name_attr: Text = "sAMAccountName"
    """Attribute that holds the user name."""


class LdapGroupSettings(Section):
    """How groups are found in the directory."""

    group_filter: Text = "objectclass=*"
    """Filter that groups must match."""
    group_name_attr: Text = "cn"
    """Attribute that holds the name of a group."""
    group_member_attr: Text = "member"
    """Attribute that holds the members of a group."""


class LdapSettings(Section):
    """The directory behind the login back end `ldap`."""

    ldap_url: Text = ""
    """Address of the server, `ldap://` or `ldaps://`."""
    ldap_cert: OptionalPath = None
    """PEM file of trusted authorities."""
    use_start_tls: Flag = True
    """Whether `ldap://` is encrypted by StartTLS; plain connections are refused."""
    timeout_s: Positive = 10
    """Timeout of one login, all its steps together; values above 10 count as 10."""
    base_dn: Text = ""
    """Base of searches."""
    search_bind_authentication: Flag = True
    """True: search for the user, then log in as the entry found; false: log in by the pattern."""
    bind_dn: Text = ""
    """Login for searches."""
    bind_password: Secret = NO_SECRET
    """Password for searches."""
    ldap_username_pattern: Text = ""
    """Login of a user, containing `<username>`: an entry, or any other form that the directory accepts."""
    nt_domain: Text = ""
    """Domain: users log in as `name@domain` instead of by the pattern."""
    create_users_on_login: Flag = True
    """Whether a login creates an unknown user."""
    sync_groups_on_login: Flag = True
    """Whether a login sets the groups of the user to those groups of the directory that also exist here."""
    login_groups: Names = ()
    """Groups whose members may log in; empty: all users."""
    users: LdapUserSettings = LdapUserSettings()
    groups: LdapGroupSettings = LdapGroupSettings()


def time_zone(name: str) -> tzinfo:
    """Return the zone with an IANA name. Raises ValueError."""
    if name == "UTC":  # needs no zone files, which minimal systems lack
        return UTC
    # Some files are not zone names: `localtime` means a different zone on each machine.
    if name in _zone_names():
        with suppress(ZoneInfoNotFoundError, OSError):
            return ZoneInfo(name)
    raise ValueError("must be an IANA time zone such as Europe/Berlin.")


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones()) - {"localtime", "posixrules"}


def _zone(name: str) -> str:
    time_zone(name)
    return name


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"holds a bad regular expression: {error}.") from None
    return patterns


class CustomSettings(Section):
    """Customization of this installation."""

    banner_top_html: Text = ""
    """Text above every page of a client."""


class MetricsSettings(Section):
    """`GET /metrics`."""

    enable_prometheus: Flag = True
    """Whether metrics are served."""
    token: Secret = NO_SECRET
    """Bearer token that gives access to the metrics from any address."""
    allowed_networks: Networks = LOOPBACK
    """Addresses that need no token."""


class LoggingSettings(Section):
    """The log. Tokens, passwords and signed links never appear in it."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """Minimum severity that is logged."""
    format: Literal["text", "json"] = "text"
    """Format of a line."""
    file: OptionalPath = None
    """Log file; empty: the terminal."""
    max_bytes: Count = 10 * MIB
    """Size at which the file is rotated; 0: never."""
    backup_count: Count = 5
    """How many rotated files are kept."""
    redact: Annotated[Names, AfterValidator(_patterns)] = ()
    """Additional regular expressions whose matches are masked."""
    audit_file: OptionalPath = None
    """File of the audit events; empty: the log."""
    access_log: Flag = False
    """Whether each call is logged at its end: user, client address, method, path without query, status, bytes and
    duration."""
    access_file: OptionalPath = None
    """File of these lines, in the format `format`; empty: the log."""


class SmtpSettings(Section):
    """The mail server."""

    host: Text = ""
    """Host name; empty: no mail is sent."""
    port: Port = 25
    """Port."""
    user: Text = ""
    """Login."""
    password: Secret = NO_SECRET
    """Password of the login."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted; `none` is allowed for loopback only."""
    default_from_email: Text = ""
    """Sender."""


class DesktopSettings(Section):
    """The server as a whole."""

    http_host: Text = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[Count, Field(le=65535)] = 8888
    """Port to listen on; 0: a free one."""
    workers: Positive = 1
    """Server processes."""
    url_prefix: Annotated[Text, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*/?$")] = ""
    """Prefix of all paths, such as `/sql`."""
    ssl_certificate: OptionalPath = None
    """PEM file of the certificate; with the private key, the server uses TLS."""
    ssl_private_key: OptionalPath = None
    """PEM file of the private key."""
    data_dir: SettingPath = Path("queryserver-data")
    """Directory of the generated key, the embedded database and local results; mode 0700."""
    secret_key: Secret = NO_SECRET
    """Signs tokens and encrypts secrets; at least 32 characters. Empty: generated once and stored in the data
    directory."""
    secret_key_fallbacks: Secrets = ()
    """Former keys, still accepted for reading."""
    time_zone: Annotated[Text, AfterValidator(_zone)] = "UTC"
    """Default time zone of schedules, and of dates that stores show as text."""
    allowed_hosts: Names = ("*",)
    """Accepted values of the `Host` header; `*`: all."""
    trusted_proxies: Networks = ()
    """Proxies that are trusted to report the address of the client."""
    cors_enabled: Flag = False
    """Whether web pages of other origins may call the API."""
    cors_allowed_origins: Names = ()
    """The allowed origins, such as `https://bi.example.com`; `*`: all, but only without credentials."""
    cors_allow_credentials: Flag = True
    """Whether calls from these origins may carry credentials."""
    enable_sharing: Flag = False
    """Sent to clients."""
    enable_download: Flag = True
    """Whether results and files may be downloaded."""
    docs_enabled: Flag = True
    """Whether the description of the API and the pages for browsers (`/api/docs`, `/`) are served."""
    host_label: Text = ""
    """Name of this installation, sent to clients."""
    use_thrift_http_jwt: Flag = False
    """Whether the caller's external token is passed on to Hive over HTTP."""
    connectors_blacklist: Names = ()
    """Dialects that are not offered."""
    connectors_whitelist: Names = ()
    """The only dialects that are offered; empty: all."""
    min_free_percent: Annotated[Count, Field(le=100)] = 5
    """Percentage of each disk of this server that must stay free: below it, uploads, copies, imports, results and
    temporary files are refused, while reading and deleting continue. 0: only `min_free_bytes` counts."""
    min_free_bytes: Count = GIB
    """Minimum free space of each disk of this server, even if `min_free_percent` amounts to less; 0: only
    `min_free_percent` counts."""
    computation_processes: Positive = 2
    """Processes, per server process, that format and split SQL and detect files of users; one user uses at most one at
    a time."""
    computation_timeout_s: Positive = 20
    """Limit on the processor time of one such computation."""
    computation_memory_bytes: Annotated[Count, Field(ge=512 * MIB)] = GIB
    """Memory limit of one such process."""
    max_connections: Positive = 4000
    """Open connections of one process; further ones get 503 and are closed. Lower if the limit of open files is
    lower."""
    max_connections_per_address: Positive = 2000
    """Open connections of one address (IPv6: of one /64 network) to one process; further ones get 429. Connections of
    `trusted_proxies` are not counted; behind them the setting limits the concurrent calls of one client address. A
    load balancer that is not listed there counts as one address: list it, and set this to a few hundred."""
    request_head_timeout_s: Positive = 15
    """Time for a TLS handshake, and for a request line with its headers: from the connection, later from the first
    byte."""
    response_stall_timeout_s: Positive = 300
    """A client that reads less than 1 KiB per second of a response over this time is disconnected."""
    unsent_max_bytes: Positive = 128 * MIB
    """Size of the responses of one process that clients have not read yet; above it the slowest clients are
    disconnected."""
    shutdown_delay_s: Count = 0
    """After the signal to stop, everything is still served for this long, while `is_ready` already is 503 `stopping`:
    time for load balancers to remove the server. A second signal ends it."""
    shutdown_grace_s: Count = 30
    """After that delay, no new statements are accepted, and running statements and other calls have this time to
    finish. The process ends at most 15 s later."""
    custom: CustomSettings = CustomSettings()
    database: DatabaseSettings = DatabaseSettings()
    auth: AuthSettings = AuthSettings()
    ldap: LdapSettings = LdapSettings()
    metrics: MetricsSettings = MetricsSettings()
    logging: LoggingSettings = LoggingSettings()
    smtp: SmtpSettings = SmtpSettings()
    task_server: TaskServerSettings = TaskServerSettings()
    connectors: dict[str, ExampleConnectorSettings] = Field(default_factory=dict[str, ExampleConnectorSettings])
    connector_policy: ConnectorPolicySettings = ConnectorPolicySettings()
    ozone: dict[str, OzoneSettings] = Field(default_factory=dict[str, OzoneSettings])

    @property
    def shutdown_grace(self) -> timedelta:
        return timedelta(seconds=self.shutdown_grace_s)
