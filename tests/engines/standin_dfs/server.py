"""The DFS calls over HTTP, on a loopback port in the tests' own event loop."""

import base64
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import format_datetime
from urllib.parse import unquote

from aiohttp import web
from tests.engines.servers import HttpAddress
from tests.engines.standin_dfs.access import Access, LoginService
from tests.engines.standin_dfs.tree import Entry, Refusal, Tree

ACCOUNT = "standinaccount"
_DELETED_AT_ONCE = 3
"""The number of entries that one call deletes, which is small enough that recursive deletes in tests need
continuations.
"""

_LETTERS = "rwxrwxrwx"


class DfsServer:
    """A storage account with a hierarchical namespace."""

    def __init__(self) -> None:
        self.access = Access(ACCOUNT, base64.b64encode(secrets.token_bytes(64)).decode())
        self.login = LoginService(self.access)
        self.trees: dict[str, Tree] = {}
        self.address = HttpAddress("127.0.0.1", 0)
        self.calls: list[str] = []
        """Method and path of every call, in order."""
        self.failures: list[tuple[str, Refusal]] = []
        """Failures to return; each applies to the next call with its method."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.raw_path}")
        try:
            self.access.check(request)
            for planned in self.failures:
                if planned[0] == request.method:
                    self.failures.remove(planned)
                    raise planned[1]
            names = [unquote(name) for name in request.raw_path.partition("?")[0].split("/")[1:]]
            return await self._answer(request, names[0], "/".join(names[1:]))
        except Refusal as refused:
            content = {"error": {"code": refused.code, "message": f"{refused.code}\nRequestId:1-2-3\nTime:now"}}
            headers = {"x-ms-error-code": refused.code, "Location": "http://127.0.0.1:9/elsewhere"}
            return web.json_response(content, status=refused.status, headers=headers)

    async def _answer(self, request: web.Request, container: str, path: str) -> web.StreamResponse:
        query = request.query
        if query.get("resource") == "account":
            return self._page(request, "filesystems", [_facts_of(n, t.root) for n, t in sorted(self.trees.items())])
        if query.get("resource") == "filesystem" and request.method == "PUT":
            if container in self.trees:
                raise Refusal(409, "FilesystemAlreadyExists")
            self.trees[container] = Tree()
            return web.Response(status=201)
        if container not in self.trees:
            raise Refusal(404, "FilesystemNotFound")
        tree = self.trees[container]
        if query.get("resource") == "filesystem":
            return self._container(request, container, tree)
        call: dict[str, Callable[[web.Request, Tree, str], Awaitable[web.StreamResponse]]] = {
            "PUT": self._put,
            "PATCH": self._patch,
            "HEAD": self._head,
            "GET": self._get,
            "DELETE": self._delete,
        }
        return await call[request.method](request, tree, path)

    def _container(self, request: web.Request, container: str, tree: Tree) -> web.Response:
        if request.method == "DELETE":
            del self.trees[container]
            return web.Response(status=202)
        if request.method == "HEAD":
            return web.Response(headers={**_times(tree.root), "x-ms-namespace-enabled": "true"})
        directory = request.query.get("directory", "")
        if not tree.find(directory).is_directory:
            raise Refusal(409, "ResourceTypeMismatch")
        assert request.query["recursive"] == "false"
        return self._page(request, "paths", [_facts_of(path, tree.find(path)) for path in tree.children(directory)])

    def _page(self, request: web.Request, key: str, items: list[dict[str, str]]) -> web.Response:
        start, size = int(request.query.get("continuation", "0")), int(request.query["maxResults"])
        headers = {"x-ms-continuation": str(start + size)} if start + size < len(items) else {}
        return web.json_response({key: items[start : start + size]}, headers=headers)

    async def _put(self, request: web.Request, tree: Tree, path: str) -> web.Response:
        must_be_new = request.headers.get("If-None-Match") == "*"
        if source := request.headers.get("x-ms-rename-source"):
            _, container, *names = source.split("/")
            if self.trees.get(unquote(container)) is not tree:
                raise Refusal(400, "InvalidSourceUri")
            replaced = request.headers.get("If-Match")
            old = unquote("/".join(names))
            return web.Response(
                status=201, headers=_times(tree.rename(old, path, must_be_new=must_be_new, replaced=replaced))
            )
        permissions = int(request.headers.get("x-ms-permissions", "0777"), 8)
        permissions &= ~int(request.headers.get("x-ms-umask", "0027"), 8)
        is_directory = request.query["resource"] == "directory"
        entry = tree.create(path, is_directory=is_directory, permissions=permissions, must_be_new=must_be_new)
        return web.Response(status=201, headers=_times(entry))

    async def _patch(self, request: web.Request, tree: Tree, path: str) -> web.Response:
        action = request.query["action"]
        if action == "append":
            tree.file(path)
            # Reading raises an error if the client disconnects midway, so nothing is appended then.
            content = await request.content.read()
            tree.append(path, int(request.query["position"]), content)
            return web.Response(status=202)
        if action == "flush":
            entry = tree.flush(path, int(request.query["position"]))
        else:
            entry = tree.find(path)
            if action == "setAccessControl":
                if "x-ms-acl" in request.headers and "x-ms-permissions" in request.headers:
                    raise Refusal(400, "InvalidInput")
                entry.permissions = int(request.headers.get("x-ms-permissions", f"{entry.permissions:o}"), 8)
                entry.acl = request.headers.get("x-ms-acl", entry.acl)
                entry.owner = request.headers.get("x-ms-owner", entry.owner)
                entry.group = request.headers.get("x-ms-group", entry.group)
            entry.changed()
        return web.Response(headers=_times(entry))

    async def _head(self, request: web.Request, tree: Tree, path: str) -> web.StreamResponse:
        entry = tree.find(path)
        facts = _facts_of(path, entry)
        own = {f"x-ms-{name}": facts[name] for name in ("owner", "group", "permissions")}
        kind = "directory" if entry.is_directory else "file"
        if request.query.get("action") == "getAccessControl":
            own["x-ms-acl"] = entry.acl
        length = {"Content-Length": facts["contentLength"], "x-ms-resource-type": kind}
        return web.Response(headers={**_times(entry), **own, **length})

    async def _get(self, request: web.Request, tree: Tree, path: str) -> web.StreamResponse:
        entry = tree.file(path)
        if request.headers.get("If-Match", entry.etag) != entry.etag:
            raise Refusal(412, "ConditionNotMet")
        wanted = request.http_range
        if wanted.start is None:
            return web.Response(body=entry.content, headers={**_times(entry), "x-ms-resource-type": "file"})
        if wanted.start >= len(entry.content):
            raise Refusal(416, "InvalidRange")
        return web.Response(status=206, body=entry.content[wanted], headers=_times(entry))

    async def _delete(self, request: web.Request, tree: Tree, path: str) -> web.Response:
        is_done = tree.delete(path, recursive=request.query["recursive"] == "true", at_most=_DELETED_AT_ONCE)
        return web.Response(headers={} if is_done else {"x-ms-continuation": "more"})


def _times(entry: Entry) -> dict[str, str]:
    return {"ETag": entry.etag, "Last-Modified": format_datetime(entry.modified_at, usegmt=True)}


def _facts_of(name: str, entry: Entry) -> dict[str, str]:
    """Return an entry's metadata as in a listing, where all values are strings."""
    times = _times(entry)
    letters = "".join(x if entry.permissions >> (8 - at) & 1 else "-" for at, x in enumerate(_LETTERS))
    if entry.permissions & 0o1000:
        letters = letters[:8] + ("t" if letters[8] == "x" else "T")
    facts = {
        "name": name,
        "contentLength": str(len(entry.content)),
        "etag": times["ETag"].strip('"'),
        "lastModified": times["Last-Modified"],
        "owner": entry.owner,
        "group": entry.group,
        "permissions": letters + ("+" if entry.acl else ""),
    }
    return {**facts, "isDirectory": "true"} if entry.is_directory else facts


@asynccontextmanager
async def dfs_server() -> AsyncGenerator[DfsServer]:
    """Start an account that has no containers."""
    server = DfsServer()
    application = web.Application()
    application.router.add_post("/{tenant}/oauth2/v2.0/token", server.login.token)
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.address = HttpAddress("127.0.0.1", runner.addresses[0][1])
        yield server
    finally:
        await runner.cleanup()
