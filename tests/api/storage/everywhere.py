"""The storage checklist over HTTP, which is the same for every store.

Each store has a test class that inherits `EverywhereContract`. A `World` states which optional features a store has.
Calls that need a missing feature must return 501 and change nothing.
"""

import asyncio
import hashlib
import json
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Caller
from tests.api.importer.everywhere import PreviewsEverywhere

_numbers = count(1)
STRANGE_NAMES = ("blue pen?", "a#b", "100%", "%41", "é", "日本", "quote'(x)@[y]&=+;,$!", "c..d", "plus+sign")


@dataclass(frozen=True, slots=True)
class World:
    """A store as one user sees it, with the optional features that it supports."""

    user: Caller
    root: str
    """The normalized path of a directory that the user may modify."""
    trash: bool = False
    replication: bool = False
    summary: bool = False
    modes: bool = False
    owners: bool = False
    makes_parents: bool = True
    """Whether directories exist independently of files. In an object store, object names imply them."""
    copies_as_text: bool = False
    """Whether the response to a copy call is Ozone's JSON string."""


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """An empty directory for one test, with short methods for API calls about paths in it."""

    world: World
    path: str

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    async def post(self, call: str, /, **fields: Any) -> httpx.Response:
        return await self.world.user.post(f"storage/{call}", **fields)

    async def get(self, call: str, /, **query: Any) -> httpx.Response:
        return await self.world.user.get(f"storage/{call}", **query)

    async def form(self, call: str, name: str, *, query: str = "", **more: Any) -> httpx.Response:
        """Send a GET request in which the path follows `=` and is fully percent-encoded."""
        path = quote(self.at(name) if name else self.path, safe="")
        return await self.world.user.send("GET", f"storage/{call}={path}{query}", **more)

    async def put(self, name: str, content: bytes = b"x", **query: str) -> httpx.Response:
        """Upload a file in a single request. `name` may contain subdirectories."""
        directory, _, last = name.rpartition("/")
        target = self.at(directory) if directory else self.path
        options = "".join(f"&{key}={quote(value)}" for key, value in query.items())
        return await self.world.user.send(
            "POST", f"storage/upload/file?dest={quote(target, safe='')}{options}", files={"local_file": (last, content)}
        )

    async def content(self, name: str) -> bytes:
        answer = await self.form("download", name)
        assert answer.status_code == 200, answer.text
        return answer.content

    async def names(self, name: str = "") -> list[str]:
        answer = await self.get("list", path=self.at(name) if name else self.path, pagesize=1000)
        assert answer.status_code == 200, answer.text
        return [entry["name"] for entry in answer.json()["files"]]


def refused(answer: httpx.Response, status: int, code: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["code"], body["status"]) == (status, code, -1), answer.text
    assert body["message"]


