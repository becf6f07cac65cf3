"""The tree of all settings, checks for contradictions between settings, and warnings."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from pydantic import PrivateAttr

from queryserver.platform.networks import LOOPBACK, contains
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.editor import (
    BeeswaxSettings,
    DocumentSettings,
    EditorSettings,
    ImpalaSettings,
    LimitsSettings,
    MetastoreSettings,
    NotebookSettings,
    RetentionSettings,
    SparkSettings,
)
from queryserver.platform.settings.sections import McpSettings, MetadataSettings, Secret, Section
from queryserver.platform.settings.stores import (
    AwsSettings,
    AzureSettings,
    FilebrowserSettings,
    HadoopSettings,
    ImporterSettings,
)
from queryserver.platform.settings.traces import TracingSettings


class SettingOrigin(StrEnum):
    """Where the effective value of a key comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the settings come from. `origins` is keyed by full dotted name; keys that are missing have their defaults.

    `admin_password` is `QUERYSERVER_ADMIN_PASSWORD`, for the first administrator in embedded mode. `sample_admin_dsn`
    is used to create logins in the sample database; None means that the DSN of the service database is used.
    """

    file: Path | None = None
    origins: Mapping[str, SettingOrigin] = field(default_factory=lambda: MappingProxyType({}))
    admin_password: Secret | None = None
    sample_admin_dsn: Secret | None = None


class Settings(Section):
    """All settings, with the sections and keys of the specification. Immutable; created by `load_settings`."""

    desktop: DesktopSettings = DesktopSettings()
    limits: LimitsSettings = LimitsSettings()
    retention: RetentionSettings = RetentionSettings()
    notebook: NotebookSettings = NotebookSettings()
    editor: EditorSettings = EditorSettings()
    documents: DocumentSettings = DocumentSettings()
    beeswax: BeeswaxSettings = BeeswaxSettings()
    impala: ImpalaSettings = ImpalaSettings()
    spark: SparkSettings = SparkSettings()
    filebrowser: FilebrowserSettings = FilebrowserSettings()
    hadoop: HadoopSettings = HadoopSettings()
    aws: AwsSettings = AwsSettings()
    azure: AzureSettings = AzureSettings()
    importer: ImporterSettings = ImporterSettings()
    metadata: MetadataSettings = MetadataSettings()
    metastore: MetastoreSettings = MetastoreSettings()
    mcp: McpSettings = McpSettings()
    tracing: TracingSettings = TracingSettings()

    _sources: Sources = PrivateAttr(default_factory=Sources)

    @property
    def sources(self) -> Sources:
        return self._sources

    @property
    def results_dir(self) -> Path:
        return self.desktop.data_dir / "results"

    @property
    def uploads_dir(self) -> Path:
        return self.importer.upload_dir or self.desktop.data_dir / "uploads"

    def read_from(self, sources: Sources) -> Self:
        settings = self.model_copy()
        settings._sources = sources  # noqa: SLF001 a copy of this object
        return settings

    def origin(self, key: str) -> SettingOrigin:
        return self._sources.origins.get(key, SettingOrigin.DEFAULT)


Problem = tuple[str, str]

_SECRET_KEY_LENGTH = 32
# The approximate number of connections that a load balancer keeps open for a few hundred users.
_LOAD_BALANCER_CONNECTIONS = 500
# Example keys, in lower case, from the documentation of similar products.
_SAMPLE_KEYS = (
    "changeme",
    "change-me",
    "change_me",
    "secret_key",
    "secretkey",
    "your-secret",
    "your_secret",
    "insecure",
    "replace-me",
    "replace_me",
    "0123456789abcdef0123456789abcdef",
    "09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
    "kasdlfjknasdfl3hbaksk3bwkasdfkasdfba23asdf",
    "asldfasdlkfjaslfj",
)
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def contradictions(settings: Settings, given: Mapping[str, SettingOrigin]) -> Iterator[Problem]:
    """Yield the key and a description of every contradiction. `given` contains the keys that are set."""
    yield from _server(settings)
    yield from _database(settings, given)
    yield from _directory(settings)
    yield from _addresses(settings)
    yield from _editor(settings)
    yield from _importer(settings)


def warnings(settings: Settings) -> Iterator[Problem]:
    """Yield the key and a description of each setting that is valid but probably a mistake."""
    interpreters = settings.notebook.interpreters
    known = {key.casefold() for key in interpreters}
    for name in settings.notebook.interpreters_shown_on_wheel:
        # Numbers are ids of stored connectors, which only the database can validate.
        if name.casefold() not in known and not name.isdecimal():
            yield "notebook.interpreters_shown_on_wheel", f"names {name}, but there is no interpreter with this name."
    default = settings.notebook.default_interpreter
    known |= {table.name.casefold() for table in interpreters.values() if table.name}
    if default and default.casefold() not in known and not default.isdecimal():
        yield "notebook.default_interpreter", f"names {default}, but there is no interpreter with this name."
    jwt = settings.desktop.auth.jwt
    for name, value in (("issuer", jwt.issuer), ("audience", jwt.audience)):
        if jwt.key_server_url and value == "*":
            yield f"desktop.auth.jwt.{name}", "is not checked: any token signed by the key server is accepted."
    if any(network.prefixlen == 0 for network in settings.desktop.trusted_proxies):
        yield "desktop.trusted_proxies", "trusts every client to report its own address."
    desktop, key = settings.desktop, "desktop.max_connections_per_address"
    if desktop.max_connections_per_address >= desktop.max_connections:
        yield key, "lets one address use up all of desktop.max_connections."
    if desktop.max_connections_per_address < _LOAD_BALANCER_CONNECTIONS and not desktop.trusted_proxies:
        yield key, "also limits a load balancer, which has one address, unless desktop.trusted_proxies lists it."
    yield from _fleet(settings)


def _fleet(settings: Settings) -> Iterator[Problem]:
    """Yield settings that restrict the workers to one machine, or prevent mail from being sent."""
    desktop, tasks = settings.desktop, settings.desktop.task_server
    if tasks.email_after_s and not desktop.smtp.host:
        yield "desktop.task_server.email_after_s", "is set, but desktop.smtp.host is not: no mail is sent."
    if not tasks.enabled:
        return
    if desktop.database.embedded:
        text = "is a PostgreSQL server for this machine only: workers on other machines cannot use it."
        yield "desktop.database.embedded", text
        return
    if tasks.result_file_storage is None:
        text = "is not set: results are stored in <data_dir>/results, which workers on other machines cannot read."
        yield "desktop.task_server.result_file_storage", text
    broker, database = _host(tasks.broker_url.get_secret_value()), _host(desktop.database.dsn or "")
    if _is_loopback(broker) and database and not _is_loopback(database):
        text = "is on this machine, but the database is on another: workers on other machines cannot reach this broker."
        yield "desktop.task_server.broker_url", text


def _host(url: str) -> str | None:
    """Return the host of a URL; None if it has no host or several hosts."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def secret_key_problem(key: Secret) -> str | None:
    """Return why a secret key is too weak; None if it is acceptable."""
    text = key.get_secret_value()
    if len(text) < _SECRET_KEY_LENGTH:
        return f"must have at least {_SECRET_KEY_LENGTH} characters."
    if len(set(text)) < 8 or any(sample in text.lower() for sample in _SAMPLE_KEYS):
        return "is a known sample value; generate one, for example with `openssl rand -base64 48`."
    return None


