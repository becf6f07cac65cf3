"""The two formats of paths in calls, and a walk that makes every file call once (Contract storage 2.2)."""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.api.answers import operation_of
from tests.api.driving import Caller
from tests.api.storage.worlds import StoreFolder, World
from tests.operations import read_operations

from queryserver.files.model import Scheme

PATH_FORMS = ("view", "stat", "content_summary", "download")
QUERY_FORMS = ("list", "display", "stat", "content_summary", "download", "trash/path")

SAME = {
    "s3a://lake/k": ["s3a://lake/k", "s3a%3A%2F%2Flake%2Fk", "s3a:/lake/k", "s3://lake/k", "s3n://lake//k/",
                     "s3a:%2Flake%2Fk", "s3a:%252Flake%252Fk", "S3A://lake/./k"],
    "abfs://box/x": ["abfs://box/x", "adls://box/x", "abfss:/box/x", "adl:%2F%2Fbox%2Fx"],
    "/user/x": ["/user/x", "hdfs:///user/x", "hdfs:/user/x", "%2Fuser%2Fx", "%252Fuser%252Fx", "/user//x/",
                "hdfs%3A%2F%2F%2Fuser%2Fx", "user/x"],
    "ofs://service/volume": ["ofs://service/volume", "ofs:/service/volume", "ofs:///volume"],
    "file:///shared": ["file:///shared", "file:/shared", "file:////shared", "file%3A%2F%2F%2Fshared"],
    "/": ["", "/", "//", "%2F", "hdfs:///"],
}  # fmt: skip

BAD = {
    "gs://b": "unknown_scheme",
    "hdfs://other/user/x": "unknown_authority",
    "file://host/x": "unknown_authority",
    "file:///../x": "invalid_path",
    "/a/../b": "invalid_path",
    "/a/%2e%2e/b": "invalid_path",
    "/a/%2E%2E/b": "invalid_path",
    "/a/.%2e/b": "invalid_path",
    "/a/%252e%252e/b": "invalid_path",
    "/a/%25252e%25252E/b": "invalid_path",
    "s3a://lake/../x": "invalid_path",
    "s3a://../x": "invalid_path",
    "/.reserved/raw": "invalid_path",
    "/a/._qs_upload_1": "invalid_path",
    "/" + "x" * 256: "invalid_path",
    "/a%00b": "invalid_path",
    "/a%ffb": "invalid_path",
}
"""The expected error code of each path that follows `=` in a URL."""


async def raw(caller: Caller, path: str) -> httpx.Response:
    """Send a GET request whose path is not encoded further."""
    target = f"/api/v1/storage/{path}".encode()
    return await caller.send("GET", "storage/stat", extensions={"target": target})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.storage(11, 12, 13, 14)
@pytest.mark.parametrize("normal", SAME)
async def test_path_spellings_address_the_same_entry(world: World, eva: Caller, normal: str) -> None:
    for scheme, path in ((Scheme.S3A, "lake/k"), (Scheme.ABFS, "box/x"), (Scheme.HDFS, "user/x"),
                         (Scheme.OFS, "service/volume")):  # fmt: skip
        world.memory[scheme].tree.make_container(path)
    for spelling in SAME[normal]:
        answer = await eva.get(f"storage/view={spelling}")
        assert answer.json()["path"] == normal, (spelling, answer.text)
        listed = await eva.send("GET", f"storage/list?path={spelling}")
        assert listed.json()["path"] == normal, spelling