class EverywhereContract(PreviewsEverywhere):
    """Tests that every store must pass. A subclass provides the fixture `world`."""

    strange_names: ClassVar[tuple[str, ...]] = STRANGE_NAMES

    @pytest.fixture
    async def folder(self, world: World) -> StoreFolder:
        folder = StoreFolder(world, f"{world.root}/p{next(_numbers)}-{uuid4().hex[:8]}")
        made = await folder.post("mkdir", path=folder.path)
        assert made.status_code == 201, made.text
        return folder

    @pytest.mark.storage(11, 12, 13, 14)
    async def test_path_forms_name_the_same_entry(self, folder):
        await folder.put("x", b"abc")
        whole = await folder.form("view", "")
        half = await folder.world.user.send("GET", f"storage/view={quote(folder.path, safe=':/')}")
        twice = await folder.world.user.send("GET", f"storage/view={quote(quote(folder.path, safe=':'), safe=':')}")
        asked = await folder.get("list", path=folder.path)
        assert [answer.json()["path"] for answer in (whole, half, twice, asked)] == [folder.path] * 4
        if "://" in folder.path and not folder.path.startswith("file"):
            collapsed = folder.path.replace("://", ":/")
            assert (await folder.get("stat", path=collapsed)).json()["path"] == folder.path

    @pytest.mark.storage(17)
    @pytest.mark.security("S3")
    async def test_unusual_names_are_accepted_by_every_call(self, folder):
        for name in self.strange_names:
            assert (await folder.put(name, name.encode())).status_code == 200, name
        assert sorted(await folder.names()) == sorted(self.strange_names)
        for name in self.strange_names:
            assert await folder.content(name) == name.encode()
            seen = await folder.form("view", name, query="?mode=text")
            assert (seen.json()["contents"], seen.json()["filename"]) == (name, name)
            assert (await folder.get("display", path=folder.at(name))).json()["contents"] == name
            assert (await folder.form("stat", name)).json()["name"] == name
            renamed = await folder.post("rename", src_path=folder.at(name), dest_path=f"{name}2")
            assert renamed.status_code == 200, renamed.text
            gone = await folder.post("rmtree", path=folder.at(f"{name}2"), **self.for_good(folder))
            assert gone.status_code == 200, gone.text
        assert await folder.names() == []

    @pytest.mark.storage(22, 23, 24, 26, 29)
    async def test_eleven_entries_are_paginated(self, folder):
        empty = (await folder.get("list", path=folder.path)).json()
        assert (empty["files"], empty["page"]["total_count"], empty["page"]["num_pages"]) == ([], 0, 1)
        await asyncio.gather(*(folder.put(str(number)) for number in range(1, 12)))
        first = (await folder.form("view", "", query="?pagesize=20")).json()
        assert [entry["name"] for entry in first["files"]][:3] == ["..", ".", "1"]
        assert (len(first["files"]), first["page"]["total_count"]) == (13, 11)
        pages = [(await folder.form("view", "", query=f"?pagesize=10&pagenum={n}")).json() for n in (1, 2, 3)]
        assert [len(page["files"]) for page in pages] == [12, 3, 2]
        assert [page["page"]["end_index"] for page in pages] == [10, 11, 0]
        assert [page["page"]["next_page_number"] for page in pages[:2]] == [2, 0]
        refused(await folder.get("list", path=folder.path, pagesize=10, pagenum=3), 404, "page_not_found")
        for name, same in (("number", "page_number"), ("num_pages", "total_pages"), ("total_count", "total_size")):
            assert pages[1]["page"][name] == pages[1]["page"][same]
        found = (await folder.form("view", "", query="?filter=1")).json()["files"]
        assert [entry["name"] for entry in found] == ["..", ".", "1", "10", "11"]
        assert (await folder.get("list", path=folder.path, filter="A")).json()["files"] == []

    @pytest.mark.storage(28)
    @pytest.mark.parametrize("order", ["type", "name", "atime", "mtime", "user", "group", "size"])
    async def test_listings_sort_in_both_directions(self, folder, order):
        for name, size in (("b", 3), ("a", 3), ("c", 1)):
            await folder.put(name, b"x" * size)
        up = (await folder.get("list", path=folder.path, sortby=order)).json()["files"]
        down = (await folder.get("list", path=folder.path, sortby=order, descending="true")).json()["files"]
        key = {"mtime": "mtime", "atime": "atime"}.get(order, order)
        assert [entry[key] or 0 for entry in up] == sorted(entry[key] or 0 for entry in up)
        assert [entry[key] or 0 for entry in down] == sorted((entry[key] or 0 for entry in down), reverse=True)
        if order == "size":
            assert [entry["name"] for entry in up] == ["c", "a", "b"]
            assert [entry["name"] for entry in down] == ["a", "b", "c"]

    @pytest.mark.storage(36)
    async def test_listing_errors_state_the_cause(self, folder):
        await folder.put("x")
        refused(await folder.get("list", path=folder.at("x")), 400, "not_a_directory")
        refused(await folder.get("list", path=folder.at("no")), 404, "path_not_found")
        refused(await folder.form("view", "no"), 404, "path_not_found")
        refused(await folder.get("display", path=folder.path), 400, "not_a_file")
        refused(await folder.form("download", ""), 400, "not_a_file")
        refused(await folder.form("download", "no"), 404, "path_not_found")

    @pytest.mark.storage(39, 40, 42, 43)
    async def test_view_and_display_show_files(self, folder):
        text = "id,name\n1,é日本\n" * 50
        await folder.put("text.csv", text.encode())
        whole = (
            await folder.form("view", "text.csv", query="?offset=0&length=204800&compression=none&mode=text")
        ).json()
        assert whole["contents"] == whole["view"]["contents"] == text
        pieces, end = "", 0
        while end < len(text.encode()):
            seen = (await folder.get("display", path=folder.at("text.csv"), offset=end, length=7)).json()
            pieces += seen["contents"]
            end = seen["end"]
        assert pieces == text
        await folder.put("binary", b"Hi\x00\xff!")
        seen = (await folder.form("view", "binary")).json()
        assert seen["view"]["xxd"] == [[0, [[72, 105], [0, 255], [33]], "Hi..!"]]
        refused(await folder.get("display", path=folder.at("binary")), 422, "not_text")

    @pytest.mark.storage(46, 47, 48, 49, 52)
    async def test_downloads_support_ranges_and_conditions(self, folder):
        content = bytes(range(256)) * 40
        await folder.put("data.bin", content)
        whole = await folder.form("download", "data.bin")
        head = await folder.world.user.send("HEAD", f"storage/download={quote(folder.at('data.bin'), safe='')}")
        for name in ("content-length", "etag", "last-modified", "accept-ranges", "content-disposition", "content-type"):
            assert head.headers[name] == whole.headers[name]
        assert (whole.content, head.content, whole.headers["content-length"]) == (content, b"", "10240")
        for asked, part in (
            ("0-0", content[:1]),
            ("-1", content[-1:]),
            ("5-", content[5:]),
            ("7-9999999", content[7:]),
        ):
            got = await folder.form("download", "data.bin", headers={"Range": f"bytes={asked}"})
            assert (got.status_code, got.content) == (206, part), asked
        for asked in ("999999-", "5-2", "x"):
            got = await folder.form("download", "data.bin", headers={"Range": f"bytes={asked}"})
            assert (got.status_code, got.headers["content-range"]) == (416, "bytes */10240")
        same = await folder.form("download", "data.bin", headers={"If-None-Match": whole.headers["etag"]})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", whole.headers["etag"])
        await folder.put("data.bin", b"other", overwrite="true")
        old = {"Range": "bytes=0-0", "If-Range": whole.headers["etag"]}
        assert (await folder.form("download", "data.bin", headers=old)).content == b"other"
        changed = await folder.form("download", "data.bin", headers={"If-None-Match": whole.headers["etag"]})
        assert (changed.status_code, changed.content) == (200, b"other")
        await folder.put("empty", b"")
        empty = await folder.form("download", "empty")
        assert (empty.status_code, empty.headers["content-length"], empty.content) == (200, "0", b"")

    @pytest.mark.storage(6, 7, 55, 56, 57)
    async def test_directories_and_files_are_created_only_once(self, folder):
        assert (await folder.post("mkdir", path=folder.path, name="d")).json()["path"] == folder.at("d")
        refused(await folder.post("mkdir", path=folder.at("d")), 409, "already_exists")
        refused(await folder.post("create/directory", path=folder.path), 400, "missing_parameter")
        made = await folder.world.user.post_json("storage/touch", path=folder.path, name="f")
        assert (made.status_code, made.json()["path"]) == (201, folder.at("f"))
        refused(await folder.post("touch", path=folder.at("f")), 409, "already_exists")
        refused(await folder.post("mkdir", path=folder.at("f")), 409, "already_exists")
        refused(await folder.post("touch", path=folder.at("no/where")), 404, "path_not_found")
        for name in ("a/b", "a\\b", "..", "x\n"[:2].strip() + "\x01"):
            refused(await folder.post("mkdir", path=folder.path, name=name), 400, "invalid_name")
        refused(await folder.post("mkdir", path=folder.path, name="a#b"), 400, "invalid_name")
        assert (await folder.post("touch", path=folder.path, name="a#b")).status_code == 201
        both = [folder.post("touch", path=folder.at("same")) for _ in range(4)]
        assert sorted(answer.status_code for answer in await asyncio.gather(*both)) == [201, 409, 409, 409]
        if folder.world.makes_parents:
            assert (await folder.post("mkdir", path=folder.at("p/q/r"))).status_code == 201
            assert await folder.names("p/q") == ["r"]

    @pytest.mark.storage(59)
    async def test_save_replaces_text(self, folder):
        await folder.put("text", b"old")
        saved = await folder.post("save", path=folder.at("text"), contents="é new")
        assert (saved.status_code, saved.json()["size"]) == (200, 6)
        assert await folder.content("text") == "é new".encode()
        refused(await folder.post("save", path=folder.at("no"), contents="x"), 404, "path_not_found")
        assert await folder.names() == ["text"]

    @pytest.mark.storage(60, 61, 62, 64)
    async def test_rename_keeps_content_and_refuses_invalid_targets(self, folder):
        await folder.put("x", b"one")
        beside = await folder.post("rename", src_path=folder.at("x"), dest_path="y")
        seen = (beside.status_code, beside.json()["path"], beside.json()["source"])
        assert seen == (200, folder.at("y"), folder.at("x"))
        await folder.put("z", b"two")
        refused(await folder.post("rename", source_path=folder.at("y"), destination_path="z"), 409, "already_exists")
        refused(await folder.post("rename", src_path=folder.at("no"), dest_path="q"), 404, "path_not_found")
        over = await folder.post("rename", src_path=folder.at("y"), dest_path=folder.at("z"), overwrite="true")
        assert over.status_code == 200, over.text
        assert (await folder.names(), await folder.content("z")) == (["z"], b"one")
        await folder.post("mkdir", path=folder.at("d"))
        await folder.put("d/inner", b"in")
        refused(
            await folder.post("rename", src_path=folder.at("z"), dest_path="d", overwrite="true"), 409, "already_exists"
        )
        for target in ("d/e", "d/e/f/g"):
            refused(
                await folder.post("rename", src_path=folder.at("d"), dest_path=folder.at(target)),
                400,
                "target_inside_source",
            )
        moved = await folder.post("rename", src_path=f"{folder.at('d')}/", dest_path="new")
        assert moved.json()["path"] == folder.at("new")
        assert await folder.content("new/inner") == b"in"
        assert (await folder.post("rename", src_path=folder.at("new"), dest_path="news")).status_code == 200
        refused(await folder.post("rename", src_path=folder.at("news"), dest_path="news"), 400, "same_path")

    @pytest.mark.storage(63, 64)
    async def test_move_and_copy_transfer_files_and_directories(self, folder):
        await folder.put("x", b"one")
        await folder.post("mkdir", path=folder.at("d"))
        into = await folder.post("move", src_path=folder.at("x"), dest_path=folder.at("d"))
        assert (into.status_code, into.json()["path"]) == (200, folder.at("d/x")), into.text
        renamed = await folder.post("move", src_path=folder.at("d/x"), dest_path=folder.at("y"))
        assert renamed.json()["path"] == folder.at("y")
        refused(await folder.post("move", src_path=folder.at("y"), dest_path=folder.path), 400, "same_path")
        refused(
            await folder.post("move", src_path=folder.at("y"), dest_path=f"{folder.at('no')}/"), 404, "path_not_found"
        )
        refused(
            await folder.post("copy", src_path=folder.at("d"), dest_path=folder.at("d/e")), 400, "target_inside_source"
        )
        copied = await folder.post("copy", src_path=folder.at("y"), dest_path=folder.at("d"))
        assert copied.json() == "" if folder.world.copies_as_text else copied.json()["path"] == folder.at("d/y")
        assert (await folder.post("mkdir", path=folder.at("d/deep"))).status_code == 201
        await folder.put("d/deep/z", b"two")
        await folder.post("copy", src_path=folder.at("d"), dest_path=folder.at("tree"))
        assert sorted(await folder.names("tree")) == ["deep", "y"]
        assert await folder.content("tree/deep/z") == b"two"
        assert await folder.content("d/deep/z") == b"two"
        refused(
            await folder.post("copy", src_path=folder.at("y"), dest_path=folder.at("tree/deep/z")),
            409,
            "already_exists",
        )
        assert (
            await folder.post("copy", src_path=folder.at("y"), dest_path=folder.at("tree/deep/z"), overwrite="true")
        ).status_code == 200
        assert await folder.content("tree/deep/z") == b"one"
        gone = await folder.post("move", src_path=folder.at("tree"), dest_path=folder.at("d/deep"))
        assert gone.status_code == 200, gone.text
        assert (await folder.names(), await folder.content("d/deep/tree/y")) == (["d", "y"], b"one")

    @pytest.mark.storage(71)
    async def test_bulk_calls_process_every_possible_item(self, folder):
        for name in ("a", "b"):
            await folder.put(name)
        await folder.post("mkdir", path=folder.at("d"))
        sources = [folder.at(name) for name in ("a", "no", "b")]
        answer = await folder.world.user.send(
            "POST", "storage/move/bulk", data={"source_path": sources, "destination_path": folder.at("d")}
        )
        body = answer.json()
        assert (answer.status_code, body["code"], list(body["results"])) == (404, "partial_failure", sources)
        assert [body["results"][source]["status"] for source in sources] == [0, -1, 0]
        assert sorted(await folder.names("d")) == ["a", "b"]

    @pytest.mark.storage(72, 73, 74, 75, 76, 78)
    async def test_delete_uses_the_trash_only_where_supported(self, folder):
        await folder.post("mkdir", path=folder.at("d"))
        await folder.put("d/x", b"one")
        if not folder.world.trash:
            refused(await folder.post("rmtree", path=folder.at("d"), skip_trash="false"), 501, "trash_not_supported")
            assert await folder.names("d") == ["x"]
            deleted = (await folder.post("rmtree", path=folder.at("d"))).json()
            assert (deleted["trashed"], deleted["trash_path"], await folder.names()) == (False, None, [])
            refused(await folder.post("trash/restore", path=folder.at("d")), 501, "trash_not_supported")
            refused(await folder.post("trash/purge", path=folder.path), 501, "trash_not_supported")
            refused(await folder.get("trash/path", path=folder.path), 501, "trash_not_supported")
            return
        deleted = (await folder.post("rmtree", path=folder.at("d"))).json()
        assert deleted["trashed"] is True
        assert deleted["trash_path"].endswith(f"/.Trash/Current/{folder.at('d').removeprefix('file:///').lstrip('/')}")
        await folder.post("mkdir", path=folder.at("d"))
        again = (await folder.post("rmtree", path=f"{folder.at('d')}", skip_trash="false")).json()
        assert again["trash_path"] != deleted["trash_path"]
        restored = await folder.post("trash/restore", path=deleted["trash_path"])
        assert (restored.status_code, restored.json()["path"]) == (200, folder.at("d")), restored.text
        assert await folder.content("d/x") == b"one"
        refused(await folder.post("trash/restore", path=folder.at("d")), 400, "not_in_trash")
        told = (await folder.get("trash/path", path=folder.path)).json()["trash_path"]
        assert "/.Trash" in told
        assert (await folder.post("trash/purge", path=folder.path)).json()["purged"] == 1
        assert (await folder.post("trash/purge", path=folder.path)).json()["purged"] == 0
        good = (await folder.post("rmtree", path=folder.at("d"), skip_trash="true")).json()
        assert (good["trashed"], await folder.names()) == (False, [])

    @pytest.mark.storage(79, 80, 81)
    async def test_unsupported_store_operations_return_501(self, folder):
        await folder.put("x", b"abcd")
        path = folder.at("x")
        calls = (
            (folder.world.replication, "set_replication", {"path": path, "replication_factor": "1"}),
            (folder.world.modes, "chmod", {"path": path, "mode": "600"}),
            (folder.world.owners, "chown", {"path": path, "group": "everyone"}),
        )
        for can, call, fields in calls:
            answer = await folder.post(call, **fields)
            if not can:
                refused(answer, 501, "not_supported")
            elif call != "chown":  # only a superuser is certain to succeed
                assert answer.status_code == 200, answer.text
        if folder.world.replication:
            refused(await folder.post("set_replication", path=folder.path, replication_factor="2"), 400, "not_a_file")
        if folder.world.modes:
            assert (await folder.get("stat", path=path)).json()["mode"] & 0o777 == 0o600
        summary = await folder.form("content_summary", "")
        if not folder.world.summary:
            refused(summary, 501, "not_supported")
            return
        body = summary.json()
        assert (body["fileCount"], body["directoryCount"], body["length"]) == (1, 1, 4)
        assert body["summary"]["length"] == 4

    @pytest.mark.storage(83, 84, 85, 86, 87, 88, 92)
    async def test_file_of_every_form_field_is_uploaded(self, folder):
        user = folder.world.user
        for part in ("local_file", "hdfs_file", "file"):
            made = await user.send(
                "POST", f"storage/upload/file?destination_path={quote(folder.path)}", files={part: (part, b"abc")}
            )
            body = made.json()
            assert (made.status_code, body["path"], body["size"]) == (200, folder.at(part), 3)
            assert (body["result"]["name"], body["file_stats"]["size"]) == (part, 3)
            assert body["sha256"] == hashlib.sha256(b"abc").hexdigest()
        wrong = await user.send("POST", f"storage/upload/file?dest={quote(folder.path)}", files={"x": ("x", b"abc")})
        assert wrong.status_code == 400
        refused(await folder.put("file", b"new"), 409, "already_exists")
        assert await folder.content("file") == b"abc"
        assert (await folder.put("file", b"new", overwrite="true")).status_code == 200
        assert await folder.content("file") == b"new"
        refused(await folder.put("bad", b"abc", sha256="0" * 64), 422, "verification_failed")
        refused(await folder.put("file/x"), 400, "not_a_directory")
        if folder.world.makes_parents:
            refused(await folder.put("no/x"), 404, "path_not_found")
        before = {"dest": (None, folder.path), "local_file": ("before", b"1")}
        assert (await user.send("POST", "storage/upload/file", files=before)).status_code == 200
        assert sorted(await folder.names()) == ["before", "file", "hdfs_file", "local_file"]

    @pytest.mark.storage(89, 90, 91)
    async def test_upload_in_chunks_is_stored_completely(self, folder):
        size, part = 12 * 1024 * 1024 + 5, 5 * 1024 * 1024
        content = hashlib.sha256(b"seed").digest() * (size // 32 + 1)
        content = content[:size]
        upload = str(uuid4())
        query = {
            "qquuid": upload,
            "qqtotalfilesize": size,
            "qqtotalparts": 3,
            "qqfilename": "big",
            "qqchunksize": part,
            "dest": folder.path,
        }

        async def send(index: int) -> httpx.Response:
            words = query | {"qqpartindex": index, "qqpartbyteoffset": index * part}
            url = "storage/upload/chunks?" + "&".join(f"{k}={quote(str(v), safe='')}" for k, v in words.items())
            piece = content[index * part : (index + 1) * part]
            return await folder.world.user.send("POST", url, files={"qqfile": ("blob", piece)})

        for index in (2, 0, 2):
            assert (await send(index)).status_code == 200
        early = await folder.post("upload/complete", **query)
        refused(early, 409, "upload_incomplete")
        assert early.json()["details"]["missing_parts"] == [1]
        state = (await folder.get("upload/chunks", qquuid=upload)).json()
        assert (state["offset"], state["missing_parts"], state["total_size"]) == (part, [1], size)
        assert await folder.names() == []
        assert (await send(1)).json()["offset"] == size
        done = await folder.post("upload/complete", **query, sha256=hashlib.sha256(content).hexdigest())
        assert (done.status_code, done.json()["size"]) == (200, size), done.text
        again = await folder.post("upload/complete", **query)
        assert again.json() == done.json()
        assert await folder.content("big") == content
        assert await folder.names() == ["big"]

    @pytest.mark.storage(16, 18)
    @pytest.mark.security("S1")
    async def test_dot_segments_never_reach_the_store(self, folder):
        for dots in ("..", "%2e%2e", "%252e%252e", "%2E%2e"):
            path = f"{folder.path}/{dots}/x"
            for call in ("list", "stat", "display", "download", "content_summary", "trash/path"):
                refused(await folder.get(call, path=path), 400, "invalid_path")
            refused(await folder.world.user.send("GET", f"storage/view={quote(path, safe='')}"), 400, "invalid_path")
        refused(await folder.get("stat", path=folder.at("x" * 256)), 400, "invalid_path")
        assert (await folder.get("stat", path=folder.at("a..b"))).status_code == 404

    @pytest.mark.storage(95)
    async def test_doas_requires_the_impersonation_right(self, folder):
        refused(await folder.get("list", path=folder.path, doas="somebody"), 403, "impersonation_not_allowed")
        refused(await folder.post("mkdir", path=folder.at("x"), doas="somebody"), 400, "invalid_parameter")

    async def test_filesystems_include_the_store(self, folder):
        told = (await folder.get("filesystems")).json()
        scheme = folder.path.partition(":")[0] if "://" in folder.path else "hdfs"
        (found,) = [entry for entry in told if entry["name"] == scheme]
        assert set(found) >= {"file_system", "name", "user_home_directory", "config"}
        assert json.dumps(found)

    @staticmethod
    def for_good(folder: StoreFolder) -> dict[str, str]:
        """Return the parameters that make a delete permanent on the store under test."""
        return {"skip_trash": "true"} if folder.world.trash else {}
