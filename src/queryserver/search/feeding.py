"""What the editor asked of data sources anyway, put into the index (Contract platform 8.4)."""

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from queryserver.catalog.cache import Question, TableList
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import (
    CatalogEngine,
    DatabaseDescription,
    EngineCapabilities,
    TableDescription,
    TableKind,
)
from queryserver.errors.base import InvalidRequest, PermissionDenied, QueryServerError
from queryserver.errors.files import NotADirectory, PathNotFound, StorageNotConfigured
from queryserver.errors.statements import SourceNotConfigured
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath
from queryserver.files.places import Caller, Place, Stores
from queryserver.files.protocol import FlatStorage
from queryserver.identity.model import METADATA, User
from queryserver.search.model import (
    DATABASE,
    TABLE,
    VIEW,
    IndexedColumn,
    IndexedObject,
    Match,
    Record,
    ScopeKey,
    Search,
    SourceAnswer,
    best_first,
    count_facets,
    position_of,
)
from queryserver.search.query_language import Query, Term, folded
from queryserver.search.repository import MetadataIndexRecords

_PASSWORD = re.compile(r"://[^/@]*@")
_SECRET = re.compile(r"(?i)passw|passphrase|secret|token|private_key|credentials_json|access_key|api_key")


def scope_key(user: User, connector: Connector, *, as_caller: bool, places: Sequence[tuple[str, int]] = ()) -> ScopeKey:
    """Whose rows a look of the user belongs to. The address has no secret in it: its digest could be guessed.

    `places`: hosts and ports of the engine. A connector without options has them of other sections of the settings.
    """
    options = {
        name: _PASSWORD.sub("://", value) if isinstance(value, str) else value
        for name, value in connector.options.items()
        if not _SECRET.search(name)
    }
    told = [connector.dialect, connector.interface, connector.version, sorted(options.items()), sorted(places)]
    address = hashlib.sha256(orjson.dumps(told)).digest()
    return ScopeKey(connector.key, user.id if as_caller else None, address, connector.is_stored)


class Scoping:
    """Which connectors have metadata, and which of them show each caller something else."""

    def __init__(self, connectors: Connectors) -> None:
        self._connectors = connectors

    def key(self, user: User, connector: Connector) -> ScopeKey | None:
        """None: the connector tells no metadata."""
        try:
            engine = self._connectors.engine(connector)
        except QueryServerError:  # it cannot be run here
            return None
        if not isinstance(engine, CatalogEngine):
            return None
        capable = engine.capabilities
        return scope_key(user, connector, as_caller=_acts_as_caller(capable), places=capable.places)

    def acts_as_caller(self, connector: Connector) -> bool:
        """Whether the data source is asked under the name, or with the login or token, of each caller."""
        return _acts_as_caller(self._connectors.engine(connector).capabilities)


def _acts_as_caller(capable: EngineCapabilities) -> bool:
    return capable.wants_credentials or capable.wants_external_token or capable.acts_as_caller


log = structlog.get_logger(__name__)

_QUEUED = 200  # answers that wait; more are left to the refresh
_CHANGED = "transient_lastDdlTime"