def fallbacks_problem(keys: Iterable[Secret]) -> str | None:
    """Return which fallback keys are weak, by number, and why; None if none is.

    A weak fallback key is dangerous, because tokens signed with it are valid.
    """
    problems = [(number, secret_key_problem(key)) for number, key in enumerate(keys, 1)]
    return " ".join(f"Entry {number} {problem}" for number, problem in problems if problem) or None


def _server(settings: Settings) -> Iterator[Problem]:
    desktop = settings.desktop
    if desktop.secret_key.get_secret_value() and (problem := secret_key_problem(desktop.secret_key)):
        yield "desktop.secret_key", problem
    if problem := fallbacks_problem(desktop.secret_key_fallbacks):
        yield "desktop.secret_key_fallbacks", problem
    if bool(desktop.ssl_certificate) != bool(desktop.ssl_private_key):
        yield "desktop.ssl_private_key", "TLS requires both ssl_certificate and ssl_private_key."
    if desktop.cors_enabled and desktop.cors_allow_credentials and "*" in desktop.cors_allowed_origins:
        yield "desktop.cors_allowed_origins", "`*` is allowed only with cors_allow_credentials = false."
    if desktop.auth.force_username_lowercase and desktop.auth.force_username_uppercase:
        yield "desktop.auth.force_username_uppercase", "contradicts force_username_lowercase, which is true."
    tasks = desktop.task_server
    if tasks.beat_enabled and not tasks.enabled:
        yield "desktop.task_server.beat_enabled", "requires desktop.task_server.enabled."
    if tasks.webhook_secret.get_secret_value() and (problem := secret_key_problem(tasks.webhook_secret)):
        yield "desktop.task_server.webhook_secret", problem
    if tasks.enabled and tasks.heartbeat_s * 3 > settings.editor.lease_timeout_s:
        yield "desktop.task_server.heartbeat_s", "exceeds a third of editor.lease_timeout_s."


