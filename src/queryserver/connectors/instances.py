"""Lists, creates, changes and deletes stored connectors (Contract platform 5.2 to 5.7)."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from queryserver import errors
from queryserver.connectors.engine_builders import NATIVE_DIALECTS, EngineBuilder, is_installed, section_defaults
from queryserver.connectors.forms import FormOption, form_options
from queryserver.connectors.model import ConnectorInstance, NewInstance, connector_right
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.secrets import masked, with_stored_secrets
from queryserver.connectors.sources import draft_connector, option_errors, require_folder_of, rest_options
from queryserver.connectors.types import (
    TYPES_BY_PAIR,
    Catalog,
    Category,
    ConnectorType,
    Flags,
    RunSupport,
    Settings,
    complete_settings,
    with_defaults,
)
from queryserver.connectors.urls import driver_of
from queryserver.identity.model import User
from queryserver.platform.logs import AUDIT

_CHANGE_ATTEMPTS = 5
_MAX_NAME_CHARACTERS = 100
_MAX_DESCRIPTION_CHARACTERS = 1000


@dataclass(slots=True)
class ConnectorEvent:
    """An audit event, written at the end of the operation."""

    subject: str
    """The connector's id, or its name before it has an id."""
    outcome: str = "ok"


@contextmanager
def connector_event(user: User, operation: str, subject: str | None) -> Generator[ConnectorEvent]:
    """Write an audit event `connector.<operation>` when the block ends.

    The outcome is `ok`, the error code, or `interrupted`.
    """
    event, outcome = ConnectorEvent((subject or "")[:_MAX_NAME_CHARACTERS]), "interrupted"
    try:
        yield event
        outcome = event.outcome
    except errors.QueryServerError as error:
        outcome = error.code
        raise
    finally:
        AUDIT.record_path(user.username, f"connector.{operation}", event.subject, outcome=outcome)


@dataclass(frozen=True, slots=True)
class SubmittedConnector:
    """A connector as submitted by a client. Missing members are None."""

    id: str | None = None
    """None for a new connector."""
    nice_name: str | None = None
    dialect: str | None = None
    interface: str | None = None
    description: str | None = None
    settings: Mapping[str, object] | None = field(default=None, repr=False)
    groups: tuple[str, ...] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A connector of a known type, with complete, valid settings and unmasked secrets."""

    row: ConnectorType
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class TypeView:
    """A connector type for responses, possibly with changed defaults. Secrets sent by the client are masked."""

    row: ConnectorType
    is_runnable: bool


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A stored instance, prepared for responses to one user."""

    instance: ConnectorInstance
    row: ConnectorType | None
    settings: Settings
    """The masked settings, in the type's order."""
    is_runnable: bool
    shows_groups: bool

    @property
    def category(self) -> Category:
        """The category for listings; `PLUGINS` if the type is no longer known."""
        return self.row.category if self.row else Category.PLUGINS

    @property
    def description(self) -> str:
        """The instance's description or, if that is empty, the type's description."""
        return self.instance.description or (self.row.description if self.row else "")

    @property
    def flags(self) -> Flags:
        return self.row.flags if self.row else {}


@dataclass(slots=True)
class InstallationResult:
    """The result of installing the configured connectors, in settings order."""

    added: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])
    updated: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])
    unchanged: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])

    @property
    def message(self) -> str:
        """A sentence for each non-empty list."""
        lists = (("Added", self.added), ("Updated", self.updated), ("Already installed", self.unchanged))
        return ". ".join(
            f"{words} connectors: {', '.join(f'{one.nice_name} ({one.dialect})' for one in members)}"
            for words, members in lists
            if members
        )


_DEFAULT_EXAMPLES = {
    one: SubmittedConnector(nice_name=f"{name} (in memory)", dialect=one, interface=one, settings={})
    for one, name in (("duckdb", "DuckDB"), ("sqlite", "SQLite"))
}
"""The connectors to install if the settings name none."""


