"""What a call says about a connector, as settings that could be stored (Contract platform 5.6, 5.8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from queryserver.domain.connector_catalogue import Catalogue
from queryserver.domain.connector_instances import ConnectorInstance, SettingValue
from queryserver.domain.connector_secrets import with_stored_secrets
from queryserver.domain.connector_settings import complete_settings
from queryserver.domain.connector_types import ConnectorType
from queryserver.domain.errors import ConnectorRefused, ConnectorTypeNotFound, connector_not_found, immutable_field
from queryserver.interfaces.connectors import ConnectorChecks, ConnectorRecords

_LONGEST_NAME = 100
_LONGEST_DESCRIPTION = 1000


@dataclass(frozen=True, slots=True)
class GivenConnector:
    """The connector of a call; None: not given."""

    id: str | None = None
    """None: a new one."""
    nice_name: str | None = None
    dialect: str | None = None
    interface: str | None = None
    description: str | None = None
    settings: Mapping[str, object] | None = field(default=None, repr=False)
    groups: tuple[str, ...] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A connector of a known type with complete and valid settings, secrets in the clear."""

    row: ConnectorType
    settings: Mapping[str, SettingValue] = field(repr=False)


class ConnectorDrafts:
    """Reads what was given, beside what is stored."""

    def __init__(self, records: ConnectorRecords, checks: ConnectorChecks, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._records = records
        self._checks = checks

    async def stored(self, connector_id: str) -> ConnectorInstance:
        """The instance of that id. Raises connector_not_found, also for what is no number."""
        is_id = connector_id.isascii() and connector_id.isdigit() and len(connector_id) < 20
        instance = await self._records.find(int(connector_id)) if is_id else None
        if instance is None:
            raise connector_not_found(connector_id)
        return instance

    async def draft(self, given: GivenConnector, instance: ConnectorInstance | None) -> Draft:
        """What was given, or what is stored where it says nothing; a masked secret is the stored one.

        Raises ConnectorRefused, ConnectorTypeNotFound.
        """
        row = self._row(given, instance)
        stored = instance.settings if instance else {}
        if given.settings is None and instance is not None:
            return Draft(row, stored)
        settings = with_stored_secrets(complete_settings(row, given.settings or {}), stored)
        await self._checks.require_valid(row, settings)
        return Draft(row, settings)

    def _row(self, given: GivenConnector, instance: ConnectorInstance | None) -> ConnectorType:
        dialect, interface = given.dialect or "", given.interface or ""
        if instance is not None:
            changed = {
                name: ["Cannot be changed."]
                for name, sent, stored in (
                    ("dialect", given.dialect, instance.dialect),
                    ("interface", given.interface, instance.interface),
                )
                if sent is not None and sent != stored
            }
            if changed:
                raise immutable_field(changed, "The type of a connector cannot be changed.")
            dialect, interface = instance.dialect, instance.interface
        elif missing := [name for name in ("dialect", "interface") if not getattr(given, name)]:
            raise ConnectorRefused({name: ["Must be given."] for name in missing})
        row = self._catalogue.type_of(dialect, interface)
        if row is None:
            raise ConnectorTypeNotFound(dialect, interface, (one.dialect for one in self._catalogue.all_types()))
        return row


def require_names(given: GivenConnector, *, is_new: bool) -> None:
    """Raises ConnectorRefused for names that are missing, too long or cannot be shown."""
    problems = dict[str, list[str]]()
    if given.nice_name is None:
        if is_new:
            problems["nice_name"] = ["Must be given."]
    elif not 1 <= len(given.nice_name.strip()) <= _LONGEST_NAME or not given.nice_name.isprintable():
        problems["nice_name"] = [f"Must have 1 to {_LONGEST_NAME} printable characters."]
    if len(given.description or "") > _LONGEST_DESCRIPTION:
        problems["description"] = [f"Must have at most {_LONGEST_DESCRIPTION} characters."]
    if is_new:
        problems |= {name: ["Must be given."] for name in ("dialect", "interface") if not getattr(given, name)}
    if problems:
        raise ConnectorRefused(problems)
