"""Computes the configuration that clients request, which depends on the caller (Contract platform 7.1)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors, takes_sql
from queryserver.documents.documents import Documents
from queryserver.documents.model import type_of
from queryserver.files.access import Caller, Stores
from queryserver.files.model import Scheme
from queryserver.identity.model import DOWNLOAD, IMPORTER, User
from queryserver.platform.settings.tree import Settings
from queryserver.statements.overview import HistoryReader

_STORES: Mapping[Scheme, tuple[str, str]] = MappingProxyType(
    {
        Scheme.HDFS: ("hdfs", "Files"),
        Scheme.S3A: ("s3", "S3"),
        Scheme.ABFS: ("abfs", "ABFS"),
        Scheme.OFS: ("ofs", "Ozone"),
        Scheme.FILE: ("file", "Local Files"),
    }
)
"""Type and label of each store's browser, in the order that the contract specifies."""


@dataclass(frozen=True, slots=True)
class Browser:
    """A kind of object that users can browse, with the URL path of its page in Hue clients."""

    type: str
    label: str
    page: str
    button: str = "Browse"


@dataclass(frozen=True, slots=True)
class Configuration:
    username: str
    is_admin: bool
    interpreters: Sequence[Connector]
    """The connectors that the caller may use and that this server can run."""
    main: Connector | None
    default_sql: Connector | None
    """The interpreter for statements that do not name one."""
    browsers: Sequence[Browser]
    document_types: Sequence[str]
    may_import: bool
    may_download: bool


class ClientConfiguration:
    """Computes the configuration for each call, so that new connectors and changed rights take effect immediately."""

    def __init__(
        self, settings: Settings, connectors: Connectors, stores: Stores, documents: Documents, history: HistoryReader
    ) -> None:
        self._settings = settings
        self._connectors = connectors
        self._stores = stores
        self._documents = documents
        self._history = history

    async def of(self, user: User) -> Configuration:
        """Return the configuration for a caller. Raises DatabaseUnavailable."""
        interpreters = self._connectors.visible(user)
        may_import = self._settings.importer.is_enabled and user.may(IMPORTER)
        return Configuration(
            username=user.username,
            is_admin=user.is_admin,
            interpreters=interpreters,
            main=self._connectors.main(user),
            default_sql=self._connectors.default_sql(user),
            browsers=list(self._browsers(user, has_sql=any(map(takes_sql, interpreters)), importer=may_import)),
            document_types=["directory", *sorted(await self._document_types(user, interpreters))],
            may_import=may_import,
            may_download=self._settings.desktop.enable_download and user.may(DOWNLOAD),
        )

    async def _document_types(self, user: User, interpreters: Iterable[Connector]) -> Collection[str]:
        """Return the types of the caller's documents and history entries.

        For an API token that is limited to connectors, all others do not exist.
        """
        found = {*await self._documents.types(user), *map(type_of, await self._history.dialects(user.id))}
        return found if user.reached is None else found & {type_of(one.dialect) for one in interpreters}

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
"""Elements that are removed together with their content, because the content is not visible text."""
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s\x00-\x1f\x7f-\xa0][^\s\x00-\x1f\x7f-\xa0]*", re.IGNORECASE)
"""Matches a URL without whitespace and control characters. Browsers ignore some of these characters, so a URL that
contains them could disguise another scheme."""


def sanitized_html(html: str) -> str:
    """Reduce HTML to the tags a, b, i, em, strong, p, br and span. Keeps only `href` attributes with http or https."""
    if not html:
        return ""
    import nh3  # noqa: PLC0415 few servers have a banner

    return nh3.clean(
        html,
        tags=_TAGS,
        clean_content_tags=_WITH_THEIR_TEXT,
        attributes={"a": {"href"}, "*": set()},
        attribute_filter=lambda _tag, _name, value: value if _WEB_ADDRESS.fullmatch(value) else None,
        url_schemes={"http", "https"},
        url_relative="deny",
        link_rel=None,
    )
