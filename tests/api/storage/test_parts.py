"""Chunked uploads (Contract storage 9.2)."""

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.fakes.storage import LIKE_S3, MemoryFileSystem

from queryserver.files.model import Scheme
from queryserver.files.protocol import StorageTraits

PART = 1000


@dataclass
class Sender:
    """A client that uploads a file in chunks of 1000 bytes."""

    caller: Caller
    dest: str
    content: bytes
    name: str = "big.bin"
    uuid: str = field(default_factory=lambda: str(uuid4()))

    @property
    def parts(self) -> int:
        return -(-len(self.content) // PART)

    def query(self, index: int, **changes: Any) -> dict[str, Any]:
        return {
            "qquuid": self.uuid,
            "qqpartindex": index,
            "qqpartbyteoffset": index * PART,
            "qqtotalfilesize": len(self.content),
            "qqtotalparts": self.parts,
            "qqfilename": self.name,
            "qqchunksize": PART,
            "dest": self.dest,
            **changes,
        }

    async def send(self, index: int, content: bytes | None = None, **changes: Any) -> httpx.Response:
        content = self.content[index * PART : (index + 1) * PART] if content is None else content
        query = {name: value for name, value in self.query(index, **changes).items() if value is not None}
        return await self.caller.send(
            "POST", "storage/upload/chunks", params=query, files={"qqfile": ("blob", content)}
        )

    async def state(self) -> httpx.Response:
        return await self.caller.get("storage/upload/chunks", qquuid=self.uuid)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.caller.post("storage/upload/complete", qquuid=self.uuid, **fields)

    async def discard(self) -> httpx.Response:
        return await self.caller.send("DELETE", "storage/upload/chunks", params={"qquuid": self.uuid})


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.json()["status"] == -1, answer.text
    return answer.status_code, answer.json()["code"]


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("._qs_"))


