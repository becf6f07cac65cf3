"""What a session of Trino is: request headers that answers change. The coordinator keeps none of it."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from urllib.parse import quote_plus, unquote_plus

import httpx

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.trino.address import Login, TrinoAddress, Variant

NO_TRANSACTION = "NONE"
_PROPERTY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def _texts() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class ClientState:
    """The changeable part, in Trino's words; `prepared` and `properties` are unquoted."""

    catalog: str = ""
    schema: str = ""
    path: str = ""
    properties: dict[str, str] = field(default_factory=_texts)
    roles: dict[str, str] = field(default_factory=_texts)
    prepared: dict[str, str] = field(default_factory=_texts)
    transaction: str = NO_TRANSACTION
    authorization_user: str = ""
    """Set by SET SESSION AUTHORIZATION."""

    def as_json(self) -> dict[str, Any]:
        """Readable by `of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises TypeError for what `as_json` did not write."""
        return cls(**fields)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Raises StatementRejected for a name that no property can have."""
        for name, value in properties.items():
            if not _PROPERTY.fullmatch(name):
                raise StatementRejected(f"Session property '{name[:100]}' does not exist")
            self.properties[name] = value

    def absorb(self, headers: httpx.Headers, variant: Variant) -> None:
        """Carry out what the headers of an answer say about the session."""

        def told(name: str) -> Sequence[str]:
            return headers.get_list(variant.header(name))

        for name, key in (("Set-Catalog", "catalog"), ("Set-Schema", "schema"), ("Set-Path", "path")):
            for value in told(name):
                setattr(self, key, value)
        _update(self.properties, told("Set-Session"), told("Clear-Session"))
        _update(self.roles, told("Set-Role"), ())
        _update(self.prepared, told("Added-Prepare"), told("Deallocated-Prepare"))
        for value in told("Started-Transaction-Id"):
            self.transaction = value
        if told("Clear-Transaction-Id"):
            self.transaction = NO_TRANSACTION
        for value in told("Set-Authorization-User"):
            self.authorization_user = value
        if told("Reset-Authorization-User"):
            self.authorization_user = ""


def request_headers(address: TrinoAddress, variant: Variant, login: Login, state: ClientState) -> httpx.Headers:
    """Headers of a request on behalf of a session."""
    named = {
        "User": state.authorization_user or login.user,
        "Original-User": login.user if state.authorization_user else "",
        "Source": address.source,
        "Catalog": state.catalog,
        "Schema": state.schema,
        "Path": state.path,
        "Time-Zone": address.time_zone,
        "Client-Tags": address.client_tags,
        "Client-Capabilities": variant.capabilities,
        "Query-Data-Encoding": variant.encodings,
        "Transaction-Id": state.transaction,
        "Session": _joined(state.properties),
        "Role": _joined(state.roles),
        "Prepared-Statement": _joined(state.prepared),
    }
    headers = httpx.Headers(
        [(variant.header(name).encode(), _one_line(value)) for name, value in named.items() if value]
    )
    # Between servers the coordinator would spend more time on compressing than the network on carrying.
    headers["Accept-Encoding"] = "identity"
    headers["User-Agent"] = address.source
    if login.token is not None:
        headers["Authorization"] = f"Bearer {login.token}"
    elif login.password is not None:
        headers["Authorization"] = f"Basic {_basic(login.username, login.password)}"
    return headers


def _basic(username: str, password: str) -> str:
    """Trino reads the pair as Latin-1; what has no place there can be meant for a proxy only."""
    pair = f"{username}:{password}"
    try:
        return b64encode(pair.encode("latin-1")).decode()
    except UnicodeEncodeError:
        return b64encode(pair.encode()).decode()


def _joined(entries: Mapping[str, str]) -> str:
    return ",".join(f"{name}={quote_plus(value)}" for name, value in entries.items())


def _update(entries: dict[str, str], added: Sequence[str], removed: Sequence[str]) -> None:
    for entry in added:
        name, _, value = entry.partition("=")
        entries[name.strip()] = unquote_plus(value)
    for name in removed:
        entries.pop(name.strip(), None)


def _one_line(value: str) -> bytes:
    """Header values are printable characters on one line; others than ASCII go as UTF-8."""
    return "".join(character if character.isprintable() else " " for character in value).strip().encode()
