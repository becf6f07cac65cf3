"""Connectors as administrators keep them and users see them (Contract platform 5.2 to 5.7)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from queryserver.domain.connector_catalogue import Catalogue
from queryserver.domain.connector_instances import ConnectorInstance, NewInstance, SettingValue, connector_right
from queryserver.domain.connector_secrets import masked
from queryserver.domain.connector_settings import complete_settings
from queryserver.domain.connector_types import Category, ConnectorType, Flags
from queryserver.domain.errors import (
    ConnectorRefused,
    ConnectorTypeNotFound,
    UnknownGroup,
    VersionConflict,
    connector_not_found,
)
from queryserver.domain.user import User
from queryserver.interfaces.connectors import ConnectorChecks, ConnectorRecords
from queryserver.services.connector_auditing import ConnectorAudit
from queryserver.services.connector_drafts import ConnectorDrafts, GivenConnector, require_names

_ATTEMPTS = 5

Settings = Mapping[str, SettingValue]


@dataclass(frozen=True, slots=True)
class OfferedTypes:
    """Which dialects the settings hide (`desktop.connectors_blacklist`, then `connectors_whitelist`)."""

    hidden: Collection[str] = ()
    only: Collection[str] = ()

    def shows(self, row: ConnectorType) -> bool:
        """Whether listings have it."""
        return row.dialect not in self.hidden and (not self.only or row.dialect in self.only)


@dataclass(frozen=True, slots=True)
class ShownType:
    """A type and whether it runs here."""

    row: ConnectorType
    is_runnable: bool


@dataclass(frozen=True, slots=True)
class Template:
    """A type with something laid over its defaults."""

    type: ShownType
    nice_name: str
    description: str
    settings: Settings
    """Masked where they were given."""


@dataclass(frozen=True, slots=True)
class ShownInstance:
    """An instance as answers show it."""

    instance: ConnectorInstance
    row: ConnectorType | None
    settings: Settings
    """In the order of the type, masked."""
    is_runnable: bool
    shows_groups: bool

    @property
    def category(self) -> Category:
        """What it is listed under; a type that is no longer known has no other place."""
        return self.row.category if self.row else Category.PLUGINS

    @property
    def description(self) -> str:
        """Its own, else that of the type."""
        return self.instance.description or (self.row.description if self.row else "")

    @property
    def flags(self) -> Flags:
        """Those of the type."""
        return self.row.flags if self.row else {}


@dataclass(frozen=True, slots=True)
class InstanceParts:
    """What the administration of connectors works with."""

    records: ConnectorRecords
    checks: ConnectorChecks
    drafts: ConnectorDrafts
    catalogue: Catalogue
    audit: ConnectorAudit
    changed: Callable[[], Awaitable[None]]
    """Awaited after a change: then this process knows it."""
    default_groups: tuple[str, ...]
    """Who may use a new connector that names no groups."""
    offered: OfferedTypes = OfferedTypes()


class ConnectorInstances:
    """Stored connectors; who may do what beyond seeing is the business of the caller."""

    def __init__(self, parts: InstanceParts) -> None:
        self._parts = parts
        self._changing = asyncio.Lock()
        """Changes that name no version take turns; those of other processes are few enough for `_ATTEMPTS`."""

    async def types(self) -> Sequence[ShownType]:
        """The catalogue as far as it is offered, in its order."""
        return [
            await self._shown_type(row) for row in self._parts.catalogue.all_types() if self._parts.offered.shows(row)
        ]

    async def template(self, dialect: str, interface: str, given: GivenConnector) -> Template:
        """A type with what was given laid over its defaults; nothing is stored.

        Raises ConnectorTypeNotFound, ConnectorRefused.
        """
        row = self._parts.catalogue.type_of(dialect, interface)
        if row is None or not self._parts.offered.shows(row):
            offered = (one.dialect for one in self._parts.catalogue.all_types() if self._parts.offered.shows(one))
            raise ConnectorTypeNotFound(dialect, interface, offered)
        settings = complete_settings(row, given.settings or {})
        hidden = masked(settings)
        # The defaults are examples, and no secrets.
        shown = {name: one if row.defaults.get(name) == one else hidden[name] for name, one in settings.items()}
        return Template(
            type=await self._shown_type(row),
            nice_name=given.nice_name or row.nice_name,
            description=given.description or row.description,
            settings=shown,
        )

    async def visible(self, user: User) -> Sequence[ShownInstance]:
        """What the caller may see, by ascending id."""
        stored = await self._parts.records.all()
        return [await self.shown(one, user) for one in stored.instances if user.may_use(connector_right(one.id))]

    async def get(self, user: User, connector_id: str) -> ShownInstance:
        """One of them. Raises connector_not_found, also for one that the caller may not see."""
        instance = await self._parts.drafts.stored(connector_id)
        if not user.may_use(connector_right(instance.id)):
            raise connector_not_found(connector_id)
        return await self.shown(instance, user)

    async def save(self, user: User, given: GivenConnector) -> tuple[ShownInstance, bool]:
        """Create, or change what has an id; also whether it was created.

        Raises ConnectorRefused, connector_not_found, ConnectorTypeNotFound, NameTaken,
        VersionConflict.
        """
        is_new = given.id is None
        with self._parts.audit.event(user, "create" if is_new else "change", given.id or given.nice_name) as event:
            require_names(given, is_new=is_new)
            try:
                if is_new:
                    instance = await self._create(given)
                elif given.version is None:
                    async with self._changing:
                        instance = await self._change(given)
                else:
                    instance = await self._change(given)
            except UnknownGroup as error:
                raise ConnectorRefused({"groups": [error.message]}) from error
            event.subject = str(instance.id)
        await self._parts.changed()
        return await self.shown(instance, user), is_new

    async def delete(self, user: User, connector_id: str) -> int:
        """Delete one that nothing uses; its id. Raises connector_not_found, connector_in_use."""
        with self._parts.audit.event(user, "delete", connector_id):
            instance = await self._parts.drafts.stored(connector_id)
            await self._parts.records.remove(instance.id)
        await self._parts.changed()
        return instance.id

    async def shown(self, instance: ConnectorInstance, user: User) -> ShownInstance:
        """The instance as `user` sees it."""
        row = self._parts.catalogue.type_of(instance.dialect, instance.interface)
        hidden = masked(instance.settings)
        runs = row is not None and await self._parts.checks.is_runnable(row, instance.settings)
        return ShownInstance(
            instance=instance,
            row=row,
            settings={**(row.defaults if row else {}), **hidden},
            is_runnable=runs,
            shows_groups=user.is_admin,
        )

    async def _shown_type(self, row: ConnectorType) -> ShownType:
        return ShownType(row, await self._parts.checks.is_runnable(row, row.defaults))

    async def _create(self, given: GivenConnector) -> ConnectorInstance:
        draft = await self._parts.drafts.draft(given, None)
        return await self._parts.records.create(
            NewInstance(
                nice_name=(given.nice_name or "").strip(),
                dialect=draft.row.dialect,
                interface=draft.row.interface,
                description=given.description or "",
                settings=draft.settings,
                groups=self._parts.default_groups if given.groups is None else given.groups,
            )
        )

    async def _change(self, given: GivenConnector) -> ConnectorInstance:
        """Who names no version wants the present one, also when another change comes between reading and writing."""
        for attempt in range(_ATTEMPTS):
            instance = await self._parts.drafts.stored(given.id or "")
            draft = await self._parts.drafts.draft(given, instance)
            if given.version is not None and given.version != instance.version:
                raise VersionConflict(instance.version)
            new = NewInstance(
                nice_name=instance.nice_name if given.nice_name is None else given.nice_name.strip(),
                dialect=instance.dialect,
                interface=instance.interface,
                description=instance.description if given.description is None else given.description,
                settings=draft.settings,
                groups=given.groups,
            )
            try:
                return await self._parts.records.change(instance, new)
            except VersionConflict:
                if given.version is not None or attempt == _ATTEMPTS - 1:
                    raise
        raise connector_not_found(given.id)
