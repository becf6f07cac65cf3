"""Stores connectors in the service database."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager

import orjson
import structlog

from queryserver import errors
from queryserver.connectors.model import ConnectorInstance, NewInstance, SettingValue, connector_right
from queryserver.connectors.secrets import masked, secrets_of, without_secrets
from queryserver.identity.keys import Sealer
from queryserver.platform.database import Connection, Database, Row, notify
from queryserver.platform.settings.tree import Settings

CHANGED = "connectors"
"""The kind of change notification sent to all servers. Its subject is the new state number."""

log = structlog.get_logger(__name__)

_INT64_MAX = 2**63 - 1

_COLUMNS = """c.id, c.nice_name, c.dialect, c.interface, c.description, c.settings, c.sealed_secrets, c.version,
    c.example_digest, c.changed_at,
    array(
        select g.name from group_rights r join groups g on g.id = r.group_id
        where r."right" = 'connector:' || c.id order by g.name
    ) as groups"""

# A single statement, so that the number and the rows come from the same snapshot.
_ALL = f"""
    select s.version as state, {_COLUMNS}
    from connector_state s left join connectors c on c.deleted_at is null order by c.id
"""

_FIND = f"select {_COLUMNS} from connectors c where c.id = $1 and c.deleted_at is null"

_INSERT = """
    insert into connectors (
        nice_name, dialect, interface, description, settings, sealed_secrets, example_digest
    ) values ($1, $2, $3, $4, $5, $6, $7) returning id
"""

_CHANGE = """
    update connectors set nice_name = $3, description = $4, settings = coalesce($5, settings),
        sealed_secrets = case when $5::jsonb is null then sealed_secrets else $6 end, example_digest = $7,
        version = version + 1, changed_at = now()
    where id = $1 and version = $2 and deleted_at is null
"""

_GRANT = """
    insert into group_rights (group_id, "right") select id, $2 from groups where name = any($1::text[])
    on conflict do nothing
"""

_DELETE = """
    update connectors set settings = '[]', sealed_secrets = null, description = '', example_digest = null,
        version = version + 1, changed_at = now(), deleted_at = now()
    where id = $1