def everything(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@pytest.fixture
def sender(ana: Caller, folder: str) -> Sender:
    return Sender(ana, f"file:///{folder}", random.Random(3).randbytes(4 * PART + 17))


class TestArrival:
    @pytest.mark.storage(89)
    async def test_chunks_in_any_order_with_repeats_make_the_file(self, sender: Sender, files: Files, folder: str):
        order = [*range(sender.parts)] * 2
        random.Random(5).shuffle(order)
        for index in order:
            assert names(files.root / folder) == []
            answer = await sender.send(index)
            assert answer.status_code == 200, answer.text
            assert answer.json()["part"] == index
        done = await sender.complete()
        assert done.status_code == 200, done.text
        assert (files.root / folder / "big.bin").read_bytes() == sender.content
        assert everything(files.root / folder) == ["big.bin"]
        body = done.json()
        assert (body["path"], body["uuid"], body["size"]) == (f"{sender.dest}/big.bin", sender.uuid, 4 * PART + 17)
        assert (body["success"], body["data"], body["next"]) == (True, "Success", None)
        assert body["result"]["name"] == "big.bin"

    @pytest.mark.storage(89)
    async def test_parallel_chunks_make_the_file(self, sender: Sender, files: Files, folder: str):
        answers = await asyncio.gather(*(sender.send(index) for index in range(sender.parts)))
        assert [answer.status_code for answer in answers] == [200] * sender.parts
        assert (await sender.complete()).status_code == 200
        assert (files.root / folder / "big.bin").read_bytes() == sender.content

    @pytest.mark.storage(89)
    async def test_concurrent_duplicates_of_a_chunk_are_kept_once(self, sender: Sender):
        answers = await asyncio.gather(*(sender.send(1) for _ in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert (await sender.state()).json()["missing_parts"] == [0, 2, 3, 4]

    async def test_responses_list_the_received_ranges(self, sender: Sender):
        assert (await sender.send(2)).json()["offset"] == 0
        answer = (await sender.send(0)).json()
        assert (answer["received"], answer["offset"]) == ([[0, 1000], [2000, 3000]], 1000)
        answer = (await sender.send(1)).json()
        assert (answer["received"], answer["offset"]) == ([[0, 3000]], 3000)
        assert (answer["uuid"], answer["path"]) == (sender.uuid, f"{sender.dest}/big.bin")

    async def test_last_chunk_may_declare_its_own_size(self, sender: Sender):
        assert (await sender.send(4, qqchunksize=17)).status_code == 200
        assert (await sender.send(0)).status_code == 200

    async def test_fields_are_accepted_before_the_file(self, sender: Sender):
        fields = {name: (None, str(value)) for name, value in sender.query(0).items()}
        parts = {**fields, "qqfile": ("named.bin", sender.content[:PART])}
        answer = await sender.caller.send("POST", "storage/upload/chunks", files=parts)
        assert answer.status_code == 200, answer.text
        assert answer.json()["path"] == f"{sender.dest}/big.bin"

    @pytest.mark.parametrize(
        ("name", "code"), [(None, "missing_parameter"), ("", "invalid_name"), (" ", "invalid_name")]
    )
    async def test_multipart_file_name_does_not_replace_qqfilename(self, sender, files, folder, name, code):
        assert told(await sender.send(0, qqfilename=name)) == (400, code)
        assert everything(files.root / folder) == []

    async def test_name_with_a_null_character_is_invalid(self, sender: Sender):
        assert told(await sender.send(0, qqfilename="a\0b")) == (400, "invalid_name")
        for call in ("mkdir", "touch", "create/directory", "create/file"):
            answer = await sender.caller.post(f"storage/{call}", path=sender.dest, name="a\0b")
            assert told(answer) == (400, "invalid_name")

    @pytest.mark.parametrize("content", [b"whole file", b""])
    async def test_file_without_part_count_is_complete_immediately(self, ana: Caller, files: Files, content: bytes):
        folder = files.folder()
        sender = Sender(ana, f"file:///{folder}", content)
        for _ in range(2):
            done = await sender.send(0, content, qqtotalparts=None, qqchunksize=None)
            assert done.status_code == 200, done.text
            assert done.json()["size"] == len(content)
        assert (files.root / folder / "big.bin").read_bytes() == content
        assert (await sender.complete()).json() == done.json()
        again = await sender.send(0, b"x" * len(content), qqtotalparts=0)
        assert told(again) == (409, "part_conflict") if content else again.status_code == 200

    async def test_empty_file_in_one_chunk_is_completed(self, ana: Caller, files: Files, folder: str):
        sender = Sender(ana, f"file:///{folder}", b"")
        assert (await sender.send(0, qqtotalparts=1)).status_code == 200
        assert (await sender.complete()).status_code == 200
        assert (files.root / folder / "big.bin").read_bytes() == b""


class TestRules:
    @pytest.mark.storage(91)
    @pytest.mark.parametrize("uuid", ["../../x", "1", "", "{6ba7b810-9dad-11d1-80b4-00c04fd430c8}", "x" * 36])
    async def test_upload_id_must_be_a_uuid(self, sender: Sender, files: Files, folder: str, uuid: str):
        sender.uuid = uuid
        for answer in (await sender.send(0), await sender.state(), await sender.complete(), await sender.discard()):
            assert told(answer) == (400, "invalid_parameter")
        assert everything(files.root / folder) == []

    @pytest.mark.storage(91)
    @pytest.mark.security("S9", "T20")
    async def test_uploads_of_other_users_are_not_found(self, sender: Sender, files: Files, folder: str):
        await sender.send(0)
        bob = await files.api.user("bob")
        theirs = Sender(bob, sender.dest, sender.content, uuid=sender.uuid)
        for answer in (await theirs.state(), await theirs.complete(), await theirs.discard()):
            assert told(answer) == (404, "upload_not_found")
        own = await theirs.send(1, qqfilename="bob.bin")
        assert (own.json()["received"], own.json()["path"]) == ([[1000, 2000]], f"{sender.dest}/bob.bin")
        assert (await sender.state()).json()["received"] == [[0, 1000]]

    @pytest.mark.parametrize(
        "changes",
        [
            {"qqfilename": "other.bin"},
            {"dest": "file:///shared"},
            {"overwrite": "true"},
            {"qqtotalfilesize": 4 * PART + 18},
            {"qqtotalparts": 3, "qqtotalfilesize": 3 * PART},
        ],
    )
    async def test_first_chunk_fixes_the_upload_parameters(self, sender: Sender, changes: dict[str, Any]):
        await sender.send(0)
        assert told(await sender.send(1, **changes)) == (409, "part_conflict")

    @pytest.mark.parametrize(
        "changes",
        [
            {"qqpartbyteoffset": 999},
            {"qqpartindex": 5},
            {"qqpartindex": -1},
            {"qqtotalparts": 6},
            {"qqtotalparts": 10_001, "qqtotalfilesize": 10_001 * PART},
            {"qqchunksize": 129 * 2**20, "qqtotalfilesize": 5 * 129 * 2**20, "qqpartbyteoffset": 129 * 2**20},
            {"qqchunksize": None},
            {"qqtotalfilesize": None},
            {"qqtotalfilesize": "x"},
            {"qqtotalfilesize": 0},
            {"sha256": "abc"},
            {"dest": None},
        ],
    )
    async def test_numbers_that_contradict_each_other_are_refused(self, sender, files, folder, changes):
        assert (await sender.send(1, **changes)).status_code == 400
        assert everything(files.root / folder) == []

    async def test_chunk_length_must_match_its_declared_size(self, sender: Sender):
        await sender.send(0)
        for size in (999, 1001, 0):
            assert told(await sender.send(1, b"x" * size)) == (400, "invalid_parameter")
            assert told(await sender.send(0, b"x" * size)) == (400, "invalid_parameter")
        assert (await sender.state()).json()["received"] == [[0, 1000]]
        assert (await sender.send(1)).status_code == 200

    async def test_different_bytes_for_a_received_chunk_conflict(self, sender: Sender, files: Files, folder: str):
        for index in range(sender.parts):
            await sender.send(index)
        assert told(await sender.send(1, b"x" * PART)) == (409, "part_conflict")
        await sender.complete()
        assert told(await sender.send(1, b"x" * PART)) == (409, "part_conflict")
        assert (await sender.send(1)).status_code == 200
        assert (files.root / folder / "big.bin").read_bytes() == sender.content

    @pytest.mark.storage(88)
    async def test_chunk_with_a_wrong_digest_is_discarded(self, sender: Sender):
        assert told(await sender.send(0, sha256="0" * 64)) == (422, "verification_failed")
        assert (await sender.state()).json()["received"] == []
        right = hashlib.sha256(sender.content[:PART]).hexdigest()
        assert (await sender.send(0, sha256=right)).status_code == 200

    @pytest.mark.storage(92)
    async def test_destination_is_checked_with_the_first_chunk(self, sender: Sender, files: Files, folder: str):
        assert told(await sender.send(0, dest=f"{sender.dest}/none")) == (404, "path_not_found")
        (files.root / folder / "big.bin").write_bytes(b"old")
        assert told(await sender.send(0)) == (409, "already_exists")
        assert told(await sender.send(0, qqfilename="a/b")) == (400, "invalid_name")
        assert told(await sender.send(0, qqfilename="..\\b")) == (400, "invalid_name")
        assert told(await sender.state()) == (404, "upload_not_found")

    @pytest.mark.security("T30")
    async def test_users_have_at_most_twenty_open_uploads(self, sender: Sender):
        senders = [Sender(sender.caller, sender.dest, sender.content, name=f"{number}") for number in range(21)]
        answers = [await one.send(0) for one in senders]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429]
        assert told(answers[20]) == (429, "too_many_requests")
        assert (await senders[0].discard()).status_code == 200
        assert (await senders[20].send(0)).status_code == 200

    async def test_chunk_sizes_must_meet_the_stores_minimum(self, tmp_path: Path, database_dsn: str):
        traits = StorageTraits(container_levels=1, min_part_bytes=2 * PART)
        buckets = MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["lake"])
        builders = {Scheme.S3A: lambda _: buckets}
        async with open_api(storage_settings(tmp_path, database_dsn), stores=builders) as api:
            sender = Sender(await api.user("ana"), "s3a://lake", b"x" * 1500)
            assert told(await sender.send(0)) == (400, "invalid_parameter")
            single = Sender(sender.caller, "s3a://lake/new/folder", b"x" * 500)
            assert (await single.send(0)).status_code == 200
            assert (await single.complete()).status_code == 200
            assert buckets.tree.entries["lake/new/folder/big.bin"].content == b"x" * 500
            assert told(await Sender(sender.caller, "s3a://", b"x").send(0)) == (400, "root_not_allowed")
            assert told(await Sender(sender.caller, "s3a://none", b"x").send(0)) == (404, "path_not_found")


class TestCompletion:
    @pytest.mark.storage(89)
    async def test_completion_error_names_missing_chunks(self, sender: Sender, files: Files, folder: str):
        await sender.send(1)
        await sender.send(3)
        answer = await sender.complete()
        assert told(answer) == (409, "upload_incomplete")
        assert answer.json()["details"] == {"missing_parts": [0, 2, 4]}
        assert names(files.root / folder) == []

    @pytest.mark.storage(90)
    async def test_repeated_completion_returns_the_same_response(self, sender: Sender):
        for index in range(sender.parts):
            await sender.send(index)
        answers = await asyncio.gather(*(sender.complete() for _ in range(3)))
        answers.append(await sender.caller.post_json("storage/upload/complete", qquuid=sender.uuid))
        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.json() == answers[0].json() for answer in answers)
        assert (await sender.state()).json()["missing_parts"] == []

    async def test_completion_fields_must_match_the_upload(self, sender: Sender):
        for index in range(sender.parts):
            await sender.send(index)
        for said in (
            {"qqfilename": "other"},
            {"qqtotalfilesize": "1"},
            {"qqtotalparts": "9"},
            {"destination_path": "file:///shared"},
            {"overwrite": "true"},
        ):
            assert told(await sender.complete(**said)) == (409, "part_conflict")
        fields = {name: str(value) for name, value in sender.query(0).items() if name != "qquuid"}
        assert (await sender.complete(**fields)).status_code == 200

    @pytest.mark.storage(88)
    async def test_wrong_digest_of_the_file_discards_the_upload(self, sender: Sender, files: Files, folder: str):
        for index in range(sender.parts):
            await sender.send(index)
        assert told(await sender.complete(sha256="0" * 64)) == (422, "verification_failed")
        assert everything(files.root / folder) == []
        assert told(await sender.state()) == (404, "upload_not_found")
        for index in range(sender.parts):
            await sender.send(index)
        right = hashlib.sha256(sender.content).hexdigest()
        assert (await sender.complete(sha256=right)).status_code == 200

    async def test_wrong_digest_of_the_file_keeps_the_previous_file(self, sender: Sender, files: Files, folder: str):
        target = files.root / folder / "big.bin"
        target.write_bytes(b"former")
        for index in range(sender.parts):
            assert (await sender.send(index, overwrite="true")).status_code == 200
        assert told(await sender.complete(sha256="0" * 64)) == (422, "verification_failed")
        assert target.read_bytes() == b"former"
        assert everything(files.root / folder) == ["big.bin"]
        for index in range(sender.parts):
            await sender.send(index, overwrite="true")
        right = hashlib.sha256(sender.content).hexdigest()
        assert (await sender.complete(sha256=right)).status_code == 200
        assert target.read_bytes() == sender.content

    async def test_wrong_digest_of_a_single_chunk_file_keeps_the_chunk(self, ana: Caller, files: Files, folder: str):
        sender = Sender(ana, f"file:///{folder}", b"small")
        await sender.send(0)
        assert told(await sender.complete(sha256="0" * 64)) == (422, "verification_failed")
        assert names(files.root / folder) == []
        assert (await sender.complete(sha256=hashlib.sha256(b"small").hexdigest())).status_code == 200

    @pytest.mark.storage(85)
    async def test_file_created_during_the_upload_is_kept_and_so_are_the_chunks(
        self, sender: Sender, files: Files, folder: str
    ):
        for index in range(sender.parts):
            await sender.send(index)
        target = files.root / folder / "big.bin"
        target.write_bytes(b"other")
        assert told(await sender.complete()) == (409, "already_exists")
        assert target.read_bytes() == b"other"
        target.unlink()
        assert (await sender.complete()).status_code == 200
        assert target.read_bytes() == sender.content

    @pytest.mark.storage(85)
    async def test_existing_file_is_replaced_with_overwrite(self, sender: Sender, files: Files, folder: str):
        (files.root / folder / "big.bin").write_bytes(b"old")
        for index in range(sender.parts):
            assert (await sender.send(index, overwrite="true")).status_code == 200
            assert (files.root / folder / "big.bin").read_bytes() == b"old"
        assert (await sender.complete()).status_code == 200
        assert (files.root / folder / "big.bin").read_bytes() == sender.content


