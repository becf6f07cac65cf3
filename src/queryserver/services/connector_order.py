"""Which data source comes first, and which one is meant without a name (Contract platform 7.1, editor 1.7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queryserver.domain.connector import Connector
from queryserver.domain.connector_catalogue import flags_of
from queryserver.domain.user import User


@dataclass(frozen=True, slots=True)
class Preference:
    """What the settings say; names count without regard to case."""

    wheel: Sequence[str] = ()
    """Keys that come first, in this order; unknown ones are skipped."""
    default: str = ""
    """Key, id or display name of the main one."""


class ConnectorOrder:
    """Sorted once per change of the connectors: what is left for each call is the filter by rights."""

    def __init__(self, connectors: Iterable[Connector], preference: Preference) -> None:
        wheel = list(dict.fromkeys(name.casefold() for name in preference.wheel))
        places = {name: place for place, name in enumerate(wheel)}
        self._listed = sorted(connectors, key=lambda one: places.get(one.key.casefold(), len(places)))
        default = preference.default.casefold()
        keys = [one for one in self._listed if default and one.key.casefold() == default]
        names = [one for one in self._listed if default and one.nice_name.casefold() == default]
        self._mains = [*keys, *names, *self._listed]
        self._sql = [one for one in self._listed if _takes_sql(one)]

    def visible(self, user: User) -> Sequence[Connector]:
        """Those that the caller may use, in the order in which they are listed."""
        return [one for one in self._listed if one.open_to(user)]

    def main(self, user: User) -> Connector | None:
        """The one that the settings name, else the first; None: the caller may use none."""
        return next((one for one in self._mains if one.open_to(user)), None)

    def default_sql(self, user: User) -> Connector | None:
        """The main one if it takes SQL, else the first that does."""
        main = self.main(user)
        if main is not None and _takes_sql(main):
            return main
        return next((one for one in self._sql if one.open_to(user)), None)


def _takes_sql(connector: Connector) -> bool:
    return bool(flags_of(connector.dialect, connector.interface).get("is_sql"))
