"""Which data sources there are, who may use them, and the engine behind each."""

from collections.abc import Callable, Sequence

from queryserver.domain.connector import Connector
from queryserver.domain.errors import PermissionDenied, UnknownDialect
from queryserver.domain.user import User
from queryserver.interfaces.engine import Engine

_OTHER_NAMES = {"beeswax": "hive"}


class Connectors:
    """The configured connectors in their order; engines are built when first used and closed at the end."""

    def __init__(
        self,
        connectors: Sequence[Connector],
        *,
        build: Callable[[Connector], Engine],
        default: str = "",
    ) -> None:
        self._connectors = {connector.key.casefold(): connector for connector in connectors}
        self._build = build
        self._default = default.casefold()
        self._engines: dict[str, Engine] = {}

    def resolve(self, user: User, name: str | None) -> Connector:
        """The connector that a caller means (Contract editor 1.7).

        Raises UnknownDialect, also when the caller may not use what was named: the two are not told apart.
        """
        wanted = _usual((name or "").strip())
        visible = self.visible(user)
        if wanted:
            dialect, key = _parts(wanted)
            found = (
                _first(visible, lambda one: one.key.casefold() == wanted)
                or _first(visible, lambda one: one.dialect == wanted)
                or _first(visible, lambda one: one.key.casefold() == key and one.dialect == dialect)
            )
        else:
            found = _first(visible, lambda one: one.key.casefold() == self._default) or _first(visible, lambda _: True)
        if found is None:
            raise UnknownDialect(name or "")
        return found

    def visible(self, user: User) -> Sequence[Connector]:
        """The connectors that the caller may use, in their configured order."""
        return [one for one in self._connectors.values() if one.open_to(user.groups, is_admin=user.is_admin)]

    def find(self, key: str) -> Connector | None:
        """The connector of that key, whoever asks."""
        return self._connectors.get(key.casefold())

    def matching(self, name: str) -> tuple[tuple[str, ...] | None, str | None]:
        """Keys and dialect of history entries that a name chooses; an unknown one chooses nothing."""
        wanted = _usual(name)
        if wanted in self._connectors and self._connectors[wanted].dialect != wanted:
            return (self._connectors[wanted].key,), None
        if any(one.dialect == wanted for one in self._connectors.values()):
            return None, wanted
        dialect, key = _parts(wanted)
        found = self._connectors.get(key)
        return ((found.key,) if found and found.dialect == dialect else ()), None

    def require_permission(self, user: User, key: str) -> None:
        """Raises PermissionDenied when the caller lost the right to the connector of an operation of theirs."""
        connector = self.find(key)
        if connector is not None and not connector.open_to(user.groups, is_admin=user.is_admin):
            raise PermissionDenied("You may no longer use the connector of this operation.")

    def engine(self, connector: Connector) -> Engine:
        """The engine of a connector, built at its first use."""
        engine = self._engines.get(connector.key)
        if engine is None:
            engine = self._engines[connector.key] = self._build(connector)
        return engine

    def runnable_anywhere(self) -> Sequence[str]:
        """Keys of connectors whose statements any process may run."""
        return [one.key for one in self._connectors.values() if not self.engine(one).capabilities.one_process]

    def runnable_by_holder(self) -> Sequence[str]:
        """Keys of connectors whose statements only the process that holds their data may run."""
        return [one.key for one in self._connectors.values() if self.engine(one).capabilities.one_process]

    async def discard_engine(self, key: str) -> None:
        """Close an engine; the next use builds it anew."""
        engine = self._engines.pop(key, None)
        if engine is not None:
            await engine.close()

    async def aclose(self) -> None:
        """Close all engines."""
        for key in list(self._engines):
            await self.discard_engine(key)


def _first(connectors: Sequence[Connector], fits: Callable[[Connector], bool]) -> Connector | None:
    return next((one for one in connectors if fits(one)), None)


def _usual(name: str) -> str:
    """As names are compared: folded, older names of dialects replaced."""
    folded = name.casefold()
    return _OTHER_NAMES.get(folded, folded)


def _parts(name: str) -> tuple[str, str]:
    """Dialect and key of the form `<dialect>-<id>`."""
    dialect, _, key = name.rpartition("-")
    return _usual(dialect), key
