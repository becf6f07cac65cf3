"""A peer that serves a test's entities through the part of Atlas's REST API (version 2) that the search uses.

It evaluates `SearchParameters` as Atlas's documentation describes; `faults` are errors that it returns instead.
"""

import asyncio
import fnmatch
import json
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any, TypeVar

USER, PASSWORD = "svc", "atlas-secret"


@dataclass(frozen=True, slots=True)
class Fault:
    """An invalid response, or no response at all if `hangs` is set."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False


@dataclass
class ScriptedAtlas:
    """A peer with the entities that it serves and the requests that it has received."""

    entities: list[dict[str, Any]]
    classifications: Mapping[str, int] = field(default_factory=dict)
    known_types: frozenset[str] = frozenset({"hive_db", "hive_table", "hive_column", "hdfs_path"})
    url: str = ""
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    faults: deque[Fault] = field(default_factory=deque)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection with a single request."""
        try:
            request, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = {name.lower(): value for name, value in BytesParser().parsebytes(rest).items()}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = request.decode().split(" ", 2)
            self.asked.append((method, target, json.loads(body or b"{}")))
            fault = self.faults.popleft() if self.faults else None
            if fault is not None and fault.hangs:
                await asyncio.sleep(60)
            await self._send(writer, fault or self._answer(method, target, headers, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, answer: Fault) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        head = f"HTTP/1.1 {answer.status} Told\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n{more}\r\n"
        writer.write(head.encode() + answer.body)
        await writer.drain()

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Fault:
        pair = b64decode(headers.get("authorization", "").removeprefix("Basic ")).decode()
        if pair != f"{USER}:{PASSWORD}":
            return Fault(401)
        match method, target.removeprefix("/api/atlas"):
            case "POST", "/v2/search/basic":
                return self._search(json.loads(body))
            case "GET", "/v2/types/typedefs?type=classification":
                return _json_response({"classificationDefs": [{"name": name} for name in self.classifications]})
            case "GET", "/admin/metrics":
                return _json_response({"tag": {"tagEntities": {k: v for k, v in self.classifications.items() if v}}})
            case "GET", "/admin/version":
                return _json_response({"Version": "2.4.0", "Name": "apache-atlas"})
            case _:
                return Fault(404)

    def _search(self, asked: dict[str, Any]) -> Fault:
        types = asked["typeName"].split(",")
        if unknown := [name for name in types if name not in self.known_types]:
            return Fault(404, json.dumps({"errorCode": "ATLAS-404-00-001", "errorMessage": unknown[0]}).encode())
        tags = [tag for tag in asked.get("classification", "").split(",") if tag]
        found = [
            entity
            for entity in sorted(self.entities, key=lambda one: one["attributes"]["qualifiedName"])
            if entity["typeName"] in types
            and (not tags or any(fnmatch.fnmatchcase(have, tag) for have in _tags(entity) for tag in tags))
            and _holds(asked.get("entityFilters"), entity["attributes"])
        ]
        told = {"name", "qualifiedName", *asked.get("attributes", [])}
        page = [
            {**one, "attributes": {name: value for name, value in one["attributes"].items() if name in told}}
            for one in found[asked["offset"] : asked["offset"] + asked["limit"]]
        ]
        return _json_response({"queryType": "BASIC", "entities": page, "approximateCount": len(found)})


def entity(kind: str, qualified_name: str, *, tags: Sequence[str] = (), **attributes: Any) -> dict[str, Any]:
    """Return an entity header in Atlas's format."""
    name = qualified_name.partition("@")[0].rpartition("." if kind != "hdfs_path" else "/")[2]
    return {
        "typeName": kind,
        "guid": f"guid-{qualified_name}",
        "status": "ACTIVE",
        "displayText": name,
        "classificationNames": list(tags),
        "meaningNames": [],
        "meanings": [],
        "attributes": {"name": name, "qualifiedName": qualified_name, **attributes},
    }


AnyAtlas = TypeVar("AnyAtlas", bound=ScriptedAtlas)


@asynccontextmanager
async def scripted_atlas(
    entities: Sequence[dict[str, Any]], classifications: Mapping[str, int] | None = None
) -> AsyncGenerator[ScriptedAtlas]:
    """Serve these entities on a free loopback port."""
    async with listening(ScriptedAtlas(list(entities), classifications or {})) as atlas:
        yield atlas


@asynccontextmanager
async def listening(atlas: AnyAtlas) -> AsyncGenerator[AnyAtlas]:
    """Run this peer on a free loopback port."""
    server = await asyncio.start_server(atlas.serve, "127.0.0.1", 0)
    atlas.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield atlas
    finally:
        server.close()


def _tags(one: Mapping[str, Any]) -> Sequence[str]:
    return one["classificationNames"]


def _json_response(content: object) -> Fault:
    return Fault(200, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _holds(criterion: dict[str, Any] | None, attributes: Mapping[str, Any]) -> bool:
    if criterion is None:
        return True
    if "criterion" in criterion:
        held = (_holds(one, attributes) for one in criterion["criterion"])
        return all(held) if criterion["condition"] == "AND" else any(held)
    value = str(attributes.get(criterion["attributeName"]) or "")
    wanted = criterion["attributeValue"]
    match criterion["operator"]:
        case "contains":
            return wanted.lower() in value.lower()
        case "eq":
            return value == wanted
        case "endsWith":
            return value.endswith(wanted)
        case "like":
            return fnmatch.fnmatchcase(value.lower(), wanted.lower())
        case operator:
            raise AssertionError(operator)
