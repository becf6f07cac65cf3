"""The configuration for clients, which depends on the caller (Contract platform 7.1)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from types import MappingProxyType
from urllib.parse import quote, urlsplit

from queryserver.connectors.engines import Connectors, takes_sql
from queryserver.connectors.model import Connector
from queryserver.files.model import Scheme
from queryserver.files.places import Caller, Stores
from queryserver.identity.model import DOWNLOAD, IMPORTER, User
from queryserver.platform.settings.tree import Settings
from queryserver.statements.overview import HistoryFacts

_STORES: Mapping[Scheme, tuple[str, str]] = MappingProxyType(
    {
        Scheme.HDFS: ("hdfs", "Files"),
        Scheme.S3A: ("s3", "S3"),
        Scheme.ABFS: ("abfs", "ABFS"),
        Scheme.OFS: ("ofs", "Ozone"),
        Scheme.FILE: ("file", "Local Files"),
    }
)
"""Type and label of the browser of a store, in the order of the contract."""


@dataclass(frozen=True, slots=True)
class Browser:
    """Something to browse, with the page of Hue clients for it."""

    type: str
    label: str
    page: str
    button: str = "Browse"


@dataclass(frozen=True, slots=True)
class Configuration:
    is_admin: bool
    interpreters: Sequence[Connector]
    """The data sources that the caller may use and this server can run."""
    main: Connector | None
    default_sql: Connector | None
    """The interpreter of statements that name none."""
    browsers: Sequence[Browser]
    document_types: Sequence[str]
    may_import: bool
    may_download: bool


class ClientConfiguration:
    """Made anew for each call: a new connector, or another right, shows at once."""

    def __init__(self, settings: Settings, connectors: Connectors, stores: Stores, history: HistoryFacts) -> None:
        self._settings = settings
        self._connectors = connectors
        self._stores = stores
        self._history = history

    async def of(self, user: User) -> Configuration:
        """The configuration for a caller. Raises DatabaseUnavailable."""
        interpreters = self._connectors.visible(user)
        may_import = self._settings.importer.is_enabled and user.may(IMPORTER)
        return Configuration(
            is_admin=user.is_admin,
            interpreters=interpreters,
            main=self._connectors.main(user),
            default_sql=self._connectors.default_sql(user),
            browsers=list(self._browsers(user, has_sql=any(map(takes_sql, interpreters)), importer=may_import)),
            document_types=["directory", *(f"query-{dialect}" for dialect in await self._history.dialects(user.id))],
            may_import=may_import,
            may_download=self._settings.desktop.enable_download and user.may(DOWNLOAD),
        )

    def _browsers(self, user: User, *, has_sql: bool, importer: bool) -> Iterator[Browser]:
        caller = Caller.of(user)
        permitted = {file_system.scheme for file_system in self._stores.permitted(caller)}
        for scheme, (kind, label) in _STORES.items():
            if scheme in permitted:
                home = quote(str(self._stores.home(caller, scheme)), safe="")
                yield Browser(kind, label, f"/filebrowser/view={home}")
        if has_sql:
            yield Browser("tables", "Tables", "/metastore/tables")
        if any(cluster.resourcemanager_api_url for cluster in self._settings.hadoop.yarn_clusters.values()):
            yield Browser("yarn", "Jobs", "/jobbrowser/")
        if importer:
            yield Browser("importer", "Importer", "/indexer/importer", "Import")


_TAGS = frozenset({"a", "b", "i", "em", "strong", "p", "br", "span"})
_WITH_THEIR_TEXT = frozenset({"script", "style", "template", "noscript", "iframe", "object", "svg", "math", "title"})
"""Elements whose content is no text for people."""
_STRIPPED = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+")


def harmless(html: str) -> str:
    """The text with the tags a, b, i, em, strong, p, br, span, and of all attributes only `href` to http or https.

    Nothing of the source is copied: tags are written anew, texts escaped, so that what a browser would read otherwise
    than this parser cannot come through.
    """
    writer = _Writer()
    writer.feed(html)
    writer.close()
    return writer.text()


class _Writer(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._open: list[str] = []
        self._silent: list[str] = []

    def text(self) -> str:
        return "".join([*self._parts, *(f"</{tag}>" for tag in reversed(self._open))])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _WITH_THEIR_TEXT:
            self._silent.append(tag)
        if self._silent or tag not in _TAGS:
            return
        if tag == "br":
            self._parts.append("<br>")
            return
        href = next((value for name, value in attrs if name == "href" and value), None) if tag == "a" else None
        self._parts.append(f'<a href="{escape(href)}">' if href and _is_web_address(href) else f"<{tag}>")
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser; to a browser `<script/>` is a start."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser. What was opened inside is closed first."""
        if self._silent:
            if tag in self._silent:
                del self._silent[self._silent.index(tag) :]
            return
        if tag in self._open:
            place = len(self._open) - 1 - self._open[::-1].index(tag)
            self._parts += [f"</{one}>" for one in reversed(self._open[place:])]
            del self._open[place:]

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(escape(data))


def _is_web_address(href: str) -> bool:
    """Browsers drop blanks and control characters in front of the scheme; here an address must have none."""
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    return not _STRIPPED.search(href) and parts.scheme in {"http", "https"} and bool(parts.netloc)