def _database(settings: Settings, given: Mapping[str, SettingOrigin]) -> Iterator[Problem]:
    database = settings.desktop.database
    url = database.url.get_secret_value()
    given_parts = {
        "host": database.host,
        "name": database.name,
        "user": database.user,
        "password": database.password.get_secret_value(),
    }
    parts = [name for name, value in given_parts.items() if value]
    if url and parts:
        yield "desktop.database.url", f"contradicts desktop.database.{parts[0]}: set either the URL or its parts."
    if url and "desktop.database.sslmode" in given:
        modes = parse_qs(urlsplit(url).query).get("sslmode", [database.sslmode])
        if modes != [database.sslmode]:
            yield "desktop.database.sslmode", "contradicts the sslmode of desktop.database.url."
    if not url and parts and not (database.host and database.name):
        yield "desktop.database.host", "host and name are both required if url is not set."
    if database.pool_min > database.pool_max:
        yield "desktop.database.pool_min", "exceeds desktop.database.pool_max."


def _addresses(settings: Settings) -> Iterator[Problem]:
    """Check that secrets are sent securely: to key servers, the catalog and the mail server."""
    jwt = settings.desktop.auth.jwt
    for url in jwt.key_server_url:
        if not protects_secrets(url):
            yield "desktop.auth.jwt.key_server_url", "must be https, except on loopback addresses."
    if jwt.key_server_url:
        for name, value in (("issuer", jwt.issuer), ("audience", jwt.audience)):
            if not value:
                yield f"desktop.auth.jwt.{name}", "is required with key_server_url; `*` disables the check."
    yield from _issuer_logins(settings)
    url = settings.metadata.catalog.api_url
    if url and not protects_secrets(url):
        yield (
            "metadata.catalog.api_url",
            "must be https, except on loopback addresses, because a password is sent to it.",
        )
    smtp = settings.desktop.smtp
    if smtp.host and smtp.tls == "none" and not _is_loopback(smtp.host):
        yield "desktop.smtp.tls", "`none` is allowed only for loopback addresses."


def _issuer_logins(settings: Settings) -> Iterator[Problem]:
    """Check that users can log in at the issuer, and that codes and secrets are sent securely."""
    jwt, oidc = settings.desktop.auth.jwt, settings.desktop.auth.oidc
    if oidc.client_id and not (jwt.key_server_url and protects_secrets(jwt.issuer)):
        text = "requires desktop.auth.jwt.key_server_url, and an https URL in desktop.auth.jwt.issuer."
        yield "desktop.auth.oidc.client_id", text
    if oidc.client_id and "openid" not in oidc.scopes:
        yield "desktop.auth.oidc.scopes", "must contain openid: without it, the issuer returns no ID token."
    if oidc.redirect_url and not protects_secrets(oidc.redirect_url):
        yield "desktop.auth.oidc.redirect_url", "must be https, except on loopback addresses."


def _directory(settings: Settings) -> Iterator[Problem]:
    ldap = settings.desktop.ldap
    if ldap.ldap_url.lower().startswith("ldap://") and not ldap.use_start_tls:
        yield "desktop.ldap.use_start_tls", "ldap:// without StartTLS would send passwords in clear text."
    if "ldap" not in settings.desktop.auth.backend:
        return
    if not ldap.ldap_url:
        yield "desktop.ldap.ldap_url", "is required because desktop.auth.backend contains ldap."
    elif not re.fullmatch(r"ldaps?://[^/?#@\s]+/?", ldap.ldap_url, re.IGNORECASE):
        yield "desktop.ldap.ldap_url", "must be ldap://host or ldaps://host, optionally with a port."
    if not ldap.base_dn:
        yield "desktop.ldap.base_dn", "is required because desktop.auth.backend contains ldap."
    if ldap.search_bind_authentication:
        if ldap.bind_dn and not ldap.bind_password.get_secret_value():
            yield "desktop.ldap.bind_password", "is required with bind_dn."
    elif not ldap.nt_domain and "<username>" not in ldap.ldap_username_pattern:
        yield "desktop.ldap.ldap_username_pattern", "must contain <username> if search_bind_authentication is false."


