"""Who gets in: tables `desktop.auth`, `desktop.auth.jwt`, `desktop.ldap`."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from queryserver.settings.section import NO_SECRET, Count, Flag, Names, OptionalPlace, Positive, Secret, Section, Text


class JwtSettings(Section):
    """External tokens (RS256)."""

    key_server_url: Names = ()
    """Address of a JWKS document, or a list tried in order. Empty: external tokens are not taken."""
    issuer: Text = ""
    """The `iss` that a token must have; `*`: not compared. Required once a key server is set."""
    audience: Text = ""
    """What `aud` must equal or contain; `*`: not compared. Required once a key server is set."""
    username_header: Text = "sub"
    """The claim that holds the user name."""
    key_server_ca: OptionalPlace = None
    """PEM file of further authorities that are trusted for the key server."""
    timeout_s: Positive = 5
    """Limit of one fetch of the keys."""
    cache_s: Count = 3600
    """How long fetched keys are used without asking again."""
    refetch_floor_s: Count = 30
    """Least time between two fetches caused by unknown keys."""
    max_stale_s: Count = 86400
    """How long known keys stay usable while the key server is down."""
    leeway_s: Count = 30
    """Difference of clocks that is accepted."""
    create_users: Flag = True
    """Whether the first call of an unknown user creates the user."""


class AuthSettings(Section):
    """Logins and tokens."""

    backend: Names = ("local",)
    """Login back ends in the order they are asked: `local`, `ldap`, or a class as `package.module.Class`."""
    api_auth: Names = ()
    """Authenticators by priority. Empty: `jwt`, with a key server `custom_jwt,jwt`."""
    access_token_lifetime_s: Positive = 86400
    """Life of an access token."""
    refresh_token_lifetime_s: Positive = 604800
    """Life of a refresh token."""
    rotate_refresh_tokens: Flag = False
    """Whether each refresh also exchanges the refresh token."""
    ignore_username_case: Flag = True
    """Whether user names are compared without case."""
    force_username_lowercase: Flag = True
    """Whether user names are kept in lower case."""
    force_username_uppercase: Flag = False
    """Whether user names are kept in upper case."""
    default_user_group: Text = "default"
    """The group that every new user joins."""
    recheck_s: Annotated[Positive, Field(le=60)] = 5
    """Time after which a call that lasts (a wait, an event stream, a download, an upload) reads the user and the rights
    again, and after which statements and sessions of disabled users are ended."""
    first_login_becomes_admin: Flag = False
    """Whether the first login makes an administrator while there is none."""
    password_min_length: Positive = 10
    """Least length of a new password, in characters."""
    login_window_s: Annotated[Positive, Field(le=86400)] = 300
    """Time in which failed logins are counted."""
    login_failures_per_user_and_address: Count = 5
    """Failed logins of one name from one address in that time; 0: no limit. An address from which the user has logged
    in within 30 days is bound by this limit, and by that of the address, alone."""
    login_failures_per_user: Count = 20
    """Failed logins of one name from all addresses from which the user has not logged in lately; 0: no limit."""
    login_failures_per_address: Count = 100
    """Failed logins from one address; 0: no limit."""
    jwt: JwtSettings = JwtSettings()

    @property
    def authenticators(self) -> tuple[str, ...]:
        """Names of the authenticators in their order."""
        return self.api_auth or (("custom_jwt", "jwt") if self.jwt.key_server_url else ("jwt",))

    @property
    def access_token_lifetime(self) -> timedelta:
        return timedelta(seconds=self.access_token_lifetime_s)

    @property
    def refresh_token_lifetime(self) -> timedelta:
        return timedelta(seconds=self.refresh_token_lifetime_s)

    @property
    def recheck(self) -> timedelta:
        return timedelta(seconds=self.recheck_s)

    @property
    def login_window(self) -> timedelta:
        return timedelta(seconds=self.login_window_s)


class LdapUserSettings(Section):
    """How users are found in the directory."""

    user_filter: Text = "objectclass=*"
    """Filter that users fit."""
    user_name_attr: Text = "sAMAccountName"
    """Attribute that holds the user name."""


class LdapGroupSettings(Section):
    """How groups are found in the directory."""

    group_filter: Text = "objectclass=*"
    """Filter that groups fit."""
    group_name_attr: Text = "cn"
    """Attribute that holds the name of a group."""
    group_member_attr: Text = "member"
    """Attribute that holds the members of a group."""


class LdapSettings(Section):
    """The directory behind the login back end `ldap`."""

    ldap_url: Text = ""
    """Address of the server, `ldap://` or `ldaps://`."""
    ldap_cert: OptionalPlace = None
    """PEM file of trusted authorities."""
    use_start_tls: Flag = True
    """Whether `ldap://` is encrypted by StartTLS; plain connections are refused."""
    timeout_s: Positive = 10
    """Limit of one login, all its steps together; at most 10 count."""
    base_dn: Text = ""
    """Where searches begin."""
    search_bind_authentication: Flag = True
    """True: find the user, then log in as the entry found; false: log in by the pattern."""
    bind_dn: Text = ""
    """Login for searches."""
    bind_password: Secret = NO_SECRET
    """Password for searches."""
    ldap_username_pattern: Text = ""
    """Login of a user, with `<username>` in it: an entry, or any other form that the directory takes."""
    nt_domain: Text = ""
    """Domain: users log in as `name@domain` instead of by the pattern."""
    create_users_on_login: Flag = True
    """Whether a login creates an unknown user."""
    sync_groups_on_login: Flag = True
    """Whether a login sets the groups of the user to those groups of the directory that also exist here."""
    login_groups: Names = ()
    """Groups whose members may log in; empty: everybody."""
    users: LdapUserSettings = LdapUserSettings()
    groups: LdapGroupSettings = LdapGroupSettings()
