"""Upload of a file in one request (Contract storage 9.1)."""

import hashlib
from pathlib import Path

import pytest
from tests.api.driving import Caller
from tests.api.storage.conftest import Files


@pytest.fixture
async def ana(files: Files) -> Caller:
    return await files.api.user("ana")


@pytest.fixture
def place(files: Files) -> str:
    return files.place()


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


class TestUpload:
    @pytest.mark.storage(83)
    @pytest.mark.parametrize("part", ["local_file", "hdfs_file", "file"])
    async def test_a_file_arrives_under_each_name_of_its_part(self, ana: Caller, files: Files, place: str, part: str):
        content = b"a,b\n1,2\n"
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{place}", files={part: ("a.csv", content)})
        assert answer.status_code == 201, answer.text
        body = answer.json()
        assert (body["path"], body["size"], body["data"], body["next"]) == (f"file:///{place}/a.csv", 8, "", None)
        assert body["sha256"] == hashlib.sha256(content).hexdigest()
        assert (body["result"]["name"], body["result"]["type"]) == ("a.csv", "file")
        assert (body["file_stats"]["path"], body["file_stats"]["size"]) == (f"file:///{place}/a.csv", 8)
        assert (files.root / place / "a.csv").read_bytes() == content
        assert names(files.root / place) == ["a.csv"]
