"""Makes every served call once, in a fixed order. The responses of complete walks can then be compared."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import httpx
from tests.api.answers import operation_of
from tests.api.driving import Api, Caller
from tests.operations import read_operations

from queryserver.identity.model import AuthenticatedUser

Answers = dict[tuple[str, str], httpx.Response]

# Fields that differ between two identical calls.
_VOLATILE = {
    "access", "refresh", "history_id", "history_uuid", "guid", "secret", "session_id", "session_guid", "id", "uuid",
    "operationId", "watch_url", "absoluteUrl", "expires_at", "lastExecuted", "count", "ms", "size",
    "submitted", "started", "ended", "elapsed_ms", "queued_ms", "queue_position",
    "log", "logs", "next_from", "nice_name", "last_modified", "created", "modified", "modified_by", "owner",
    "next_after", "username", "link", "until", "shared_at", "shared_by", "url",
    # The search index is filled during the walk.
    "results", "facets", "totalMatched", "sources", "warnings",
}  # fmt: skip
_PASSWORD = "a long enough word"
_PRIVATE = (("editor/", "/notebook/api/"), ("token/", "/api/token/"), ("documents/save", "/notebook/api/notebook/save"))
_numbers = count(1)


class Walk:
    """The walk of one user. `slash` is appended to each path, and the fields in `extra` are sent with each call. In
    JSON bodies, fields have their JSON types.

    If `private` is set, calls use the paths of Hue's own pages, provided that there is such a path.
    """

    def __init__(
        self, api: Api, caller: Caller, *, slash: str = "", as_json: bool = False, private: bool = False, **extra: Any
    ) -> None:
        self._api = api
        self._caller = caller
        self._slash = slash
        self._as_json = as_json
        self._private = private
        self._extra = extra
        self.answers: Answers = {}

    async def whole(self) -> Answers:
        """Make all calls, which must succeed; return the responses by call."""
        await self._tokens()
        await self._statements()
        await self._metadata()
        await self._sessions()
        await self._documents()
        await self._around()
        return self.answers

    async def stable_responses(self, plain: Answers) -> dict[tuple[str, str], Any]:
        """Make all calls. For each call that the other walk also made, return the stable part of the response."""
        answers = await self.whole()
        return {key: stable(answers[key]) for key in plain}

    async def _tokens(self) -> None:
        name = f"walker{next(_numbers)}"
        await self._api.services.accounts.accounts.create(AuthenticatedUser(name), _PASSWORD)
        pair = await self._post("token/auth", username=name, password=_PASSWORD)
        await self._post("token/verify", token=pair["access"])
        await self._post("token/refresh", refresh=pair["refresh"])
        await self._post("token/revoke", token=pair["refresh"])
        await self._get("token/options")
        # Without the walker's own bearer token, which the end of the session would revoke.
        page = Walk(
            self._api,
            replace(self._caller, headers={"X-Requested-With": "queryserver"}),
            slash=self._slash,
            as_json=self._as_json,
            **self._extra,
        )
        await page._post("token/session", username=name, password=_PASSWORD)
        await page._post("token/session/refresh")
        await page._post("token/session/end")
        self.answers |= page.answers

    async def _statements(self) -> None:
        statement = {"statement": "rows 3", "wait": 30}
        operation = (await self._post("editor/execute/mysql", **statement))["history_uuid"]
        await self._post("editor/execute", **statement, snippet={"type": "mysql"})
        await self._post("query/mysql", **statement)
        for call in ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size", "get_logs"):
            await self._post(f"editor/{call}", operationId=operation)
        await self._post(f"editor/watch/{operation}")
        await self._get(f"editor/events/{operation}")
        await self._post("token/download", url=f"/api/v1/editor/download/{operation}")
        await self._get(f"editor/download/{operation}")
        await self._get("editor/get_history")
        await self._post("editor/share_result", operationId=operation, groups="default")
        await self._get(f"editor/shares/{operation}")
        await self._get("editor/shared_with_me")
        await self._get(f"editor/results/{operation}")
        await self._post("editor/revoke_share", operationId=operation)
        await self._post("editor/cancel_statement", operationId=operation)
        await self._post("editor/close_statement", operationId=operation)

    async def _metadata(self) -> None:
        for group in ("editor", "query"):
            for path in ("", "/shop", "/shop/t10", "/shop/t10/tags", "/shop/t10/tags/item/v/value"):
                await self._post(f"{group}/autocomplete{path}", snippet={"type": "shelf"})
        for path in ("shop/t10", "shop/t10/tags"):
            await self._post(f"editor/sample/{path}", snippet={"type": "shelf"})
        await self._post("editor/sample/default/nested/tags/item", snippet={"type": "shelf"}, operation="hello")
        for path in ("shop", "shop/t10", "shop/t10/stats", "shop/t10/stats/id"):
            await self._post(f"editor/describe/{path}", source_type="shelf")
        await self._post("editor/explain", snippet={"type": "shelf"}, statement="rows 3")
        await self._post("editor/explain/shelf", statement="rows 3")
        await self._post("editor/format", statements="select 1")
        for path in ("shop/t10", "shop/t10/id"):
            await self._post(f"shelf/analyze/{path}")

    async def _sessions(self) -> None:
        opened = (await self._post("editor/create_session", session={"type": "mysql"}))["session"]
        await self._post("editor/close_session", session={"type": "mysql", "id": opened["id"]})
        await self._post("editor/create_notebook")
        await self._post("query/create_notebook")

    async def _documents(self) -> None:
        document = {"name": "Walked", "statement": "rows 3", "connector": "mysql"}
        uuid = (await self._post("documents/save", document=document))["uuid"]
        await self._post("documents/save", document={"uuid": uuid, "version": 1, "name": "Walked on"})
        await self._get("documents")
        for path in ("", "/versions", "/versions/1"):
            await self._get(f"documents/{uuid}{path}")
        await self._post("documents/restore_version", uuid=uuid, restore=1, version=2)
        await self._post("documents/move", uuid=uuid, folder="/walked")
        await self._post("documents/share", uuid=uuid, grants=[])
        await self._post("documents/change_owner", uuid=uuid, to_user=self._caller.username)
        await self._post("documents/delete", uuid=uuid)
        await self._post("documents/restore", uuid=uuid)

    async def _around(self) -> None:
        for path in ("/desktop/debug/is_alive", "/desktop/debug/is_ready", "/api/schema", "/api/docs", "/api/swagger"):
            await self._get(path)
        for path in ("openapi.json", "banners", "get_namespaces/mysql"):
            await self._get(path)
        for kind in ("namespaces", "computes", "clusters"):
            await self._get(f"context/{kind}/mysql")
            await self._get(f"/desktop/api2/context/{kind}/mysql")
        await self._post("get_config")
        await self._get("iam/preferences")
        await self._get("iam/budget")
        await self._post("iam/preferences", big_numbers="number")
        await self._connectors()
        await self._post("metadata/search/entities_interactive", query_s="t10", sources=["sql"])

    async def _connectors(self) -> None:
        admin = await self._api.user("root", admin=True)
        made = {"nice_name": f"Walked {next(_numbers)}", "dialect": "sqlite", "interface": "sqlite"}
        stored = (await admin.post_json("connector/instance/update", connector=made)).json()["connector"]
        for path in ("connector/types", "connectors/types", "connector/instances"):
            await self._get(path)
        await self._post("connectors/types")
        await self._post("connector/instance/new/trino/trino", connector={"nice_name": "Lake"})
        await self._get(f"connector/instance/get/{stored['id']}")
        await admin.post_json("connector/instance/delete", connector={"id": stored["id"]})

    async def _post(self, path: str, **fields: Any) -> dict[str, Any]:
        fields, path = {**fields, **self._extra}, self._path(path)
        if self._as_json:
            answer = await self._caller.send("POST", path + self._slash, json=fields)
        else:
            text = {
                name: value if isinstance(value, str | int) else json.dumps(value) for name, value in fields.items()
            }
            answer = await self._caller.send("POST", path + self._slash, data=text)
        return self._kept(answer).json()

    async def _get(self, path: str) -> None:
        self._kept(await self._caller.send("GET", self._path(path) + self._slash, params=self._extra))

    def _path(self, path: str) -> str:
        for public, private in _PRIVATE if self._private else ():
            if path.startswith(public):
                other = path.replace(public, private, 1)
                return other if operation_of("POST", other) or operation_of("GET", other) else path
        return path

    def _kept(self, answer: httpx.Response) -> httpx.Response:
        assert answer.status_code == 200, answer.text
        operation = operation_of(answer.request.method, answer.request.url.path)
        assert operation is not None
        self.answers[operation.key] = answer
        return answer


def served_calls() -> set[tuple[str, str]]:
    """Return the documented calls that a walk must make.

    The responses of /metrics, assets and the console are excluded, because they depend on the address, the package and
    the caller. File calls have a walk of their own in `storage/test_paths.py`. Calls of the importer, API tokens and
    administrators, logins at an external issuer, and exports, which need a store, are covered by other tests. Optimizer
    calls are never made.
    """
    return {
        one.key
        for one in read_operations()
        if one.rights != "network"
        and one.group not in {"storage", "importer", "optimizer", "console"}
        and one.rights != "admin"
        and not one.path.startswith(("/api/v1/token/api_tokens", "/api/v1/token/oidc/", "/api/v1/token/device/"))
        and not one.path.endswith("{asset}")
        and one.path != "/api/v1/editor/export_result"
    }


def stable(answer: httpx.Response) -> Any:
    """Return the part of a response that is the same for two identical calls."""
    kind = answer.headers["content-type"]
    return kind, _steady(answer.json()) if kind == "application/json" else None


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "…" if key in _VOLATILE or _is_id(key, element) else _steady(element) for key, element in value.items()
        }
    if isinstance(value, list):
        return [_steady(element) for element in value]
    return value


def _is_id(key: str, value: Any) -> bool:
    """Return whether the value is the name of a stored connector, which equals its id."""
    return key == "name" and isinstance(value, str) and value.isdecimal()
