"""Connectors of the settings, installed as instances (Contract platform 5.9)."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from queryserver.connectors.instances import ConnectorAudit, ConnectorInstances, Draft, GivenConnector, require_names
from queryserver.connectors.model import ConnectorInstance, NewInstance
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.secrets import masked
from queryserver.errors.base import NameTaken, UnknownGroup, VersionConflict
from queryserver.errors.statements import ConnectorRefused, ConnectorTypeNotFound
from queryserver.identity.model import User


@dataclass(frozen=True, slots=True)
class Example:
    """One table of the settings. `given` has a name, dialect, interface and settings."""

    key: str
    given: GivenConnector


@dataclass(slots=True)
class Installed:
    """What was done with which instance, in the order of the settings."""

    added: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])
    updated: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])
    unchanged: list[ConnectorInstance] = field(default_factory=list[ConnectorInstance])

    @property
    def message(self) -> str:
        """A sentence for each of the three that has members."""
        return ". ".join(
            f"{words} connectors: {', '.join(f'{one.nice_name} ({one.dialect})' for one in members)}"
            for words, members in (
                ("Added", self.added),
                ("Updated", self.updated),
                ("Already installed", self.unchanged),
            )
            if members
        )


class ConnectorExamples:
    """Installs what the settings name; those that were edited since are left alone."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        records: ConnectorRepository,
        instances: ConnectorInstances,
        audit: ConnectorAudit,
        changed: Callable[[], Awaitable[None]],
        default_groups: tuple[str, ...],
    ) -> None:
        self._examples = examples
        self._records = records
        self._instances = instances
        self._audit = audit
        self._changed = changed
        self._default_groups = default_groups

    async def install(self, user: User) -> Installed:
        """Nothing is installed unless everything is valid. Raises ConnectorRefused with `errors` by key."""
        drafts = await self._valid_drafts()
        done = Installed()
        try:
            for example in self._examples:
                await self._install(user, example.given, drafts[example.key], done)
        finally:
            if done.added or done.updated:
                await self._changed()
        return done

    async def _valid_drafts(self) -> Mapping[str, Draft]:
        found, problems, names = dict[str, Draft](), dict[str, list[str]](), set[str]()
        granted = {group for example in self._examples for group in example.given.groups or ()}
        unknown_groups = await self._records.unknown_groups(granted)
        for example in self._examples:
            try:
                require_names(example.given, is_new=True)
                found[example.key] = await self._instances.draft(example.given, None)
            except ConnectorRefused as refused:
                problems[example.key] = [f"{name}: {text}" for name, texts in refused.errors.items() for text in texts]
            except ConnectorTypeNotFound as unknown:
                problems[example.key] = [unknown.message]
            for group in sorted(unknown_groups & set(example.given.groups or ())):
                problems.setdefault(example.key, []).append(f"groups: {UnknownGroup(group).message}")
            name = _key(example.given)
            if name in names:
                problems.setdefault(example.key, []).append("nice_name: Another table has the same.")
            names.add(name)
        if problems:
            raise ConnectorRefused(problems, "The connectors of the settings are not valid.")
        return found

    async def _install(self, user: User, given: GivenConnector, draft: Draft, done: Installed) -> None:
        stored = {one.nice_name.casefold(): one for one in (await self._records.all()).instances}
        present = stored.get(_key(given))
        new = self._new(given, draft, present)
        if present is not None and not _is_outdated(present, new):
            done.unchanged.append(present)
            return
        operation = "change" if present else "create"
        try:
            with self._audit.event(user, operation, str(present.id) if present else new.nice_name) as event:
                if present is not None:
                    done.updated.append(await self._records.change(present, new))
                else:
                    done.added.append(created := await self._records.create(new))
                    event.subject = str(created.id)
        except UnknownGroup as error:
            raise ConnectorRefused({new.nice_name: [f"groups: {error.message}"]}) from error
        except (NameTaken, VersionConflict):
            # Somebody else is just at it: what they leave is theirs.
            done.unchanged += await self._named(_key(given))

    async def _named(self, name: str) -> Iterable[ConnectorInstance]:
        return [one for one in (await self._records.all()).instances if one.nice_name.casefold() == name]

    def _new(self, given: GivenConnector, draft: Draft, present: ConnectorInstance | None) -> NewInstance:
        """Grants that an operator changed since stay, when the table names none."""
        usual = None if present else self._default_groups
        return NewInstance(
            nice_name=(given.nice_name or "").strip(),
            dialect=draft.row.dialect,
            interface=draft.row.interface,
            description=given.description or "",
            settings=draft.settings,
            groups=usual if given.groups is None else given.groups,
            example_digest=_digest(given, draft),
        )


def _key(given: GivenConnector) -> str:
    return (given.nice_name or "").strip().casefold()


def _is_outdated(present: ConnectorInstance, new: NewInstance) -> bool:
    """Whether this call put it there, nobody edited it since, and it is another now. Its type can never change."""
    is_ours = present.example_digest is not None
    is_same_type = (present.dialect, present.interface) == (new.dialect, new.interface)
    differs = present.example_digest != new.example_digest or present.settings != new.settings
    return is_ours and is_same_type and differs


def _digest(given: GivenConnector, draft: Draft) -> str:
    """Of what lies in the open anyway: a digest of a weak password would tell it."""
    content = [given.nice_name, draft.row.dialect, draft.row.interface, masked(draft.settings), given.groups]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
