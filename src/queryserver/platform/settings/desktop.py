"""Settings of the server itself: table `desktop` and most tables below it."""

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
    """External tokens (JWTs signed with RS256)."""

    key_server_url: Names = ()
    """URL of a JWKS document, or a list of URLs tried in order. Empty: external tokens are not accepted."""
    issuer: Text = ""
    """Required value of the claim `iss`; `*`: any. Must be set if `key_server_url` is set."""
    audience: Text = ""
    """Value that the claim `aud` must equal or contain; `*`: any. Must be set if `key_server_url` is set."""
    username_header: Text = "sub"
    """The claim that contains the user name."""
    key_server_ca: OptionalPath = None
    """PEM file of additional CAs that are trusted for the key server."""
    timeout_s: Positive = 5
    """Timeout for one fetch of the keys."""
    cache_s: Count = 3600
    """How long fetched keys are used before they are fetched again."""
    refetch_floor_s: Count = 30
    """Minimum time between two fetches that are caused by unknown keys."""
    max_stale_s: Count = 86400
    """How long known keys remain usable while the key server is down."""
    leeway_s: Count = 30
    """Tolerated clock skew."""
    create_users: Flag = True
    """Whether the first call of an unknown user creates the user."""


class OidcSettings(Section):
    """Logins at the issuer of external tokens (OpenID Connect), for browsers and programs. The endpoints are found by
    discovery, below `desktop.auth.jwt.issuer`.
    """

    client_id: Text = ""
    """Id of this service at the issuer. Empty: no logins at the issuer."""
    client_secret: Secret = NO_SECRET
    """Secret of this service at the issuer; empty for a public client."""
    scopes: Names = ("openid", "profile", "email")
    """Scopes of the ID token; must contain `openid`."""
    name: Text = ""
    """Name of the issuer for people. Empty: its host name."""
    redirect_url: Text = ""
    """URL to which the issuer sends browsers back, as registered at the issuer: that of `/login/callback`. Empty:
    derived from scheme and host of each request."""
    device_login: Flag = True
    """Whether programs can log in by a code that the user enters at the issuer."""


class AuthSettings(Section):
    """Logins and tokens."""

    backend: Names = ("local",)
    """Login back ends, tried in order: `local`, `ldap`, or a class as `package.module.Class`."""
    api_auth: Names = ()
    """Authenticators, tried in order. Empty: `jwt,api_token`, or `custom_jwt,jwt,api_token` if a key server is set."""
    access_token_lifetime_s: Positive = 86400
    """Lifetime of an access token."""
    refresh_token_lifetime_s: Positive = 604800
    """Lifetime of a refresh token."""
    rotate_refresh_tokens: Flag = False
    """Whether each refresh also issues a new refresh token in place of the old one."""
    ignore_username_case: Flag = True
    """Whether user names are compared case-insensitively."""
    force_username_lowercase: Flag = True
    """Whether user names are stored in lower case."""
    force_username_uppercase: Flag = False
    """Whether user names are stored in upper case."""
    default_user_group: Text = "default"
    """The group that every new user joins."""
    recheck_s: Annotated[Positive, Field(le=60)] = 5
    """Interval at which a long call (a long poll, an event stream, a download, an upload) rechecks the user and the
    rights, and at which statements and sessions of disabled users are ended."""
    first_login_becomes_admin: Flag = False
    """Whether the first login creates an administrator if there are no users."""
    password_min_length: Positive = 10
    """Minimum length of a new password, in characters."""
    password_min_score: Annotated[Count, Field(le=4)] = 2
    """Minimum zxcvbn score of a new password. 0: any password; 1: more than 1,000 guesses needed; 2: a million;
    3: 100 million; 4: 10 billion."""
    login_window_s: Annotated[Positive, Field(le=86400)] = 300
    """Length of the window in which failed logins are counted."""
    login_failures_per_user_and_address: Count = 5
    """Failed logins permitted per window for one name from one address; 0: no limit. For an address from which the user
    has logged in within 30 days, only this limit and the limit per address apply."""
    login_failures_per_user: Count = 20
    """Failed logins permitted per window for one name from all addresses without a recent login; 0: no limit."""
    login_failures_per_address: Count = 100
    """Failed logins permitted per window from one address; 0: no limit. The same number separately limits the refused
    API tokens of an address, in each process."""
    api_tokens_default_days: Annotated[Positive, Field(le=3650)] = 90
    """Default lifetime of an API token, in days; limited by `api_tokens_max_days`."""
    api_tokens_max_days: Annotated[Positive, Field(le=3650)] = 365
    """Maximum lifetime of an API token, in days. Tokens always expire."""
    api_tokens_per_user: Positive = 100
    """Maximum number of valid API tokens per user."""
    jwt: JwtSettings = JwtSettings()
    oidc: OidcSettings = OidcSettings()

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
    """How users are found in the LDAP directory."""

    user_filter: Text = "objectclass=*"
    """Filter that user entries must match."""
    user_name_attr: Text = "sAMAccountName"
    """Attribute that contains the user name."""


