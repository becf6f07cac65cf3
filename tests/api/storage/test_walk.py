"""Every served call on files once: in both forms, with and without a last slash, as form and as JSON."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from scripts.check_operations import SERVED, read_operations
from tests.api.answers import operation_of
from tests.api.driving import Caller
from tests.api.storage.worlds import Place, World
from tests.cases import each

from queryserver.files.model import Scheme

_NEVER_SUCCESSFUL = {"/api/v1/storage/extract_archive", "/api/v1/storage/compress"}


@dataclass
class StorageWalk:
    """The calls of one user on an HDFS in memory. `slash` ends each path but those of the form `=<path>`."""

    caller: Caller
    place: Place
    slash: str = ""
    as_json: bool = False
    answers: dict[tuple[str, str], httpx.Response] = field(default_factory=dict[tuple[str, str], httpx.Response])

    async def whole(self) -> set[tuple[str, str]]:
        """The calls, each answered with a success."""
        await self._reading()
        await self._making()
        await self._moving()
        await self._uploading()
        await self._deleting()
        return set(self.answers)

    async def _reading(self) -> None:
        self.place.put(d=None, d__x=b"text")
        await self._get("filesystems")
        await self._get("list", path=self.place.at("d"))
        for call in ("display", "stat", "download", "content_summary", "trash/path"):
            await self._get(call, path=self.place.at("d/x"))
        for call in ("view", "stat", "download", "content_summary"):
            path = quote(self.place.at("d/x"), safe="")
            self._keep(await self.caller.send("GET", f"storage/{call}={path}"))

    async def _making(self) -> None:
        for number, call in enumerate(("mkdir", "touch", "create/directory", "create/file")):
            await self._post(call, path=self.place.path, name=f"new{number}")
        await self._post("save", path=self.place.at("d/x"), contents="other")
        for call in ("set_replication", "replication"):
            await self._post(call, path=self.place.at("d/x"), replication_factor=2)
        for call in ("chmod", "chmod/bulk"):
            await self._post(call, path=self.place.at("d/x"), mode="640")
        for call in ("chown", "chown/bulk"):
            await self._post(call, path=self.place.at("d/x"), group="people")

    async def _moving(self) -> None:
        await self._post("rename", src_path=self.place.at("d/x"), dest_path="y")
        await self._post("move", source_path=self.place.at("d/y"), destination_path=self.place.at("z"))
        await self._post("copy", src_path=self.place.at("z"), dest_path=self.place.at("d"))
        await self._post("copy/bulk", source_path=self.place.at("z"), destination_path=self.place.at("d/c"))
        await self._post("move/bulk", source_path=self.place.at("d/c"), destination_path=self.place.at("m"))
        slow = await self._post("copy", src_path=self.place.at("d"), dest_path=self.place.at("e"), wait=0)
        while (
            slow.status_code == 202
            and (await self._get("operation", id=slow.json()["operation_id"])).json()["state"] == "running"
        ):
            pass

    async def _uploading(self) -> None:
        target = quote(self.place.path, safe="")
        file = {"file": ("up", b"abc")}
        self._keep(await self.caller.send("POST", f"storage/upload/file{self.slash}?dest={target}", files=file))
        upload = {
            "qquuid": str(uuid4()),
            "qqpartindex": 0,
            "qqpartbyteoffset": 0,
            "qqtotalfilesize": 3,
            "qqtotalparts": 1,
            "qqfilename": "parts",
            "qqchunksize": 3,
            "dest": self.place.path,
        }
        for last in (False, True):
            query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in upload.items())
            self._keep(await self.caller.send("POST", f"storage/upload/chunks{self.slash}?{query}", files=file))
            await self._get("upload/chunks", qquuid=upload["qquuid"])
            if last:
                await self._post("upload/complete", **upload)
            else:
                gone = f"storage/upload/chunks{self.slash}?qquuid={upload['qquuid']}"
                self._keep(await self.caller.send("DELETE", gone))
        self._keep(await self.caller.send("GET", f"taskserver/upload/available_space{self.slash}"))

    async def _deleting(self) -> None:
        for call in ("trash/restore", "trash/restore/bulk"):
            gone = await self._post("rmtree", path=self.place.at("d"), skip_trash=False)
            await self._post(call, path=gone.json()["trash_path"])
        await self._post("delete", path=self.place.at("d"))
        await self._post("delete/bulk", path=self.place.at("z"))
        await self._post("trash/purge", path=self.place.path)

    async def _post(self, call: str, **fields: Any) -> httpx.Response:
        send = self.caller.post_json if self.as_json else self.caller.post
        return self._keep(await send(f"storage/{call}{self.slash}", **fields))

    async def _get(self, call: str, **query: Any) -> httpx.Response:
        return self._keep(await self.caller.get(f"storage/{call}{self.slash}", **query))

    def _keep(self, answer: httpx.Response) -> httpx.Response:
        assert answer.status_code in {200, 201, 202}, answer.text
        path = answer.request.url.raw_path.partition(b"?")[0].decode()
        operation = operation_of(answer.request.method, path)
        assert operation is not None, path
        self.answers[operation.key] = answer
        return answer


@pytest.mark.storage(1, 4, 5, 6)
@each(("slash", "as_json"), [("", False), ("/", True)])
async def test_every_call_of_the_table_is_served(world: World, slash: str, as_json: bool) -> None:
    walk = StorageWalk(await world.api.user("ana", admin=True), world.place(Scheme.HDFS), slash, as_json)
    found = await walk.whole()
    wanted = {
        one.key
        for one in read_operations()
        if one.group == "storage" and one.status == SERVED and one.path not in _NEVER_SUCCESSFUL
    }
    assert found == wanted
    for answer in walk.answers.values():
        assert answer.content
        body = answer.json() if answer.headers["content-type"] == "application/json" else {"status": 0}
        assert isinstance(body, list) or body["status"] == 0
