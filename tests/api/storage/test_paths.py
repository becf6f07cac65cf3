"""Paths end to end, in both forms and on every call that reads (Contract storage 2.2)."""

import json
from urllib.parse import quote

import httpx
import pytest
from tests.api.driving import Caller
from tests.api.storage.worlds import World
from tests.cases import each

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
"""What stands behind `=`, and the code."""


@pytest.fixture
async def ana(world: World) -> Caller:
    return await world.api.user("ana")


async def raw(caller: Caller, path: str) -> httpx.Response:
    """A GET whose path is sent as it stands."""
    target = f"/api/v1/storage/{path}".encode()
    return await caller.send("GET", "storage/stat", extensions={"target": target})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.storage(11, 12, 13, 14)
@each("normal", SAME)
async def test_spellings_of_a_path_name_one_place(world: World, ana: Caller, normal: str) -> None:
    for scheme, path in ((Scheme.S3A, "lake/k"), (Scheme.ABFS, "box/x"), (Scheme.HDFS, "user/x"),
                         (Scheme.OFS, "service/volume")):  # fmt: skip
        world.memory[scheme].tree.make_container(path)
    for spelling in SAME[normal]:
        answer = await ana.get(f"storage/view={spelling}")
        assert answer.json()["path"] == normal, (spelling, answer.text)
        listed = await ana.send("GET", f"storage/list?path={spelling}")
        assert listed.json()["path"] == normal, spelling


@pytest.mark.storage(15, 16, 18)
@pytest.mark.security("S1", "S2", "S4", "T1")
@each("path", BAD)
async def test_what_is_no_path_reaches_no_store_by_any_reading_call(world: World, ana: Caller, path: str) -> None:
    world.heal()
    answers = [await raw(ana, f"{call}={path}") for call in PATH_FORMS]
    answers += [await raw(ana, f"{call}?path={path}") for call in QUERY_FORMS]
    assert [code(answer) for answer in answers] == [(400, BAD[path])] * len(answers)
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(16)
@pytest.mark.security("S1")
@each("path", ["/a/../b", "/a/%2e%2e/b", "/a/%252e%252e/b", "s3a://lake/../x", "/a\0b"])
async def test_what_is_no_path_reaches_no_store_by_any_changing_call(world: World, ana: Caller, path: str) -> None:
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
        answer = await ana.post(f"storage/{call}", **fields)
        assert answer.status_code == 400, (call, answer.text)
        assert answer.json()["code"] in {"invalid_path", "invalid_parameter"}, call
    upload = await ana.send("POST", f"storage/upload/file?dest={quote(path)}", files={"file": ("x", b"x")})
    assert upload.status_code == 400, upload.text
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(16)
@pytest.mark.security("S3")
async def test_names_that_only_look_dangerous_are_found(world: World, ana: Caller) -> None:
    for name in ("a..b", "...", "..\\x", "．．", "a+b", "%zz"):
        world.memory[Scheme.HDFS].tree.put(f"looks/{name}", b"x")
        for answer in (
            await ana.get(f"storage/stat=/looks/{quote(name, safe='+')}"),
            await ana.get("storage/stat", path=f"/looks/{name}"),
        ):
            assert answer.json()["path"] == f"/looks/{name}", answer.text


async def test_a_slash_in_a_name_of_the_path_form_cannot_be_told_from_one_between_names(
    world: World, ana: Caller
) -> None:
    world.memory[Scheme.HDFS].tree.put("deep/er", b"x")
    assert (await ana.get("storage/stat=%2Fdeep%2Fer")).json()["name"] == "er"
    assert (await ana.get("storage/stat=/deep%2Fer")).json()["name"] == "er"


@pytest.mark.storage(7)
async def test_a_path_given_twice_counts_the_last_time(world: World, ana: Caller) -> None:
    world.memory[Scheme.HDFS].tree.put("twice/a", b"x")
    answer = await ana.send("GET", "storage/stat?path=/none&path=/twice/a")
    assert answer.json()["path"] == "/twice/a"


@pytest.mark.storage(1)
@each("call", ["filesystems", "list", "stat", "content_summary"])
async def test_a_last_slash_is_optional(world: World, ana: Caller, call: str) -> None:
    world.memory[Scheme.HDFS].tree.make_container("slash")
    plain, slashed = [await ana.send("GET", f"storage/{call}{end}?path=/slash") for end in ("", "/")]
    assert plain.status_code == 200
    assert plain.json() == slashed.json()


@pytest.mark.storage(5)
@each("path", ["filesystems", "list?path=/", "view=/", "stat=/", "content_summary=/"])
async def test_head_equals_get_without_a_body(ana: Caller, path: str) -> None:
    got, head = await ana.send("GET", f"storage/{path}"), await ana.send("HEAD", f"storage/{path}")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(got.content) > 0
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.storage(2)
@each("path", ["filesystems", "list", "view=/", "stat=/", "stat", "content_summary=/"])
async def test_a_wrong_method_is_told_which_are_right(ana: Caller, path: str) -> None:
    for method in ("POST", "DELETE", "PUT"):
        answer = await ana.send(method, f"storage/{path}")
        assert code(answer) == (405, "method_not_allowed")
        assert answer.json()["status"] == -1
        assert {word.strip() for word in answer.headers["allow"].split(",")} == {"GET", "HEAD"}


@pytest.mark.storage(3)
@each("path", ["filesystems", "list", "view=/a/../b", "stat=/", "content_summary=/"])
async def test_without_a_token_nothing_is_read(world: World, ana: Caller, path: str) -> None:
    none = await world.api.stranger.get(f"storage/{path}")
    assert (none.status_code, list(none.json())) == (401, ["detail"])
    bad = await world.api.http.get(f"/api/v1/storage/{path}", headers={"Authorization": "Bearer x.y.z"})
    assert (bad.status_code, bad.json()["code"]) == (401, "token_not_valid")


@pytest.mark.storage(4)
async def test_every_success_has_status_0(ana: Caller) -> None:
    for path in ("list?path=/", "view=/", "stat=/", "content_summary=/"):
        answer = await ana.send("GET", f"storage/{path}")
        assert json.loads(answer.content)["status"] == 0
