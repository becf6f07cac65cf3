"""The options of a connector, with their types and ranges (Contract platform 5.11)."""

import ssl
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from urllib.parse import urlsplit

from queryserver.container.interfaces.problems import Kind, OptionsRefused, Problem
from queryserver.domain.connector import Connector
from queryserver.domain.errors import DriverNotInstalled
from queryserver.network.addresses import AddressRules, HttpServer

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off", ""})
_SHOWN = 60  # characters of a name that a client gave
_TOP_PORT = 65535


class Options:
    """Reads options by name. A bad value is remembered and its default returned; see `options_of`."""

    def __init__(self, connector: Connector) -> None:
        self._given = connector.options
        self._is_stored = connector.is_stored
        self._known = set[str]()
        self.problems: list[Problem] = []

    def text(self, name: str, default: str = "") -> str:
        """A text; blanks around it do not count."""
        self._known.add(name)
        return str(self._given.get(name, default)).strip()

    def required(self, name: str) -> str:
        """A text that must not be empty."""
        value = self.text(name)
        if not value:
            self.refuse(name, "must be given")
        return value

    def http_url(self, name: str, rules: AddressRules) -> str:
        """An http or https url without a login, required, to where `rules` allow."""
        text = self.required(name)
        try:
            parts = urlsplit(text)
            is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            self.refuse(name, "must be an http or https url")
        elif "?" in text or "#" in text:
            self.refuse(name, "must end with the path: no query, no fragment")
        elif "@" in text:
            self.refuse(name, "must hold no login: use username and password")
        if not is_good:
            return "http://localhost"
        server = HttpServer(text)
        self.goes_to(name, server.host, server.port, rules)
        return text

    def authorities(self, name: str) -> str:
        """PEM text of the authorities to trust; empty: the system's."""
        text = self.text(name)
        try:
            if text:
                ssl.create_default_context(cadata=text)
        except (ValueError, ssl.SSLError):
            self.refuse(name, "must be PEM text of certificates")
            return ""
        return text

    def secret(self, name: str) -> str:
        """A password or the like, blanks included. Never part of a message."""
        self._known.add(name)
        return str(self._given.get(name, ""))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean, or its text."""
        self._known.add(name)
        value = self._given.get(name, default)
        word = str(value).strip().lower()
        if isinstance(value, bool) or word in _TRUE | _FALSE:
            return value if isinstance(value, bool) else word in _TRUE
        self.refuse(name, "must be true or false")
        return default

    def whole(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """An integer from `least` to `most`, or its text."""
        self._known.add(name)
        value = self._given.get(name, default)
        try:
            number = int(str(value).strip()) if not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is not None and number >= least and (most is None or number <= most):
            return number
        self.refuse(name, f"must be a whole number from {least} to {most}" if most else f"must be at least {least}")
        return default

    def port(self, name: str, default: int) -> int:
        """A TCP port."""
        return self.whole(name, default, least=1, most=_TOP_PORT)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of `choices`, in their spelling, whatever the case of the value."""
        value = self.text(name, default)
        for one in choices:
            if one.casefold() == value.casefold():
                return one
        self.refuse(name, f"must be one of {', '.join(one or 'empty' for one in choices)}")
        return default

    def pairs(self, name: str, allowed: Collection[str] | None = None) -> Mapping[str, str]:
        """`k=v;k=v`; names outside `allowed` are refused. None allows all."""
        found = dict[str, str]()
        for part in self.text(name).split(";"):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not part.strip():
                continue
            if not key or not equals:
                self.refuse(name, "must look like name=value;name=value")
            elif allowed is not None and key not in allowed:
                self.refuse(name, f"the name {key[:_SHOWN]} is not in desktop.connector_policy.session_conf_allowed")
            else:
                found[key] = value
        return MappingProxyType(found)

    def no_tunnel(self) -> None:
        """Options of forms that offer a tunnel, which is not supported; without it the host of the tunnel is moot."""
        self.text("ssh_server_host")
        if self.flag("has_ssh"):
            self.refuse("has_ssh", "must be false: tunnels are not supported")

    def ignore(self, *names: str) -> None:
        """Names that may be given and have no effect."""
        self._known.update(names)

    def goes_to(self, name: str, host: str, port: int, rules: AddressRules) -> None:
        """Remember it when the option names an address that may not be reached (Contract platform 5.11: Hosts).

        Names are resolved when they are connected to, and so is everything that an operator writes into the settings.
        """
        if self._is_stored and (reason := rules.refusal(host, port)):
            self.refuse(name, reason, Kind.HOST)

    def refuse(self, name: str, text: str, kind: Kind = Kind.INVALID) -> None:
        """Remember what is wrong with an option: `text` goes on after its name, without full stop."""
        self.problems.append(Problem(name, text, kind))

    def refuse_unknown(self) -> None:
        """Remember the options that nobody asked for."""
        for name in self._given.keys() - self._known:
            self.refuse(name, "is not an option of this interface")


@contextmanager
def options_of(connector: Connector) -> Generator[Options]:
    """The connector's options; all of them are to be read in the block.

    Raises OptionsRefused at its end, with every problem: bad values, and options that the block did not read. When only
    a driver is missing, for a stored connector DriverNotInstalled.
    """
    options = Options(connector)
    yield options
    options.refuse_unknown()
    if options.problems:
        refused = OptionsRefused(connector.key, options.problems)
        if connector.is_stored and refused.is_lack:
            raise DriverNotInstalled(options.problems[0].sentence)
        raise refused