@pytest.mark.storage(15, 16, 18)
@pytest.mark.security("S1", "S2", "S4", "T1")
@pytest.mark.parametrize("path", BAD)
async def test_reading_calls_refuse_invalid_paths_before_reaching_a_store(world: World, eva: Caller, path: str) -> None:
    world.heal()
    answers = [await raw(eva, f"{call}={path}") for call in PATH_FORMS]
    answers += [await raw(eva, f"{call}?path={path}") for call in QUERY_FORMS]
    assert [code(answer) for answer in answers] == [(400, BAD[path])] * len(answers)
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(16)
@pytest.mark.security("S1")
@pytest.mark.parametrize("path", ["/a/../b", "/a/%2e%2e/b", "/a/%252e%252e/b", "s3a://lake/../x", "/a\0b"])
async def test_changing_calls_refuse_invalid_paths_before_reaching_a_store(
    world: World, eva: Caller, path: str
) -> None:
    world.heal()
    calls = {
        "mkdir": {"path": path}, "touch": {"path": path}, "create/directory": {"path": path, "name": "x"},
        "create/file": {"path": path, "name": "x"}, "save": {"path": path, "contents": ""},
        "rename": {"src_path": path, "dest_path": "/x"}, "move": {"src_path": "/x", "dest_path": path},
        "copy": {"src_path": path, "dest_path": "/x"}, "rmtree": {"path": path}, "delete": {"path": path},
        "set_replication": {"path": path, "replication_factor": 1}, "chown": {"path": path, "user": "x"},
        "chmod": {"path": path, "mode": "644"}, "trash/restore": {"path": path}, "trash/purge": {"path": path},
    }  # fmt: skip
    for call, fields in calls.items():
        answer = await eva.post(f"storage/{call}", **fields)
        assert answer.status_code == 400, (call, answer.text)
        assert answer.json()["code"] in {"invalid_path", "invalid_parameter"}, call
    upload = await eva.send("POST", f"storage/upload/file?dest={quote(path)}", files={"file": ("x", b"x")})
    assert upload.status_code == 400, upload.text
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(16)
@pytest.mark.security("S3")
async def test_unusual_but_valid_names_are_found(world: World, eva: Caller) -> None:
    for name in ("a..b", "...", "..\\x", "．．", "a+b", "%zz"):
        world.memory[Scheme.HDFS].tree.put(f"looks/{name}", b"x")
        for answer in (
            await eva.get(f"storage/stat=/looks/{quote(name, safe='+')}"),
            await eva.get("storage/stat", path=f"/looks/{name}"),
        ):
            assert answer.json()["path"] == f"/looks/{name}", answer.text


async def test_encoded_slash_in_the_path_form_separates_names(world, eva):
    world.memory[Scheme.HDFS].tree.put("deep/er", b"x")
    assert (await eva.get("storage/stat=%2Fdeep%2Fer")).json()["name"] == "er"
    assert (await eva.get("storage/stat=/deep%2Fer")).json()["name"] == "er"


@pytest.mark.storage(7)
async def test_last_of_repeated_path_parameters_counts(world: World, eva: Caller) -> None:
    world.memory[Scheme.HDFS].tree.put("twice/a", b"x")
    answer = await eva.send("GET", "storage/stat?path=/none&path=/twice/a")
    assert answer.json()["path"] == "/twice/a"


@pytest.mark.storage(1)
@pytest.mark.parametrize("call", ["filesystems", "list", "stat", "content_summary"])
async def test_trailing_slash_is_optional(world: World, eva: Caller, call: str) -> None:
    world.memory[Scheme.HDFS].tree.make_container("slash")
    plain, slashed = [await eva.send("GET", f"storage/{call}{end}?path=/slash") for end in ("", "/")]
    assert plain.status_code == 200
    assert plain.json() == slashed.json()


@pytest.mark.storage(5)
@pytest.mark.parametrize("path", ["filesystems", "list?path=/", "view=/", "stat=/", "content_summary=/"])
async def test_head_matches_get_without_a_body(eva: Caller, path: str) -> None:
    got, head = await eva.send("GET", f"storage/{path}"), await eva.send("HEAD", f"storage/{path}")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(got.content) > 0
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.storage(2)
@pytest.mark.parametrize("path", ["filesystems", "list", "view=/", "stat=/", "stat", "content_summary=/"])
async def test_wrong_method_response_lists_allowed_methods(eva: Caller, path: str) -> None:
    for method in ("POST", "DELETE", "PUT"):
        answer = await eva.send(method, f"storage/{path}")
        assert code(answer) == (405, "method_not_allowed")
        assert answer.json()["status"] == -1
        assert {word.strip() for word in answer.headers["allow"].split(",")} == {"GET", "HEAD"}


@pytest.mark.storage(3)
@pytest.mark.parametrize("path", ["filesystems", "list", "view=/a/../b", "stat=/", "content_summary=/"])
async def test_requests_without_a_valid_token_return_401(world: World, eva: Caller, path: str) -> None:
    none = await world.api.stranger.get(f"storage/{path}")
    assert (none.status_code, list(none.json())) == (401, ["detail"])
    bad = await world.api.http.get(f"/api/v1/storage/{path}", headers={"Authorization": "Bearer x.y.z"})
    assert (bad.status_code, bad.json()["code"]) == (401, "token_not_valid")


@pytest.mark.storage(4)
async def test_successful_responses_have_status_0(eva: Caller) -> None:
    for path in ("list?path=/", "view=/", "stat=/", "content_summary=/"):
        answer = await eva.send("GET", f"storage/{path}")
        assert json.loads(answer.content)["status"] == 0