"""


ALL = "all"

_DIALECTS_OF_HUE = {"beeswax": "hive"}


async def matching_keys(settings: Settings, database: Database, name: str) -> list[str] | None:
    """Find the keys of connectors by dialect, key, id or `all` (Contract platform 12.1).

    Returns None for all connectors, and an empty list for an unknown name.
    """
    folded = name.lower()
    if folded == ALL:
        return None
    folded = _DIALECTS_OF_HUE.get(folded, folded)
    found = [
        key
        for key, table in settings.notebook.interpreters.items()
        if folded in {key.lower(), (table.dialect or key).lower()}
    ]
    rows = await database.fetch(
        "select id::text from connectors where deleted_at is null and (id::text = $1 or dialect = $1) order by id",
        folded,
    )
    return [*found, *(row["id"] for row in rows)]


class ConnectorRepository:
    """Stores instances. Each method is one transaction; all raise DatabaseUnavailable.

    Every change increments the state number and notifies all servers on commit. Changes are serialized. A row contains
    the settings with masked secrets, and the sealed secrets in a separate column.
    """

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def all(self) -> tuple[int, Sequence[ConnectorInstance]]:
        """Return the state number, and all instances in that state, by ascending id.

        An instance whose secrets can no longer be decrypted is returned without them.
        """
        rows = await self._database.fetch(_ALL)
        return rows[0]["state"] if rows else 0, [self._instance(row) for row in rows if row["id"] is not None]

    async def find(self, connector_id: int) -> ConnectorInstance | None:
        """Return the current version of an instance; None if unknown or deleted."""
        if not 0 < connector_id <= _INT64_MAX:
            return None
        row = await self._database.row(_FIND, connector_id)
        return self._instance(row) if row else None

    async def create(self, new: NewInstance) -> ConnectorInstance:
        """Store a new instance under an unused id. Raises NameTaken, UnknownGroup."""
        async with self._change_transaction() as connection:
            await _require_free_name(connection, new.nice_name)
            values = self._column_values(new)
            connector_id: int = await connection.fetchval(_INSERT, values[0], new.dialect, new.interface, *values[1:])
            await _grant(connection, connector_id, new.groups or ())
            return await self._existing(connection, connector_id)

    async def change(self, instance: ConnectorInstance, new: NewInstance) -> ConnectorInstance:
        """Update `instance`, whose version must still be the stored version.

        Raises VersionConflict, connector_not_found, NameTaken, UnknownGroup.
        """
        async with self._change_transaction() as connection:
            await _require_free_name(connection, new.nice_name, except_id=instance.id)
            name, description, settings, sealed, digest = self._column_values(new)
            if new.settings == instance.settings:
                settings = None  # renaming must not lose secrets whose key is currently missing
            changes = (name, description, settings, sealed, digest)
            tag = await connection.execute(_CHANGE, instance.id, instance.version, *changes)
            if tag != "UPDATE 1":
                raise errors.VersionConflict((await self._existing(connection, instance.id)).version)
            if new.groups is not None:
                await _grant(connection, instance.id, new.groups)
            return await self._existing(connection, instance.id)

    async def remove(self, connector_id: int) -> None:
        """Delete an instance, including its grants and index rows, but keep a tombstone with its names.

        Raises connector_not_found, and connector_in_use while one of its statements is waiting or running.
        """
        if not 0 < connector_id <= _INT64_MAX:
            raise errors.connector_not_found(connector_id)
        async with self._change_transaction() as connection:
            await self._existing(connection, connector_id)
            count = await connection.fetchval(
                "select count(*) from statements where connector = $1 and state in ('waiting', 'running')",
                str(connector_id),
            )
            if count:
                raise errors.connector_in_use(
                    f"The connector is in use. Waiting or running statements: {count}.", extra_fields={"running": count}
                )
            await connection.execute(_DELETE, connector_id)
            await connection.execute('delete from group_rights where "right" = $1', connector_right(connector_id))
            # Cascades to the objects of the search index.
            await connection.execute("delete from metadata_scopes where connector = $1 and stored", str(connector_id))

    async def unknown_groups(self, names: AbstractSet[str]) -> frozenset[str]:
        rows = await self._database.fetch("select name from groups where name = any($1::text[])", list(names))
        return frozenset(names - {row["name"] for row in rows})

    async def reseal(self) -> tuple[int, int]:
        """Re-encrypt all secrets with the current key. Return the numbers of resealed and of unreadable instances.

        Secrets whose key is unknown stay unchanged.
        """
        done = lost = 0
        async with self._database.transaction() as connection:
            await connection.execute("select from connector_state for update")
            rows = await connection.fetch("select id, sealed_secrets from connectors where sealed_secrets is not null")
            for row in rows:
                try:
                    sealed = self._sealer.seal(self._sealer.unseal(row["sealed_secrets"]))
                except ValueError:
                    lost += 1
                    continue
                await connection.execute("update connectors set sealed_secrets = $2 where id = $1", row["id"], sealed)
                done += 1
        return done, lost

    @asynccontextmanager
    async def _change_transaction(self) -> AsyncGenerator[Connection]:
        """Run a transaction that creates the next state. It first locks the single row that all changes need."""
        async with self._database.transaction() as connection:
            state: int = await connection.fetchval("update connector_state set version = version + 1 returning version")
            yield connection
            await notify(connection, CHANGED, str(state))

    async def _existing(self, connection: Connection, connector_id: int) -> ConnectorInstance:
        row = await connection.fetchrow(_FIND, connector_id)
        if row is None:
            raise errors.connector_not_found(connector_id)
        return self._instance(row)

    def _column_values(self, new: NewInstance) -> tuple[object, ...]:
        """Return the values for the columns name, description, settings, sealed secrets and digest."""
        secrets = secrets_of(new.settings)
        settings = [{"name": name, "value": value} for name, value in masked(new.settings).items()]
        sealed = self._sealer.seal(orjson.dumps(secrets)) if secrets else None
        return new.nice_name, new.description, settings, sealed, new.example_digest

    def _instance(self, row: Row) -> ConnectorInstance:
        return ConnectorInstance(
            id=row["id"],
            nice_name=row["nice_name"],
            dialect=row["dialect"],
            interface=row["interface"],
            description=row["description"],
            settings=self._settings(row),
            groups=tuple(row["groups"]),
            version=row["version"],
            last_modified=row["changed_at"],
            example_digest=row["example_digest"],
        )

    def _settings(self, row: Row) -> Mapping[str, SettingValue]:
        shown: dict[str, SettingValue] = {one["name"]: one["value"] for one in row["settings"]}
        if row["sealed_secrets"] is None:
            return shown
        try:
            secrets = orjson.loads(self._sealer.unseal(row["sealed_secrets"]))
        except ValueError as error:
            log.warning("connector secrets could not be decrypted", connector=row["id"], reason=str(error))
            return without_secrets(shown)
        return {**shown, **secrets}


async def _require_free_name(connection: Connection, name: str, *, except_id: int = 0) -> None:
    """Raise NameTaken if the name is in use.

    Names are compared in Python, because case folding in the database depends on its locale.
    """
    rows = await connection.fetch("select id, nice_name from connectors where deleted_at is null")
    if any(row["nice_name"].casefold() == name.casefold() and row["id"] != except_id for row in rows):
        raise errors.NameTaken(f"A connector named {name[:100]} already exists.")


async def _grant(connection: Connection, connector_id: int, groups: tuple[str, ...]) -> None:
    """Grant the connector to exactly these groups, replacing any grants made before the connector existed."""
    await connection.execute('delete from group_rights where "right" = $1', connector_right(connector_id))
    rows = await connection.fetch("select name from groups where name = any($1::text[]) for share", list(groups))
    known = {row["name"] for row in rows}
    for name in groups:
        if name not in known:
            raise errors.UnknownGroup(name)
    await connection.execute(_GRANT, list(groups), connector_right(connector_id))
