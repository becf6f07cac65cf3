"""Documents: saved queries with parameters, versions, folders and grants (Contract documents)."""

import uuid as uuids
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queryserver_client.encoding import Parameters, encode_parameters
from queryserver_client.exports import destination
from queryserver_client.guards import Guards
from queryserver_client.result import Result
from queryserver_client.statement import FIRST_ROWS, Statement, canceling
from queryserver_client.submitted import WAIT_S, OnLog, OnProgress
from queryserver_client.transport import Transport, segment

if TYPE_CHECKING:
    from queryserver_client.generated import (
        Document,
        DocumentEntry,
        DocumentListResponse,
        DocumentOwnerResponse,
        DocumentResponse,
        DocumentSaveResponse,
        DocumentVersion,
        DocumentVersionEntry,
        DocumentVersionListResponse,
        DocumentVersionResponse,
    )

_PAGE_DOCUMENTS = 200


class Documents:
    """Implements `Connection.documents`. A document is the dictionary that the server returns."""

    def __init__(self, transport: Transport, execute: Callable[..., Coroutine[Any, Any, Statement]]) -> None:
        self._transport = transport
        self._execute = execute

    async def list(
        self,
        text: str = "",
        *,
        folder: str | None = None,
        tag: str | None = None,
        owner: str | None = None,
        type: str | None = None,  # noqa: A002 the name of the field
        in_trash: bool = False,
        of_all_users: bool = False,
        limit: int | None = None,
    ) -> "AsyncIterator[DocumentEntry]":
        """Yield your documents and those shared with you, last changed first, without their statements.

        `text` is a part of the name, the description or the statement. All given filters must match.
        `of_all_users` is for administrators.
        """
        given = {"text": text, "folder": folder, "tag": tag, "owner": owner, "type": type}
        params: dict[str, Any] = {name: value for name, value in given.items() if value}
        params |= {"trash": "true"} if in_trash else {}
        params |= {"all": "true"} if of_all_users else {}
        left = limit
        while left is None or left > 0:
            params["limit"] = _PAGE_DOCUMENTS if left is None else min(left, _PAGE_DOCUMENTS)
            body: DocumentListResponse = await self._transport.call("GET", "documents", params=params)
            for entry in body["documents"]:
                yield entry
            if body["next_after"] is None:
                return
            params["after"] = body["next_after"]
            left = None if left is None else left - len(body["documents"])

    async def get(self, uuid: str) -> "Document":
        """Return a document. Raises NotFound, also if you may not see it."""
        body: DocumentResponse = await self._transport.call("GET", f"documents/{segment(uuid)}")
        return body["document"]

    async def save(
        self,
        name: str | None = None,
        statement: str | None = None,
        *,
        uuid: str | None = None,
        version: int | None = None,
        connector: str | None = None,
        database: str | None = None,
        parameters: "Sequence[Mapping[str, Any]] | None" = None,
        description: str | None = None,
        tags: "Sequence[str] | None" = None,
        folder: str | None = None,
        operation_id: str | None = None,
    ) -> "Document":
        """Create a document or, with `uuid`, save a new version of it. Arguments that are None stay as they are.

        `version` is the version that you have read; if another one is stored, Conflict is raised and nothing is saved.
        `parameters` are dictionaries with `name`, and optionally `type` and `default`. `operation_id` saves a statement
        of your history.
        """
        given = {
            # With an id chosen here, a call that is repeated after its response was lost creates only one document.
            "uuid": uuid or str(uuids.uuid4()),
            "version": version,
            "name": name,
            "statement": statement,
            "connector": connector,
            "database": database,
            "parameters": None if parameters is None else [dict(one) for one in parameters],
            "description": description,
            "tags": None if tags is None else [*tags],
            "folder": folder,
        }
        fields: dict[str, Any] = {"document": {key: value for key, value in given.items() if value is not None}}
        fields |= {"operationId": operation_id} if operation_id else {}
        body: DocumentSaveResponse = await self._transport.call("POST", "documents/save", fields, is_repeatable=True)
        return body["document"]

    async def delete(self, uuid: str, *, skip_trash: bool = False) -> None:
        """Move a document to the trash, or delete it for ever."""
        await self._transport.call("POST", "documents/delete", {"uuid": uuid, "skip_trash": skip_trash})

    async def restore(self, uuid: str) -> "Document":
        """Take a document out of the trash."""
        return await self._changed("restore", uuid)

    async def move(self, uuid: str, folder: str) -> "Document":
        """Move a document to another folder, such as `/reports/daily`."""
        return await self._changed("move", uuid, folder=folder)

    async def share(
        self, uuid: str, permission: str, *, users: "Sequence[str]" = (), groups: "Sequence[str]" = ()
    ) -> "Document":
        """Grant `view`, `run` or `edit` to users and groups, or revoke their grants with `none`."""
        grants = [{"user": user, "permission": permission} for user in users]
        grants += [{"group": group, "permission": permission} for group in groups]
        return await self._changed("share", uuid, grants=grants)

    async def change_owner(self, uuid: str, to_user: str, *, keep: str = "none") -> int:
        """Give a document to another user. `keep` is what the former owner may still do: `view`, `run` or `edit`.

        Return 1, or 0 if that user owned the document before.
        """
        return await self._give(to_user, keep, uuid=uuid)

    async def change_owner_of_all(self, from_user: str, to_user: str, *, keep: str = "none") -> int:
        """Give all documents of a user, including the trash, to another user. Return how many have changed.

        `from_user` is yourself, or any user if you are an administrator. `keep` is as in `change_owner`.
        """
        return await self._give(to_user, keep, from_user=from_user)

    async def versions(self, uuid: str) -> "Sequence[DocumentVersionEntry]":
        """Return the current version and the former versions that the server keeps, newest first."""
        path = f"documents/{segment(uuid)}/versions"
        body: DocumentVersionListResponse = await self._transport.call("GET", path)
        return body["versions"]

    async def version(self, uuid: str, version: int) -> "DocumentVersion":
        """Return the content of a version."""
        path = f"documents/{segment(uuid)}/versions/{version}"
        body: DocumentVersionResponse = await self._transport.call("GET", path)
        return body["version"]

    async def restore_version(self, uuid: str, restore: int, *, version: int) -> "Document":
        """Save the content of version `restore` as a new version. `version` is the version that you have read."""
        return await self._changed("restore_version", uuid, restore=restore, version=version)

    async def submit(
        self,
        uuid: str,
        parameters: Parameters | None = None,
        *,
        connector: str = "",
        database: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        max_age: int | None = None,
        read_only: bool = False,
        max_estimated_bytes: int | None = None,
        run_all: bool = True,
        allow_truncated: bool = False,
        into: str | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Statement:
        """Run a document without waiting for its end, with your own rights. The arguments are those of `run`."""
        guards = Guards(read_only, max_estimated_bytes)
        fields = _run_fields(
            uuid, parameters, database, limit, timeout, max_age, guards=guards, run_all=run_all, into=into
        )
        return await self._execute(
            connector,
            fields,
            allow_truncated=allow_truncated,
            key=idempotency_key or str(uuids.uuid4()),
            is_abandoned=not idempotency_key,
        )

    async def run(
        self,
        uuid: str,
        parameters: Parameters | None = None,
        *,
        connector: str = "",
        database: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        max_age: int | None = None,
        read_only: bool = False,
        max_estimated_bytes: int | None = None,
        run_all: bool = True,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool = False,
        into: str | Mapping[str, Any] | None = None,
    ) -> Result:
        """Run a document with your own rights and return its result, like `Connection.query`.

        `parameters` are a mapping; the document's defaults apply to those that it leaves out, as do its connector and
        its database. `into` sends the rows to files or to a table, as in `Connection.query`.
        """
        guards = Guards(read_only, max_estimated_bytes)
        fields = _run_fields(
            uuid, parameters, database, limit, timeout, max_age, guards=guards, run_all=run_all, into=into
        )
        wait_s = 0.0
        if on_progress is None and on_log is None and into is None:
            fields |= {"rows": FIRST_ROWS, "escape": False, "big_numbers": "number"}
            wait_s = WAIT_S
        statement = await self._execute(connector, fields, allow_truncated=allow_truncated, wait_s=wait_s)
        async with canceling(statement):
            return await statement.result(on_progress=on_progress, on_log=on_log)

    async def _give(self, to_user: str, keep: str, **which: str) -> int:
        fields = {"to_user": to_user, "keep": keep, **which}
        body: DocumentOwnerResponse = await self._transport.call("POST", "documents/change_owner", fields)
        return body["changed"]

    async def _changed(self, call: str, uuid: str, **fields: Any) -> "Document":
        body: DocumentResponse = await self._transport.call("POST", f"documents/{call}", {"uuid": uuid, **fields})
        return body["document"]


def _run_fields(
    uuid: str,
    parameters: Parameters | None,
    database: str | None,
    limit: int | None,
    timeout: float | None,
    max_age: int | None,
    *,
    guards: Guards,
    run_all: bool,
    into: str | Mapping[str, Any] | None,
) -> dict[str, Any]:
    given = {
        "document": uuid,
        "parameters": None if parameters is None else encode_parameters(parameters),
        "database": database,
        "limit": limit,
        "timeout": timeout,
        "max_age_s": max_age,
        # `into` applies to one statement: of a script, only the first runs.
        "run_all": True if run_all and into is None else None,
        "into": None if into is None else destination(into),
        **guards.fields(),
    }
    return {name: value for name, value in given.items() if value is not None}