class TestState:
    @pytest.mark.storage(90)
    async def test_upload_state_survives_a_restart_and_another_instance_continues(
        self, tmp_path: Path, database_dsn: str
    ):
        settings = storage_settings(tmp_path, database_dsn)
        content = random.Random(8).randbytes(2 * PART + 1)
        async with open_api(settings) as api:
            sender = Sender(await api.user("ana"), "file:///shared", content)
            await sender.send(0)
            before = (await sender.state()).json()
        async with open_api(settings) as one, open_api(settings) as other:
            headers = sender.caller.headers
            first = Sender(Caller(one, "ana", headers), sender.dest, content, uuid=sender.uuid)
            second = Sender(Caller(other, "ana", headers), sender.dest, content, uuid=sender.uuid)
            assert (await first.state()).json() == before
            answers = await asyncio.gather(first.send(1), second.send(2), second.send(0))
            assert [answer.status_code for answer in answers] == [200] * 3
            done = await asyncio.gather(first.complete(), second.complete())
            assert [answer.status_code for answer in done] == [200, 200]
            assert done[0].json() == done[1].json()
        assert (tmp_path / "files" / "shared" / "big.bin").read_bytes() == content

    async def test_upload_state_is_sufficient_to_resume(self, sender: Sender):
        await sender.send(0)
        await sender.send(2)
        state = (await sender.state()).json()
        assert (state["uuid"], state["path"]) == (sender.uuid, f"{sender.dest}/big.bin")
        assert (state["offset"], state["received"]) == (1000, [[0, 1000], [2000, 3000]])
        assert (state["missing_parts"], state["total_size"]) == ([1, 3, 4], len(sender.content))
        left = datetime.fromisoformat(state["expires_at"]) - datetime.now(UTC)
        assert timedelta(hours=23) < left <= timedelta(hours=24)

    async def test_discarded_upload_is_deleted_with_its_chunks(self, sender: Sender, files: Files, folder: str):
        await sender.send(0)
        assert (await sender.discard()).json() == {"status": 0, "path": f"{sender.dest}/big.bin"}
        assert everything(files.root / folder) == []
        for answer in (await sender.state(), await sender.discard(), await sender.complete()):
            assert told(answer) == (404, "upload_not_found")
        assert (await sender.send(1)).json()["received"] == [[1000, 2000]]

    async def test_discarding_a_completed_upload_keeps_the_file(self, sender: Sender, files: Files, folder: str):
        for index in range(sender.parts):
            await sender.send(index)
        await sender.complete()
        assert (await sender.discard()).status_code == 200
        assert everything(files.root / folder) == ["big.bin"]