class LdapGroupSettings(Section):
    """How groups are found in the LDAP directory."""

    group_filter: Text = "objectclass=*"
    """Filter that group entries must match."""
    group_name_attr: Text = "cn"
    """Attribute that contains the name of a group."""
    group_member_attr: Text = "member"
    """Attribute that contains the members of a group."""


class LdapSettings(Section):
    """The LDAP directory that the login back end `ldap` uses."""

    ldap_url: Text = ""
    """URL of the server, `ldap://` or `ldaps://`."""
    ldap_cert: OptionalPath = None
    """PEM file of trusted CAs."""
    use_start_tls: Flag = True
    """Whether `ldap://` connections use StartTLS. Unencrypted connections are refused."""
    timeout_s: Positive = 10
    """Timeout for one login, including all its steps; values above 10 count as 10."""
    base_dn: Text = ""
    """Base DN for searches."""
    search_bind_authentication: Flag = True
    """If true, search for the user and then bind as the entry found; if false, bind with the name pattern."""
    bind_dn: Text = ""
    """Bind DN for searches."""
    bind_password: Secret = NO_SECRET
    """Bind password for searches."""
    ldap_username_pattern: Text = ""
    """Bind name of a user, containing `<username>`: a DN, or any other form that the directory accepts."""
    nt_domain: Text = ""
    """Domain. If set, users bind as `name@domain` instead of with the pattern."""
    create_users_on_login: Flag = True
    """Whether the first login of an unknown user creates the user."""
    sync_groups_on_login: Flag = True
    """Whether a login replaces the user's groups with those directory groups that also exist in this service."""
    login_groups: Names = ()
    """Groups whose members may log in; empty: all users may."""
    users: LdapUserSettings = LdapUserSettings()
    groups: LdapGroupSettings = LdapGroupSettings()


def time_zone(name: str) -> tzinfo:
    """Return the time zone with an IANA name. Raises ValueError."""
    if name == "UTC":  # needs no zone files, which minimal systems may lack
        return UTC
    # Some zone files are not portable names: `localtime` is a different zone on each machine.
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
            raise ValueError(f"contains an invalid regular expression: {error}.") from None
    return patterns


class CustomSettings(Section):
    """Customization of this installation."""

    banner_top_html: Text = ""
    """HTML that clients display above every page."""


class MetricsSettings(Section):
    """The metrics endpoint, `GET /metrics`."""

    enable_prometheus: Flag = True
    """Whether metrics are served."""
    token: Secret = NO_SECRET
    """Bearer token that permits access to the metrics from any address."""
    allowed_networks: Networks = LOOPBACK
    """Networks from which metrics can be read without a token."""


class LoggingSettings(Section):
    """The log. Tokens, passwords and signatures of signed URLs are masked."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """Minimum severity of logged events."""
    format: Literal["text", "json"] = "text"
    """Format of the log lines."""
    file: OptionalPath = None
    """Log file; empty: standard error."""
    max_bytes: Count = 10 * MIB
    """Size at which the log file is rotated; 0 disables rotation."""
    backup_count: Count = 5
    """Number of rotated files that are kept."""
    redact: Annotated[Names, AfterValidator(_patterns)] = ()
    """Additional regular expressions whose matches are masked."""
    audit_file: OptionalPath = None
    """File for audit events, in JSON; empty: the log."""
    access_log: Flag = False
    """Whether each call is logged when it ends: user, client address, method, path without query, status, bytes and
    duration."""
    access_file: OptionalPath = None
    """File for the access log, in the format `format`; empty: the log."""


class SmtpSettings(Section):
    """The mail server."""

    host: Text = ""
    """Host name; empty: no mail is sent."""
    port: Port = 25
    """Port."""
    user: Text = ""
    """Login name."""
    password: Secret = NO_SECRET
    """Password for the login."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted; `none` is allowed only for loopback."""
    default_from_email: Text = ""
    """Sender address."""


class ConsoleSettings(Section):
    """The web console."""

    enabled: Flag = True
    """Whether the console is served."""


