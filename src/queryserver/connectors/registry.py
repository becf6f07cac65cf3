"""Finds the connectors that a user may use, and manages their open engines.

`Connectors.unknown` creates the error for unknown names; its text is in `UnknownDialect` in `errors/statements.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from types import MappingProxyType

import structlog
from prometheus_client import Gauge

from queryserver import errors
from queryserver.connectors.model import Connector, ResultSharing
from queryserver.connectors.types import flags_of
from queryserver.engines.protocol import Engine
from queryserver.identity.model import User
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.threads import background
from queryserver.sql.classification import is_quick, read_only_refusal

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _OpenEngine:
    """An engine and its number of users: statements, sessions and metadata queries."""

    connector: Connector
    engine: Engine
    sessions: Gauge
    uses: int = 0
    is_retired: bool = False


class EngineUses:
    """Builds engines on first use and counts their uses.

    A retired engine accepts no new uses and is closed when its last use ends.
    """

    def __init__(self, build: Callable[[Connector], Engine], metrics: Metrics = NO_METRICS) -> None:
        self._build = build
        self._sessions = metrics.engine_sessions
        self._open: dict[tuple[str, int], _OpenEngine] = {}
        self._retired: set[_OpenEngine] = set()
        self._closings: set[asyncio.Task[None]] = set()

    async def prepare(self, connector: Connector) -> None:
        """Build the engine in a thread, because this may import a driver or read certificates.

        Raises ConfigurationError, and NotSupported if this server cannot run it.
        """
        if _version_key(connector) not in self._open:
            engine = await asyncio.to_thread(self._build, connector)
            self._open.setdefault(
                _version_key(connector), _OpenEngine(connector, engine, self._sessions(connector.dialect))
            )

    def engine(self, connector: Connector) -> Engine:
        """Return the engine for this connector version, for reading its capabilities.

        Use `using` to run anything on it.
        """
        return self._entry(connector).engine

    @asynccontextmanager
    async def using(self, connector: Connector) -> AsyncGenerator[Engine]:
        """Count one use of this version's engine while the context is open."""
        entry = self._entry(connector)
        entry.uses += 1
        try:
            with entry.sessions.track_inprogress():
                yield entry.engine
        finally:
            entry.uses -= 1
            if entry.is_retired and not entry.uses:
                self._close_in_background(entry)

    def retire_all_but(self, connectors: Iterable[Connector]) -> None:
        """Retire all engines except those of the given connector versions."""
        folded = {_version_key(connector) for connector in connectors}
        for key in self._open.keys() - folded:
            entry = self._open.pop(key)
            entry.is_retired = True
            self._retired.add(entry)
            if not entry.uses:
                self._close_in_background(entry)

    def open_engines(self) -> list[tuple[Connector, Engine]]:
        """Return all open engines, including retired engines."""
        return [(entry.connector, entry.engine) for entry in (*self._open.values(), *self._retired)]

    async def discard(self, fits: Callable[[Connector, Engine], bool]) -> None:
        """Close matching engines now, even if in use. The next use builds new engines."""
        for entry in (*self._open.values(), *self._retired):
            if fits(entry.connector, entry.engine):
                if self._open.get(_version_key(entry.connector)) is entry:
                    del self._open[_version_key(entry.connector)]
                self._retired.discard(entry)
                await entry.engine.close()

    async def aclose(self) -> None:
        """Close all engines concurrently, so that an engine that hangs does not delay the others."""
        # Unused retired engines are already in `_closings`.
        entries = [*self._open.values(), *(one for one in self._retired if one.uses)]
        self._open.clear()
        closings = asyncio.gather(*self._closings, return_exceptions=True)
        await asyncio.gather(closings, *map(self._close, entries))

    def _entry(self, connector: Connector) -> _OpenEngine:
        entry = self._open.get(_version_key(connector))
        if entry is None:
            entry = self._open[_version_key(connector)] = _OpenEngine(
                connector, self._build(connector), self._sessions(connector.dialect)
            )
        return entry

    def _close_in_background(self, entry: _OpenEngine) -> None:
        """Close the engine in the background. `aclose` waits for this; the last user does not."""
        closing = asyncio.create_task(self._close(entry), name=f"retired-engine-{entry.connector.key}")
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    async def _close(self, entry: _OpenEngine) -> None:
        self._retired.discard(entry)
        try:
            await entry.engine.close()
        except errors.QueryServerError as error:
            log.warning("engine did not close cleanly", connector=entry.connector.key, code=error.code)


def _version_key(connector: Connector) -> tuple[str, int]:
    return connector.key, connector.version


_RETRY_S = 2.0