def _editor(settings: Settings) -> Iterator[Problem]:
    editor, notebook = settings.editor, settings.notebook
    if editor.default_limit != notebook.default_limit:
        yield "editor.default_limit", "differs from notebook.default_limit, which is an alias of this setting."
    if editor.sample_views != settings.metastore.allow_sample_data_from_views:
        yield (
            "editor.sample_views",
            "differs from metastore.allow_sample_data_from_views, which is an alias of this setting.",
        )
    if editor.default_limit > editor.result_max_rows:
        yield "editor.default_limit", "exceeds editor.result_max_rows."
    for key in notebook.interpreters:
        if key.isdecimal():
            yield f"notebook.interpreters.{key}", "must not be a number, because numbers are ids of stored connectors."


def _importer(settings: Settings) -> Iterator[Problem]:
    """Check that uploads are outside the store `file`, where users could read and delete other users' uploads."""
    uploads, root = settings.uploads_dir.absolute(), settings.filebrowser.local_root
    if root is not None and uploads.is_relative_to(root.absolute()):
        yield "importer.upload_dir", f"is {uploads}, which is inside filebrowser.local_root."
    if root is not None and uploads != root.absolute() and root.absolute().is_relative_to(uploads):
        yield "filebrowser.local_root", f"is inside the upload directory {uploads}."


def protects_secrets(url: str) -> bool:
    """Return whether secrets may be sent to this URL: it uses HTTPS or points to this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str | None) -> bool:
    return host is not None and (host.lower() == "localhost" or contains(LOOPBACK, host.strip("[]")))


def exposure(settings: Settings) -> Iterator[Problem]:
    """Yield the key and a description of each setting that exposes more to other machines than one would expect.

    An embedded server on loopback is assumed not to be behind a proxy.
    """
    is_local = _is_loopback(settings.desktop.http_host)
    if (not is_local or _has_proxy(settings)) and "*" in settings.desktop.allowed_hosts:
        text = (
            "contains `*`: calls with any `Host` header are served, even from web pages that reach this server"
            " through DNS rebinding. List the host names that clients use."
        )
        yield "desktop.allowed_hosts", text
    if is_local and _has_proxy(settings):
        yield from _metrics_by_proxy(settings)


def _metrics_by_proxy(settings: Settings) -> Iterator[Problem]:
    """Check that a proxy on this machine does not expose the metrics.

    The proxy connects from loopback, which needs no token, unless it is trusted to report the client address.
    """
    desktop = settings.desktop
    host = desktop.http_host.strip("[]").lower()
    families = ("127.0.0.1", "::1") if host == "localhost" else ("::1",) if ":" in host else ("127.0.0.1",)
    opened = [one for one in families if contains(desktop.metrics.allowed_networks, one)]
    believed = [one for one in opened if contains(desktop.trusted_proxies, one)]
    if desktop.metrics.enable_prometheus and len(opened) > len(believed):
        text = (
            "contains a loopback address, and this server listens only on loopback: a proxy on this machine connects"
            " from there, so /metrics is open to every client of the proxy. Do not forward /metrics, list the proxy's"
            " loopback addresses in desktop.trusted_proxies, or empty this list and set desktop.metrics.token."
        )
        yield "desktop.metrics.allowed_networks", text


def _has_proxy(settings: Settings) -> bool:
    """Return whether calls from other machines are expected even if the server listens only on loopback."""
    desktop = settings.desktop
    named = [host for host in desktop.allowed_hosts if host != "*" and host.lower() not in _LOOPBACK_HOSTS]
    is_trial = desktop.database.embedded or desktop.database.dsn is None
    return bool(desktop.trusted_proxies or desktop.url_prefix or named) or not is_trial


class Level(StrEnum):
    """Severity of a finding.

    Error: the server does not start, or something does not work. Warning: probably a mistake.
    """

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class SettingsFinding:
    """One finding about the settings. `text` continues a sentence that begins with the key, and contains no secret."""

    level: Level
    key: str
    text: str

    @classmethod
    def error(cls, key: str, text: str) -> "SettingsFinding":
        return cls(Level.ERROR, key, text)

    @classmethod
    def warning(cls, key: str, text: str) -> "SettingsFinding":
        return cls(Level.WARNING, key, text)

    @classmethod
    def of_problem(cls, line: str) -> "SettingsFinding":
        """Create an error from a line of `SettingsResult.problems`, which has the form `<full.key>: <text>`."""
        key, _, text = line.partition(": ")
        return cls.error(key, text)

    def __str__(self) -> str:
        return f"{self.level} {self.key}: {self.text}"