_NEVER_SUCCESSFUL = {"/api/v1/storage/extract_archive", "/api/v1/storage/compress"}


@dataclass
class StorageWalk:
    """Makes one user's file calls on an in-memory HDFS. `slash` is appended to all URL paths that do not end in
    `=<path>`.
    """

    caller: Caller
    folder: StoreFolder
    slash: str = ""
    as_json: bool = False
    answers: dict[tuple[str, str], httpx.Response] = field(default_factory=dict[tuple[str, str], httpx.Response])

    async def whole(self) -> set[tuple[str, str]]:
        """Make every file call, which must succeed. Returns the method and path of each call."""
        await self._reading()
        await self._making()
        await self._moving()
        await self._uploading()
        await self._deleting()
        return set(self.answers)

    async def _reading(self) -> None:
        self.folder.put(d=None, d__x=b"text")
        await self._get("filesystems")
        await self._get("list", path=self.folder.at("d"))
        for call in ("display", "stat", "download", "content_summary", "trash/path"):
            await self._get(call, path=self.folder.at("d/x"))
        for call in ("view", "stat", "download", "content_summary"):
            path = quote(self.folder.at("d/x"), safe="")
            self._keep(await self.caller.send("GET", f"storage/{call}={path}"))

    async def _making(self) -> None:
        for number, call in enumerate(("mkdir", "touch", "create/directory", "create/file")):
            await self._post(call, path=self.folder.path, name=f"new{number}")
        await self._post("save", path=self.folder.at("d/x"), contents="other")
        for call in ("set_replication", "replication"):
            await self._post(call, path=self.folder.at("d/x"), replication_factor=2)
        for call in ("chmod", "chmod/bulk"):
            await self._post(call, path=self.folder.at("d/x"), mode="640")
        for call in ("chown", "chown/bulk"):
            await self._post(call, path=self.folder.at("d/x"), group="people")

    async def _moving(self) -> None:
        await self._post("rename", src_path=self.folder.at("d/x"), dest_path="y")
        await self._post("move", source_path=self.folder.at("d/y"), destination_path=self.folder.at("z"))
        await self._post("copy", src_path=self.folder.at("z"), dest_path=self.folder.at("d"))
        await self._post("copy/bulk", source_path=self.folder.at("z"), destination_path=self.folder.at("d/c"))
        await self._post("move/bulk", source_path=self.folder.at("d/c"), destination_path=self.folder.at("m"))
        slow = await self._post("copy", src_path=self.folder.at("d"), dest_path=self.folder.at("e"), wait=0)
        while (
            slow.status_code == 202
            and (await self._get("operation", id=slow.json()["operation_id"])).json()["state"] == "running"
        ):
            pass

    async def _uploading(self) -> None:
        target = quote(self.folder.path, safe="")
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
            "dest": self.folder.path,
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
            gone = await self._post("rmtree", path=self.folder.at("d"), skip_trash=False)
            await self._post(call, path=gone.json()["trash_path"])
        await self._post("delete", path=self.folder.at("d"))
        await self._post("delete/bulk", path=self.folder.at("z"))
        await self._post("trash/purge", path=self.folder.path)

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
@pytest.mark.parametrize(("slash", "as_json"), [("", False), ("/", True)])
async def test_every_documented_storage_call_is_served(world: World, slash: str, as_json: bool) -> None:
    walk = StorageWalk(await world.api.user("ana", admin=True), world.folder(Scheme.HDFS), slash, as_json)
    found = await walk.whole()
    wanted = {one.key for one in read_operations() if one.group == "storage" and one.path not in _NEVER_SUCCESSFUL}
    assert found == wanted
    for answer in walk.answers.values():
        assert answer.content
        body = answer.json() if answer.headers["content-type"] == "application/json" else {"status": 0}
        assert isinstance(body, list) or body["status"] == 0


@pytest.mark.storage(104)
async def test_json_arrays_for_single_values_and_invalid_directory_parameters_are_refused(
    ana: Caller, folder: str
) -> None:
    path = f"file:///{folder}"
    for call, fields in (
        ("mkdir", {"path": [path, path], "name": "d"}),
        ("rename", {"src_path": path, "dest_path": ["x"]}),
        ("chmod", {"path": [path], "mode": "755", "recursive": [None]}),
    ):
        refused = await ana.post_json(f"storage/{call}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter"), refused.text
    for query in ("mode=x", "offset=-1", "length=x", "compression=zip", "encoding=x", "end=0"):
        refused = await ana.send("GET", f"storage/view={path}?{query}")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter"), query