class DesktopSettings(Section):
    """The server as a whole."""

    http_host: Text = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[Count, Field(le=65535)] = 8888
    """Port to listen on; 0: any free port."""
    workers: Positive = 1
    """Number of server processes."""
    url_prefix: Annotated[Text, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*/?$")] = ""
    """Prefix of all URL paths, such as `/sql`."""
    ssl_certificate: OptionalPath = None
    """PEM file of the certificate. If the private key is also set, the server uses TLS."""
    ssl_private_key: OptionalPath = None
    """PEM file of the private key."""
    data_dir: SettingPath = Path("queryserver-data")
    """Directory for the generated secret key, the embedded database and local results; mode 0700."""
    secret_key: Secret = NO_SECRET
    """Secret from which the keys for signing tokens and encrypting secrets are derived; at least 32 characters. Empty:
    generated once and stored in the data directory."""
    secret_key_fallbacks: Secrets = ()
    """Former secret keys, which still verify tokens and decrypt secrets."""
    time_zone: Annotated[Text, AfterValidator(_zone)] = "UTC"
    """Default time zone for schedules, and for dates that stores report as text."""
    allowed_hosts: Names = ("*",)
    """Accepted values of the `Host` header; `*`: any."""
    trusted_proxies: Networks = ()
    """Proxies whose headers with the client address are trusted."""
    cors_enabled: Flag = False
    """Whether web pages from other origins may call the API."""
    cors_allowed_origins: Names = ()
    """The allowed origins, such as `https://bi.example.com`; `*`: any, but only without credentials."""
    cors_allow_credentials: Flag = True
    """Whether calls from these origins may include credentials."""
    enable_sharing: Flag = True
    """Whether users may grant results to other users and groups. If false, existing grants have no effect either."""
    enable_download: Flag = True
    """Whether results and files may be downloaded."""
    docs_enabled: Flag = True
    """Whether the API description and its browser pages (`/api/docs`) are served."""
    host_label: Text = ""
    """Name of this installation, which is reported to clients."""
    use_thrift_http_jwt: Flag = False
    """Whether the caller's external token is forwarded to Hive over HTTP."""
    connectors_blacklist: Names = ()
    """Dialects that are not offered."""
    connectors_whitelist: Names = ()
    """The only dialects that are offered; empty: all."""
    min_free_percent: Annotated[Count, Field(le=100)] = 5
    """Percentage of each disk of this server that must stay free. Below it, uploads, copies, imports, results and
    temporary files are refused; reading and deleting continue. 0: only `min_free_bytes` applies."""
    min_free_bytes: Count = GIB
    """Minimum free space on each disk of this server, even if `min_free_percent` corresponds to less; 0: only
    `min_free_percent` applies."""
    computation_processes: Positive = 2
    """Number of processes, per server process, that format and split SQL and detect the format of users' files. A user
    occupies at most one at a time."""
    computation_timeout_s: Positive = 20
    """CPU time limit of one such computation."""
    computation_memory_bytes: Annotated[Count, Field(ge=512 * MIB)] = GIB
    """Memory limit of one such process."""
    max_connections: Positive = 4000
    """Maximum open connections per process. Further connections get 503 and are closed. The effective limit is lower if
    the limit on open files is lower."""
    max_connections_per_address: Positive = 2000
    """Maximum open connections from one address (IPv6: one /64 network) to one process; further ones get 429.
    Connections from `trusted_proxies` are not counted; behind them, this setting limits the concurrent calls of one
    client address. A load balancer that is not listed there counts as one address: list it, and set this to a few
    hundred."""
    request_head_timeout_s: Positive = 15
    """Timeout for a TLS handshake, and for a request line with its headers. It starts when the connection opens; for
    later requests, with their first byte."""
    response_stall_timeout_s: Positive = 300
    """A client that reads a response at less than 1 KiB per second for this long is disconnected."""
    unsent_max_bytes: Positive = 128 * MIB
    """Maximum total size of the responses of one process that clients have not read yet. Above it, the slowest clients
    are disconnected."""
    shutdown_delay_s: Count = 0
    """After the stop signal, all calls are still served for this long, while `is_ready` already returns 503 `stopping`,
    so that load balancers can remove the server. A second signal ends the delay."""
    shutdown_grace_s: Count = 30
    """After that delay, no new statements are accepted; running statements and other calls have this long to finish.
    The process exits at most 15 s later."""
    custom: CustomSettings = CustomSettings()
    database: DatabaseSettings = DatabaseSettings()
    auth: AuthSettings = AuthSettings()
    console: ConsoleSettings = ConsoleSettings()
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
