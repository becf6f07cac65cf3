"""The directory behind the login back end `ldap`."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.auth.ldap.directory import Directory
from queryserver.auth.ldap.judging import Judge
from queryserver.auth.ldap.login import LdapLogin
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.usernames import UsernameRule
from queryserver.settings.auth import LdapSettings


@contextmanager
def open_directory_login(ldap: LdapSettings, usernames: UsernameRule) -> Generator[LdapLogin]:
    """The back end; nothing is sent before the first login.

    Raises ConfigurationError: its package is not installed, or the file of authorities is of no use.
    """
    with LdapLogin.open(_directory(ldap), Judge(ldap, usernames), limit_s=ldap.timeout_s) as login:
        yield login


def _directory(ldap: LdapSettings) -> Directory:
    try:
        from queryserver.auth.ldap.ldap3_directory import (  # noqa: PLC0415 an extra
            DirectoryServer,
            Ldap3Directory,
            client_context,
        )
    except ModuleNotFoundError as error:
        message = "desktop.auth.backend: ldap needs the package ldap3; install queryserver[ldap]."
        raise ConfigurationError([message]) from error
    try:
        context = client_context(ldap.ldap_cert)
    except ssl.SSLError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert} holds no certificate."]) from error
    except OSError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert}: {error.strerror}."]) from error
    return Ldap3Directory(DirectoryServer(ldap.ldap_url, ldap.timeout_s), context)