class Connectors:
    """Finds configured and stored connectors, and their engines, which are built on first use.

    `read_stored` reads the stored connectors and their version; connectors that this server cannot run are not offered.
    Keys in `wheel` come first, in that order. `default` is the key, id or display name of the main connector. Case is
    ignored in both. `watching()` reads changes in the background.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        *,
        build: Callable[[Connector], Engine],
        wheel: Sequence[str] = (),
        default: str = "",
        read_stored: Callable[[], Awaitable[tuple[int, Sequence[Connector]]]] | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._configured = {connector.key.casefold(): connector for connector in connectors}
        self._connectors = dict(self._configured)
        self._wheel = list(dict.fromkeys(name.casefold() for name in wheel))
        self._default = default.casefold()
        self._arrange()
        self._idle: Mapping[str, tuple[Connector, Exception]] = MappingProxyType({})
        """Stored connectors that cannot run here, with the error that prevents it."""
        self._read_stored = read_stored
        self.version = 0
        self._reading = asyncio.Lock()
        self._stale = asyncio.Event()
        self._change = asyncio.Event()
        """Set at the next change, and then replaced with a new event."""
        self._engines = EngineUses(build, metrics)

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Reread the stored connectors after each `may_have_changed`, while the context is open."""
        return background(self._watch(), "stored-connectors")

    def may_have_changed(self) -> None:
        """Request a new read of the stored connectors, after a change or if a notification may have been lost."""
        self._stale.set()

    async def changes(self) -> AsyncGenerator[None]:
        """Yield after stored connectors have changed. Several changes may be reported together."""
        change = self._change
        while True:
            await change.wait()
            change = self._change
            yield

    async def at_least(self, version: int) -> None:
        """Wait until this process has read this version of the stored connectors, or a later one.

        Raises DatabaseUnavailable.
        """
        if version <= self.version:
            return
        async with self._reading:
            if version > self.version:
                await self._read()

    async def refresh(self) -> None:
        """Read the stored connectors. Raises DatabaseUnavailable."""
        async with self._reading:
            await self._read()

    def resolve(self, user: User, name: str | None) -> Connector:
        """Find the connector with this name (Contract editor 1.7).

        Raises UnknownDialect, also if the caller may not use the connector, so that both cases look alike. Raises
        NotSupported for a stored connector that the caller may use but that no server of this build can run.
        """
        folded = _normalized_name((name or "").strip())
        visible = {one.key: one for one in self.visible(user)}
        key = key_named(folded, [(one.key, one.dialect) for one in visible.values()])
        found = self.default_sql(user) if not folded else None if key is None else visible[key]
        if found is None:
            meant = (pair for pair in self._idle.values() if folded in (pair[0].key, pair[0].dialect))
            raise self._refusal(user, name or "", meant)
        return found

    def exact(self, user: User, key: str) -> Connector:
        """Return the connector with this key. Unlike `resolve`, never finds another connector of the same dialect.

        Raises the errors of `resolve`.
        """
        found = self.find(key)
        if found is None or not _is_open(found, user):
            raise self._refusal(user, key, (self._idle[key],) if key in self._idle else ())
        return found

    def _refusal(
        self, user: User, name: str, meant: Iterable[tuple[Connector, Exception]]
    ) -> errors.NotSupported | errors.UnknownDialect:
        """Return the error for a name, which may mean one of these connectors that cannot run here."""
        for connector, error in meant:
            if _is_open(connector, user) and isinstance(error, errors.NotSupported):
                return copy(error)  # a shared object would accumulate tracebacks
        return self.unknown(user, name)

    def unknown(self, user: User, name: str) -> errors.UnknownDialect:
        """Return the error for an unknown name, which lists the connectors that the caller may use."""
        return errors.UnknownDialect(name, [one.reference for one in self.visible(user)])

    def visible(self, user: User) -> Sequence[Connector]:
        """Return the connectors that the caller may use.

        Connectors in `wheel` come first, then other configured connectors, then stored connectors by id.
        """
        return [one for one in self._listed if _is_open(one, user)]

    def main(self, user: User) -> Connector | None:
        """Return the default connector or, if the caller may not use it, the first usable one (Contract platform 7.1).

        Returns None if the caller may use no connector.
        """
        return next((one for one in self._mains if _is_open(one, user)), None)

    def default_sql(self, user: User) -> Connector | None:
        """Return the connector for requests that name none (Contract editor 1.7).

        This is the main connector if it accepts SQL, otherwise the first connector that does.
        """
        main = self.main(user)
        if main is not None and takes_sql(main):
            return main
        return next((one for one in self._listed if takes_sql(one) and _is_open(one, user)), None)

    def find(self, key: str) -> Connector | None:
        """Return the connector with this key if it runs here, regardless of permissions."""
        return self._connectors.get(key.casefold())

    def known(self, key: str) -> Connector | None:
        """Return the connector with this key, even if it cannot run in this process; None if it was deleted."""
        found = self.find(key)
        if found is None and key in self._idle:
            found, _ = self._idle[key]
        return found

    @property
    def max_timeout(self) -> timedelta:
        """The longest time that a statement may run by default, of all connectors, also of those that cannot run here.

        Zero if there is no connector.
        """
        connectors = chain(self._connectors.values(), (one for one, _ in self._idle.values()))
        return max((one.limits.statement_timeout for one in connectors), default=timedelta(0))

    def matching(self, name: str) -> tuple[tuple[str, ...] | None, str | None]:
        """Return the keys, or the dialect, that select history entries for a name.

        For an unknown name, the keys are an empty tuple.
        """
        folded = _normalized_name(name)
        if folded in self._connectors and self._connectors[folded].dialect != folded:
            return (self._connectors[folded].key,), None
        if any(one.dialect == folded for one in self._connectors.values()):
            return None, folded
        dialect, key = _split_reference(folded)
        found = self._connectors.get(key)
        return ((found.key,) if found and found.dialect == dialect else ()), None

    def require_permission(self, user: User, key: str) -> None:
        """Raise PermissionDenied if the caller may no longer use the connector of the caller's own operation."""
        connector = self.known(key)
        if connector is not None and not _is_open(connector, user):
            raise errors.PermissionDenied("You may no longer use the connector of this operation.")

    def result_sharing(self, key: str) -> ResultSharing:
        """Return to whom results of this connector may be granted (Contract sharing 4.1).

        By default, results are not shared if the data source may show different rows to its users. Results of a
        deleted connector are never shared.
        """
        connector = self.known(key)
        if connector is None:
            return ResultSharing.NEVER
        if connector.share_results is not None:
            return connector.share_results
        try:
            differs = self.engine(connector).capabilities.differs_by_user
        except errors.QueryServerError:  # the connector cannot run on this server
            return ResultSharing.NEVER
        return ResultSharing.NEVER if differs else ResultSharing.USERS_OF_CONNECTOR

    def may_receive_results(self, user: User, key: str) -> bool:
        """Return whether results of this connector may be granted to the user (Contract sharing 4.1)."""
        connector, sharing = self.known(key), self.result_sharing(key)
        if connector is None or sharing is ResultSharing.NEVER:
            return False
        return user.reaches(key) if sharing is ResultSharing.ANYONE else _is_open(connector, user)

    def receivable(self, user: User) -> Mapping[ResultSharing, Sequence[str]]:
        """Return the keys of the connectors whose results may be granted to the user, by their setting."""
        found: dict[ResultSharing, list[str]] = {}
        for key in [*self._idle, *(one.key for one in self._connectors.values())]:
            if self.may_receive_results(user, key):
                found.setdefault(self.result_sharing(key), []).append(key)
        return found

    def engine(self, connector: Connector) -> Engine:
        """Return the current version's engine, for its capabilities.

        Raises EngineUnavailable if the connector was deleted.
        """
        return self._engines.engine(self._current_version(connector))

    async def read_only_refusal(self, connector: Connector, statement: str, *, read_only: bool) -> str | None:
        """Return why the statement must not run, or None if it may.

        `read_only` is set if the call or its token requires that the statement changes nothing, as a connector with
        `read_only` always does. Statements on an engine that does not refuse changes itself must be known to read.
        """
        if not (read_only or connector.read_only):
            return None
        try:
            strict = not self.engine(connector).capabilities.enforces_read_only
        except errors.EngineUnavailable:  # the connector was deleted
            strict = True
        rule = "This call must only read" if read_only else "This connector is read-only"
        refusal = partial(read_only_refusal, statement, connector.dialect, strict=strict, rule=rule)
        return refusal() if is_quick(statement) else await asyncio.to_thread(refusal)

    def using(self, connector: Connector) -> AbstractAsyncContextManager[Engine]:
        """Keep the current version's engine open while the context is open.

        Raises EngineUnavailable if the connector was deleted.
        """
        return self._engines.using(self._current_version(connector))

    def data_of(self, connector: Connector) -> str | None:
        """Return the name of the connector's data if only one process can have it open; otherwise None."""
        return _data(connector, self.engine(connector))

    def runnable_by(self, held: Collection[str]) -> Sequence[str]:
        """Return the keys of connectors whose statements may run in a process that has acquired the data in `held`."""
        return [one.key for one in self._connectors.values() if (data := self.data_of(one)) is None or data in held]

    def bound_to(self, held: Collection[str]) -> Sequence[str]:
        """Return the keys of connectors whose statements can run only in the process that has acquired this data."""
        return [one.key for one in self._connectors.values() if self.data_of(one) in held]

    def data_to_hold(self) -> frozenset[str]:
        """Return the names of all data that only one process can have open."""
        return frozenset(data for one in self._connectors.values() if (data := self.data_of(one)) is not None)

    def data_in_use(self) -> frozenset[str]:
        """Return the names of single-process data in open engines, including engines of earlier versions."""
        return frozenset(data for one, engine in self._engines.open_engines() if (data := _data(one, engine)))

    async def discard_engines(self, data: str) -> None:
        """Close the engines that have this data open. The next use builds new engines."""
        await self._engines.discard(lambda connector, engine: _data(connector, engine) == data)

    async def aclose(self) -> None:
        await self._engines.aclose()

    def _arrange(self) -> None:
        """Sort the connectors once per change, so that calls need only filter by permission.

        Unknown names are skipped.
        """
        ranks = {name: rank for rank, name in enumerate(self._wheel)}
        self._listed = sorted(self._connectors.values(), key=lambda one: ranks.get(one.key.casefold(), len(ranks)))
        keys = [one for one in self._listed if one.key.casefold() == self._default]
        names = [one for one in self._listed if one.nice_name.casefold() == self._default]
        self._mains = [*keys, *names, *self._listed] if self._default else self._listed

    def _current_version(self, connector: Connector) -> Connector:
        present = self.find(connector.key)
        if present is None:
            raise errors.EngineUnavailable(f"The connector {connector.nice_name} no longer exists.")
        return present

    async def _read(self) -> None:
        """Read the stored connectors. The caller must hold `_reading`."""
        version, stored = await self._read_stored() if self._read_stored else (0, ())
        running, idle = dict[str, Connector](), dict[str, tuple[Connector, Exception]]()
        for connector in stored:
            try:
                await self._engines.prepare(connector)
            except (errors.ConfigurationError, errors.InvalidPath, errors.NotSupported) as error:
                log.info("stored connector cannot run on this server", connector=connector.key, reason=str(error))
                idle[connector.key] = connector, error
            except Exception as error:  # an invalid row must not prevent reading the other rows
                log.exception("stored connector could not be prepared", connector=connector.key)
                idle[connector.key] = connector, error
            else:
                running[connector.key] = connector
        configured = {key: one for key, one in self._configured.items() if key not in running and key not in idle}
        # No await from here on, so that no task sees half of a change.
        self.version, self._connectors, self._idle = version, {**configured, **running}, idle
        self._arrange()
        self._engines.retire_all_but(self._connectors.values())
        self._change.set()
        self._change = asyncio.Event()

    async def _watch(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self.refresh()
            except errors.DatabaseUnavailable:
                log.warning("stored connectors not loaded: database unreachable")
                self._stale.set()
                await asyncio.sleep(_RETRY_S)
            except Exception:  # the task must survive to read the next change
                log.exception("stored connectors not loaded")


def _is_open(connector: Connector, user: User) -> bool:
    """Return whether the user may use the connector (Contract platform 4.3).

    Stored instances need a right; interpreters without `groups` are open to all users.
    """
    if connector.right is not None:
        return user.may_use(connector.right)
    is_reached = user.api_token is None or user.reaches(connector.key)
    return is_reached and (connector.groups is None or user.is_in_any(connector.groups))


def takes_sql(connector: Connector) -> bool:
    return bool(flags_of(connector.dialect, connector.interface).get("is_sql"))


def _data(connector: Connector, engine: Engine) -> str | None:
    capabilities = engine.capabilities
    return (capabilities.data_name or connector.key) if capabilities.one_process else None


def key_named(name: str, among: Sequence[tuple[str, str]]) -> str | None:
    """Return the connector key for a name, by the rules of `resolve`. `among` contains pairs of key and dialect."""
    folded = _normalized_name(name)
    dialect, key = _split_reference(folded)
    meanings = (
        (known for known, _ in among if known.casefold() == folded),
        (known for known, its_dialect in among if its_dialect == folded),
        (known for known, its_dialect in among if (known.casefold(), its_dialect) == (key, dialect)),
    )
    return next(chain.from_iterable(meanings), None)


def _normalized_name(name: str) -> str:
    """Convert a name to the form for comparisons: case-folded, with `beeswax` as an older name of `hive`."""
    folded = name.casefold()
    return "hive" if folded == "beeswax" else folded


def _split_reference(name: str) -> tuple[str, str]:
    """Split `<dialect>-<id>`."""
    dialect, _, key = name.rpartition("-")
    return _normalized_name(dialect), key