class IndexFeed:
    """Takes answers as they come, and writes them in a task of its own. Use `running()`."""

    def __init__(self, records: MetadataIndexRecords, scoping: Scoping, *, max_tables: int, max_columns: int) -> None:
        self._records = records
        self._scoping = scoping
        self._max_tables = max_tables
        self._max_columns = max_columns
        self._waiting: deque[tuple[ScopeKey, Question[Any], Any]] = deque(maxlen=_QUEUED)
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Write while inside."""
        task = asyncio.create_task(self._write(), name="metadata-index-feed")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def heard(self, user: User, connector: Connector, question: Question[Any], answer: object) -> None:
        """An engine answered. Never waits and never fails; when too many answers wait, the oldest is dropped."""
        key = self._scoping.key(user, connector)
        if key is not None and question.kind in ("databases", "database", "tables", "table"):
            self._waiting.append((key, question, answer))
            self._idle.clear()
            self._came.set()

    async def settled(self) -> None:
        """Returns once all that was heard is written."""
        await self._idle.wait()

    async def _write(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                key, question, answer = self._waiting.popleft()
                try:
                    scope = await self._records.scope(key)
                    objects = await asyncio.to_thread(objects_of, question, answer, self._max_columns)
                    await self._records.put(scope.id, objects, max_tables=self._max_tables)
                except QueryServerError as error:
                    log.warning("metadata not indexed", connector=key.connector, code=error.code)
                except Exception:  # the outer wall of a task: without it nothing would be indexed any more
                    log.exception("metadata not indexed", connector=key.connector)
            self._idle.set()


def objects_of(question: Question[Any], answer: Any, max_columns: int) -> Sequence[IndexedObject]:
    """What an answer tells of objects."""
    if question.kind == "databases":
        return [IndexedObject(DATABASE, name, "") for name in answer]
    if isinstance(answer, DatabaseDescription):
        return [IndexedObject(DATABASE, answer.name, "", answer.comment, answer.owner_name)]
    if isinstance(answer, TableList):
        database = str(question.names[0] or "")
        told = zip(answer.names, answer.kinds, answer.comments, strict=True)
        return [
            IndexedObject(kind_of(TableKind(kind)), database, name, comment or None) for name, kind, comment in told
        ]
    if isinstance(answer, TableDescription):
        return [described(answer, max_columns)]
    return []


def described(table: TableDescription, max_columns: int) -> IndexedObject:
    """A table with the first `max_columns` of its columns; 0: with none."""
    return IndexedObject(
        kind_of(table.kind),
        table.database,
        table.name,
        table.comment,
        table.owner,
        _modified_at(table),
        [IndexedColumn(one.name, one.comment) for one in table.columns[:max_columns]],
        columns_cut=len(table.columns) > max_columns,
    )


def kind_of(kind: TableKind) -> str:
    """As the search names it."""
    return VIEW if kind.is_view else TABLE


def _modified_at(table: TableDescription) -> datetime | None:
    """When the table was changed last as the hive family tells it, else when it was made."""
    changed = next((one.value for one in table.properties if one.name.strip() == _CHANGED), "").strip()
    try:
        if changed.isdecimal():
            return datetime.fromtimestamp(int(changed), UTC)
        return datetime.fromisoformat(table.create_time) if table.create_time else None
    except (ValueError, OverflowError, OSError):
        return None


_PREFIXES = {Scheme.HDFS: ("/", "hdfs:"), Scheme.S3A: ("s3a:", "s3:", "s3n:")}
"""How the absolute paths of a store begin."""
_SPELLINGS = {Scheme.HDFS: re.compile(r"^hdfs:(?://[^/]*)?(?=/)"), Scheme.S3A: re.compile(r"^s3[an]?:/+")}
_SHOWN = {Scheme.HDFS: "hdfs://", Scheme.S3A: "s3a://"}
"""How records write what may be spelled in other ways."""
_SOURCE_TYPES = {Scheme.HDFS: "HDFS", Scheme.S3A: "S3"}
_SOURCE_NAMES = {Scheme.HDFS: "hdfs", Scheme.S3A: "s3"}
_NOT_FOUND_THERE = frozenset({"tag", "db", "table"})
"""Filters that no file fits."""


@dataclass(frozen=True, slots=True)
class WalkBounds:
    """The first that is reached ends a search: entries looked at, calls for listings, seconds."""

    max_entries: int
    max_dirs: int
    max_seconds: float


@dataclass(slots=True)
class _Walk:
    """What was seen so far."""

    bounds: WalkBounds
    entries: int = 0
    listings: int = 0
    is_cut: bool = False
    matches: list[Match] = field(default_factory=list[Match])

    def may_list(self) -> bool:
        """Counts a listing, unless a bound is reached."""
        self.is_cut = self.is_cut or self.listings >= self.bounds.max_dirs or self.entries >= self.bounds.max_entries
        self.listings += not self.is_cut
        return not self.is_cut

    def may_see(self) -> bool:
        """Counts an entry, unless the bound is reached."""
        self.is_cut = self.is_cut or self.entries >= self.bounds.max_entries
        self.entries += not self.is_cut
        return not self.is_cut


class StoreSearch:
    """See SearchSource and BoundedSource; for one store, with its rights and as the caller."""

    def __init__(self, stores: Stores, scheme: Scheme, bounds: WalkBounds) -> None:
        self._stores = stores
        self._scheme = scheme
        self._bounds = bounds

    @property
    def longest_s(self) -> float:
        return self._bounds.max_seconds

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """See the Protocol. Raises StorageError and what the store says of the folder where the search begins."""
        if not user.may(METADATA):
            raise PermissionDenied("You may not search metadata.")
        try:
            return await self._search(Caller.of(user), search)
        except PermissionDenied as error:
            # Whoever refuses, the store or this service: searching there is what the caller may not.
            raise PermissionDenied(error.message) from error

    async def _search(self, caller: Caller, search: Search) -> SourceAnswer:
        start, term, place = self._beginning(caller, search.query)
        walk = _Walk(self._bounds)
        try:
            async with asyncio.timeout(self._bounds.max_seconds):
                await self._walk(place, self._as_shown(search.query, term), walk)
        except TimeoutError:
            walk.is_cut = True
        except (PathNotFound, NotADirectory):
            if walk.entries:
                raise
            return SourceAnswer(message=f"{start} does not exist.")
        walk.matches.sort(key=best_first)
        return SourceAnswer(
            matches=walk.matches[: search.reach],
            total=len(walk.matches),
            facets=count_facets([match.record for match in walk.matches], search),
            truncated=walk.is_cut,
            message=f"Not everything was looked at; the search began in {start}." if walk.is_cut else "",
        )

    def _start(self, caller: Caller, query: Query) -> tuple[StoragePath, Term | None]:
        """The longest folder prefix of the first term that is an absolute path of this store, and that term.

        Without one the caller's home.
        """
        for term in query.terms:
            if term.head.lower().startswith(_PREFIXES[self._scheme]):
                try:
                    path = self._stores.path(term.head.rpartition("/")[0] + "/")
                except (InvalidRequest, StorageNotConfigured):
                    continue
                if path.scheme is self._scheme:
                    return path, term
        return self._stores.home(caller, self._scheme), None

    def _as_shown(self, query: Query, start: Term | None) -> Query:
        """With the path that the search begins at as records write it: that is what terms are looked for in."""
        shown, spelling = _SHOWN[self._scheme], _SPELLINGS[self._scheme]
        terms = (term.beginning_with(shown, spelling) if term is start else term for term in query.terms)
        return replace(query, terms=tuple(terms))

    def _beginning(self, caller: Caller, query: Query) -> tuple[StoragePath, Term | None, Place]:
        try:
            start, term = self._start(caller, query)
            return start, term, self._stores.place(caller, start)
        except StorageNotConfigured:
            raise SourceNotConfigured("Not configured.") from None

    async def _walk(self, place: Place, query: Query, walk: _Walk) -> None:
        if isinstance(place.storage, FlatStorage):
            found = self._listed_flat(place, place.storage, walk)
        else:
            found = self._walked(place, walk)
        async with aclosing(found) as statuses:
            async for status in statuses:
                if match := self._match(status, query):
                    walk.matches.append(match)

    async def _walked(self, place: Place, walk: _Walk) -> AsyncGenerator[FileStatus]:
        """Breadth-first; folders that the caller may not list are passed over, but for the first."""
        pending = deque([place.path.path])
        while pending and walk.may_list():
            directory = pending.popleft()
            try:
                async with aclosing(place.storage.list_directory(directory)) as batches:
                    async for batch in batches:
                        for status in batch.entries:
                            if not walk.may_see():
                                return
                            if status.is_directory:
                                pending.append(status.path)
                            yield status
            except (PermissionDenied, PathNotFound, NotADirectory):
                if directory == place.path.path:
                    raise
        walk.is_cut = walk.is_cut or bool(pending)

    async def _listed_flat(self, place: Place, storage: FlatStorage, walk: _Walk) -> AsyncGenerator[FileStatus]:
        """Keys below a folder; from the root on, the buckets and then the keys of each."""
        trees = [place.path.path]
        if place.path.is_root:
            buckets = [status async for batch in place.storage.list_directory("") for status in batch.entries]
            trees = [bucket.path for bucket in buckets]
            for bucket in buckets:
                if not walk.may_see():
                    return
                yield bucket
        for tree in trees:
            if not walk.may_list():
                return
            try:
                async with aclosing(_keys(storage, tree, walk)) as statuses:
                    async for status in statuses:
                        yield status
            except (PermissionDenied, PathNotFound):
                # A bucket that may not be listed, or is gone, must not hide the others.
                if not place.path.is_root:
                    raise

    def _match(self, status: FileStatus, query: Query) -> Match | None:
        record = self._record(status)
        name, whole = folded(record.name), folded(record.original_name)
        if not all(self._fits(record, filters, terms) for filters, terms in query.filters.items()):
            return None
        for term in query.terms:
            if term.found_in(whole if "/" in "".join(term.literals) else name) is None:
                return None
        return Match(position_of(query.terms, record.name), record)

    def _fits(self, record: Record, name: str, values: Sequence[Term]) -> bool:
        if name in _NOT_FOUND_THERE:
            return False
        texts = {
            "type": (record.type,),
            "owner": (record.owner,),
            "source": (record.source_type, _SOURCE_NAMES[self._scheme]),
        }[name]
        return any(value.is_whole(folded(text)) for value in values for text in texts)

    def _record(self, status: FileStatus) -> Record:
        path = StoragePath(self._scheme, status.path)
        shown = _with_scheme(path)
        is_bucket = self._scheme is Scheme.S3A and path.parent.is_root
        return Record(
            original_name=shown,
            name=path.name,
            type="S3BUCKET" if is_bucket else "DIRECTORY" if status.is_directory else "FILE",
            source_type=_SOURCE_TYPES[self._scheme],
            identity=shown,
            parent_path=str(path.parent),
            owner=status.owner,
            last_modified=status.modified_at,
        )


async def _keys(storage: FlatStorage, tree: str, walk: _Walk) -> AsyncGenerator[FileStatus]:
    """What is below a folder; the first listing is counted already."""
    folders, is_first = _Folders(tree), True
    async with aclosing(storage.list_tree(tree)) as pages:
        async for page in pages:
            # Counted when it has come: a listing that ends at the bound is not cut.
            if not (is_first or walk.may_list()):
                return
            is_first = False
            for status in folders.with_folders(page):
                if not walk.may_see():
                    return
                yield status


class _Folders:
    """The folders that keys tell of, each once, before what they hold."""

    def __init__(self, tree: str) -> None:
        self._known = {tree}

    def with_folders(self, page: Sequence[FileStatus]) -> Sequence[FileStatus]:
        """The page with folders that were not yet seen; a marker stands for its own folder."""
        found: list[FileStatus] = []
        for status in page:
            if status.is_directory and status.path not in self._known:
                found += self._new_parents(status)
                self._known.add(status.path)
                found.append(status)
            elif not status.is_directory:
                found += self._new_parents(status)
                found.append(status)
        return found

    def _new_parents(self, status: FileStatus) -> Sequence[FileStatus]:
        parents: list[FileStatus] = []
        path = status.path.rpartition("/")[0]
        while path and path not in self._known:
            self._known.add(path)
            parents.append(FileStatus(path, EntryKind.DIRECTORY, 0, None))
            path = path.rpartition("/")[0]
        return parents[::-1]


def _with_scheme(path: StoragePath) -> str:
    return f"hdfs://{path}" if path.scheme is Scheme.HDFS else str(path)