class StoredConnectors:
    """Lists and changes stored connectors.

    Checks only which connectors a user may see; callers must check who may make changes.
    """

    def __init__(
        self, records: ConnectorRepository, builder: EngineBuilder, changed: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` is awaited after each change and returns once this process has read the change."""
        desktop = builder.settings.desktop
        self._records = records
        self._builder = builder
        self._changed = changed
        self._catalog: Catalog = {
            pair: with_defaults(row, section_defaults(row.dialect, builder.settings))
            for pair, row in TYPES_BY_PAIR.items()
        }
        hidden, only = frozenset(desktop.connectors_blacklist), frozenset(desktop.connectors_whitelist)
        self._offered = [
            row for row in self._catalog.values() if row.dialect not in hidden and (not only or row.dialect in only)
        ]
        self._default_groups = (
            (desktop.auth.default_user_group,) if desktop.connector_policy.grant_to_default_group else ()
        )
        """Groups that may use a new connector if none are submitted."""
        self._examples = {
            key: SubmittedConnector(
                nice_name=table.nice_name or key,
                dialect=table.dialect,
                interface=table.interface,
                settings=table.settings,
                groups=table.groups,
            )
            for key, table in desktop.connectors.items()
        } or _DEFAULT_EXAMPLES
        self._changing = asyncio.Lock()
        """Serializes this process's changes that specify no version.

        After conflicts with other processes, such changes are retried.
        """
        self._installed = dict[str, bool]()
        """Whether each driver is installed. Drivers installed later are found only after a restart."""

    async def types(self) -> Sequence[TypeView]:
        """Return the offered types, in catalog order."""
        return [TypeView(row, await self._is_runnable(row, row.settings)) for row in self._offered]

    async def template(self, dialect: str, interface: str, submitted: SubmittedConnector) -> TypeView:
        """Return a type whose defaults are overridden by the submitted values. Nothing is stored.

        Raises ConnectorTypeNotFound, ConnectorRefused.
        """
        row = self._catalog.get((dialect, interface))
        if row is None or row not in self._offered:
            raise errors.ConnectorTypeNotFound(dialect, interface, (one.dialect for one in self._offered))
        settings = complete_settings(row, submitted.settings or {})
        hidden = masked(settings)
        # The type's defaults are examples, so they are not masked.
        shown = {name: one if row.settings.get(name) == one else hidden[name] for name, one in settings.items()}
        names = {
            "nice_name": submitted.nice_name or row.nice_name,
            "description": submitted.description or row.description,
        }
        return TypeView(replace(row, **names, settings=shown), await self._is_runnable(row, row.settings))

    async def options(self, dialect: str, interface: str) -> Sequence[FormOption]:
        """Return the settings of a type for forms; nothing for an unknown type."""
        row = self._catalog.get((dialect, interface))
        return [] if row is None else await asyncio.to_thread(form_options, row)

    async def visible(self, user: User) -> Sequence[InstanceView]:
        """Return the connectors that the caller may see, by ascending id."""
        _, stored = await self._records.all()
        return [await self.shown(one, user) for one in stored if user.may_use(connector_right(one.id))]

    async def get(self, user: User, connector_id: str) -> InstanceView:
        """Return one connector. Raises connector_not_found if it does not exist or the caller may not see it."""
        instance = await self.stored(connector_id)
        if not user.may_use(connector_right(instance.id)):
            raise errors.connector_not_found(connector_id)
        return await self.shown(instance, user)

    async def save(self, user: User, submitted: SubmittedConnector) -> tuple[InstanceView, bool]:
        """Create a connector, or change the one with the submitted id. Return it, and whether it was created.

        Raises ConnectorRefused, connector_not_found, ConnectorTypeNotFound, NameTaken, VersionConflict.
        """
        is_new = submitted.id is None
        with connector_event(user, "create" if is_new else "change", submitted.id or submitted.nice_name) as event:
            _require_names(submitted, is_new=is_new)
            try:
                if is_new:
                    draft = await self.draft(submitted, None)
                    groups = self._default_groups if submitted.groups is None else submitted.groups
                    instance = await self._records.create(_new_instance(submitted, draft, groups))
                elif submitted.version is None:
                    async with self._changing:
                        instance = await self._change(submitted)
                else:
                    instance = await self._change(submitted)
            except errors.UnknownGroup as error:
                raise errors.ConnectorRefused({"groups": [error.message]}) from error
            event.subject = str(instance.id)
        await self._changed()
        return await self.shown(instance, user), is_new

    async def delete(self, user: User, connector_id: str) -> int:
        """Delete an unused connector and return its id. Raises connector_not_found, connector_in_use."""
        with connector_event(user, "delete", connector_id):
            instance = await self.stored(connector_id)
            await self._records.remove(instance.id)
        await self._changed()
        return instance.id

    async def shown(self, instance: ConnectorInstance, user: User) -> InstanceView:
        row = self._catalog.get((instance.dialect, instance.interface))
        return InstanceView(
            instance=instance,
            row=row,
            settings={**(row.settings if row else {}), **masked(instance.settings)},
            is_runnable=row is not None and await self._is_runnable(row, instance.settings),
            shows_groups=user.is_admin,
        )

    async def stored(self, connector_id: str) -> ConnectorInstance:
        """Return the instance with this id. Raises connector_not_found if there is none or the id is not a number."""
        is_id = connector_id.isascii() and connector_id.isdigit() and len(connector_id) < 20
        instance = await self._records.find(int(connector_id)) if is_id else None
        if instance is None:
            raise errors.connector_not_found(connector_id)
        return instance

    async def draft(self, submitted: SubmittedConnector, instance: ConnectorInstance | None) -> Draft:
        """Complete and validate the submitted settings, restoring masked secrets.

        If none are submitted, use the stored ones. Raises ConnectorRefused and its subclasses, ConnectorTypeNotFound.
        """
        row = self._row(submitted, instance)
        stored = instance.settings if instance else {}
        if submitted.settings is None and instance is not None:
            return Draft(row, stored)
        settings = with_stored_secrets(complete_settings(row, submitted.settings or {}), stored)
        await self._require_valid(row, settings)
        return Draft(row, settings)

    async def _require_valid(self, row: ConnectorType, settings: Settings) -> None:
        """Validate the settings by building an engine, without connecting to anything.

        Raises ConnectorRefused or a subclass with a text for each invalid setting. A missing driver does not make the
        settings invalid.
        """
        builder = self._builder
        with option_errors(), suppress(errors.DriverNotInstalled):
            connector = draft_connector("new", row.dialect, row.interface, settings, builder.settings)
            if row.runs is RunSupport.TEST:
                rest_options(connector, builder)
            elif row.takes_statements:
                # In threads, because adapters are imported on first use, and folders are checked on disk.
                await asyncio.to_thread(require_folder_of, connector, builder.databases_dir)
                engine = await asyncio.to_thread(builder.build, connector)
                await engine.close()

    async def _is_runnable(self, row: ConnectorType, settings: Settings) -> bool:
        """Return whether this server can run statements with these settings."""
        if not row.takes_statements or row.interface != "sqlalchemy":
            is_kerberos = str(settings.get("auth_mechanism", "")).strip().upper() in {"GSSAPI", "SPNEGO"}
            return row.takes_statements and (not is_kerberos or find_spec("gssapi") is not None)
        driver, dialect = driver_of(str(settings.get("url", "")).partition("://")[0].strip())
        if driver not in {name.lower() for name in self._builder.policy.allowed_drivers}:
            return False
        if dialect not in NATIVE_DIALECTS and driver not in self._installed:
            self._installed[driver] = await asyncio.to_thread(is_installed, driver, self._builder.addresses)
        return dialect in NATIVE_DIALECTS or self._installed[driver]

    async def _change(self, submitted: SubmittedConnector) -> ConnectorInstance:
        """Change a connector. If the request has no version, retry after a conflict with another change."""
        for attempt in range(_CHANGE_ATTEMPTS):
            instance = await self.stored(submitted.id or "")
            draft = await self.draft(submitted, instance)
            if submitted.version is not None and submitted.version != instance.version:
                raise errors.VersionConflict(instance.version)
            new = _new_instance(submitted, draft, submitted.groups, instance)
            try:
                return await self._records.change(instance, new)
            except errors.VersionConflict:
                if submitted.version is not None or attempt == _CHANGE_ATTEMPTS - 1:
                    raise
        raise errors.connector_not_found(submitted.id)

    def _row(self, submitted: SubmittedConnector, instance: ConnectorInstance | None) -> ConnectorType:
        dialect, interface = submitted.dialect or "", submitted.interface or ""
        if instance is not None:
            changed = {
                name: ["Cannot be changed."]
                for name, sent, stored in (
                    ("dialect", submitted.dialect, instance.dialect),
                    ("interface", submitted.interface, instance.interface),
                )
                if sent is not None and sent != stored
            }
            if changed:
                raise errors.immutable_field(changed, "The type of a connector cannot be changed.")
            dialect, interface = instance.dialect, instance.interface
        elif missing := [name for name in ("dialect", "interface") if not getattr(submitted, name)]:
            raise errors.ConnectorRefused({name: ["Must be set."] for name in missing})
        row = self._catalog.get((dialect, interface))
        if row is None:
            raise errors.ConnectorTypeNotFound(dialect, interface, (known for known, _ in self._catalog))
        return row

    async def install_examples(self, user: User) -> InstallationResult:
        """Install the connectors listed in the settings. Instances edited after an earlier installation stay unchanged.

        If one connector is invalid, none is installed. Raises ConnectorRefused with `errors` by key.
        """
        drafts = await self._example_drafts()
        done = InstallationResult()
        try:
            for key, submitted in self._examples.items():
                await self._install_example(user, submitted, drafts[key], done)
        finally:
            if done.added or done.updated:
                await self._changed()
        return done

    async def _example_drafts(self) -> Mapping[str, Draft]:
        found, problems, names = dict[str, Draft](), dict[str, list[str]](), set[str]()
        granted = {group for submitted in self._examples.values() for group in submitted.groups or ()}
        unknown_groups = await self._records.unknown_groups(granted)
        for key, submitted in self._examples.items():
            try:
                _require_names(submitted, is_new=True)
                found[key] = await self.draft(submitted, None)
            except errors.ConnectorRefused as refused:
                problems[key] = [f"{name}: {text}" for name, texts in refused.errors.items() for text in texts]
            except errors.ConnectorTypeNotFound as unknown:
                problems[key] = [unknown.message]
            for group in sorted(unknown_groups & set(submitted.groups or ())):
                problems.setdefault(key, []).append(f"groups: {errors.UnknownGroup(group).message}")
            name = _folded_name(submitted)
            if name in names:
                problems.setdefault(key, []).append("nice_name: Another connector in the settings has the same name.")
            names.add(name)
        if problems:
            raise errors.ConnectorRefused(problems, "The connectors in the settings are not valid.")
        return found

    async def _install_example(
        self, user: User, submitted: SubmittedConnector, draft: Draft, done: InstallationResult
    ) -> None:
        present = await self._named(_folded_name(submitted))
        # If the settings name no groups, grants changed by an administrator are kept.
        default_groups = None if present else self._default_groups
        new = _new_instance(submitted, draft, default_groups if submitted.groups is None else submitted.groups)
        # The digest covers only masked settings, because a digest of secrets would help to guess weak passwords.
        content = [
            submitted.nice_name,
            draft.row.dialect,
            draft.row.interface,
            masked(draft.settings),
            submitted.groups,
        ]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        new = replace(new, example_digest=digest)
        if present is not None and not _is_outdated(present, new):
            done.unchanged.append(present)
            return
        operation = "change" if present else "create"
        try:
            with connector_event(user, operation, str(present.id) if present else new.nice_name) as event:
                if present is not None:
                    done.updated.append(await self._records.change(present, new))
                else:
                    done.added.append(created := await self._records.create(new))
                    event.subject = str(created.id)
        except errors.UnknownGroup as error:
            raise errors.ConnectorRefused({new.nice_name: [f"groups: {error.message}"]}) from error
        except (errors.NameTaken, errors.VersionConflict):
            # A concurrent call has created or changed the connector; keep that result.
            if (stored := await self._named(_folded_name(submitted))) is not None:
                done.unchanged.append(stored)

    async def _named(self, folded_name: str) -> ConnectorInstance | None:
        _, stored = await self._records.all()
        return next((one for one in stored if one.nice_name.casefold() == folded_name), None)


def _require_names(submitted: SubmittedConnector, *, is_new: bool) -> None:
    """Raise ConnectorRefused for names that are missing, too long or unprintable."""
    problems = dict[str, list[str]]()
    if submitted.nice_name is None:
        if is_new:
            problems["nice_name"] = ["Must be set."]
    elif not 1 <= len(submitted.nice_name.strip()) <= _MAX_NAME_CHARACTERS or not submitted.nice_name.isprintable():
        problems["nice_name"] = [f"Must have 1 to {_MAX_NAME_CHARACTERS} printable characters."]
    if len(submitted.description or "") > _MAX_DESCRIPTION_CHARACTERS:
        problems["description"] = [f"Must have at most {_MAX_DESCRIPTION_CHARACTERS} characters."]
    if is_new:
        problems |= {name: ["Must be set."] for name in ("dialect", "interface") if not getattr(submitted, name)}
    if problems:
        raise errors.ConnectorRefused(problems)


def _folded_name(submitted: SubmittedConnector) -> str:
    return (submitted.nice_name or "").strip().casefold()


def _is_outdated(present: ConnectorInstance, new: NewInstance) -> bool:
    """Return whether an unedited instance from the settings differs from them and can be updated.

    An instance of another type cannot be updated.
    """
    is_ours = present.example_digest is not None
    is_same_type = (present.dialect, present.interface) == (new.dialect, new.interface)
    differs = present.example_digest != new.example_digest or present.settings != new.settings
    return is_ours and is_same_type and differs


def _new_instance(
    submitted: SubmittedConnector, draft: Draft, groups: tuple[str, ...] | None, before: ConnectorInstance | None = None
) -> NewInstance:
    """Return the new values; missing values are taken from `before`."""
    name = before.nice_name if before and submitted.nice_name is None else (submitted.nice_name or "").strip()
    description = before.description if before and submitted.description is None else submitted.description or ""
    return NewInstance(name, draft.row.dialect, draft.row.interface, description, draft.settings, groups)
