"""Who may be notified: addresses of mail and of signed calls (Contract platform 10.5)."""

import re
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from queryserver.errors.base import InvalidParameter
from queryserver.platform.addresses import AddressRules, HostRefused, HttpServer, UnknownHost
from queryserver.platform.database import Database
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.platform.settings.tree import keeps_secrets

_LONGEST_ADDRESS = 254  # RFC 5321 4.5.3.1.3, without the brackets
_LONGEST_URL = 2000
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)", re.ASCII)


class Recipients:
    """Checks addresses when they are given; a signed call is checked again when it is made, as names may change."""

    def __init__(self, database: Database, settings: TaskServerSettings, rules: AddressRules) -> None:
        self._database = database
        self._domains = frozenset(domain.lower().lstrip("@") for domain in settings.email_allowed_domains)
        self._signs = bool(settings.webhook_secret.get_secret_value())
        self._rules = rules

    async def require_addresses(self, addresses: Sequence[str], field: str) -> None:
        """Raises InvalidParameter unless mail may go to all of them."""
        domains = {address: _domain(address, field) for address in addresses}
        if self._domains:
            refused = [address for address, domain in domains.items() if domain not in self._domains]
        else:
            known = await self._known({address.lower() for address in addresses})
            refused = [address for address in addresses if address.lower() not in known]
        if refused:
            reason = "its domain is not in email_allowed_domains" if self._domains else "no user has this address"
            raise InvalidParameter(f"{field}: mail may not go to {refused[0][:_LONGEST_ADDRESS]}: {reason}.")

    async def require_url(self, url: str, field: str) -> None:
        """Raises InvalidParameter unless a signed call may go there. A name that is not known yet may be known then."""
        if not self._signs:
            raise InvalidParameter(f"{field} needs the setting desktop.task_server.webhook_secret.")
        if len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise InvalidParameter(f"{field} must be an address of at most {_LONGEST_URL} printable ASCII characters.")
        if not keeps_secrets(url) or "@" in urlsplit(url).netloc or "#" in url:
            raise InvalidParameter(f"{field} must be https, or http on loopback, without login and fragment.")
        server = HttpServer(url)
        if refusal := self._rules.refusal(server.host, server.port):
            raise InvalidParameter(f"{field} is refused: {refusal}.")
        try:
            await self._rules.resolve(server.host, server.port)
        except UnknownHost:
            return
        except HostRefused as error:
            raise InvalidParameter(f"{field} is refused: {error.message}") from None

    async def _known(self, addresses: Collection[str]) -> frozenset[str]:
        found = await self._database.fetch(
            "select distinct lower(email) as email from users where is_active and lower(email) = any($1::text[])",
            list(addresses),
        )
        return frozenset(row["email"] for row in found)


def _domain(address: str, field: str) -> str:
    """The domain of an address, in lower case. Line breaks and lists are no addresses. Raises InvalidParameter."""
    match = _ADDRESS.fullmatch(address)
    if match is None or len(address) > _LONGEST_ADDRESS:
        raise InvalidParameter(f"{field} must hold email addresses such as ana@example.org.")
    return match[1].lower()
