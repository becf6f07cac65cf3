"""Logins by Kerberos (RFC 4559), with the package `gssapi` of the extra `kerberos`."""

import asyncio
from base64 import b64encode
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from queryserver.domain.errors.statements import CredentialsRequired

_TICKET_S = 10.0


def is_installed() -> bool:
    """Whether logins by Kerberos are possible here."""
    return find_spec("gssapi") is not None


async def negotiate(host: str) -> str:
    """The token that opens the service HTTP at `host` to whoever this process has a ticket of.

    Raises CredentialsRequired: no package, no ticket, no such service, no answer in time.
    """
    if not is_installed():
        raise CredentialsRequired("Logins by Kerberos need the extra `kerberos` of this server.")
    try:
        async with asyncio.timeout(_TICKET_S):
            return await asyncio.to_thread(_token, host)
    except TimeoutError:
        raise CredentialsRequired("The Kerberos ticket server did not answer in time.") from None


def _token(host: str) -> str:
    gssapi: Any = import_module("gssapi")
    try:
        name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        token = gssapi.SecurityContext(name=name, usage="initiate").step()
    except gssapi.exceptions.GSSError as error:
        raise CredentialsRequired("There is no Kerberos ticket for the Query Server.") from error
    return b64encode(token or b"").decode()
